"""Writes docs/algorithms.md from the configurations: `make pages`."""

from pathlib import Path
from typing import Any

import yaml

from rec_experiments.algo import words
from rec_experiments.cli.algorithms import changes
from rec_experiments.config import schema
from rec_experiments.config.composition import compose, composing
from rec_experiments.config.experiment import Pieces

HERE = Path(__file__).parent
PAGE = HERE / "algorithms.md"


def page() -> str:
    """The whole page."""
    notes = read("algorithms.yaml")
    names = sorted(path.stem for path in (schema.CONF / "algo").glob("*.yaml"))
    if missing := sorted(set(names) ^ set(notes)):
        raise SystemExit(f"docs/algorithms.yaml and conf/algo differ: {', '.join(missing)}")
    with composing():
        base = compose("algorithm", ["algo=reinforce"])
        chosen = {name: compose("algorithm", [f"algo={name}"]) for name in notes}
    table = ["| Preset | Effect |", "| --- | --- |"]
    table += [f"| [`{name}`](#{name}) | {notes[name]['effect']} |" for name in notes]
    sections = [section(name, config, base, notes[name]) for name, config in chosen.items()]
    template = (HERE / "algorithms.template").read_text()
    filled = {
        "{table}": "\n".join(table),
        "{presets}": "\n\n".join(sections),
        "{names}": "\n".join(names_table(read("names.yaml"))),
        "{peers}": "\n\n".join(map(comparison, *zip(*read("peers.yaml").items(), strict=True))),
    }
    for place, text in filled.items():
        template = template.replace(place, text)
    return template


def read(name: str) -> Any:
    return yaml.safe_load((HERE / name).read_text())


def names_table(rows: list[dict[str, Any]]) -> list[str]:
    """A row for each other objective that goes by a preset's name."""
    head = ["Name", "The preset", "The other objective", "Used by", "How to get it here"]
    lines = [f"| {' | '.join(head)} |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        here = [f"`algo={' '.join(row['here'])}`"] if row["here"] else ["–"]
        here += [row["why"][:1].upper() + row["why"][1:]] if "why" in row else []
        cells = [
            f"[`{row['name']}`](#{row['name']})",
            *(row[key] for key in ("paper", "elsewhere", "who")),
        ]
        lines.append(f"| {' | '.join([*cells, '. '.join(here)])} |")
    return lines


def comparison(peer: str, found: dict[str, Any]) -> str:
    """A row for each loss of a peer: the equal preset, or why there is none."""
    lines = [
        f"### {peer} {found['version']}, `{found['what']}`",
        "",
        "| Its settings | The preset | Gradient | Note |",
        "| --- | --- | --- | --- |",
    ]
    for row in found["rows"]:
        there = ", ".join(f"{key}={value}" for key, value in row["call"].items())
        here = f"`{' '.join(row['ours'])}`" if "ours" in row else "–"
        same = "equal" if row.get("times", 1) == 1 else f"equal times {row['times']:g}"
        note = row.get("note", "")
        lines.append(f"| `{there}` | {here} | {same if 'ours' in row else '–'} | {note} |")
    return "\n".join(lines)


def section(name: str, config: Any, base: Any, note: dict[str, Any]) -> str:
    """One preset: its source, effect, formula and choices, and other implementations."""
    pieces = schema.build(config, Pieces)
    changed = changes(config, base)
    lines = [f"## {name}", "", f"{pieces.algo.name} ({pieces.algo.source}) {note['effect']}.", ""]
    lines += ["```", *words.describe(pieces.algorithm()), "```", ""]
    if changed:
        lines.append(f"Differs from REINFORCE in: {', '.join(changed)}.")
    if roles := sorted(pieces.algorithm().needs.logps):
        lines.append(f"Needs {', '.join(f'`{role}_logp`' for role in roles)}.")
    lines.append(f"Checked against {note['checked']}.")
    if peers := note.get("peers"):
        lines += ["", *(f"- {peer}." for peer in peers)]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page())
