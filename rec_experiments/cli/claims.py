"""`python -m rec_experiments claims`: the verdicts on the paper's claims."""

from rich.console import Console

from rec_experiments.analysis.claims import judged, simulation, tables
from rec_experiments.analysis.results.figure_data import scales
from rec_experiments.analysis.results.formatting import to_json
from rec_experiments.cli import command, help
from rec_experiments.errors import UserError
from rec_experiments.files import write_atomic

MINIATURES = "mini"  # how the scales begin that are judged where none is named
WRITERS = {
    ".json": lambda found: to_json(
        [tables.plain(verdict) for verdicts in found.values() for verdict in verdicts]
    ),
    ".md": lambda found: tables.markdown(found).encode(),
}


def run(arguments: list[str]) -> None:
    """Raises UserError for a wrong argument or a file that cannot be written."""
    if arguments == ["simulate"]:
        simulation.show(Console())
        return
    line = command.parse(arguments, "scale", "runs", "out")
    line.refuse_words("simulate alone, or scale=NAME,…, runs=FOLDER,…, out=FILE, KEY=VALUE")
    chosen = line.values["scale"].split(",") if "scale" in line.values else _miniatures()
    for scale in chosen:
        if scale not in scales():
            raise UserError(
                f"scale={scale}: no such scale; allowed, with commas: {', '.join(scales())}"
            )
    out = command.out_file(line, *WRITERS)
    found = {}
    for scale in chosen:
        with Console(stderr=True).status(f"reading the runs of scale {scale}"):
            found[scale] = judged(scale, line.runs, line.overrides)
    if out:
        with command.writing(out):
            write_atomic(out, WRITERS[out.suffix](found))
    tables.show(Console(), found)


def _miniatures() -> list[str]:
    return [scale for scale in scales() if scale.startswith(MINIATURES)]


def page() -> help.Page:
    return help.Page(
        command="claims",
        usage=("[scale=NAME,…] [runs=FOLDER,…] [out=FILE] [KEY=VALUE …]", "simulate"),
        about="Judges the paper's claims on the runs that are there.",
        entries={
            "scale=NAME,…": f"which of {', '.join(scales())}; default: {', '.join(_miniatures())}",
            "runs=FOLDER,…": help.RUNS,
            "out=FILE": "FILE.json or FILE.md, to write the verdicts to as well; default: none",
            "KEY=VALUE": f"{help.KEY}; default: the seeds of a scale (claim_seeds)",
            "simulate": "how often made-up runs are decided for a difference that is not there, or "
            "for one that is",
        },
    )


def main(arguments: list[str]) -> None:
    command.plain_main(run, page(), arguments)
