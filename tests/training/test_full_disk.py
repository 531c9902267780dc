"""A disk that fills up in the middle of a run: one clear line, exit code 1, and an exact resume."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import SMALL
from kill_and_resume import differences

from rec_experiments.runs.run_folder import RunFolder

# One checkpoint of the tiny model fits, three do not. `unshare` gives the script its own mount.
SCRIPT = """
mount -t tmpfs -o size=4m tmpfs disk || exit 77
"$@" run_dir=disk/run 2> first.err; echo $? > first.code
cp disk/run/status.json .
ls -d disk/run/checkpoints/step_* > states
mount -o remount,size=64m disk
"$@" run_dir=disk/run 2> second.err; echo $? > second.code
cp -r disk/run run
"""


def in_small_disk(folder: Path, command: list[str]) -> None:
    """SCRIPT with the command, or a skipped test where no disk can be made."""
    (folder / "disk").mkdir()
    try:
        shell = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", SCRIPT, "sh"]
        done = subprocess.run(
            [*shell, *command], cwd=folder, env=os.environ, capture_output=True, check=False
        )
    except FileNotFoundError:
        pytest.skip("unshare is not installed")
    if done.returncode in (1, 77) and not (folder / "first.code").exists():
        pytest.skip("this machine allows no mounts of one's own")


@pytest.mark.long
def test_full_disk(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rec_experiments", *SMALL, "steps=6"]
    in_small_disk(tmp_path, command)
    assert (tmp_path / "first.code").read_text() == "1\n"
    said = (tmp_path / "first.err").read_text()
    assert said == "error: No space left on device; the same command resumes the run\n"
    status = json.loads((tmp_path / "status.json").read_text())
    assert status["state"] == "failed"
    assert "No space left" in status["reason"]

    assert (tmp_path / "second.code").read_text() == "0\n"
    subprocess.run([*command, "run_dir=whole"], cwd=tmp_path, check=True, capture_output=True)
    assert differences(RunFolder(tmp_path / "run"), RunFolder(tmp_path / "whole")) == []
