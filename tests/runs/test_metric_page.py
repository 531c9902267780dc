"""The catalogue of metrics is what runs log."""

import pytest
from conftest import SMALL, run

from rec_experiments.runs import metrics

KNOWN = {key for topic in metrics.catalogue().values() for key in topic}
HINT = "describe new metrics in rec_experiments/runs/metrics.yaml"
AT_LAG_0 = {"train/mismatch", "train/mismatch_max"}  # where no token is behind the trainer
OF_SEVERAL_UPDATES = {"time/proximal"}
IN_FLIGHT = {
    "train/token_age", "train/token_age_max", "train/several_versions", "train/late",
    "train/late_accuracy", "train/in_time_length",
}  # fmt: skip


@pytest.mark.parametrize("dataset", ["reduction", "calculator"])
def test_runs_log_what_the_catalogue_says_and_no_more(tmp_path, dataset):
    folder = run(tmp_path, *SMALL, f"dataset={dataset}", "sync.interval=2")
    logged = {key for row in folder.metrics() for key in row} - {"step"}
    assert logged | AT_LAG_0 | OF_SEVERAL_UPDATES | IN_FLIGHT == KNOWN, HINT


@pytest.mark.parametrize(
    ("words", "more"),
    [
        (("sync=in_flight", "sync.versions=2"), IN_FLIGHT),
        (("updates=twice", "ratio=proximal"), OF_SEVERAL_UPDATES),
    ],
)
def test_what_other_runs_log_besides(tmp_path, words, more):
    folder = run(tmp_path, *SMALL, *words)
    assert more <= {key for row in folder.metrics() for key in row} - {"step"} <= KNOWN, HINT
