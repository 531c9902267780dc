"""How a mini-batch is cut into the passes of each rank.

1. Every sequence counts once, in a pass of its kind, within the limits.
2. No two consecutive passes of a rank would have fitted into one.
3. All ranks make the same number of passes of each kind, in the same order.
4. Ranks get like work.
5. Rows are one sequence where both prompt and response are the same.
"""

import itertools
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from rec_experiments.batching import Limits, deal, distinct, passes
from rec_experiments.distributed import World
from rec_experiments.scores import collate

ROWS = st.lists(
    st.tuples(st.integers(1, 30), st.integers(1, 30), st.booleans()), min_size=1, max_size=40
)
LIMITS = st.builds(Limits, st.none() | st.integers(1, 9), st.none() | st.integers(1, 200))


@settings(deadline=None)
@given(ROWS, LIMITS, st.integers(1, 5))
def test_ranks_share_the_rows_within_the_limits_and_keep_step(rows, limits, ranks):
    lengths = [(prompt, response) for prompt, response, _ in rows]
    needs = [needed for *_, needed in rows]
    plans = [passes(lengths, needs, limits, World(rank, ranks)) for rank in range(ranks)]
    assert len({tuple(p.needs_gradient for p in plan) for plan in plans}) == 1
    counted = [row for plan in plans for p in plan if not p.blank for row in p.rows]
    assert sorted(counted) == list(range(len(lengths)))
    assert all(any(not plan[i].blank for plan in plans) for i in range(len(plans[0])))
    for plan in plans:
        for p in plan:
            assert p.blank or {needs[row] for row in p.rows} == {p.needs_gradient}
            assert len(p.rows) <= (limits.rows or math.inf)
            padded = collate(*([[0] * lengths[i][k] for i in p.rows] for k in (0, 1)), pad_id=0)
            assert padded.input_ids.numel() <= (limits.tokens or math.inf) or len(p.rows) == 1
        for one, two in itertools.pairwise(p for p in plan if not p.blank):
            if one.needs_gradient == two.needs_gradient:
                grown = [*one.rows, two.rows[0]]
                width = sum(max(lengths[i][k] for i in grown) for k in (0, 1))
                too_many = len(grown) > (limits.rows or math.inf)
                assert too_many or len(grown) * width > (limits.tokens or math.inf)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 5))
def test_ranks_get_like_work(sizes, ranks):
    """The tokens of two ranks differ by no more than a longest row has."""
    rows = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    work = [sum(sizes[i] for i in hand) for hand in deal(rows, ranks)]
    assert max(work) - min(work) <= max(sizes)


TOKENS = st.lists(st.integers(0, 1), max_size=2)


@given(st.lists(st.tuples(TOKENS, TOKENS), max_size=20))
def test_rows_are_one_sequence_where_prompt_and_response_are_the_same(rows):
    alike = distinct([prompt for prompt, _ in rows], [response for _, response in rows])
    assert sorted(i for same in alike for i in same) == list(range(len(rows)))
    for i, j in itertools.combinations(range(len(rows)), 2):
        assert (rows[i] == rows[j]) == any(i in same and j in same for same in alike)
