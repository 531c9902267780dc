"""The schedule against tables written by hand, and its properties."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rec_experiments.rollout.schedule import Schedule, ages_of


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


@pytest.mark.parametrize(
    ("setting", "updates", "ages"),
    [
        ((4, 0), 1, [0, 1, 2, 3, 0, 1, 2, 3, 0]),  # the paper's examples
        ((1, 4), 1, [0, 1, 2, 3, 4, 4, 4, 4, 4]),
        ((1, 0), 4, [0, 1, 2, 3, 0, 1, 2, 3, 0]),  # four gradient steps on each batch
        ((1, 1), 2, [0, 1, 2, 3, 2, 3, 2, 3]),
        ((2, 0), 2, [0, 1, 2, 3, 0, 1, 2, 3]),
        ((None, 0), 2, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_ages_in_gradient_steps(setting, updates, ages):
    interval, offset = setting
    assert schedule(*setting).ages(updates, len(ages)) == ages
    sync = {"interval": interval, "offset": offset, "phase": "paper", "_target_": "other"}
    plan = {"epochs": updates, "mini_batches": 1, "shuffle": True}
    assert ages_of(sync, plan, len(ages)) == ages


def test_described_ages_are_those_of_a_long_run():
    assert "staleness from 5 to 7 gradient steps after the first 5" in schedule(3, 5).describe(1)
    assert "staleness from 4 to 7 gradient steps after the first 1" in schedule(1, 1).describe(4)
    assert "staleness 4 gradient steps after the first 4" in schedule(1, 4).describe(1)


def test_bundles_are_of_one_version():
    mixed = schedule(4, 2)  # versions 0 0 0 0 2 2 2 2 6 6
    found = [mixed.bundle_of(batch, 3, 10) for batch in range(10)]
    cuts = [range(0, 3), range(3, 4), range(4, 7), range(7, 8), range(8, 10)]
    assert found == [cut for cut in cuts for _ in cut]
    assert schedule(None, 0).bundle_of(5, 1, 10) == range(5, 6)


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
    assert max(s.ages(1, 100)) <= offset + interval - 1
    for version in range(70):
        assert s.draws_from(version) == (version in versions)
    for batch, version in enumerate(versions):
        of_version = [other for other in range(100) if versions[other] == version]
        assert [*s.bundle_of(batch, 100, 100)] == of_version


@pytest.mark.parametrize("setting", [(0, 0), (-1, 0), (1, -1), (None, 3)])
def test_impossible_schedules_are_refused(setting):
    with pytest.raises(ValueError, match=r"must be|should be"):
        schedule(*setting)
