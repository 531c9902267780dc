"""What these tests lock: a person is told where a resumed run rounds differently, and what of the
changes is not kept."""

import pytest

from rec_experiments.runs import provenance
from rec_experiments.samplers import shared


def start(capability: str | None, from_step: int = 0, **more: object) -> dict:
    return {"cpu_capability": capability, "from_step": from_step, **more}


@pytest.mark.parametrize(
    ("starts", "told"),
    [
        ([start("AVX512")], False),
        ([start("AVX512"), start("AVX512", 20)], False),
        ([start("AVX512"), start("AVX2", 20)], True),
        ([start("AVX512"), start("AVX2", 0)], False),  # from the beginning
        ([start(None), start("AVX2", 20)], False),  # nothing is known of the first
        ([start("AVX2"), start("AVX512", 20), start("AVX2", 30)], True),
    ],
)
def test_other_instructions_are_told(starts, told):
    lines = provenance.remarks({"starts": starts})
    assert len(lines) == told
    if told:
        assert f"begun with {starts[-2]['cpu_capability']} instructions" in lines[0]
        assert "ATEN_CPU_CAPABILITY" in lines[0]


def test_secrets_that_are_not_kept_are_told():
    [line] = provenance.remarks({"starts": [start("AVX2", left_out=["a/.env", "id_rsa"])]})
    assert line.endswith("a/.env, id_rsa")


def test_a_run_says_whether_its_draws_may_be_those_of_another(monkeypatch):
    assert provenance.collect({})["shared_draws"] is False
    monkeypatch.setenv(shared.FOLDER, "/somewhere")
    assert provenance.collect({})["shared_draws"] is True


def test_what_is_told_is_of_what_is_collected(monkeypatch):
    found = provenance.after({}, provenance.collect({}), 0)
    assert found["starts"][0]["cpu_capability"]
    assert provenance.remarks(found) == []
