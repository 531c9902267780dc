"""`python -m rec_experiments.cli.run_job SUBMISSION NUMBER`: one job, as it was submitted."""

import sys
from pathlib import Path

from rec_experiments.cli import train
from rec_experiments.cli.errors import one_line_errors
from rec_experiments.config import schema
from rec_experiments.sweeps.submission import read


def main(folder: str, number: str) -> None:
    """Run the job, alone or as one of the ranks of torchrun."""
    with train.as_rank(), one_line_errors():
        job = read(Path(folder)).jobs[int(number)]
        # Provenance records the command that repeats this run alone.
        sys.orig_argv = [sys.executable, "-m", "rec_experiments", *job.overrides]
        train.start(schema.restore(job.config, job.overrides))


if __name__ == "__main__":
    main(*sys.argv[1:])
