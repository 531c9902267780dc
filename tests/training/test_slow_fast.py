"""SFPO: fast steps on a batch, a move part of the way back, a slow step from there.

1. The move back, and when the fast steps stop, in closed form.
2. α = 1 equals a run that never moves back, bit for bit; α = 0 is a step from the batch's start.
3. The order of updates is that of the paper's loop, whenever the fast steps stop, and uses no more
   batches than announced.
4. Resumed, overlapped and two-rank runs equal the uninterrupted one, bit for bit.

tests/training/test_update_shapes.py has whole runs written out by hand.
"""

import statistics

import conftest
import pytest
import torch
from conftest import SMALL, assert_equal, assert_same_result, experiment, timeless
from hypothesis import assume, given
from hypothesis import strategies as st
from test_distributed import assert_same, run_on

from rec_experiments.training.sfpo import SlowFast, move_back

# PPO's loss, but a baseline that gives every group a gradient.
MOVING = ("algo=asymre", "clip=one_side", "weight=importance", "updates=slow_fast")
ENDED = ("updates.epochs=3", "updates.window=2", "updates.threshold=0.9")  # after two batches


def rule(**changes) -> SlowFast:
    usual = {"epochs": 3, "mini_batches": 1, "alpha": 0.5, "window": 3, "threshold": 1.0}
    return SlowFast(**{"shuffle": True, **usual, **changes})


@given(st.floats(0, 1), st.integers(0, 99))
def test_move_back(alpha, seed):
    torch.manual_seed(seed)
    start, fast = torch.nn.Linear(3, 2).double(), torch.nn.Linear(3, 2).double()
    began = {name: p.detach().clone() for name, p in start.named_parameters()}
    ended = {name: p.detach().clone() for name, p in fast.named_parameters()}
    move_back(fast, began, alpha)
    for name, parameter in fast.named_parameters():
        expected = began[name] + alpha * (ended[name] - began[name])
        torch.testing.assert_close(parameter.detach(), expected, rtol=1e-12, atol=1e-14)
        assert alpha != 1 or torch.equal(parameter, ended[name])
        assert alpha != 0 or torch.equal(parameter, began[name])


ENTROPIES = st.lists(st.floats(0, 5), max_size=12)


@given(ENTROPIES, st.integers(2, 6), st.floats(0.1, 3))
def test_stops_after_unusual_entropy(entropies, window, threshold):
    found = rule(window=window, threshold=threshold).stops_after(entropies)
    if len(entropies) < window:
        assert not found
        return
    last = entropies[-window:]
    off, deviation = abs(last[-1] - statistics.fmean(last)), statistics.pstdev(last)
    assume(deviation > 1e-5)
    assume(abs(off / deviation - threshold) > 1e-3)
    assert found == (off / deviation > threshold)


def test_when_nothing_stops():
    assert not any(rule(window=n, threshold=0.01).stops_after([0.1] * n) for n in range(2, 60))
    assert not rule(threshold=None).stops_after([1.0, 1.0, 9.0])
    for last in (0.0, 9.0):  # fallen, risen
        assert rule().stops_after([1.0, 1.1, last])


