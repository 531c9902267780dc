"""The numbers of the page's curves are those of the runs.

1. A packed column has five digits, and keeps missing values.
2. Totals of tokens and seconds count all rows, also those that the page leaves out.
3. A run has its folder's address, the keys that differ from most runs, and an arm.
"""

import base64
import json
import math
import zlib
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest
from conftest import resolve
from fabricated import write_run
from hypothesis import given, settings
from hypothesis import strategies as st

from rec_experiments.analysis.report import contents
from rec_experiments.analysis.report.columns import EVALUATED, MOST_ROWS, TOTALS, columns
from rec_experiments.analysis.report.curves import pack, script_data


def unpack(text: str) -> np.ndarray:
    """As the script does it."""
    planes = np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype=np.uint8)
    high, middle, low = planes.reshape(3, -1).astype(np.uint32)
    return ((high << 24) | (middle << 16) | (low << 8)).view(np.float32)


@given(st.lists(st.floats(-(2.0**120), 2.0**120, width=32) | st.just(math.nan)))
def test_a_column_comes_back_to_five_digits(values):
    column = np.array(values, dtype=np.float32)
    found = unpack(pack(column))
    assert np.array_equal(np.isnan(found), np.isnan(column))
    tiny = np.finfo(np.float32).tiny
    assert np.allclose(found, column, rtol=2**-16, atol=tiny, equal_nan=True)


def rows_of(steps: int, every: int = 10) -> list[dict]:
    rows: list[dict] = [{"step": 0, EVALUATED: 0.25, "time/eval": 2.0}]
    for step in range(1, steps + 1):
        row = {"step": step, "tokens/response": 3, "time/train": 0.5, "train/loss": step / 8}
        rows.append(row | ({EVALUATED: step / steps} if step % every == 0 else {}))
    return rows


def test_totals():
    found = columns(rows_of(20))
    assert found["step"].tolist() == list(range(21))
    assert found["tokens"].tolist() == [3 * step for step in range(21)]
    assert found["seconds"].tolist() == [2 + step / 2 for step in range(21)]
    assert [math.isnan(each) for each in found[EVALUATED]] == [s % 10 > 0 for s in range(21)]


def test_a_long_run_keeps_evaluations_and_totals():
    steps = 10 * MOST_ROWS + 7
    found = columns(rows_of(steps, every=37))
    assert len(found["step"]) < 2 * MOST_ROWS
    kept = found["step"].astype(int).tolist()
    assert {0, steps, *range(37, steps, 37)} <= set(kept)
    assert found["tokens"].tolist() == [3 * step for step in kept]


def test_values_that_are_no_finite_number_are_missing():
    rows = [{"step": 0, "a/b": "x"}, {"step": 1, "a/b": math.inf}, {"step": 2, "a/b": 1e300}]
    found = columns([*rows, {"step": 3, "a/b": None}, {"step": 4, "a/b": 2}])["a/b"]
    assert np.isnan(found[:4]).all()
    assert found[4] == 2
    with pytest.raises(OverflowError):
        columns([{"step": 10**400}])


VALUES = st.one_of(
    st.none(), st.booleans(), st.text(max_size=2), st.integers(-(10**40), 10**40), st.floats()
)


@given(st.lists(st.dictionaries(st.sampled_from(["a/b", "a/c", "d", "eval/accuracy"]), VALUES)))
@settings(deadline=None)
def test_a_column_is_its_metric_row_by_row(found):
    """Bit for bit the float32 of each number; only keys of metrics have columns."""
    rows = [{"step": step, **row} for step, row in enumerate(found)]
    seen = columns(rows)
    assert seen.keys() - TOTALS.keys() == {key for row in rows for key in row if "/" in key}
    for key, column in seen.items():
        if key not in TOTALS:
            with np.errstate(over="ignore"):
                one_by_one = [
                    np.float32(float(row[key])) if isinstance(row.get(key), int | float) else np.nan
                    for row in rows
                ]
            expected = [each if math.isfinite(each) else math.nan for each in one_by_one]
            np.testing.assert_array_equal(column, np.array(expected, dtype=np.float32))


def test_runs_as_the_script_reads_them(tmp_path):
    home = tmp_path / "pages"
    for name, overrides in {
        "a b": ["algo=grpo", "seed=0"],
        "javascript:alert(1)": ["algo=grpo", "seed=1"],
        'q"<i>#?%41': ["algo=grpo", "seed=1", "optimizer.learning_rate=1e-3"],
        "r": ["algo=reinforce", "sync=offline", "seed=0"],
    }.items():
        write_run(
            tmp_path / name,
            rows_of(3 + len(name)),
            config=resolve(*overrides),
            command=["run", *overrides],
        )
    found = contents.gather([], [tmp_path], [], every_run=True)
    data = script_data(found, home)
    json.dumps(data, allow_nan=False)
    folders = [Path(unquote(urlsplit(run["folder"]).path)).name for run in data["runs"]]
    runs = dict(zip(folders, data["runs"], strict=True))
    assert runs["a b"]["name"] == "GRPO · interval 20 · seed 0"
    for name, run in runs.items():
        address = urlsplit(run["folder"])
        assert (address.scheme, address.netloc, address.query, address.fragment) == ("",) * 4
        assert (home / unquote(address.path)).resolve() == tmp_path / name
    assert runs["a b"]["differs"] == runs["javascript:alert(1)"]["differs"] == {}
    assert runs['q"<i>#?%41']["differs"] == {"optimizer.learning_rate": "0.001"}
    assert {"sync.interval", "clip.low"} <= runs["r"]["differs"].keys()
    [scope] = data["scopes"]
    arms = [arm["name"] for arm in scope["arms"]]
    assert arms == ["GRPO", "GRPO · lr=1e-3", "REINFORCE"]
    places = {folders[run]: (arms[a], scope["columns"][c]) for a, c, run in scope["lines"]}
    assert places["a b"] == places["javascript:alert(1)"] == (arms[0], "interval 20")
    assert places["r"] == ("REINFORCE", "offline")
    assert data["interval"][:2] == [None, None]
    assert data["interval"][2] == pytest.approx(12.7062 / math.sqrt(2), rel=1e-5)  # t(.975, 1)
    for number in range(len(folders)):
        first = sum(data["rows"][:number])
        steps = unpack(data["metrics"]["step"]["numbers"])[first : first + data["rows"][number]]
        assert steps.tolist() == list(range(4 + len(folders[number])))
    assert data["metrics"][EVALUATED]["unit"] == "share"
