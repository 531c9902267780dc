"""notebooks/one_run.py, a whole run in one file, gives the numbers of the harness."""

import runpy
from pathlib import Path

import pytest
from conftest import run as harness

FILE = Path(__file__).parent.parent.parent / "notebooks" / "one_run.py"
EASY = {"modulus": 4, "min_steps": 1, "max_steps": 2, "train_problems": 64, "eval_problems": 8}


@pytest.mark.parametrize(("interval", "offset"), [(2, 0), (1, 2)])
def test_one_file_gives_the_numbers_of_the_harness(interval, offset, tmp_path):
    one = runpy.run_path(str(FILE))
    settings = one["Settings"](
        seed=3, steps=4, prompts=8, group_size=4, interval=interval, offset=offset,
        learning_rate=1e-2, eval_every=2, eval_problems=8,
    )  # fmt: skip
    rows = one["run"](settings, warm_steps=100, **EASY)
    folder = harness(
        tmp_path / "run",
        *(f"dataset.{key}={value}" for key, value in EASY.items()),
        "algo=rec_oneside_nois", f"sync.interval={interval}", f"sync.offset={offset}", "seed=3",
        "steps=4", "batch_size=8", "group_size=4", "eval_every=2", "eval_problems=8",
        "optimizer.learning_rate=1e-2", "model.warm_start.steps=100",
    )  # fmt: skip
    expected = folder.metrics()
    assert [row["step"] for row in rows] == [row["step"] for row in expected]
    for row, other in zip(rows, expected, strict=True):
        assert row.get("reward") == other.get("train/reward")
        assert row.get("accuracy") == other.get("eval/accuracy")
    assert any(row["train/clip_fraction"] > 0 for row in expected[1:])
    assert len({row["train/reward"] for row in expected[1:]}) > 1