@given(
    st.integers(2, 4), st.integers(1, 3), st.integers(2, 4), st.integers(0, 60),
    st.lists(st.floats(0, 5), min_size=60, max_size=60),
)  # fmt: skip
def test_order_of_updates(epochs, parts, window, steps, entropies):
    updates = rule(epochs=epochs, mini_batches=parts, window=window)
    expected, seen = [], []
    for batch in range(60):
        passes = 1 if any(updates.stops_after(seen[: n + 1]) for n in range(len(seen))) else epochs
        expected += [(batch, epoch, part) for epoch in range(passes) for part in range(parts)]
        seen.append(entropies[batch])
    hook, model = updates.hook(), torch.nn.Linear(1, 1)
    found = [hook.index_of(0)]
    for step in range(steps):
        index = found[-1]
        hook.before_update(index, model)
        hook.after_update(index, {"train/entropy": entropies[index.batch]})
        found.append(hook.index_of(step + 1))
    assert [index[:3] for index in found] == expected[: steps + 1]
    assert [index.step for index in found] == list(range(steps + 1))
    begun = len({index.batch for index in found[:steps]})
    assert begun <= updates.batches(steps)
    least = min(steps, window * updates.per_batch)  # as if they ended as early as they can
    assert updates.batches(steps) == -(-least // updates.per_batch) + -(-(steps - least) // parts)


def test_alpha_1_never_moves_back(tmp_path):
    """Eight steps: two batches of three fast steps and a slow one."""
    shape = (*SMALL, *MOVING, "steps=8", "sync.interval=2")
    plain = conftest.run(tmp_path / "plain", *shape, "updates=once", "updates.epochs=4")
    sfpo = conftest.run(tmp_path / "sfpo", *shape, "updates.alpha=1")
    rows = [timeless(row) for row in sfpo.metrics()]
    assert [row.pop("train/alpha", None) for row in rows] == [None] + [1.0] * 8
    assert rows == [timeless(row) for row in plain.metrics()]
    assert all(row["train/grad_norm"] > 0 for row in rows[1:])
    states = [folder.load_checkpoint()[0] for folder in (sfpo, plain)]
    for part in ("model", "optimizer"):
        assert_equal(states[0]["weights"][part], states[1]["weights"][part])


def test_alpha_0_steps_from_the_start(tmp_path):
    """One fast step, taken back: the slow one has the same gradient g, and then Adam's means of two
    gradients are g and g² as those of one are, but of two steps."""
    shape = (*SMALL, *MOVING, "sync=on_policy", "kl_every=0")
    once = conftest.run(tmp_path / "once", *shape, "updates=once", "steps=1")
    back = conftest.run(tmp_path / "back", *shape, "updates.epochs=2", "updates.alpha=0", "steps=2")
    one, two = (folder.load_checkpoint()[0] for folder in (once, back))
    norms = [row["train/grad_norm"] for row in (*once.metrics()[1:], *back.metrics()[1:])]
    assert norms == [norms[0]] * 3
    assert norms[0] > 0
    for name, weight in two["weights"]["model"].items():
        torch.testing.assert_close(weight, one["weights"]["model"][name], rtol=1e-6, atol=1e-8)
    for state, taken in ((one, 1), (two, 2)):
        assert {int(each["step"]) for each in state["weights"]["optimizer"].values()} == {taken}
    assert two["weights"]["hook"] == {}


SHAPE = (
    *SMALL, *MOVING, "steps=14", "eval_every=4", "checkpoint_every=1", "sync.offset=1",
    "sync.interval=2", "updates.mini_batches=2", *ENDED,
)  # fmt: skip


@pytest.mark.long
def test_resume_and_overlap(tmp_path):
    """Cut within fast steps, before and after the slow one, and after the fast steps have ended."""
    whole = conftest.run(tmp_path / "whole", *SHAPE)
    overlapped = conftest.run(tmp_path / "overlapped", *SHAPE, "pipeline=overlap")
    assert_same_result(overlapped, whole)
    kept = []
    for number, until in enumerate((3, 5, 6, 10, 13, 14)):
        how = ("pipeline=overlap", "pipeline=sequential")[number % 2]
        with pytest.raises(KeyboardInterrupt):
            conftest.run(tmp_path / "cut", *SHAPE, how, until=until)
        state, _ = conftest.RunFolder(tmp_path / "cut").load_checkpoint()
        kept.append((state["step"], bool(state["hook"]["start"]), state["hook"]["stopped"]))
    assert kept == [
        (2, True, None), (4, True, None), (5, False, None), (9, True, None), (12, False, 12),
        (13, False, 12),
    ]  # fmt: skip
    assert_same_result(conftest.run(tmp_path / "cut", *SHAPE), whole)
    alphas = [row["train/alpha"] for row in whole.metrics()[1:]]
    assert alphas == [0.8] * 12 + [0.0] * 2


@pytest.mark.long
def test_resume_of_two_ranks(ranks, tmp_path):
    shape = (*MOVING, "steps=8", "checkpoint_every=1", "sync.interval=2", *ENDED)
    entire = ranks(run_on, tmp_path / "whole", shape)
    for until in (2, 3, 6, 8):
        ranks(run_on, tmp_path / "cut", shape, until)
    resumed = ranks(run_on, tmp_path / "cut", shape)
    assert "resumed after gradient step 7" in resumed[0][3]
    assert_same(resumed, entire)
    for (_, _, state, _), (_, _, other, _) in zip(resumed, entire, strict=True):
        assert_equal(state, other)


def test_describe():
    words = experiment("algo=sfpo").updates.describe()
    assert words == (
        "4 gradient steps per batch: 4 epochs x 1 mini-batches, 3 fast and one slow, which starts "
        "at θ_0 + 0.8 (θ_3 − θ_0); one epoch per batch once the entropy is 1 standard deviations "
        "from its mean over 30 batches"
    )
    assert experiment("algo=sfpo", "updates.threshold=null").updates.describe().endswith("− θ_0)")
