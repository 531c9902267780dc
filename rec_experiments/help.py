"""What `--help` prints: one style of page for runs and for every sub-command.

Options are written `key=value` everywhere. A default stands on a page as it is read from where it
is kept, never as a second copy.
"""

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from string import Template

from hydra import compose
from omegaconf import OmegaConf, open_dict

from rec_experiments.composition import choices_by_group, composing

PROGRAM = "python -m rec_experiments"
WIDTH = 100  # columns
# The sub-commands: the module or package of that name, and what it does.
COMMANDS = {
    "figures": "draw figures from runs",
    "claims": "judge the paper's claims on the runs that are there",
    "regime": "how far the policy moves, beside published values",
    "report": "one local page of figures, claims and runs",
    "sweeps": "list the jobs of a sweep, see what has become of them",
    "algorithms": "list the presets with their formulas",
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
    values that the overrides leave. Hydra's own --help takes ten times as long to list the groups.
    """
    with composing():
        config = compose(config_name, overrides, return_hydra_config=True)
    page = Template(config.hydra.help.template)
    with open_dict(config):
        del config["hydra"]
    groups = [f"{group}: {', '.join(choices)}" for group, choices in choices_by_group().items()]
    return page.substitute(
        COMMANDS="\n".join(table(COMMANDS)) + "\n",
        APP_CONFIG_GROUPS="\n".join(groups) + "\n",
        CONFIG=OmegaConf.to_yaml(config),
    )
