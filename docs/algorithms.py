"""Writes docs/algorithms.md from the configurations: `make pages`."""

from pathlib import Path
from typing import Any

import yaml
from hydra import compose

from rec_experiments import schema
from rec_experiments.algorithms import changes
from rec_experiments.composition import composing
from rec_experiments.experiment import Pieces

HERE = Path(__file__).parent
PAGE = HERE / "algorithms.md"


def page() -> str:
    """The whole page."""
    notes = yaml.safe_load((HERE / "algorithms.yaml").read_text())
    names = sorted(path.stem for path in (schema.CONF / "algo").glob("*.yaml"))
    if missing := sorted(set(names) ^ set(notes)):
        raise SystemExit(f"docs/algorithms.yaml and conf/algo differ: {', '.join(missing)}")
    with composing():
        base = compose("algorithm", ["algo=reinforce"])
        chosen = {name: compose("algorithm", [f"algo={name}"]) for name in notes}
    table = ["| preset | what it does |", "| --- | --- |"]
    table += [f"| [`{name}`](#{name}) | {notes[name]['effect']} |" for name in notes]
    sections = [section(name, config, base, notes[name]) for name, config in chosen.items()]
    template = (HERE / "algorithms.template").read_text()
    filled = {"{table}": "\n".join(table), "{presets}": "\n\n".join(sections)}
    for place, text in filled.items():
        template = template.replace(place, text)
    return template


def section(name: str, config: Any, base: Any, note: dict[str, Any]) -> str:
    """One preset: its formula, its choices, its source, and who else has it."""
    pieces = schema.build(config, Pieces)
    effect = note["effect"][:1].upper() + note["effect"][1:]
    changed = changes(config, base)
    lines = [f"## {name}", "", f"{pieces.algo.name} ({pieces.algo.source}). {effect}.", ""]
    lines += ["```", *pieces.algorithm().describe(), "```", ""]
    if changed:
        lines.append(f"Other than REINFORCE's: {', '.join(changed)}.")
    if roles := sorted(pieces.algorithm().needs.logps):
        lines.append(f"Reads {', '.join(f'`{role}_logp`' for role in roles)}.")
    lines.append(f"Checked against {note['checked']}.")
    if peers := note.get("peers"):
        lines += ["", *(f"- {peer}." for peer in peers)]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page())
