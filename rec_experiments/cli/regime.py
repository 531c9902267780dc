"""Measures how far the policy moves between drawing and using a sample (mean over seeds), and
prints it next to published values. `regime check` compares the runs with targets; the exit code is
1 if a required target is missed."""

import sys
from argparse import Namespace
from collections.abc import Callable

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
from rec_experiments.cli.parser import OVERRIDES, RUNS, Parser, file_ending, path, run_folders
from rec_experiments.errors import UserError
from rec_experiments.files import write_out

MISSED = 1  # exit code of a check

Show = Callable[[Console], None]
Write = dict[str, Callable[[], bytes]]  # by suffix of the file


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "words", nargs="*", metavar="RUN", help="run folders; `check` before them compares them "
        "with targets",
    )  # fmt: skip
    parser.add_argument("--sweep", metavar="NAME", help="the runs of a figure, in place of folders")
    parser.add_argument("--runs", type=run_folders, metavar="FOLDER,…", help=RUNS)
    parser.add_argument(
        "--out", type=file_ending(".json", ".md"), metavar="FILE",
        help="FILE.json or FILE.md: also write the tables to this file; default: none",
    )  # fmt: skip
    parser.add_argument(
        "--targets", type=path, metavar="FILE",
        help=f"FILE.yaml with the targets of a check; default: {TARGETS.name} of this package",
    )  # fmt: skip
    parser.add_overrides(OVERRIDES)


def main(args: Namespace) -> None:
    checks = args.words[:1] == ["check"]
    if args.targets and not checks:
        raise UserError(f"targets={args.targets}: allowed only with check")
    targets = load(args.targets or TARGETS, Target)
    arms = read(args, args.words[checks:])
    found = check_targets(arms, targets) if checks else []
    if checks and not found:
        raise UserError("check: there is no target for these runs")
    show, write = _check(found) if checks else _regime(arms)
    if args.out:
        write_out(args.out, write[args.out.suffix]())
    show(Console())
    if any(not each.met and not each.target.optional for each in found):
        sys.exit(MISSED)


def read(args: Namespace, folders: list[str]) -> list[Arm]:
    """The arms that the command line names. Raises UserError if it names none."""
    if args.sweep is None:
        for key in (*(["runs"] if args.runs else []), *args.overrides):
            raise UserError(f"{key}: selects runs of a sweep; name one, as in sweep=fig3")
        if not folders:
            raise UserError("no runs are named: give run folders or a sweep, as in sweep=fig3")
        return arms_of([*map(path, folders)])
    for folder in folders:
        raise UserError(f"{folder}: not allowed with sweep={args.sweep}; give folders or a sweep")
    from rec_experiments.analysis.results.figure_data import collect  # composes configurations

    return arms_in(collect(args.sweep, args.runs, args.overrides))


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
