"""What `python -m rec_experiments --help` prints.

The explanation of a group, a choice or a key is the YAML file that holds it, comments and all.
"""

import re
import textwrap
from collections.abc import Mapping, Sequence

from rec_experiments.cli.parser import PROGRAM, WIDTH
from rec_experiments.common.errors import UserError, meant
from rec_experiments.config.plugins import choices_by_group, conf_file

KEYS = "keys"  # the keys of a run itself, which belong to no group
FIRST = """\
{program} [group=choice] [key=value] …      one run
{program} -m [key=value,value] …            a run for each combination of the values
{program} COMMAND …

Off-policy REINFORCE for language models (arXiv 2509.24203). A run ends in a folder under runs/;
the same command resumes it. Without arguments it trains the embedded miniature.

Examples
  {program} algo=rec_ring sync=offset10
  {program} algo=grpo clip=two_side clip.high=2.0 sync.interval=4 sync.offset=2
  {program} -m algo=reinforce,grpo seed=0,1  compares two methods
  {program} -m sweep=fig3                    makes the runs of a figure
  {program} --cfg job --resolve              shows the whole experiment

Commands (COMMAND --help tells more)
{commands}

Groups (--help GROUP lists a group's choices; --help GROUP=CHOICE shows one, with its keys)
{groups}

--help {keys} explains the keys of a run, such as seed and steps; values are in Hydra's grammar."""


def page(words: Sequence[str], commands: Mapping[str, str]) -> str:
    """The first page; for words that name groups or choices, what their files say. Raises
    UserError for a word that names neither."""
    groups = choices_by_group()
    asked = [word for word in words if "=" not in word or word.partition("=")[0] in groups]
    if asked:
        return "\n\n".join(_about(word) for word in asked)
    return FIRST.format(
        program=PROGRAM,
        commands="\n".join(table(commands)),
        groups=textwrap.fill(", ".join(groups), WIDTH, initial_indent="  ", subsequent_indent="  "),
        keys=KEYS,
    )


def table(entries: Mapping[str, str]) -> list[str]:
    """Two columns of at most WIDTH characters: a name, and its text."""
    width = max(map(len, entries), default=0) + 2
    room = WIDTH - width - 2
    texts = {
        name: textwrap.shorten(text, room, placeholder=" …", break_on_hyphens=False)
        for name, text in entries.items()
    }
    return [f"  {name:<{width}}{text}".rstrip() for name, text in texts.items()]


def _about(word: str) -> str:
    """A group with its choices, or the file of one choice."""
    group, _, choice = word.partition("=")
    groups = choices_by_group()
    if word == KEYS:
        return _text("config")
    if group not in groups:
        raise UserError(f"--help {word}: no such group; {meant(word, [*groups, KEYS])}")
    if not choice:
        comments = {name: _comment(f"{group}/{name}") for name in groups[group]}
        return "\n".join([group, *table(comments)])
    if choice not in groups[group]:
        raise UserError(f"{word}: no such choice; {meant(choice, groups[group])}")
    return f"{word}\n{_text(f'{group}/{choice}')}".rstrip()


def _comment(file: str) -> str:
    """The first sentence of the comment at the head of a file, or ""."""
    first = next((line for line in _text(file).splitlines() if "@package" not in line), "")
    sentences = re.split(r"(?<!Eq|Dr)\. ", first.lstrip("# "))
    return sentences[0] if first.startswith("#") else ""


def _text(file: str) -> str:
    found = conf_file(file)
    assert found, file
    return found.read_text(encoding="utf-8")
