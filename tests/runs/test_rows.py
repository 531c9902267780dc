"""Rows of metrics.jsonl: read back as they were appended, and no damaged one is taken for whole."""

import json
import math

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rec_experiments.common.errors import UserError
from rec_experiments.runs.reading import read_rows
from rec_experiments.runs.run_folder import RunFolder

VALUES = st.recursive(
    st.floats() | st.integers() | st.booleans() | st.none() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
ROWS = st.lists(st.builds(lambda step, row: {**row, "step": step}, st.integers(),
                          st.dictionaries(st.text(), VALUES, max_size=4)), max_size=4)  # fmt: skip
ON_ONE_FOLDER = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@ON_ONE_FOLDER
@given(rows=ROWS)
def test_rows_are_read_as_they_were_appended(tmp_path, rows):
    (tmp_path / "metrics.jsonl").unlink(missing_ok=True)
    RunFolder(tmp_path).append("metrics.jsonl", rows)
    assert repr(RunFolder(tmp_path).metrics()) == repr(rows)  # NaN and -0.0, too


@ON_ONE_FOLDER
@given(line=st.binary(max_size=30).filter(lambda line: b"\n" not in line))
@example(b'{"step": 1, "x": "\\ud800"}')  # half of a character
@example(b'\xef\xbb\xbf{"step": 1}')  # a mark of byte order
@example(b'{"step": 1}{"step": 2}')
@example(b'{"step": 1, "step": 2}')
@example(b'{"step": true}')
@example(b'{"step": 1e2}')
@example(b'{"step": 1, "x": ' + b"9" * 400 + b"}")
@example(b'{"step": 1, "x": 1e999}')
@example(b'{"step": 1, "x": ' + b"[" * 3000 + b"]" * 3000 + b"}")
@example(b'{"step": 1, "x": "\x01"}')
@example(b"")
def test_a_line_is_whole_if_json_says_so(tmp_path, line):
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(b'{"step": 0}\n' + line + b"\n" + b'{"step": 9}\n')
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        row = None
    if isinstance(row, dict) and type(row.get("step")) is int:
        assert repr(read_rows(file)[1]) == repr((line, row))
    else:
        with pytest.raises(UserError, match="line 2 is damaged"):
            read_rows(file)


def test_a_torn_last_line_is_left_out(tmp_path):
    folder = RunFolder(tmp_path)
    assert folder.metrics() == []
    folder.append("metrics.jsonl", [{"step": 0, "loss": math.inf}, {"step": 1}])
    whole = (tmp_path / "metrics.jsonl").read_bytes()
    for end in range(len(whole)):
        (tmp_path / "metrics.jsonl").write_bytes(whole[:end])
        assert len(folder.metrics()) == whole[:end].count(b"\n")
