"""Provenance: which release made a run, and where its rounding changed."""

import json

import pytest
from conftest import SMALL, experiment

from rec_experiments import RELEASE
from rec_experiments.runs import provenance
from rec_experiments.runs.run import run
from rec_experiments.runs.run_folder import RunFolder
from rec_experiments.samplers import shared


def start(capability: str | None, from_step: int = 0, **more: object) -> dict:
    return {"cpu_capability": capability, "from_step": from_step, **more}


@pytest.mark.parametrize(
    ("starts", "changed"),
    [
        ([start("AVX512")], False),
        ([start("AVX512"), start("AVX512", 20)], False),
        ([start("AVX512"), start("AVX2", 20)], True),
        ([start("AVX512"), start("AVX2", 0)], False),  # from the beginning
        ([start(None), start("AVX2", 20)], False),  # the first one is unknown
        ([start("AVX2"), start("AVX512", 20), start("AVX2", 30)], True),
    ],
)
def test_changed_instructions(starts, changed):
    lines = provenance.remarks({"starts": starts})
    assert len(lines) == changed
    if changed:
        assert f"begun with CPU instructions {starts[-2]['cpu_capability']} (" in lines[0]
        assert "ATEN_CPU_CAPABILITY" in lines[0]


def test_collected_values(monkeypatch):
    found = provenance.after({}, provenance.collect({}, ""), 0)
    assert found["starts"][0]["cpu_capability"]
    assert (found["release"], found["starts"][0]["release"]) == (RELEASE, RELEASE)
    assert found["shared_draws"] is False
    assert provenance.remarks(found) == []
    monkeypatch.setenv(shared.FOLDER, "/somewhere")
    assert provenance.collect({}, "")["shared_draws"] is True


@pytest.mark.parametrize(
    ("origin", "releases", "words"),
    [
        ({}, [], ""),
        ({"command": ["run"]}, [None], "an earlier release"),  # of old, without starts
        ({"starts": [{"from_step": 0, "release": RELEASE}]}, [RELEASE], ""),
        (
            {"starts": [{"from_step": 0, "release": 11}, {"from_step": 5, "release": RELEASE}]},
            [11, RELEASE],
            "release 11",
        ),
        (  # the second start repeated all steps of the first
            {"starts": [{"from_step": 5}, {"from_step": 5, "release": RELEASE}]},
            [RELEASE],
            "",
        ),
    ],
)
def test_releases_of_a_run(origin, releases, words):
    assert provenance.releases(origin) == releases
    assert provenance.other_releases(origin) == words


def test_a_run_of_another_release(tmp_path, capsys):
    """It is continued and named, or repeated with remake=true."""
    words = (*SMALL, f"run_dir={tmp_path / 'run'}")
    folder = RunFolder(run(experiment(*words)))
    origin = folder.provenance()
    origin["starts"][0]["release"] = 11
    (folder.path / "provenance.json").write_text(json.dumps(origin))
    capsys.readouterr()
    run(experiment(*words))
    assert "(by release 11; remake=true repeats it)" in capsys.readouterr().out
    folder.set_status("interrupted")
    run(experiment(*words))
    assert f"begun by release 11, continued by release {RELEASE}" in capsys.readouterr().out
    run(experiment(*words, "remake=true"))
    assert f"repeats a run of release 11 with release {RELEASE}" in capsys.readouterr().out
    assert folder.other_releases() == ""
    run(experiment(*words, "remake=true"))
    assert "already finished" in capsys.readouterr().out
