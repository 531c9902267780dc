"""How a mini-batch is cut into the passes of each rank.

1. Every sequence counts once, in a pass of its kind, within the limits.
2. No two consecutive passes of a rank would have fitted into one.
3. All ranks make the same number of passes of each kind, in the same order.
4. Ranks get like work.
5. Rows are one sequence where both prompt and response are the same.
6. Where a prompt is shared, its responses are dealt together, and stand behind it once in a pass.
"""

import itertools
import math

from conftest import sequences_of
from hypothesis import given, settings
from hypothesis import strategies as st

from rec_experiments.common.batch import Sequences
from rec_experiments.common.distributed import World
from rec_experiments.policy.batching import (
    Limits,
    TokenSequence,
    collate,
    deal,
    distinct,
    passes,
    shared,
)

ROWS = st.lists(
    st.tuples(st.integers(1, 30), st.integers(1, 30), st.booleans()), min_size=1, max_size=40
)
LIMITS = st.builds(Limits, st.none() | st.integers(1, 9), st.none() | st.integers(1, 200))


def of_lengths(lengths: list[tuple[int, int]], prompts: int | None = None) -> list[TokenSequence]:
    """Of these lengths of prompt and response; sequence i is row i and row -i - 1. prompts: how
    many they share, of 1, 2, … tokens; None for one of its own for each."""
    found = []
    for i, (own, response) in enumerate(lengths):
        group, prompt = (i, own) if prompts is None else (i % prompts, 1 + i % prompts)
        found.append(TokenSequence(prompt, response, group, [i, -i - 1]))
    return found


def tensors(part: list[TokenSequence]) -> Sequences:
    return Sequences.of([[s.group] * s.prompt for s in part], [[0] * s.response for s in part])


@settings(deadline=None)
@given(ROWS, LIMITS, st.none() | st.integers(1, 3), st.integers(1, 5))
def test_passes_of_ranks(rows, limits, prompts, ranks):
    limits = Limits(limits.sequences, limits.tokens, shared=prompts is not None)
    sequences = of_lengths([(prompt, response) for prompt, response, _ in rows], prompts)
    needs = [needed for *_, needed in rows]
    has_gradient = [*needs, *[False] * len(rows)]  # only one of its rows makes a sequence need it
    plans = [passes(sequences, has_gradient, limits, World(rank, ranks)) for rank in range(ranks)]
    assert len({tuple(p.needs_gradient for p in plan) for plan in plans}) == 1
    counted = [s.rows[0] for plan in plans for p in plan if not p.blank for s in p.sequences]
    assert sorted(counted) == list(range(len(rows)))
    assert all(any(not plan[i].blank for plan in plans) for i in range(len(plans[0])))
    for plan in plans:
        for p in plan:
            size, told = len(p.sequences), limits.computed(p.sequences)
            assert p.blank or {needs[s.rows[0]] for s in p.sequences} == {p.needs_gradient}
            assert size <= (limits.sequences or math.inf)
            assert told <= (limits.tokens or math.inf) or size == 1
            ids_GL = (shared if prompts else collate)(tensors(p.sequences)).arguments["input_ids"]
            assert len(ids_GL) == (len({s.group for s in p.sequences}) if prompts else size)
            assert ids_GL.numel() <= told if prompts else ids_GL.numel() == told - size
        for one, two in itertools.pairwise(p for p in plan if not p.blank):
            if one.needs_gradient == two.needs_gradient and not prompts:
                grown = [*one.sequences, two.sequences[0]]
                too_many = len(grown) > (limits.sequences or math.inf)
                assert too_many or limits.computed(grown) > (limits.tokens or math.inf)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 5))
def test_balanced_ranks(sizes, ranks):
    """The tokens of two ranks differ by no more than a longest sequence has."""
    hands = deal(of_lengths([(1, size) for size in sorted(sizes, reverse=True)]), ranks)
    work = [sum(s.response for s in hand) for hand in hands]
    assert max(work) - min(work) <= max(sizes)


TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=2)


@given(st.lists(st.tuples(TOKENS, TOKENS), min_size=1, max_size=20))
def test_distinct(rows):
    found = distinct(sequences_of(rows))
    assert sorted(i for s in found for i in s.rows) == list(range(len(rows)))
    assert all(rows[i] == rows[s.rows[0]] for s in found for i in s.rows)
    assert all((s.prompt, s.response) == (*map(len, rows[s.rows[0]]),) for s in found)
    assert len({str(rows[s.rows[0]]) for s in found}) == len(found)
    assert len({(s.group, str(rows[s.rows[0]][0])) for s in found}) == len({s.group for s in found})
