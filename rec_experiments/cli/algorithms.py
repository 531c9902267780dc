"""Lists the presets of this project and of installed packages. If presets are named, it prints
their formulas and choices."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Annotated, Any

from cyclopts import Parameter
from omegaconf import DictConfig, OmegaConf

from rec_experiments.cli import help
from rec_experiments.common.errors import UserError, meant
from rec_experiments.common.pieces import TARGET, class_name
from rec_experiments.config import schema
from rec_experiments.config.composition import composing
from rec_experiments.config.experiment import Pieces
from rec_experiments.config.plugins import choices_by_group

BASE = "reinforce"  # the preset that others are compared with
GROUPS = tuple(field.name for field in fields(Pieces) if field.name != "algo")


def main(
    *names: Annotated[str, Parameter("NAME", help="presets, as in algo=NAME")],
) -> None:
    """Raises UserError for an unknown preset."""
    allowed = choices_by_group()["algo"]
    for name in names:
        if name not in allowed:
            raise UserError(f"{name}: no such preset; {meant(name, allowed)}")
    with composing() as compose:
        wanted = (BASE, *(names or allowed))
        found = {name: compose("algorithm", [f"algo={name}"]) for name in wanted}
    if names:
        print("\n\n".join(section(name, found[name], found[BASE]) for name in names))
    else:
        lines = {name: f"{found[name].algo.name} ({found[name].algo.source})" for name in allowed}
        print("\n".join(help.table(lines)))


def section(name: str, config: DictConfig, base: DictConfig) -> str:
    """One preset in Markdown: name and source, formula, choices."""
    lines = [f"## {name}", "", f"{config.algo.name} ({config.algo.source}).", ""]
    lines += ["```", *schema.build(config, Pieces).algorithm().describe(), "```"]
    if changed := changes(config, base):
        lines += ["", f"Differs from REINFORCE in: {', '.join(changed)}."]
    return "\n".join(lines)


def changes(config: DictConfig, base: DictConfig, groups: Sequence[str] = GROUPS) -> list[str]:
    """Where a method differs from another, as in `clip` one_side (low 0.2, high 0.2)."""
    return [_written(group, config[group]) for group in groups if config[group] != base[group]]


def _written(group: str, config: DictConfig) -> str:
    values: Any = OmegaConf.to_container(config, resolve=True)
    kind = class_name(values)
    del values[TARGET]
    fields = [f"{key} {'null' if value is None else value}" for key, value in values.items()]
    return f"`{group}` {kind}" + (f" ({', '.join(fields)})" if fields else "")
