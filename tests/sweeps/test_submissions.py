"""What surrounds a job of a scheduler, without one (tests/slurm has the real SLURM).

1. The state of a job follows from its run folder, its lock and the queue, not from a dead claim.
2. A submission keeps the resolved configurations and a copy of the code.
3. A run told to stop by SIGTERM saves its state, says so, and resumes bit for bit.
4. The supervisor passes SIGUSR2 on, requeues what stopped and has moved on, and nothing else.
"""

import copy
import dataclasses
import fcntl
import functools
import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from conftest import SMALL, assert_same_result
from submitit.helpers import DelayedSubmission

from rec_experiments import sweeps
from rec_experiments.cli.main import run_command
from rec_experiments.common.errors import UserError
from rec_experiments.config import plugins
from rec_experiments.runs import provenance
from rec_experiments.runs.run_folder import RunFolder
from rec_experiments.sweeps import submission
from rec_experiments.sweeps.jobs import finished
from rec_experiments.sweeps.manifest import write_manifest
from rec_experiments.sweeps.slurm import NO_LIMIT, SlurmLauncher
from rec_experiments.sweeps.state import State, survey
from rec_experiments.sweeps.submission import prepare
from rec_experiments.sweeps.supervisor import GIVES_UP, IGNORE_USR2, MAX_IN_VAIN, Supervisor


@functools.cache
def composed():
    overrides = ["sync=offline", "seed=0,1", "hydra.sweeper.only=[GRPO]"]
    return sweeps.jobs(sweeps.load_figure("fig3", overrides), overrides)


@pytest.fixture
def jobs(tmp_path, monkeypatch):
    """Two jobs, whose run folders are not there yet."""
    monkeypatch.chdir(tmp_path)
    return copy.deepcopy(composed())


