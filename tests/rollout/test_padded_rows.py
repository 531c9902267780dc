"""Rollouts as one padded batch of tensors, against lists of rows.

1. Selecting, joining and continuing rows is what it is on lists; padding never outlives its row.
2. A checkpoint's fields give the same rollouts back, in memory of their own.
"""

import dataclasses
import io
from itertools import pairwise

import torch
from conftest import assert_equal, by_row, said
from hypothesis import given
from hypothesis import strategies as st

from rec_experiments.common.batch import Responses, Rollouts
from rec_experiments.common.problems import VerifierResult

LOGPS = st.floats(-50, 0, width=32)


@st.composite
def turns(draw, size: int) -> Responses:
    lengths = draw(st.lists(st.integers(1, 6), min_size=size, max_size=size))
    rows = [draw(st.lists(LOGPS, min_size=n, max_size=n)) for n in lengths]
    return Responses.of(
        [draw(st.lists(st.integers(1, 9), min_size=n, max_size=n)) for n in lengths],
        rows,
        draw(st.lists(st.booleans(), min_size=size, max_size=size)),
        [draw(st.lists(st.booleans(), min_size=n, max_size=n)) for n in lengths],
    )


@st.composite
def rollouts(draw, several_versions: bool) -> Rollouts:
    groups = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    size = sum(groups)
    responses = draw(turns(size))
    width = responses.token_BT.shape[1] if several_versions else 1
    prompts = [draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)) for _ in groups]
    made = Rollouts.verified(
        responses,
        prompts=[prompt for prompt, n in zip(prompts, groups, strict=True) for _ in range(n)],
        groups=[group for group, n in enumerate(groups) for _ in range(n)],
        results=[VerifierResult(n / 3, n % 2, timed_out=n == 1) for n in range(size)],
        version_BX=torch.arange(size * width).reshape(size, width),
        seconds={"rollout": float(size)},
    )
    return dataclasses.replace(made, logps={"behavior": responses.logp_BT - 1})


BATCHES = st.booleans().flatmap(lambda several: st.lists(rollouts(several), min_size=1, max_size=3))


def assert_tight(batch: Rollouts) -> None:
    """No column is padding alone, and padding is 0."""
    assert batch.token_BT.shape[1] == max(batch.length_B)
    assert batch.prompt_BP.shape[1] == max(batch.prompt_length_B)
    assert not batch.token_BT[~batch.live_BT].any()


@given(BATCHES, st.data())
def test_rows_and_groups(parts, data):
    whole = Rollouts.of_parts(parts, 7)
    starts = [sum(part.groups for part in parts[:n]) for n in range(len(parts))]
    rows = [
        {**vars(row), "group": row.group + start}
        for part, start in zip(parts, starts, strict=True)
        for row in by_row(part)
    ]
    assert [vars(row) for row in by_row(whole)] == rows
    assert (whole.index, whole.seconds) == (7, {"rollout": max(map(len, parts))})
    chosen = data.draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=9))
    some = whole.rows(torch.tensor(chosen))
    assert [vars(row) for row in by_row(some)] == [rows[n] for n in chosen]
    groups = data.draw(st.permutations(range(whole.groups)))[: data.draw(st.integers(1, 9))]
    of_groups = whole.of_groups(groups)
    assert [vars(row) for row in by_row(of_groups)] == [
        {**row, "group": new} for new, group in enumerate(groups) for row in rows
        if row["group"] == group
    ]  # fmt: skip
    for batch in (whole, some, of_groups):
        assert_tight(batch)
    masks = [[False, *row["mask"]] for row in rows]
    began = [[now and not before for before, now in pairwise(mask)] for mask in masks]
    assert whole.turns_B.tolist() == [*map(sum, began)]


@given(st.data(), st.integers(1, 4), st.integers(1, 12))
def test_continued_responses(data, size, limit):
    one, other = data.draw(turns(size)), data.draw(turns(size))
    for first, then, both in zip(*map(said, (one, other, one.then(other, limit))), strict=True):
        assert both.tokens == (first.tokens + then.tokens)[:limit]
        assert both.logp == (first.logp + then.logp)[:limit]
        assert both.mask == (first.mask + then.mask)[:limit]
        fits = len(first.tokens) + len(then.tokens) <= limit
        assert both.finished == (then.finished and fits)


@given(BATCHES)
def test_whole_sequences(parts):
    whole = Rollouts.of_parts(parts, 0)
    for row, ids_L in zip(by_row(whole), whole.sequences.whole_BL.tolist(), strict=True):
        length = len(row.prompt) + len(row.tokens)
        assert ids_L[:length] == row.prompt + row.tokens
        assert not any(ids_L[length:])


@given(rollouts(True))
def test_state(batch):
    buffer = io.BytesIO()
    torch.save(batch.rows(torch.tensor([0])).state(), buffer)
    once = buffer.tell()
    buffer.seek(0)
    again = Rollouts(**torch.load(buffer, weights_only=True))
    assert_equal(again.state(), batch.rows(torch.tensor([0])).state())
    buffer = io.BytesIO()
    wide = Rollouts.of_parts([batch] * 500, 0)
    torch.save(wide.rows(torch.tensor([0])).state(), buffer)
    assert buffer.tell() == once  # the rows that were not chosen are not written
