"""`python -m rec_experiments algorithms`: the presets, ours and those of outside packages."""

from dataclasses import fields
from typing import Any

from hydra import compose
from omegaconf import DictConfig, OmegaConf

from rec_experiments.cli import command, help
from rec_experiments.config import schema
from rec_experiments.config.composition import choices_by_group, composing
from rec_experiments.config.experiment import Pieces
from rec_experiments.errors import UserError
from rec_experiments.files import write_atomic

BASE = "reinforce"  # what the others are compared with
PAGE = help.Page(
    command="algorithms",
    usage=("[NAME …] [out=FILE.md]",),
    about="Lists the presets of this project and of installed packages. Of those that are named, "
    "the formula and the choices.",
    entries={
        "NAME": "a preset, as in algo=NAME",
        "out=FILE.md": "writes a page of them in place of the list; default: none",
    },
)


def presets() -> list[str]:
    """By name, ours and those of outside packages."""
    return choices_by_group()["algo"]


def composed(names: list[str]) -> dict[str, DictConfig]:
    """The configuration of each method. Raises UserError for one that there is not."""
    with composing():
        return {name: compose("algorithm", [f"algo={name}"]) for name in names}


def formula(config: DictConfig) -> list[str]:
    """The method in lines."""
    return schema.build(config, Pieces).algorithm().describe()


def changes(config: DictConfig, base: DictConfig) -> list[str]:
    """Where a method differs from another, as in `clip` one_side (low 0.2, high 0.2)."""
    return [
        _written(field.name, config[field.name])
        for field in fields(Pieces)
        if field.name != "algo" and config[field.name] != base[field.name]
    ]


def section(name: str, config: DictConfig, base: DictConfig) -> list[str]:
    """One preset as Markdown: its name and source, its formula, its choices."""
    lines = [f"## {name}", "", f"{config.algo.name} ({config.algo.source}).", ""]
    lines += ["```", *formula(config), "```"]
    if changed := changes(config, base):
        lines += ["", f"Other than REINFORCE's: {', '.join(changed)}."]
    return lines


def _written(group: str, config: DictConfig) -> str:
    values: Any = OmegaConf.to_container(config, resolve=True)
    kind = values.pop("kind")
    of_it = [f"{key} {'null' if value is None else value}" for key, value in values.items()]
    return f"`{group}` {kind}" + (f" ({', '.join(of_it)})" if of_it else "")


def run(arguments: list[str]) -> None:
    """Raises UserError for a name that is none and a file that cannot be written."""
    line = command.parse(arguments, "out")
    for override in line.overrides:
        raise UserError(f"{override}: is not understood; allowed: NAME …, out=FILE.md")
    out = command.out_file(line, ".md")
    there = presets()
    for name in line.words:
        if name not in there:
            raise UserError(f"{name}: no such preset; allowed: {', '.join(there)}")
    names = line.words or there
    found = composed([BASE, *names])
    sections = [section(name, found[name], found[BASE]) for name in names]
    if out:
        text = "\n".join(["# Algorithms", *(row for each in sections for row in ["", *each])])
        with command.writing(out):
            write_atomic(out, f"{text}\n".encode())
        print(out)
    elif line.words:
        print("\n\n".join("\n".join(each) for each in sections))
    else:
        lines = {name: f"{found[name].algo.name} ({found[name].algo.source})" for name in names}
        print("\n".join(help.table(lines)))


def main(arguments: list[str]) -> None:
    command.plain_main(run, PAGE, arguments)
