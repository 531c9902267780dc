"""Sweeps on a real SLURM (`make test-slurm`; skipped elsewhere).

1. A sweep whose jobs are preempted, requeued, cancelled and killed, some while they still import,
   ends in the run folders of the same sweep on this machine, bit for bit.
2. A job that fails and a job that hangs are named with the reason; the rest finish; resubmitting
   runs just those two.
3. 200 jobs: one call of sbatch, one of squeue for their state, and none is submitted twice.
4. A queued job runs the code and the configuration of its submission, whatever is edited since.
5. What SLURM refuses is one line, and leaves nothing behind.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch
import yaml
from cluster import Cluster, missing
from conftest import SMALL
from submitit.helpers import DelayedSubmission

from rec_experiments.runs.run_folder import RunFolder
from rec_experiments.sweeps.supervisor import MAX_IN_VAIN

if "SLURM_TESTS" not in os.environ:
    pytest.skip("run by make test-slurm", allow_module_level=True)
if missing():
    pytest.skip(missing(), allow_module_level=True)

ROOT = Path(__file__).parents[2]
# Steps enough to be interrupted among them, and few checkpoints, so that work can be lost.
LONGER = ("steps=240", "eval_every=120", "checkpoint_every=150")
CHANGED = {override.partition("=")[0] for override in LONGER}
RUNS = (*(each for each in SMALL if each.partition("=")[0] not in CHANGED), *LONGER)
SLURM = ("hydra/launcher=slurm_cpu", "hydra.launcher.mem=500MB", "hydra.launcher.signal_delay_s=30")
HELD = "+hydra.launcher.options.hold=true"
CALLS = ("sbatch", "squeue", "sacct", "scontrol", "scancel")


@pytest.fixture(scope="module")
def cluster():
    # Not in pytest's own folders: munge wants every folder above its socket to be open to all.
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder)) as cluster:
        yield cluster


class User:
    """Someone who types commands in a folder of their own. Run folders are under runs/."""

    def __init__(self, cluster, folder, checkout=ROOT):
        self.cluster, self.folder = cluster, folder
        paths = [checkout, *os.environ.get("PYTHONPATH", "").split(":")]
        self.environment = os.environ | cluster.environment
        self.environment["PYTHONPATH"] = ":".join(map(str, paths))

    def python(self, *arguments, code=0):
        done = subprocess.run(
            [sys.executable, "-P", "-m", *arguments],
            env=self.environment, cwd=self.folder,
            capture_output=True, text=True, check=False, timeout=1800,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def submit(self, *arguments, code=0):
        return self.python("rec_experiments", "-m", *arguments, *SLURM, code=code)

    def sweeps(self, *arguments, code=0):
        return self.python("rec_experiments", "sweeps", *arguments, code=code)

    def jobs(self):
        """The id, SLURM's state and the run folder of each job in the queue."""
        asked = self.cluster.run("squeue", "--array", "-h", "-o", "%A %F %K %j %T")
        found = []
        for raw, array, number, submission, state in map(str.split, asked.stdout.splitlines()):
            record = self.folder / "runs/submissions" / submission / "jobs.json"
            alone = number == "N/A"
            if record.exists():
                job = json.loads(record.read_text())["jobs"][0 if alone else int(number)]
                name = raw if alone else f"{array}_{number}"
                found.append((name, state, RunFolder(Path(job["path"]))))
        return found

    def states(self, names):
        known = {name: state for name, state, _ in self.jobs()}
        return [known.get(name) for name in names]


@pytest.fixture
def user(cluster, tmp_path):
    yield User(cluster, tmp_path)
    cluster.cancel()


def until(true, seconds=900):
    end = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.1)
    return found


def without_times(rows):
    return [
        {k: v for k, v in row.items() if not k.startswith("time/") and "per_second" not in k}
        for row in rows
    ]


def assert_same_runs(folder, reference):
    names = sorted(each.parent.name for each in reference.glob("*/status.json"))
    assert names == sorted(each.parent.name for each in folder.glob("*/status.json"))
    for name in names:
        one, other = RunFolder(folder / name), RunFolder(reference / name)
        assert one.status()["state"] == other.status()["state"] == "done"
        assert without_times(one.metrics()) == without_times(other.metrics()), name
        texts = [(each.path / "samples.jsonl").read_text() for each in (one, other)]
        assert texts[0] == texts[1], name
        (state, _), (expected, _) = one.load_checkpoint(), other.load_checkpoint()
        for key, weight in expected["weights"]["model"].items():
            assert torch.equal(state["weights"]["model"][key], weight), (name, key)


def line_of(report, name):
    return next(line for line in report.splitlines() if name in line)


def under_way(folder):
    """Past the first step, and a checkpoint is still some way off."""
    return 1 <= folder.last_step() <= 120


def release(cluster, jobs):
    for job in jobs:
        cluster.run("scontrol", "release", job)


def importing(folder):
    return not folder.status()