@pytest.fixture
def squeue(tmp_path, monkeypatch):
    """A queue that holds the lines it is given."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def holds(*lines, code=0):
        text = "\n".join(lines)
        script = f"#!/bin/sh\ncat <<END\n{text}\nEND\necho refused >&2\nexit {code}\n"
        (folder / "squeue").write_text(script if lines else f"#!/bin/sh\nexit {code}\n")
        (folder / "squeue").chmod(0o755)

    return holds


def state_of(job):
    return survey([job])[job.path]


def start(job, state="running", **details):
    folder = RunFolder(job.path)
    folder.path.mkdir(parents=True, exist_ok=True)
    folder.set_status(state, **details)
    rows = [{"step": step, "eval/accuracy": 0.0} for step in range(41)]
    lines = [*map(json.dumps, rows), '{"ste']
    (folder.path / "metrics.jsonl").write_text("\n".join(lines))


def test_jobs_in_the_queue_are_queued_or_running(jobs, squeue):
    sent = prepare("fig3", jobs)
    squeue(
        f"{sent.name}|0|PENDING|Resources", f"{sent.name}|1|RUNNING|None", "other|0|RUNNING|None"
    )
    assert state_of(jobs[0]) == State("queued", 0, "Resources")
    assert state_of(jobs[1]).name == "running"
    start(jobs[0], "failed", reason="of an earlier life")
    assert state_of(jobs[0]) == State("queued", 40, "Resources")


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("Starting with JobEnvironment\n", "ended without a result"),
        (
            "Starting with JobEnvironment\nslurmstepd: error: *** JOB 7 ON n1 CANCELLED AT "
            "2026-11-21T15:19:57 DUE TO TIME LIMIT ***\nsrun: error: n1: task 0: Killed\n",
            "CANCELLED AT 2026-11-21T15:19:57 DUE TO TIME LIMIT",
        ),
        (
            "Starting with JobEnvironment\nslurmstepd: error: *** JOB 7 ON n1 CANCELLED AT "
            "2026-11-21T15:19:57 DUE TO JOB REQUEUE ***\n"
            "Starting with JobEnvironment\nthe run was killed by SIGKILL\n",
            "the run was killed by SIGKILL",
        ),
    ],
)
def test_a_job_that_died_is_not_believed_to_run(jobs, squeue, log, reason):
    sent = prepare("fig3", jobs)
    squeue()
    (sent.folder / "7_0_0_log.out").write_text(log)
    (sent.folder / "7_10_0_log.out").write_text("CANCELLED AT another job")
    assert state_of(jobs[0]) == State("failed", 0, reason)  # before it had a run folder
    start(jobs[0])
    assert state_of(jobs[0]) == State("failed", 40, reason)


def test_a_mistake_of_the_user_is_the_reason(jobs, squeue):
    sent = prepare("fig3", jobs)
    squeue()
    (sent.folder / "7_0_0_log.out").write_text("the run ended with exit code 2\n")
    jobs[0].path.mkdir(parents=True)
    (jobs[0].path / "log.txt").write_text("warm start\nerror: seed=3: not today\n")
    assert state_of(jobs[0]) == State("failed", 0, "seed=3: not today")


def test_states_without_a_scheduler(jobs, squeue):
    squeue(code=1)  # nobody asks it
    first, second = jobs
    assert state_of(first).name == "missing"
    for state in ("failed", "interrupted"):
        start(first, state, reason="because")
        assert state_of(first) == State(state, 40, "because")
    start(first)
    assert state_of(first) == State("failed", 40, "ended without a result")
    with open(first.path / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert state_of(first).name == "running"
    start(first, "done")
    prepare("fig3", [first])
    assert state_of(first).name == "done"
    assert state_of(second).name == "missing"


def test_a_failure_before_the_last_submission_is_not_the_news(jobs, squeue):
    squeue()
    start(jobs[0], "failed", reason="old")
    os.utime(jobs[0].path / "status.json", (0, 0))
    sent = prepare("fig3", jobs)
    (sent.folder / "7_0_0_log.out").write_text("the run was killed by SIGKILL\n")
    assert state_of(jobs[0]) == State("failed", 40, "the run was killed by SIGKILL")


@pytest.mark.parametrize("name", ["status.json", "provenance.json"])
def test_a_damaged_run_is_one_state_among_others(jobs, squeue, name):
    folder = RunFolder(jobs[0].path)
    folder.path.mkdir(parents=True)
    folder.set_status("done")
    (folder.path / name).write_text("{oops")
    state = survey(jobs)[jobs[0].path]
    assert state.name == "unreadable"
    assert f"{name} cannot be read" in state.note
    assert not finished(jobs[0]) or name == "provenance.json"
    assert survey(jobs)[jobs[1].path].name == "missing"


def test_a_damaged_record_is_named(jobs):
    sent = prepare("fig3", jobs)
    (sent.folder / submission.RECORD).write_text('{"jobs": [3]}')
    with pytest.raises(UserError, match=rf"^submission {sent.folder}: jobs\.json cannot be read"):
        survey(jobs)


def test_a_scheduler_that_does_not_answer_is_no_verdict(jobs, squeue, monkeypatch):
    prepare("fig3", jobs)
    squeue("x", code=1)
    with pytest.raises(UserError, match="squeue: refused"):
        survey(jobs)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UserError, match="squeue: not found here"):
        survey(jobs)


def test_status_is_one_line_a_job_and_tells_of_failures(jobs, squeue, capsys):
    squeue()
    arguments = ["fig3", "sync=offline", "seed=0,1", "hydra.sweeper.only=[GRPO]"]
    start(jobs[0], "done")
    (jobs[0].path / "config.yaml").write_text(yaml.safe_dump(jobs[0].config))
    write_manifest("fig3", jobs)
    with pytest.raises(SystemExit) as ended:
        run_command("sweeps", *["status", *arguments])
    assert ended.value.code == 0
    count, shared, head, *lines = capsys.readouterr().out.splitlines()
    assert count == "2 runs: 1 done, 1 missing"
    assert shared == "all: offline"
    assert head.split()[:3] == ["run", "state", "step"]
    assert [" ".join(line.split()) for line in lines] == [
        f"GRPO · seed 0 done 40/150 ▁▁▁▁▁▁▁▁▁▁▁▁ 0 {jobs[0].path.name}",
        "GRPO · seed 1 missing 0/?",
    ]
    start(jobs[1], "failed", reason="ValueError: boom")
    for command in ("status", "wait"):
        with pytest.raises(SystemExit) as ended:
            run_command("sweeps", *[command, *arguments])
        assert ended.value.code == 1
        assert f"{jobs[1].path.name}  ValueError: boom" in capsys.readouterr().out


# Submissions -------------------------------------------------------------------------------------


def test_a_submission_is_read_as_it_was_written(jobs):
    sent = prepare("fig3", jobs)
    again = submission.read(sent.folder)
    assert (again, again.jobs[0].config) == (sent, jobs[0].config)
    assert [job.path for job in again.jobs] == [job.path.absolute() for job in jobs]
    later = prepare("fig3", jobs[1:])
    os.utime(sent.folder / submission.RECORD, (0, 0))
    newest = submission.newest([Path("runs")])
    assert newest[jobs[0].path.absolute()][0].name == sent.name
    assert newest[jobs[1].path.absolute()] == (later, 0)


def test_a_copy_of_the_code_runs_from_its_folder(tmp_path):
    code = tmp_path / "submissions" / "code"
    submission.copy_code(code)
    assert not list(code.rglob("__pycache__"))
    script = (
        "from rec_experiments.config import plugins; from rec_experiments.runs import provenance;"
        "print(plugins.CONF, provenance.source())"
    )
    said = subprocess.run(
        [sys.executable, "-P", "-c", script], env={**os.environ, "PYTHONPATH": str(code)},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert str(code / "rec_experiments/conf") in said
    assert f"'copy': '{code}'" in said
    assert (code / "rec_experiments/conf/sweep/fig3.yaml").is_file()


def test_what_git_ignores_is_not_copied(tmp_path, monkeypatch):
    package, conf, code = (tmp_path / name for name in ("package", "conf", "code"))
    for file in (package / "api.py", conf / "a.yaml", conf / "mine.yaml"):
        file.parent.mkdir(exist_ok=True)
        file.write_text("")
    monkeypatch.setattr(plugins, "PACKAGE", package)
    monkeypatch.setattr(plugins, "CONF", conf)
    monkeypatch.setattr(submission.provenance, "ignored", lambda: {(conf / "mine.yaml").resolve()})
    submission.copy_code(code)
    files = {file.name for file in (code / "rec_experiments").rglob("*") if file.is_file()}
    assert files == {"api.py", "a.yaml", "outside.json"}
    assert stat.S_IMODE(code.stat().st_mode) == 0o700
    assert stat.S_IMODE((code / provenance.SOURCE).stat().st_mode) == 0o600


def test_the_command_of_several_ranks_is_that_of_torchrun(jobs):
    launcher = slurm_launcher("apptainer exec image.sif")
    jobs[1].config["ranks"] = 4
    sent = prepare("fig3", jobs)
    ends = [str(sent.folder), "0"], [str(sent.folder), "1"]
    entry = ["-m", "rec_experiments.cli.run_job"]
    container = ["apptainer", "exec", "image.sif", sys.executable]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"]
    assert launcher._command(sent, 0) == [*container, *entry, *ends[0]]
    assert launcher._command(sent, 1) == [*container, *torchrun, *entry, *ends[1]]


# Signals -----------------------------------------------------------------------------------------


@pytest.mark.long
def test_sigterm_saves_the_state_and_the_same_command_resumes(tmp_path):
    def command(name):
        return [
            sys.executable, "-m", "rec_experiments", f"run_dir={tmp_path / name}", *SMALL,
            "steps=30", "checkpoint_every=100", "sync=offset10", "algo=red_drop",
        ]  # fmt: skip

    stopped, whole = RunFolder(tmp_path / "stopped"), RunFolder(tmp_path / "whole")
    run = subprocess.Popen(command("stopped"), stdout=subprocess.PIPE, text=True)
    while stopped.last_step() < 3:
        assert run.poll() is None
        time.sleep(0.02)
    for _ in range(2):
        run.send_signal(signal.SIGTERM)
    said, _ = run.communicate(timeout=100)
    assert run.returncode == 128 + signal.SIGTERM
    status, step = stopped.status(), stopped.last_step()
    assert status["state"] == "interrupted"
    assert status["reason"] == f"SIGTERM after step {step}; the same command resumes the run"
    assert f"interrupted: {status['reason']}" in said
    assert stopped.load_checkpoint()[0]["step"] == step < 30
    for name in ("stopped", "whole"):
        subprocess.run(command(name), check=True, stdout=subprocess.DEVNULL)
    assert stopped.status()["state"] == "done"
    assert_same_result(stopped, whole)


STOPS = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
print("ready", flush=True)
time.sleep(100)
"""
BUSY = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(100)
"""


@pytest.fixture
def supervised(tmp_path, monkeypatch):
    """Start a script as submitit does in a job of SLURM; returns its process once it is ready."""
    (tmp_path / "scontrol").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/requeued\n')
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    log, pickled = tmp_path / "log.txt", tmp_path / "6_submitted.pkl"
    slurm = {"SUBMITIT_EXECUTOR": "slurm", "SLURM_JOB_ID": "6", "SLURM_PROCID": "0"}
    started = []

    def start(script, notice=60):
        if not pickled.exists():
            job = DelayedSubmission(Supervisor(notice), [sys.executable, "-c", script], str(log))
            job.set_timeout(60, NO_LIMIT)
            job.dump(pickled)
        log.unlink(missing_ok=True)
        process = subprocess.Popen(
            [*IGNORE_USR2, sys.executable, "-m", "submitit.core._submit", str(tmp_path)],
            env={**os.environ, **slurm}, start_new_session=True, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        started.append(process)
        while not log.exists() or "ready" not in log.read_text():
            assert process.poll() is None, process.stdout.read()
            time.sleep(0.05)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def requeued(tmp_path):
    file = tmp_path / "requeued"
    return file.read_text().splitlines() if file.exists() else []


def noticed(process):
    """What the job says after SLURM's notice to every one of its processes, sent twice."""
    os.killpg(process.pid, signal.SIGUSR2)
    os.killpg(process.pid, signal.SIGUSR2)
    return process.communicate(timeout=30)[0]


