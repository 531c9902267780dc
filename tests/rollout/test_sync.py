"""The schedule against tables written by hand, and its properties."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rec_experiments.rollout.schedule import Schedule


def schedule(interval: int | None, offset: int, phase: str = "paper") -> Schedule:
    return Schedule(interval=interval, offset=offset, phase=phase)


TABLE = {  # (interval, offset): policy version of batches 0, 1, 2, …
    (1, 0): [0, 1, 2, 3, 4, 5, 6, 7, 8, 9],
    (4, 0): [0, 0, 0, 0, 4, 4, 4, 4, 8, 8],
    (1, 4): [0, 0, 0, 0, 0, 1, 2, 3, 4, 5],
    (3, 2): [0, 0, 0, 1, 1, 1, 4, 4, 4, 7],
    (3, 5): [0, 0, 0, 0, 0, 0, 1, 1, 1, 4],
    (None, 0): [0] * 10,
}


@pytest.mark.parametrize("setting", TABLE)
def test_versions_match_the_table(setting):
    assert [schedule(*setting).version(batch) for batch in range(10)] == TABLE[setting]


def test_staleness_of_the_papers_examples():
    assert [schedule(4, 0).staleness(b) for b in range(9)] == [0, 1, 2, 3, 0, 1, 2, 3, 0]
    assert [schedule(1, 4).staleness(b) for b in range(4, 9)] == [4] * 5


def test_the_two_phases_differ_only_where_interval_and_offset_mix():
    for setting in ((1, 0), (1, 10), (20, 0), (None, 0)):
        for batch in range(60):
            assert schedule(*setting, "framework").version(batch) == schedule(*setting).version(
                batch
            )
    mixed = [schedule(3, 5, "framework").version(batch) for batch in range(12)]
    assert mixed == [0, 0, 0, 0, 0, 0, 0, 0, 3, 3, 3, 6]


@given(st.integers(1, 30), st.integers(0, 30), st.sampled_from(["paper", "framework"]))
def test_versions_exist_when_needed_and_never_go_back(interval, offset, phase):
    s = schedule(interval, offset, phase)
    versions = [s.version(batch) for batch in range(100)]
    assert all(0 <= version <= batch for batch, version in enumerate(versions))
    assert versions == sorted(versions)
    assert all(s.staleness(b) <= offset + interval - 1 for b in range(100))
    for version in range(70):
        assert s.draws_from(version) == (version in versions)
        assert list(s.draws(version, 100)) == [b for b in range(100) if versions[b] == version]


@pytest.mark.parametrize("setting", [(0, 0), (-1, 0), (1, -1), (None, 3)])
def test_impossible_schedules_are_refused(setting):
    with pytest.raises(ValueError, match=r"must be|should be"):
        schedule(*setting)