def kill(user, job):
    """Kill the run of a job of an array, as the kernel does when memory is short."""
    number = job.partition("_")[2]
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it is over
            *_, submission, last, _ = ["", "", *entry.read_text().split("\0")]
            if last == number and submission.startswith(f"{user.folder}/"):
                os.kill(int(entry.parent.name), signal.SIGKILL)


HANGS = """
import os, signal, sys, time
*_, module, _, number = ["", "", "", *sys.orig_argv]
if module.endswith(".run_job") and number == "{number}" and os.path.exists({stuck!r}):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(1e6)
"""


def hang_at_its_start(user, number):
    """Have a job's run wait, deaf to SIGTERM, for as long as the file that is returned is there."""
    stuck, place = user.folder / "stuck", user.folder / "site"
    stuck.touch()
    place.mkdir()
    (place / "sitecustomize.py").write_text(HANGS.format(number=number, stuck=str(stuck)))
    user.environment["PYTHONPATH"] += f":{place}"
    return stuck


@pytest.mark.long
def test_an_interrupted_sweep_is_the_uninterrupted_one(user, cluster):
    arguments = ("seed=0", *RUNS)
    user.python("rec_experiments", "-m", "sweep=fig3", *arguments, "output_dir=local")
    assert "submitted 15 jobs" in user.submit("sweep=fig3", *arguments, HELD)
    *first, _, _, _, _ = names = [job for job, _, _ in user.jobs()]
    release(cluster, first)

    def notice(job):
        cluster.start("scancel", "--signal=USR2", job)

    plan = {
        "noticed": (under_way, notice),
        "noticed early": (importing, notice),
        "noticed twice": (under_way, lambda job: (notice(job), notice(job))),
        "not noticed": (under_way, lambda job: cluster.start("scontrol", "requeue", job)),
        "killed": (under_way, lambda job: kill(user, job)),
        "cancelled": (under_way, lambda job: cluster.start("scancel", job)),
        "noticed again": (under_way, notice),
    }
    hit = {}

    def disturbed():
        for job, state, folder in user.jobs():
            for what, (when, disturb) in plan.items():
                ready = state == "RUNNING" and when(folder)
                if what not in hit and folder.path.name not in hit.values() and ready:
                    disturb(job)
                    hit[what] = folder.path.name
                    break
        return len(hit) == len(plan)

    until(disturbed)
    release(cluster, names[len(first) :])
    # A partition that preempts takes the whole node: every job gets its notice and comes back.
    last = until(lambda: [j for j in user.jobs() if j[1] == "RUNNING" and under_way(j[2])])[-1][2]
    cluster.run("sbatch", "--partition=urgent", "--exclusive", "--output=/dev/null", "--wrap=true")
    until(lambda: last.status()["state"] == "interrupted")

    report = user.sweeps("wait", "fig3", *arguments, code=1)
    assert "13 done" in report
    assert "  failed  " in line_of(report, hit["killed"])
    assert "the run was killed by SIGKILL" in line_of(report, hit["killed"])
    assert "  interrupted  " in line_of(report, hit["cancelled"])

    assert "submitted 2 jobs" in user.python(
        "rec_experiments", "-m", "sweep=fig3", *arguments, *SLURM
    )
    assert "15 runs: 15 done" in user.sweeps("wait", "fig3", *arguments)
    assert_same_runs(user.folder / "runs", user.folder / "local")
    for what in ("noticed", "noticed twice", "cancelled", "noticed again"):
        log = (user.folder / "runs" / hit[what] / "log.txt").read_text()
        assert "interrupted: SIGTERM after step" in log, what
        assert "resumed after gradient step" in log, what


@pytest.mark.long
def test_failed_and_hung_jobs_are_named_and_resubmitted(user, cluster):
    arguments = ("seed=0", "sync=offline", *RUNS)
    overrides = user.sweeps("list", "fig3", *arguments).splitlines()[:5]
    assert len(overrides) == 5
    stuck = hang_at_its_start(user, number=1)
    prepared = user.python(
        "rec_experiments",
        "-m",
        "sweep=fig3",
        *arguments,
        *SLURM,
        HELD,
    )
    assert "submitted 5 jobs" in prepared
    (fails, _, failing), (hangs, _, hanging), *others = user.jobs()
    release(cluster, [fails])
    until(lambda: under_way(failing))
    cluster.run("scontrol", "requeuehold", fails)
    until(lambda: failing.status()["state"] == "interrupted")
    (failing.path / "samples.jsonl").unlink(missing_ok=True)
    (failing.path / "samples.jsonl").mkdir()  # cannot be read
    until(lambda: user.states([fails]) == ["PENDING"])
    [submission] = os.listdir(user.folder / "runs/submissions")
    # As if it had been noticed so often.
    [pickled] = (user.folder / "runs/submissions" / submission).glob(f"{hangs}_submitted.pkl")
    delayed = DelayedSubmission.load(pickled)
    delayed.function.saved = ("none",) * MAX_IN_VAIN
    delayed.dump(pickled)
    release(cluster, (fails, hangs, *(job for job, _, _ in others)))
    until(lambda: user.states([hangs]) == ["RUNNING"])
    cluster.run("scontrol", "update", f"jobid={hangs}", "timelimit=1")

    report = user.sweeps("wait", "fig3", *arguments, code=1)
    assert "5 runs: 2 failed, 3 done" in report
    assert "Is a directory" in line_of(report, failing.path.name)
    assert "no new checkpoint since it was last requeued" in line_of(report, hanging.path.name)
    assert "5 runs: 2 failed, 3 done" in user.sweeps("status", "fig3", *arguments, code=1)

    (failing.path / "samples.jsonl").rmdir()
    stuck.unlink()
    assert "submitted 2 jobs" in user.python(
        "rec_experiments", "-m", "sweep=fig3", *arguments, *SLURM
    )
    assert {folder.path for _, _, folder in user.jobs()} == {failing.path, hanging.path}
    assert "5 runs: 5 done" in user.sweeps("wait", "fig3", *arguments)