def test_a_preempted_job_is_queued_again_until_it_makes_no_progress(supervised, tmp_path):
    """The first time a run that is in the midst of a long step, which is killed."""
    assert "the run was killed by SIGKILL" in noticed(supervised(BUSY, notice=2))
    (tmp_path / "6_submitted.pkl").unlink()
    (tmp_path / "checkpoints" / "step_00000004").mkdir(parents=True)
    for _ in range(MAX_IN_VAIN):
        assert "the run ended with exit code 143" in noticed(supervised(STOPS))
    assert requeued(tmp_path) == ["requeue 6"] * (1 + MAX_IN_VAIN)
    process = supervised(STOPS)
    assert GIVES_UP in noticed(process)
    assert process.returncode == 1
    assert len(requeued(tmp_path)) == 1 + MAX_IN_VAIN


def test_a_failed_or_finished_run_is_not_requeued(supervised, tmp_path):
    assert supervised("print('ready', flush=True); raise SystemExit(2)").wait(20) == 2
    (tmp_path / "6_submitted.pkl").unlink()
    assert supervised("print('ready', flush=True)").wait(20) == 0
    assert requeued(tmp_path) == []


def test_a_terminated_job_waits_for_the_schedulers_decision(supervised, tmp_path):
    process = supervised(STOPS)
    os.killpg(process.pid, signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(3)
    assert requeued(tmp_path) == []


@pytest.mark.parametrize("claim", ["running", "interrupted"])
def test_a_job_that_does_not_come_back_is_failed(jobs, squeue, claim):
    sent = prepare("fig3", jobs)
    squeue()
    start(jobs[0], claim, reason="SIGTERM after step 40")
    line = f"the run ended with exit code 143, {GIVES_UP}"
    log = f"Starting with JobEnvironment\n{line}\nerror\n"
    (sent.folder / "7_0_0_log.out").write_text(log)
    assert state_of(jobs[0]) == State("failed", 40, line)


SLURM = {"gpus_per_node": 1, "cpus_per_task": 8, "mem": "112GB", "signal_delay_s": 600}


@pytest.mark.parametrize(
    ("given", "needed", "asked"),
    [
        (SLURM, 1, SLURM),
        (SLURM, 8, SLURM | {"gpus_per_node": 8, "cpus_per_task": 64, "mem": "896GB"}),
        (
            {"gpus_per_node": "a100:1", "mem": 64000},
            2,
            {"gpus_per_node": "a100:2", "mem": "128000"},
        ),
        ({"gpus_per_node": 8, "mem": 0}, 8, {"gpus_per_node": 8, "mem": 0}),
        ({"cpus_per_task": 1, "mem": "4GB"}, 0, {"cpus_per_task": 1, "mem": "4GB"}),
    ],
)
def test_a_job_asks_for_the_gpus_that_its_run_is_laid_out_for(given, needed, asked):
    assert slurm_launcher(**given)._for_gpus(needed) == asked


@pytest.mark.parametrize("given", [{"gpus_per_node": "a100:4"}, {"cpus_per_task": 1}])
def test_a_launcher_with_too_few_gpus_is_refused(given):
    with pytest.raises(UserError, match=r"hydra/launcher=test: gives a job \d GPUs"):
        slurm_launcher(**given)._for_gpus(8)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("Invalid job array specification", ".*MaxArraySize .*submit some at a time, with seed="),
        ("Invalid account", "$"),
    ],
)
def test_what_sbatch_refuses_comes_with_advice(jobs, monkeypatch, said, told):
    import submitit

    def refuse(self, *_):
        raise submitit.core.utils.FailedJobError(f"sbatch: error: {said}")

    monkeypatch.setattr("shutil.which", lambda name: name)
    monkeypatch.setattr(submitit.SlurmExecutor, "map_array", refuse)
    with pytest.raises(UserError, match=f"hydra/launcher=test: {said}{told}"):
        slurm_launcher(signal_delay_s=9).submit("fig3", jobs)
    assert list(Path("runs/submissions").iterdir()) == []


def test_a_path_that_slurm_would_rewrite_is_refused(jobs, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: name)
    config = {**jobs[0].config, "output_dir": "/tmp/%j"}
    with pytest.raises(UserError, match="SLURM replaces % in names"):
        slurm_launcher().submit("fig3", [dataclasses.replace(jobs[0], config=config)])


def slurm_launcher(container=None, **resources):
    return SlurmLauncher(
        site={}, setup=[], options={}, container=container, name="test", **resources
    )
