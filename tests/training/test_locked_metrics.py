"""Numbers of two presets are locked: bit for bit on processors of the maker that wrote the lock,
approximately on others, whose arithmetic differs in the last bits."""

import json
import platform
from pathlib import Path

import pytest
import torch
from locked_runs import FILE, PRESETS, compute, write

from rec_experiments import RELEASE

TORCH = "2.13.0"  # the version whose rounding is locked

MAKER = "GenuineIntel"  # of the processor that wrote the lock
CPUINFO = Path("/proc/cpuinfo")
LOCKED = json.loads(FILE.read_text())
SAME_MAKER = CPUINFO.is_file() and MAKER in CPUINFO.read_text()

same_arithmetic = pytest.mark.skipif(
    platform.machine() != "x86_64" or torch.__version__.partition("+")[0] != TORCH,
    reason=f"the numbers are those of torch {TORCH} on x86-64",
)


@pytest.fixture(scope="module")
def computed() -> list[dict[str, list[dict]]]:
    return compute("library", "tree")


def with_locked_metrics(rows: list[dict], locked: list[dict]) -> list[dict]:
    """The rows with the metrics that the lock has."""
    return [
        {key: row[key] for key in expected if key in row}
        for row, expected in zip(rows, locked, strict=True)
    ]


@same_arithmetic
@pytest.mark.parametrize("preset", PRESETS)
def test_no_bit_has_changed(preset, computed):
    """To change bits on purpose, raise RELEASE, then `make locked-metrics`. A new metric is not
    locked until then."""
    locked = LOCKED["runs"][preset]
    rows = with_locked_metrics(computed[0][preset], locked)
    if SAME_MAKER:
        assert rows == locked
    for row, expected in zip(rows, locked, strict=True):
        assert row == pytest.approx(expected, rel=1e-3, abs=1e-5), row["step"]
    assert len({row.get("train/loss") for row in locked}) > 3  # the runs do learn


@same_arithmetic
@pytest.mark.parametrize("preset", PRESETS)
def test_tree_passes_only_round_differently(preset, computed):
    locked, (library, tree) = LOCKED["runs"][preset], computed
    rows = with_locked_metrics(tree[preset], locked)
    for row, expected in zip(rows, locked, strict=True):
        assert row == pytest.approx(expected, rel=1e-3, abs=1e-5), row["step"]
    assert tree[preset] != library[preset]  # the bits of the two do differ, so it was a tree


def test_release_of_the_lock():
    assert LOCKED["release"] == RELEASE


def test_changed_numbers_need_a_new_release(tmp_path):
    file, changed = tmp_path / "lock.json", {**LOCKED["runs"], "grpo": []}
    file.write_text(FILE.read_text())
    write(LOCKED["runs"], file, RELEASE)
    assert json.loads(file.read_text()) == LOCKED
    with pytest.raises(SystemExit, match=f"RELEASE={RELEASE}: .* raise it"):
        write(changed, file, RELEASE)
    assert json.loads(file.read_text()) == LOCKED
    write(changed, file, RELEASE + 1)
    assert json.loads(file.read_text()) == {"release": RELEASE + 1, "runs": changed}
