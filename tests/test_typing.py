"""The type checker sees what stands behind every slot of the experiment."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SNIPPET = """
from rec_experiments.config.experiment import Experiment

def wrong(experiment: Experiment) -> None:
    temperature: str = experiment.sampler.temperature
    epochs: str = experiment.updates.epochs
    experiment.pipeline.no_such_thing()
    experiment.optimizer.rate("soon")
    experiment.clip.no_such_bound
    experiment.dataset.max_prompt_tokens.no_such_thing
    experiment.tracking.start(1)
"""


def test_every_slot_has_a_type(tmp_path):
    file = tmp_path / "wrong.py"
    file.write_text(SNIPPET)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", str(file)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line}
    assert lines == set(range(5, 12)), done.stdout