def test_two_hundred_jobs_take_one_call(user, cluster, tmp_path):
    calls = tmp_path / "calls"
    wrappers = tmp_path / "bin"
    wrappers.mkdir()
    for name in CALLS:
        real = shutil.which(name, path=user.environment["PATH"])
        script = f'#!/bin/sh\necho {name} >> {calls}\nexec {real} "$@"\n'
        (wrappers / name).write_text(script)
        (wrappers / name).chmod(0o755)
    user.environment["PATH"] = f"{wrappers}:{user.environment['PATH']}"
    arguments = ("sync=offline", "seed=range(40)", *RUNS)

    def called():
        made = calls.read_text().split() if calls.exists() else []
        calls.unlink(missing_ok=True)
        return made

    assert "submitted 200 jobs" in user.submit("sweep=fig3", *arguments, HELD)
    assert called() == ["sbatch"]
    report = user.sweeps("status", "fig3", *arguments)
    assert called() == ["squeue"]
    assert report.splitlines()[0] == "200 runs: 200 queued"
    assert "JobHeldUser" in report.splitlines()[-1]
    again = user.submit("sweep=fig3", *arguments)
    assert "200 runs, 0 already finished, 200 queued or running" in again
    assert called() == ["squeue"]
    [submission] = os.listdir(user.folder / "runs/submissions")
    cluster.run("scancel", f"--name={submission}")
    until(lambda: not user.jobs())
    assert "200 missing" in user.sweeps("status", "fig3", *arguments)


def checkout_of(folder):
    """A checkout of its own, with one commit."""
    for name in ("rec_experiments", "conf", "sweeps"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-C", str(folder)]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *command], check=True)
    asked = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    return asked.stdout.strip()


def test_editing_the_checkout_does_not_change_queued_jobs(cluster, tmp_path):
    checkout, home = tmp_path / "checkout", tmp_path / "home"
    commit = checkout_of(checkout)
    home.mkdir()
    user = User(cluster, home, checkout)
    job = ("algo=grpo", "sync=offline", "seed=0", *RUNS)
    user.python("rec_experiments", *job, "output_dir=local")
    told = user.submit(*job, HELD)
    assert "uncommitted" not in told

    config = checkout / "conf/optimizer/adamw.yaml"
    config.write_text(config.read_text().replace("learning_rate: 5", "learning_rate: 7"))
    (checkout / "rec_experiments/training/trainer.py").write_text("raise RuntimeError('edited')\n")
    [(name, _, folder)] = user.jobs()
    cluster.run("scontrol", "release", name)
    until(lambda: under_way(folder))
    cluster.start("scancel", "--signal=USR2", name)  # and again when it comes back
    until(lambda: folder.status()["state"] == "done")

    assert_same_runs(home / "runs", home / "local")
    configs = [yaml.safe_load((p / folder.path.name / "config.yaml").read_text())
               for p in (home / "runs", home / "local")]  # fmt: skip
    assert configs[0] | {"output_dir": ""} == configs[1] | {"output_dir": ""}
    provenance = json.loads((folder.path / "provenance.json").read_text())
    assert (provenance["commit"], provenance["diff"]) == (commit, "")
    assert provenance["command"][1:] == ["-m", "rec_experiments", *job]
    assert "resumed after gradient step" in (folder.path / "log.txt").read_text()

    told = user.submit(*job, "seed=1", HELD)
    assert "the checkout has uncommitted changes" in told
    cluster.cancel()


def test_what_slurm_refuses_is_one_line(user):
    said = user.submit("seed=0", "hydra.launcher.partition=nowhere", *RUNS, code=2)
    told = said.splitlines()[-1]
    assert told.startswith("error: hydra/launcher=slurm_cpu: ")
    assert "invalid partition" in told.lower()  # the words differ among versions
    assert list((user.folder / "runs/submissions").iterdir()) == []
    user.environment["PATH"] = "/nowhere"
    said = user.submit("seed=0", *RUNS, code=2)
    assert said.splitlines()[-1].endswith("sbatch not found; use a login node")
