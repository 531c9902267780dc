"""`python -m rec_experiments regime`: how far runs move, beside published values."""

import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from rec_experiments.analysis import regime
from rec_experiments.analysis.regime import tables
from rec_experiments.analysis.regime.arms import Arm, arms_in, arms_of
from rec_experiments.analysis.regime.ranges import (
    TARGETS,
    Target,
    TargetResult,
    check_targets,
    load,
)
from rec_experiments.analysis.results.formatting import to_json
from rec_experiments.cli import command, help
from rec_experiments.errors import UserError
from rec_experiments.files import write_atomic

MISSED = 1  # exit code of a check

Show = Callable[[Console], None]
Write = dict[str, Callable[[], bytes]]  # by the end of a file's name


def read(line: command.CommandLine, words: list[str]) -> list[Arm]:
    """The arms that the command line names. Raises UserError if it names none."""
    name = line.values.get("sweep")
    if name is None:
        for key in (*line.values.keys() & {"runs"}, *line.overrides):
            raise UserError(f"{key}: chooses runs of a sweep; name one, as in sweep=fig3")
        if not words:
            raise UserError("no runs are named: give run folders, or a sweep, as in sweep=fig3")
        return arms_of([Path(word) for word in words])
    for word in words:
        raise UserError(f"{word}: does not go with sweep={name}; name folders or a sweep")
    from rec_experiments.analysis.results.figure_data import (
        collect,  # it composes: folders need it not
    )

    return arms_in(collect(name, line.runs, line.overrides))


def _regime(arms: list[Arm]) -> tuple[Show, Write]:
    found = regime.of_arms(arms)
    return lambda console: tables.show(console, found), {
        ".json": lambda: to_json(tables.plain(found)),
        ".md": lambda: tables.markdown(found).encode(),
    }


def _check(found: list[TargetResult]) -> tuple[Show, Write]:
    return lambda console: tables.show_targets(console, found), {
        ".json": lambda: to_json(tables.plain_targets(found)),
        ".md": lambda: tables.targets_markdown(found).encode(),
    }


def run(arguments: list[str]) -> None:
    """Raises UserError for a wrong argument or a file that cannot be written."""
    line = command.parse(arguments, "sweep", "runs", "out", "targets")
    checks = line.words[:1] == ["check"]
    if "targets" in line.values and not checks:
        raise UserError(f"targets={line.values['targets']}: goes with check only")
    out = command.out_file(line, ".json", ".md")
    targets = load(Path(line.values.get("targets", TARGETS)), Target)
    arms = read(line, line.words[checks:])
    found = check_targets(arms, targets) if checks else []
    if checks and not found:
        raise UserError("check: no target is for these runs")
    show, write = _check(found) if checks else _regime(arms)
    if out:
        with command.writing(out):
            write_atomic(out, write[out.suffix]())
    show(Console())
    if any(not each.met and not each.target.optional for each in found):
        sys.exit(MISSED)


def page() -> help.Page:
    return help.Page(
        command="regime",
        usage=(
            "RUN … [out=FILE]",
            "sweep=NAME [runs=FOLDER,…] [out=FILE] [KEY=VALUE …]",
            "check RUN … [targets=FILE] [out=FILE]",
            "check sweep=NAME … [targets=FILE] [out=FILE]",
        ),
        about="How far the policy moves between drawing and using a sample, mean over seeds, "
        "beside published values. `check` holds runs against targets; its exit code is 1 if one "
        "is missed, wishes aside.",
        entries={
            "RUN": "run folders",
            "sweep=NAME": "the runs of a figure",
            "runs=FOLDER,…": help.RUNS,
            "out=FILE": "FILE.json or FILE.md, to write the tables to as well; default: none",
            "targets=FILE": f"FILE.yaml; default: {TARGETS.name} of this package",
            "KEY=VALUE": help.KEY,
        },
    )


def main(arguments: list[str]) -> None:
    command.plain_main(run, page(), arguments)
