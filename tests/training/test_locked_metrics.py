"""What the presets of the paper and SFPO compute is locked: bit for bit on processors of the maker
that wrote the lock, by rounding on others, whose arithmetic differs in last bits."""

import json
import platform
from pathlib import Path

import pytest
import torch
from locked_runs import FILE, PRESETS, compute

TORCH = "2.13.0"  # the version whose rounding is locked

MAKER = "GenuineIntel"  # of the processor that wrote the lock
CPUINFO = Path("/proc/cpuinfo")
SAME_MAKER = CPUINFO.is_file() and MAKER in CPUINFO.read_text()

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or torch.__version__.partition("+")[0] != TORCH,
    reason=f"the numbers are those of torch {TORCH} on x86-64",
)


@pytest.fixture(scope="module")
def library() -> dict[str, list[dict]]:
    return compute()


@pytest.fixture(scope="module")
def tree() -> dict[str, list[dict]]:
    return compute("tree")


@pytest.mark.parametrize("preset", PRESETS)
def test_no_bit_has_changed(preset, library):
    """A change of bits is a decision: `make locked-metrics`, and say what it buys."""
    locked = json.loads(FILE.read_text())[preset]
    if SAME_MAKER:
        assert library[preset] == locked
    for row, expected in zip(library[preset], locked, strict=True):
        assert row == pytest.approx(expected, rel=1e-3, abs=1e-5), row["step"]
    assert len({row.get("train/loss") for row in locked}) > 3  # the runs do learn


@pytest.mark.parametrize("preset", PRESETS)
def test_passes_over_a_tree_compute_the_same_but_for_rounding(preset, tree, library):
    locked = json.loads(FILE.read_text())[preset]
    for row, expected in zip(tree[preset], locked, strict=True):
        assert row == pytest.approx(expected, rel=1e-3, abs=1e-5), row["step"]
    assert tree[preset] != library[preset]  # the bits of the two do differ, so it was a tree
