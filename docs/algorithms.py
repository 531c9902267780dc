"""Writes docs/algorithms.md from the configurations: `make pages`."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml
from hydra import compose
from omegaconf import OmegaConf

from rec_experiments import schema
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
    changed = [
        written(field.name, config[field.name])
        for field in fields(Pieces)
        if field.name != "algo" and config[field.name] != base[field.name]
    ]
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


def written(group: str, config: Any) -> str:
    """A choice with its values, as in `clip` one_side (low 0.2, high 0.2)."""
    values = OmegaConf.to_container(config, resolve=True)
    kind = values.pop("kind")
    of_it = [f"{key} {'null' if value is None else value}" for key, value in values.items()]
    return f"`{group}` {kind}" + (f" ({', '.join(of_it)})" if of_it else "")


if __name__ == "__main__":
    PAGE.write_text(page())
