"""What a batch is made of, and that runs of every shape stop, go on and overlap bit for bit.

1. The portions of a batch are a pure function; replay stays in its window, without repetition.
2. What is replayed is what was drawn, and what is kept for it is bounded.
3. A group of equal rewards is drawn anew from its spare prompts, under keys that name the attempt.
4. Several updates a batch, a moving average, a swapped reference, replay, refill and a correction
   together: interrupted within a batch and resumed, here or overlapped, a run is the same.
"""

import dataclasses
import random

import conftest
import pytest
from conftest import SMALL, by_row, experiment
from hypothesis import given
from hypothesis import strategies as st
from test_overlap import _quick_start, assert_same_run  # noqa: F401

from rec_experiments.common import rng
from rec_experiments.common.batch import SampleKey
from rec_experiments.rollout.replay import Replay, problems_of
from rec_experiments.rollout.worker import RolloutRequest, Snapshot
from rec_experiments.runs.prepare import prepare


@given(
    st.integers(1, 6), st.integers(1, 4), st.integers(2, 9), st.integers(0, 12), st.integers(0, 3)
)
def test_portions(reuse, window, batch_size, batch, seed):
    if reuse >= batch_size:
        with pytest.raises(ValueError, match=r"buffer.reuse=\d+: must be below batch_size"):
            Replay(redraws=0, reuse=reuse, window=window).fresh(batch_size)
        return
    source = Replay(redraws=0, reuse=reuse, window=window)
    fresh, *old = source.portions(batch, batch_size, seed)
    each = batch_size - reuse
    assert fresh == (batch, list(range(each)))
    assert old == source.portions(batch, batch_size, seed)[1:]
    pairs = [(draw, group) for draw, groups in old for group in groups]
    assert len(set(pairs)) == len(pairs) == min(reuse, each * min(window, batch))
    for draw, group in pairs:
        assert max(0, batch - window) <= draw < batch
        assert 0 <= group < each


def test_what_is_replayed_is_what_was_drawn():
    exp = experiment(*SMALL, "buffer=replay", "buffer.reuse=2", "buffer.window=3", "steps=8")
    trainer = prepare(exp)
    feed, drawn = trainer.rollouts, {}
    draw = trainer.rollouts.worker.draw

    def spy(snapshot, requests):
        batches = draw(snapshot, requests)
        drawn.update({rollouts.index: rollouts for rollouts in batches})
        return batches

    trainer.rollouts.worker.draw = spy
    feed.update_weights(0, 0, trainer.model)
    for number in range(8):
        batch = feed.get_batch(number)
        rows = []
        for portion in exp.buffer.portions(number, exp.batch_size, exp.seed):
            source = by_row(drawn[portion.draw])
            rows += [row for group in portion.groups for row in source if row.group == group]
        for n, (found, row) in enumerate(zip(by_row(batch), rows, strict=True)):
            assert vars(found) == {**vars(row), "group": n // exp.group_size}
        assert len(feed.drawn) <= 3
        feed.update_weights(number + 1, number + 1, trainer.model)
    assert sorted(drawn) == list(range(8))


def test_a_group_of_equal_rewards_is_drawn_anew():
    """Rewards of the test: the length of the response is even. Attempts are told by their keys."""
    exp = experiment(*SMALL, "buffer=refill", "buffer.redraws=2", "batch_size=6")
    trainer = prepare(exp)
    verify = trainer.rollouts.worker.verifier
    trainer.rollouts.worker.verifier = lambda items: [
        dataclasses.replace(result, reward=float(len(text) % 2))
        for result, (text, _) in zip(verify(items), items, strict=True)
    ]
    feed = trainer.rollouts
    feed.update_weights(0, 0, trainer.model)
    batch = feed.get_batch(0)
    snapshot = Snapshot.of(trainer.model, 0)
    kinds = set()
    for group in range(exp.batch_size):
        spare = rng.generator(0, rng.REDRAW, 0, group).integers(len(feed.problems), size=2)
        rows = [row for row in by_row(batch) if row.group == group]
        problem = feed.problems[conftest.problem_numbers(exp, 0, len(feed.problems))[group]]
        for attempt in range(3):
            keys = [SampleKey(0, rng.TRAIN, 0, group, k, attempt=attempt) for k in range(4)]
            if attempt:
                problem = feed.problems[spare[attempt - 1]]
            alone = feed.worker.answer(snapshot, RolloutRequest([problem], [keys], 1.0))
            if len(alone.reward_B.unique()) > 1:
                break
        kinds.add(attempt)
        assert [(r.prompt, r.tokens) for r in rows] == [(r.prompt, r.tokens) for r in by_row(alone)]
    assert len(kinds) > 1, "no group had to be drawn anew: the test shows nothing"
    assert batch.redrawn > 0


SHAPE = (
    *SMALL, "algo=asymre", "steps=22", "batch_size=4", "group_size=2", "eval_problems=4",
    "eval_every=5", "checkpoint_every=3", "kl_every=2", "updates.epochs=2",
    "updates.mini_batches=2", "ratio=proximal", "clip=one_side", "weight=importance",
    "proximal=moving_average", "reference=swapped", "reference.swap_every=2", "buffer=replay",
    "buffer.reuse=1", "buffer.window=2", "buffer.redraws=1", "correction=truncated",
    "truncation=mask", "reward=noise", "reward.share=0.3",
)  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(
    "schedule",
    [("sync.interval=1", "sync.offset=2"), ("sync.interval=2",), ("sync=offline",)],
)
def test_a_run_of_every_shape_goes_on_as_if_nothing_had_been(tmp_path, schedule):
    whole = conftest.run(tmp_path / "whole", *SHAPE, *schedule)
    overlapped = conftest.run(tmp_path / "overlapped", *SHAPE, *schedule, "pipeline=overlap")
    assert_same_run(overlapped, whole)
    moments = sorted(random.Random(str(schedule)).sample(range(4, 22), 4))
    for number, until in enumerate(moments):
        how = ("pipeline=overlap", "pipeline=sequential")[number % 2]
        with pytest.raises(KeyboardInterrupt):
            conftest.run(tmp_path / "cut", *SHAPE, *schedule, how, until=until)
    assert_same_run(conftest.run(tmp_path / "cut", *SHAPE, *schedule), whole)
    rows = whole.metrics()
    assert len({row["train/staleness_max"] for row in rows[1:]}) > 3
    assert {row.get("train/redrawn_groups", 0) for row in rows[1:]} - {0}, "nothing was drawn anew"


def test_each_epoch_has_every_problem_once():
    def epoch(number: int, shuffle: bool) -> list[int]:
        batches = (2 * number, 2 * number + 1)  # of 4 of 8 problems
        return [each for batch in batches for each in problems_of(batch, 4, 8, 5, shuffle)]

    assert epoch(0, shuffle=False) == epoch(1, shuffle=False) == [*range(8)]
    first, second = epoch(0, shuffle=True), epoch(1, shuffle=True)
    assert sorted(first) == sorted(second) == [*range(8)]
    assert first != second
