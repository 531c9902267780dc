"""What these tests lock: work that is forked is the work, in order, done elsewhere."""

import os

import pytest

from rec_experiments.analysis.report import beside
from rec_experiments.analysis.report.beside import forked

ONE = 1


def pair(number: int) -> tuple[int, int]:
    return number**2, os.getpid()


@pytest.mark.parametrize("together", [1, 3])
@pytest.mark.parametrize("cores", [ONE, 2, 5])
def test_results_are_those_of_one_process_in_the_order_of_the_items(cores, together, monkeypatch):
    monkeypatch.setattr(beside, "cores", lambda: cores)
    items = [5, 2, 9, 4, 7]
    unsent = object()  # cannot be pickled, and need not be
    with forked(lambda item: (unsent is not None, *pair(item)), items, together) as results:
        found = list(results)
    assert [square for _, square, _ in found] == [item**2 for item in items]
    processes = {process for _, _, process in found}
    assert processes == {os.getpid()} if cores == ONE else os.getpid() not in processes


@pytest.mark.parametrize("cores", [ONE, 2])
def test_an_error_is_raised_where_its_result_is_taken(cores, monkeypatch):
    def work(number: int) -> float:
        return 1 / number

    monkeypatch.setattr(beside, "cores", lambda: cores)
    with forked(work, [2, 0]) as results:
        assert next(results) == 0.5
        with pytest.raises(ZeroDivisionError):
            next(results)


def test_of_nothing_there_is_nothing():
    with forked(pair, []) as results:
        assert list(results) == []
