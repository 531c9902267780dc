"""`python -m rec_experiments figures`: pictures, data and statistics of a figure."""

from dataclasses import dataclass, replace
from pathlib import Path

from rec_experiments.analysis import claims, regime
from rec_experiments.analysis.claims import tables
from rec_experiments.analysis.figures import catalogue
from rec_experiments.analysis.figures.computed import COMPUTED
from rec_experiments.analysis.figures.curves import WINDOW
from rec_experiments.analysis.figures.render import Drawing, write
from rec_experiments.analysis.results.figure_data import NoRuns, collect
from rec_experiments.analysis.results.summary import remarks
from rec_experiments.cli import command, help
from rec_experiments.errors import UserError

OUT = "figures"


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What the command line asks for."""

    names: list[str]
    out: Path
    runs: list[Path] | None
    smooth: int
    overrides: list[str]


def parse(arguments: list[str]) -> Request:
    """Raises UserError for an unknown figure or a value that is out of range."""
    line = command.parse(arguments, "out", "runs", "smooth")
    if len(line.words) != 1:
        raise UserError(f"one figure is wanted, not {len(line.words)}; allowed: {_allowed()}")
    [name] = line.words
    if name not in [*catalogue.names(), "all"]:
        raise UserError(f"figure {name}: no such figure; allowed: {_allowed()}")
    smooth = line.values.get("smooth", str(WINDOW))
    if not smooth.isdecimal() or int(smooth) < 1:
        raise UserError(f"smooth={smooth}: must be a whole number of steps, at least 1")
    if line.overrides and name in COMPUTED:
        key = line.overrides[0].partition("=")[0]
        raise UserError(f"{key}: {name} is computed, it takes only out=FOLDER")
    return Request(
        names=catalogue.usual() if name == "all" else [name],
        out=Path(line.values.get("out", OUT)),
        runs=line.runs,
        smooth=int(smooth),
        overrides=line.overrides,
    )


def make(name: str, request: Request) -> tuple[Drawing, list[str]]:
    """A figure, and what must be said of it."""
    if name in COMPUTED:
        return COMPUTED[name](), []
    data = collect(name, request.runs, request.overrides)
    found = claims.verdicts_in(data)
    drawing = catalogue.draw(data, request.smooth)
    measured = regime.of_figure(data)
    with_claims = replace(
        drawing,
        statistics={
            **drawing.statistics,
            "claims": [tables.plain(each) for each in found],
            "regime": regime.tables.plain(measured),
        },
        summary=f"{drawing.summary}\nClaims, as far as {name} shows them\n\n{tables.text(found)}"
        f"\nRegime\n\n{regime.tables.text(measured)}",
    )
    return with_claims, [*remarks(data), *(each.sentence for each in found)]


def run(request: Request) -> None:
    """Write every figure asked for; those without a run are named at the end."""
    without: dict[str, NoRuns] = {}
    for name in request.names:
        try:
            drawing, notes = make(name, request)
        except NoRuns as error:
            without[name] = error
            continue
        with command.writing(request.out):
            first, *others = write(drawing, request.out)
        print(f"{name}: {first} and {', '.join(path.suffix for path in others)}")
        for note in notes:
            print(f"  {note}")
    if len(without) == 1:
        raise next(iter(without.values()))
    if without:
        raise UserError(
            f"no run found for {', '.join(without)}; make those of a figure with: "
            "python -m rec_experiments -m sweep=FIGURE"
        )


def page() -> help.Page:
    return help.Page(
        command="figures",
        usage=("NAME [out=FOLDER] [runs=FOLDER,…] [smooth=STEPS] [KEY=VALUE …]",),
        about="Draws a figure from its runs, as far as they went.",
        entries={
            "NAME": f"{_allowed()}, or all, which is all but staleness and its kind",
            "out=FOLDER": "for NAME.png, .pdf, .csv (the data), .json and .txt (statistics); "
            f"default: {OUT}",
            "runs=FOLDER,…": help.RUNS,
            "smooth=STEPS": f"of the running average of the training reward; default: {WINDOW}",
            "KEY=VALUE": help.KEY,
        },
    )


def main(arguments: list[str]) -> None:
    command.plain_main(lambda given: run(parse(given)), page(), arguments)


def _allowed() -> str:
    return ", ".join(catalogue.names())
