"""Rollouts in a checkpoint: equal when they come back, and few objects however many tokens."""

import io
import pickletools
import zipfile

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rec_experiments.rollout.packed import pack, unpack
from rec_experiments.types import Response, Rollouts, VerifierResult

TOKENS = st.integers(0, 2**40)
NUMBERS = st.floats(allow_nan=False)  # -0.0 and infinities as well


@st.composite
def responses(draw):
    tokens = draw(st.lists(TOKENS, max_size=5))
    each = {"min_size": len(tokens), "max_size": len(tokens)}
    logp, mask = draw(st.lists(NUMBERS, **each)), draw(st.lists(st.booleans(), **each))
    return Response(tokens, logp, draw(st.booleans()), mask)


@st.composite
def rollouts(draw):
    drawn = draw(st.lists(responses(), max_size=5))
    B = {"min_size": len(drawn), "max_size": len(drawn)}
    results = st.builds(VerifierResult, NUMBERS, NUMBERS, st.booleans(), st.booleans())
    return Rollouts(
        index=draw(TOKENS),
        prompts=draw(st.lists(st.lists(TOKENS, max_size=4), **B)),
        responses=drawn,
        results=draw(st.lists(results, **B)),
        groups=draw(st.lists(TOKENS, **B)),
        versions=draw(st.lists(TOKENS, **B)),
        token_versions=draw(st.none() | st.lists(st.lists(TOKENS, max_size=3), **B)),
        logps=draw(
            st.dictionaries(st.text(max_size=3), st.lists(st.lists(NUMBERS, max_size=3), **B))
        ),
        redrawn=draw(TOKENS),
        drawn=draw(TOKENS),
        seconds=draw(st.dictionaries(st.text(max_size=3), NUMBERS)),
    )


def saved(value) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def batch(rows: int, length: int) -> Rollouts:
    response = Response([7] * length, [-0.5] * length, True, [True] * length)
    return Rollouts(
        0,
        [[1, 2]] * rows,
        [response] * rows,
        [VerifierResult(1.0, 1.0)] * rows,
        [0] * rows,
        [0] * rows,
    )


@settings(deadline=None)
@given(rollouts())
def test_what_comes_back_from_a_file_is_equal_in_every_bit(found):
    loaded = torch.load(io.BytesIO(saved(pack(found))), weights_only=True)
    assert repr(unpack(loaded)) == repr(found)  # 0.0 == -0.0, but they do not look alike


def test_the_objects_in_a_file_do_not_grow_with_its_tokens():
    def operations(found: Rollouts) -> int:
        with zipfile.ZipFile(io.BytesIO(saved(pack(found)))) as file:
            [name] = (each for each in file.namelist() if each.endswith("data.pkl"))
            return sum(1 for _ in pickletools.genops(file.read(name)))

    few = operations(batch(2, 3))
    assert abs(operations(batch(200, 300)) - few) <= 20  # longer numbers have other codes


def test_another_layout_is_refused():
    old = {"index": 0, "prompts": [[1]], "responses": [{"tokens": [1]}], "results": []}
    with pytest.raises((KeyError, TypeError)):  # which the loop tells in one line
        unpack(old)
