"""What `--help` prints: one style of page for runs and for every sub-command.

Options are written `key=value` everywhere. A default stands on a page as it is read from where it
is kept, never as a second copy.
"""

import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template

import yaml
from hydra import compose
from omegaconf import OmegaConf, open_dict

from rec_experiments.config import schema
from rec_experiments.config.composition import choices_by_group, composing

PROGRAM = "python -m rec_experiments"
WIDTH, COLUMN = 100, 32  # columns of a page, and where the remark on a key begins
# The sub-commands: the module or package of that name, and what it does.
COMMANDS = {
    "watch": "where runs stand, and whether a collapse may be coming",
    "figures": "draw figures from runs",
    "claims": "judge the paper's claims on the runs that are there",
    "regime": "how far the policy moves, beside published values",
    "report": "one local page of figures, claims and runs",
    "sweeps": "list the jobs of a sweep, see what has become of them",
    "algorithms": "list the presets with their formulas",
    "plan": "what a run would need: memory of each phase, time of a step",
    "export": "a run's model as a folder of transformers",
    "evaluate": "score a run's model, or any other",
    "tune": "choose each method's learning rate from the runs of a tuning sweep",
    "check_data": "does a verifier accept its data set's own answers",
    "new": "begin a package of your own: an algorithm or a task",
}
# What several pages say of the same key.
RUNS = "folders that hold the run folders; default: where the sweeps put them"
KEY = "chooses runs as on the sweep's own command line: scale=paper, seed=0,1, …"


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """The help of a sub-command.

    usage: what may follow its name, a line for each way. about: what it does, in sentences.
    entries: each word or KEY=VALUE that may be given, and what it means with its default.
    """

    command: str
    usage: tuple[str, ...]
    about: str
    entries: Mapping[str, str]

    def __str__(self) -> str:
        ways = [f"{PROGRAM} {self.command} {way}".rstrip() for way in self.usage]
        lines = [f"{'usage:' if not n else '':<7}{way}" for n, way in enumerate(ways)]
        return "\n".join(
            [*lines, "", *textwrap.wrap(self.about, WIDTH), "", *table(self.entries)]
        ).rstrip()


def table(entries: Mapping[str, str]) -> list[str]:
    """A line for each entry, its text folded into a column of its own."""
    width = max(map(len, entries), default=0) + 4
    folded = {
        name: textwrap.wrap(text, WIDTH - width, break_long_words=False) or [""]
        for name, text in entries.items()
    }
    return [
        f"  {name if not n else '':<{width - 2}}{line}".rstrip()
        for name, lines in folded.items()
        for n, line in enumerate(lines)
    ]


def page_of_a_run(config_name: str, overrides: list[str]) -> str:
    """The page of hydra.help.template: sub-commands, groups with their choices, and keys with the
    values that the overrides leave and the remarks that their files make on them. Hydra's own
    --help takes ten times as long to list the groups.
    """
    with composing():
        config = compose(config_name, overrides, return_hydra_config=True)
    page = Template(config.hydra.help.template)
    remarks = remarks_in(schema.CONF / f"{config_name}.yaml")
    for group, choice in config.hydra.runtime.choices.items():
        remarks |= _remarks_of_choice(group, choice)
    with open_dict(config):
        del config["hydra"]
    groups = [f"{group}: {', '.join(choices)}" for group, choices in choices_by_group().items()]
    return page.substitute(
        COMMANDS="\n".join(table(COMMANDS)) + "\n",
        APP_CONFIG_GROUPS="\n".join(groups) + "\n",
        CONFIG=remarked(OmegaConf.to_yaml(config), remarks),
    )


def remarked(text: str, remarks: Mapping[str, str]) -> str:
    """A configuration as YAML, each key with its remark in a column of its own; above a text of
    several lines."""
    lines = []
    for path, line in _keys(text):
        folded = textwrap.wrap(remarks.get(path, ""), WIDTH - COLUMN - 2)
        if _goes_on(line):
            lines += [f"{'':<{COLUMN}}# {words}" for words in folded] + [line]
        else:
            lines.append(f"{line:<{COLUMN - 1}} # {folded[0]}" if folded else line)
            lines += [f"{'':<{COLUMN}}# {words}" for words in folded[1:]]
    return "\n".join(lines)


def _goes_on(line: str) -> bool:
    """Whether the value of a line of YAML ends on a later one."""
    value = line.partition(": ")[2]
    return value[:1] in ("|", ">") or (value[:1] in ("'", '"') and value[-1:] != value[:1])


def remarks_in(file: Path) -> dict[str, str]:
    """What a configuration file says of its keys, by their dotted names: the comment behind a key
    and the lines of comment that follow it."""
    found: dict[str, str] = {}
    last = ""
    for path, line in _keys(file.read_text(encoding="utf-8")):
        _, sign, words = line.partition(" #")
        last = path or (last if line.lstrip().startswith("#") else "")
        if last and sign:
            found[last] = f"{found.get(last, '')} {words.strip()}".lstrip()
    return found


def _remarks_of_choice(group: str, choice: str | None) -> dict[str, str]:
    """Of the file of a choice and those of its group that it is made of, below the key where they
    stand."""
    file = next(
        (f for root in schema.conf_folders() if (f := root / group / f"{choice}.yaml").is_file()),
        None,
    )
    if file is None or group.startswith("hydra"):
        return {}
    text = file.read_text(encoding="utf-8")
    package = re.match(r"# @package (\S+)", text)
    place = package[1] if package else group
    below = {} if place == "_global_" else {f"{place}.{k}": v for k, v in remarks_in(file).items()}
    parents = yaml.safe_load(text).get("defaults", []) if choice else []
    inherited = [_remarks_of_choice(group, each) for each in parents if isinstance(each, str)]
    return {key: words for found in [*inherited, below] for key, words in found.items()}


def _keys(text: str) -> Iterator[tuple[str, str]]:
    """Each line of a YAML text with the dotted name of the key that it begins with, or ""."""
    parents: list[tuple[int, str]] = []  # depth of indentation, and the key there
    for line in text.splitlines():
        match = re.match(r"( *)([\w-]+):(?= |$)", line)
        if match:
            depth = len(match[1])
            parents = [*((d, key) for d, key in parents if d < depth), (depth, match[2])]
        yield ".".join(key for _, key in parents) if match else "", line
