"""What `python -m rec_experiments --help` prints: commands, groups with choices, keys with values.

A default is read from where it is kept; the explanation of a key is the comment in its YAML file.
"""

import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from string import Template

import yaml
from omegaconf import OmegaConf, open_dict

from rec_experiments.cli.parser import WIDTH
from rec_experiments.config import schema
from rec_experiments.config.composition import choices_by_group, compose, composing

COLUMN = 32  # where the comment on a key begins


def page(overrides: list[str], commands: Mapping[str, str]) -> str:
    """The help page: hydra.help.template, filled in for these overrides. Hydra's own --help takes
    ten times as long to list the groups."""
    with composing():
        config = compose("config", overrides, return_hydra_config=True)
    template = Template(config.hydra.help.template)
    comments = comments_in(schema.CONF / "config.yaml")
    for group, choice in config.hydra.runtime.choices.items():
        comments |= _comments_of_choice(group, choice)
    with open_dict(config):
        del config["hydra"]
    groups = [f"{group}: {', '.join(choices)}" for group, choices in choices_by_group().items()]
    return template.substitute(
        COMMANDS="\n".join(table(commands)) + "\n",
        APP_CONFIG_GROUPS="\n".join(groups) + "\n",
        CONFIG=commented(OmegaConf.to_yaml(config), comments),
    )


def table(entries: Mapping[str, str]) -> list[str]:
    """Two columns: a name, and its text."""
    width = max(map(len, entries), default=0) + 2
    return [f"  {name:<{width}}{text}" for name, text in entries.items()]


def commented(text: str, comments: Mapping[str, str]) -> str:
    """A configuration in YAML, with the comment on each key next to it, or above a value of several
    lines."""
    lines = []
    for path, line in _keys(text):
        folded = textwrap.wrap(comments.get(path, ""), WIDTH - COLUMN - 2)
        if _continues(line):
            lines += [f"{'':<{COLUMN}}# {words}" for words in folded] + [line]
        else:
            lines.append(f"{line:<{COLUMN - 1}} # {folded[0]}" if folded else line)
            lines += [f"{'':<{COLUMN}}# {words}" for words in folded[1:]]
    return "\n".join(lines)


def _continues(line: str) -> bool:
    """Whether the value in a line of YAML ends in a later line."""
    value = line.partition(": ")[2]
    return value[:1] in ("|", ">") or (value[:1] in ("'", '"') and value[-1:] != value[:1])


def comments_in(file: Path) -> dict[str, str]:
    """The comment on each key of a configuration file, by dotted name: the one behind the key and
    the comment lines that follow."""
    found: dict[str, str] = {}
    last = ""
    for path, line in _keys(file.read_text(encoding="utf-8")):
        _, sign, words = line.partition(" #")
        last = path or (last if line.lstrip().startswith("#") else "")
        if last and sign:
            found[last] = f"{found.get(last, '')} {words.strip()}".lstrip()
    return found


def _comments_of_choice(group: str, choice: str | None) -> dict[str, str]:
    """The comments in the file of a choice, and in the files of its group that it is based on."""
    places = (root / group / f"{choice}.yaml" for root in schema.conf_folders())
    file = next(filter(Path.is_file, places), None)
    if file is None or group.startswith("hydra"):
        return {}
    text = file.read_text(encoding="utf-8")
    package = re.match(r"# @package (\S+)", text)
    prefix = {"_global_": ""}.get(package[1], f"{package[1]}.") if package else f"{group}."
    found: dict[str, str] = {}
    for parent in yaml.load(text, yaml.CSafeLoader).get("defaults", []):
        if isinstance(parent, str):
            found |= _comments_of_choice(group, parent)
    return found | {f"{prefix}{key}": words for key, words in comments_in(file).items()}


def _keys(text: str) -> Iterator[tuple[str, str]]:
    """Each line of a YAML text with the dotted name of the key that it begins with, or ""."""
    parents: list[tuple[int, str]] = []  # indentation and key
    for line in text.splitlines():
        match = re.match(r"( *)([\w-]+):(?= |$)", line)
        if match:
            depth = len(match[1])
            parents = [*((d, key) for d, key in parents if d < depth), (depth, match[2])]
        yield ".".join(key for _, key in parents) if match else "", line
