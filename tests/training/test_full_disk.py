"""A disk that fills up in the middle of a run: one clear line, exit code 1, and an exact resume.

On two ranks too, where the state is written beside training; each rank then ends with a code.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import SMALL, assert_equal, timeless
from kill_and_resume import differences

from rec_experiments.distributed import ALONE
from rec_experiments.runs.checkpoints import Checkpoints
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


# Two ranks, started as torchrun starts them; what each of them ended with stands in its own file.
RANKS = """
import os, runpy
end = os._exit

def noted(code):
    with open(f"rank.{os.environ['RANK']}.codes", "a") as file:
        print(code, file=file)
    end(code)

os._exit = noted
runpy.run_module("rec_experiments", run_name="__main__", alter_sys=True)
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


@pytest.mark.parametrize("beside", ["false", pytest.param("true", marks=pytest.mark.long)])
def test_a_full_disk_is_one_line_and_the_run_resumes(tmp_path: Path, beside: str) -> None:
    command = [sys.executable, "-m", "rec_experiments", *SMALL, "steps=6"]
    command.append(f"async_checkpoints={beside}")
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


@pytest.mark.long
def test_a_full_disk_ends_every_rank(tmp_path: Path) -> None:
    """What the disk has no room for is written beside training; the state before it is whole."""
    (tmp_path / "ranks.py").write_text(RANKS)
    overrides = [*SMALL, "steps=6", "ranks=2", "async_checkpoints=true"]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [sys.executable, *torchrun, "ranks.py", *overrides]
    in_small_disk(tmp_path, command)
    assert (tmp_path / "first.code").read_text() == "1\n"
    said = (tmp_path / "first.err").read_text()
    told = [line for line in said.splitlines() if line.startswith("error: ")]
    assert told == ["error: No space left on device; the same command resumes the run"], said
    assert "rec_experiments/" not in said  # the one traceback is torchrun's, of itself
    status = json.loads((tmp_path / "status.json").read_text())
    assert status["state"] == "failed"
    assert "No space left" in status["reason"]
    assert (tmp_path / "states").read_text().strip()

    assert (tmp_path / "second.code").read_text() == "0\n", (tmp_path / "second.err").read_text()
    for rank in range(2):
        first, second = (tmp_path / f"rank.{rank}.codes").read_text().split()
        assert first != "0", rank
        assert second == "0", rank
    subprocess.run([*command, "run_dir=whole"], cwd=tmp_path, check=True, capture_output=True)
    resumed, whole = (RunFolder(tmp_path / name) for name in ("run", "whole"))
    assert [*map(timeless, resumed.metrics())] == [*map(timeless, whole.metrics())]
    states = [Checkpoints(each.checkpoints, ALONE).read(6) for each in (resumed, whole)]
    assert states[0]["ranks"] == 2
    assert_equal(*states)
