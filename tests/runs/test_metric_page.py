"""The page of metrics is made of the catalogue, and the catalogue is what runs log."""

from pathlib import Path

import pytest
import yaml
from conftest import SMALL, run

from rec_experiments.runs import metrics

DOCS = Path(__file__).parents[2] / "docs"
KNOWN = {key for topic in metrics.catalogue().values() for key in topic}
HINT = "describe new metrics in rec_experiments/runs/metrics.yaml"
AT_LAG_0 = {"train/mismatch", "train/mismatch_max"}  # where no token is behind the trainer
OF_SEVERAL_UPDATES = {"time/proximal"}
IN_FLIGHT = {
    "train/token_age", "train/token_age_max", "train/several_versions", "train/late",
    "train/late_accuracy", "train/in_time_length",
}  # fmt: skip


def test_every_entry_is_whole():
    for metrics_of_topic in yaml.safe_load(metrics.FILE.read_text()).values():
        for key, entry in metrics_of_topic.items():
            assert list(entry) == ["title", "meaning", "unit", "expected"], key
            assert all(isinstance(text, str) for text in entry.values()), key


def test_the_page_is_the_catalogue():
    assert (DOCS / "metrics.md").read_text() == metrics.page(), (
        "python -m rec_experiments.runs.metrics > docs/metrics.md writes it anew"
    )


@pytest.mark.parametrize("dataset", ["reduction", "calculator"])
def test_runs_log_what_the_catalogue_says_and_no_more(tmp_path, dataset):
    folder = run(tmp_path, *SMALL, f"dataset={dataset}", "sync.interval=2")
    logged = {key for row in folder.metrics() for key in row} - {"step"}
    assert logged | AT_LAG_0 | OF_SEVERAL_UPDATES | IN_FLIGHT == KNOWN, HINT


def test_what_runs_in_flight_log_besides(tmp_path):
    folder = run(tmp_path, *SMALL, "sync=in_flight", "sync.versions=2")
    logged = {key for row in folder.metrics() for key in row} - {"step"}
    assert logged >= IN_FLIGHT
    assert logged <= KNOWN, HINT


def test_what_several_updates_on_a_batch_log_besides(tmp_path):
    folder = run(tmp_path, *SMALL, "updates=twice", "ratio=proximal")
    logged = {key for row in folder.metrics() for key in row} - {"step"}
    assert logged >= OF_SEVERAL_UPDATES
    assert logged <= KNOWN, HINT
