"""`python -m rec_experiments.claims [scale=…] [runs=…] [out=FILE.json|.md] [KEY=…] | simulate`."""

import sys
from pathlib import Path

from rich.console import Console

from rec_experiments import command
from rec_experiments.claims import judged, simulation, tables
from rec_experiments.errors import UserError
from rec_experiments.files import write_atomic
from rec_experiments.results.collect import scales
from rec_experiments.results.tables import to_json

MINIATURES = "mini"  # how the scales begin that are judged where none is named
USAGE = """\
usage: python -m rec_experiments.claims [scale=NAME,…] [runs=FOLDER,…] [out=FILE] [KEY=…]
       python -m rec_experiments.claims simulate

scale     which of {scales}; default: {default}
runs      folders that hold the run folders; default: where the sweeps put them
out       FILE.json or FILE.md, to write the verdicts to as well
KEY       chooses the runs as on a sweep's command line: seed=0,1, …; default: the seeds of a scale
          (claim_seeds)
simulate  how often made-up runs are decided for a difference that is not there, or one that is"""

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
    out = Path(line.values["out"]) if "out" in line.values else None
    if out and out.suffix not in WRITERS:
        raise UserError(f"out={out}: the name must end in {' or '.join(WRITERS)}")
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


def main(arguments: list[str]) -> None:
    usage = USAGE.format(scales=", ".join(scales()), default=", ".join(_miniatures()))
    command.plain_main(run, usage, arguments)


if __name__ == "__main__":
    with command.told_once():
        main(sys.argv[1:])
