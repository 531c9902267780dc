"""Runs of a figure are found without composing its jobs."""

import fabricated
import pytest
from conftest import resolve

from rec_experiments import sweeps
from rec_experiments.analysis.results import figure_data
from rec_experiments.analysis.results.begun import begun, default_folder, output_folder
from rec_experiments.analysis.results.figure_data import NoRuns, collect


def write_run(folder, *overrides):
    fabricated.write_run(folder, [], config=resolve(*overrides))


@pytest.fixture(scope="module")
def figure():
    return sweeps.load_figure("stability", [])


def test_no_run_is_told_without_composing(tmp_path, monkeypatch):
    monkeypatch.setattr(figure_data, "composed", None)
    with pytest.raises(NoRuns, match=f"stability: no run found in {tmp_path}; make them with: "):
        collect("stability", [tmp_path], [])


def test_a_run_counts_for_the_cells_whose_values_it_has(tmp_path, figure):
    """Seeds share a cell; a schedule, a rate or a method of no cell counts nowhere."""
    for number, words in enumerate(
        [
            ["algo=grpo", "optimizer.learning_rate=6e-5", "sync=offline", "seed=0"],
            ["algo=grpo", "optimizer.learning_rate=6e-5", "sync=offline", "seed=1"],
            ["algo=grpo", "optimizer.learning_rate=7e-5", "sync=offline", "seed=0"],
            ["algo=grpo", "optimizer.learning_rate=6e-5", "sync=offset10", "seed=0"],
            ["algo=tis", "optimizer.learning_rate=6e-5", "sync=offline", "seed=0"],
            ["algo=grpo", "optimizer.learning_rate=6e-5", "sync=offline", "seed=77"],
        ]
    ):
        write_run(tmp_path / "runs" / str(number), *words)
    assert begun(figure, [tmp_path / "runs"], [])[0] == 1
    assert begun(figure, [tmp_path / "runs"], ["seed=77"])[0] == 1
    assert begun(figure, [tmp_path / "runs"], ["seed=3"])[0] == 0
    assert begun(figure, None, [f"output_dir={tmp_path}/runs"])[0] == 1


def test_a_run_that_cannot_be_read_may_be_any(tmp_path, figure):
    write_run(tmp_path / "run")
    (tmp_path / "run" / "config.yaml").write_text("- 1")
    number, cells = begun(figure, [tmp_path], [])
    assert number == cells == 13 * 5 * 8


def test_where_sweeps_put_their_runs(tmp_path):
    assert output_folder(["seed=1"]) == default_folder()
    assert output_folder(["output_dir=a", f"output_dir={tmp_path}"]) == tmp_path
