"""Rollouts drawn in another process.

1. Overlapped and sequential runs and their checkpoints are equal bit for bit under any schedule, so
   a run may be resumed in the other pipeline.
2. Pending batches and copies of weights are bounded, and weights in use are never overwritten.
3. If the process dies, hangs or raises, the run ends with the reason; the same command resumes it.
4. However a run ends, no process and no shared memory is left.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from multiprocessing import get_context
from pathlib import Path

import conftest
import pytest
import torch
from conftest import SMALL, assert_equal, timeless
from hypothesis import given, settings
from hypothesis import strategies as st

from rec_experiments.common.batch import Responses, Rollouts
from rec_experiments.common.errors import UserError
from rec_experiments.common.problems import Problem, VerifierResult
from rec_experiments.rollout import pipeline, remote
from rec_experiments.rollout.manager import RolloutManager
from rec_experiments.rollout.remote import RemoteWorker, SharedWeights, WorkerLost
from rec_experiments.rollout.replay import NoReplay
from rec_experiments.rollout.schedule import InFlight, Schedule
from rec_experiments.rollout.worker import RolloutRequest, Snapshot
from rec_experiments.runs.run_folder import RunFolder

# Tiny batches, but enough steps for every schedule to turn over; AsymRE moves at every step.
# A batch has room for 4 x (16 + 32) tokens of 1 KiB, so that up to 4 are drawn together.
TINY = (
    *SMALL, "algo=asymre", "steps=24", "batch_size=2", "group_size=2", "eval_problems=4",
    "eval_every=5", "checkpoint_every=3", "kl_every=0", "sampler.bundle_bytes=800000",
)  # fmt: skip
SCHEDULES = {
    "on-policy": ("sync=on_policy", "steps=12"),
    "mixed": ("sync.interval=3", "sync.offset=5"),
    "offline": ("sync=offline", "steps=12"),
    "another sampler": (
        "sync.interval=2", "sync.offset=1", "steps=8", "sampler=noisy_logits", "sampler.noise=0.05",
        "sampler.quantization=int8", "correction=truncated",
    ),
    "in flight": (
        "sync=in_flight", "sync.offset=1", "sync.tokens=5", "sync.late=drop", "buffer=replay",
        "buffer.reuse=1", "buffer.window=2", "batch_size=3", "steps=10",
    ),
}  # fmt: skip
OVERLAP = "pipeline=overlap"


@pytest.fixture(scope="module", autouse=True)
def _quick_start():
    """A fork server imports once for all tests here; the command line's tests spawn, as runs do."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["rec_experiments.runs.prepare", "hypothesis"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remote, "get_context", lambda method: context)
        yield


def run(path: Path, *overrides: str, until: int | None = None) -> RunFolder:
    return conftest.run(path, *TINY, *overrides, until=until)


def assert_same_run(one: RunFolder, other: RunFolder):
    assert [timeless(row) for row in one.metrics()] == [timeless(row) for row in other.metrics()]
    samples = [(folder.path / "samples.jsonl").read_bytes() for folder in (one, other)]
    assert samples[0] == samples[1]
    names = [sorted(p.name for p in folder.checkpoints.iterdir()) for folder in (one, other)]
    assert names[0] == names[1]
    for name in names[0]:
        states = [
            torch.load(folder.checkpoints / name / "rank_0.pt", weights_only=True)
            for folder in (one, other)
        ]
        assert_equal(*states)


@pytest.mark.parametrize("name", SCHEDULES)
def test_overlapped_is_sequential(tmp_path, name):
    sequential = run(tmp_path / "sequential", *SCHEDULES[name])
    overlapped = run(tmp_path / "overlapped", *SCHEDULES[name], OVERLAP)
    assert_same_run(overlapped, sequential)
    for folder in (sequential, overlapped):
        assert all(row["time/wait"] >= 0 for row in folder.metrics()[1:])


@pytest.mark.parametrize(
    "schedule",
    [("sync=on_policy", "sync.offset=4"), SCHEDULES["in flight"], SCHEDULES["another sampler"]],
)
def test_resume_in_the_other_pipeline(tmp_path, schedule):
    schedule = (*schedule, "steps=14")
    whole = run(tmp_path / "whole", *schedule)
    for until, how in ((5, OVERLAP), (10, "pipeline=sequential")):
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "cut", *schedule, how, until=until)
    assert_same_run(run(tmp_path / "cut", *schedule, OVERLAP), whole)


# The manager alone, with a worker that draws nothing.


class Ledger:
    """A worker that records what it is asked for, and draws nothing."""

    def __init__(self, schedule: Schedule, ahead: int | None):
        self.schedule, self.ahead = schedule, ahead
        self.bundles: list[list[int]] = []
        self.held: list[int] = []

    def update_weights(self, snapshot):
        assert snapshot.version not in self.held
        self.held.append(snapshot.version)
        return snapshot

    def submit(self, snapshots, requests):
        self.bundles.append([request.keys[0][0].batch for request in requests])
        for batch in self.bundles[-1]:
            found = [(snapshot.first_token, snapshot.version) for snapshot in snapshots]
            assert found == self.schedule.segments(batch)
            assert found[-1][1] == self.held[-1] == self.schedule.version(batch)
            assert {version for _, version in found} <= {*self.held[-self.schedule.most_versions :]}
        response = Responses.of([[5]], [[-1.0]])
        return [
            lambda batch=batch: Rollouts.verified(
                response,
                prompts=[[4]],
                groups=[0],
                results=[VerifierResult(0.0, 0.0)],
                version_BX=torch.tensor([[snapshots[-1].version]]),
                index=batch,
            )
            for batch in self.bundles[-1]
        ]


def ledger_feed(
    schedule: Schedule, ahead: int | None, steps: int, bundle: int = 1
) -> RolloutManager:
    return RolloutManager(
        worker=Ledger(schedule, ahead), schedule=schedule, buffer=NoReplay(redraws=0), seed=0,
        problems=[Problem((), "")], batches=steps, bundle=bundle,
        batch_size=1, group_size=1, temperature=1.0, shuffle=False,
    )  # fmt: skip


schedules = st.builds(
    Schedule,
    interval=st.integers(1, 6),
    offset=st.integers(0, 6),
    phase=st.sampled_from(["paper", "framework"]),
) | st.builds(
    Schedule, interval=st.none(), offset=st.just(0), phase=st.sampled_from(["paper", "framework"])
)
schedules |= st.builds(
    InFlight, interval=st.just(1), offset=st.integers(0, 3), phase=st.just("paper"),
    versions=st.integers(2, 4), tokens=st.integers(1, 9), cache=st.just("kept"),
    late=st.just("wait"), max_age=st.none(),
)  # fmt: skip


bundles = st.integers(1, 9)


def bundles_of(schedule: Schedule, batches: int, bundle: int) -> list[list[int]]:
    """All batches, cut after the last of a version and after each `bundle` of one."""
    cut: list[list[int]] = []
    for batch in range(batches):
        full = not cut or len(cut[-1]) == bundle
        if full or schedule.version(batch) != schedule.version(batch - 1):
            cut.append([])
        cut[-1].append(batch)
    return cut


@settings(deadline=None)
@given(schedules, bundles, st.integers(1, 12) | st.none(), st.integers(1, 25))
def test_each_batch_once_from_its_version(schedule, bundle, ahead, steps):
    """Its state is also equal to that of a manager that never draws ahead."""
    model = torch.nn.Linear(1, 1)
    feed, plain = (ledger_feed(schedule, each, steps, bundle) for each in (ahead, 0))
    demanded = (schedule.interval or 1) + schedule.offset - 1
    allowed = steps if schedule.interval is None else demanded + 1
    for each in (feed, plain):
        each.update_weights(0, 0, model)
    for step in range(steps):
        assert feed.get_batch(step).index == plain.get_batch(step).index == step
        for each in (feed, plain):
            each.update_weights(step + 1, step + 1, model)
        room = allowed if ahead is None else max(ahead + bundle - 1, demanded)
        assert len(feed.pending) <= room
        assert len(plain.pending) <= max(bundle - 1, demanded)
        assert_equal(feed.state(), plain.state())
    expected = bundles_of(schedule, steps, bundle)
    assert feed.worker.bundles == plain.worker.bundles == expected


@settings(deadline=None, max_examples=50)
@given(schedules, bundles, st.integers(0, 12) | st.none(), st.integers(2, 20), st.data())
def test_restored_manager(schedule, bundle, ahead, steps, data):
    """It draws in the same bundles as before, and uses no draw twice."""
    model = torch.nn.Linear(1, 1)
    feed = ledger_feed(schedule, ahead, steps, bundle)
    cut = data.draw(st.integers(1, steps - 1))
    feed.update_weights(0, 0, model)
    for step in range(cut):
        feed.get_batch(step)
        feed.update_weights(step + 1, step + 1, model)
    resumed = ledger_feed(schedule, ahead, steps, bundle)
    earlier = {batches: each.weights for batches, each in feed.earlier.items()}
    resumed.restore(feed.state(), feed.behavior.weights, earlier)
    for step in range(cut, steps):
        taken = resumed.get_batch(step)
        assert (taken.index, taken.version_BX.tolist()) == (step, [[schedule.version(step)]])
        resumed.update_weights(step + 1, step + 1, model)
    expected = bundles_of(schedule, steps, bundle)
    drawn = resumed.worker.bundles
    assert drawn == expected[len(expected) - len(drawn) :]


# The other process alone, with a worker that follows orders.


class Stub:
    """The first "problem" names what to do, the others are its arguments."""

    def answer(self, snapshot, request):
        name, *arguments = request.problems
        return getattr(self, name)(snapshot, *arguments)

    def draw(self, snapshots, requests):
        return [self.answer(snapshots[-1], request) for request in requests]

    def look(self, snapshot, seconds=0.0, *_):
        """The version, and the one value that all weights hold from first to last."""
        before = {float(x) for tensor in snapshot.weights.values() for x in tensor.flatten()}
        time.sleep(seconds)
        after = {float(x) for tensor in snapshot.weights.values() for x in tensor.flatten()}
        assert before == after
        (value,) = after
        return snapshot.version, value, time.monotonic()

    def fail(self, snapshot):
        raise FloatingPointError("the policy has diverged")

    def fail_unportably(self, snapshot):
        class Local(Exception):
            pass

        raise Local("of this process only")

    def leave(self, snapshot):
        os._exit(3)

    def world(self, snapshot):
        return {
            name for name in os.environ if "RANK" in name or "WORLD" in name or "ELASTIC" in name
        }

    def close(self):
        pass


LOOK = RolloutRequest(["look"], [], 1.0)


def refuse():
    raise UserError("model.path=nowhere: cannot be loaded")


def start(build=Stub, timeout=60.0, versions=1, dtype=None) -> RemoteWorker:
    weights = {"a": torch.zeros(3, 2), "b": torch.zeros(5)}
    return RemoteWorker(
        build, weights, ahead=None, timeout=timeout, environment={}, versions=versions, dtype=dtype
    )


def snapshot(version: int) -> Snapshot:
    value = float(version)
    return Snapshot(version, {"a": torch.full((3, 2), value), "b": torch.full((5,), value)})


def ask(worker: RemoteWorker, held: Snapshot, *order):
    (waiting,) = worker.submit([held], [RolloutRequest([*order], [], 1.0)])
    return waiting


def gone(pid: int, seconds: float = 60.0) -> bool:
    """Whether a process ends within `seconds`; a zombie has ended."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
    return False


@pytest.fixture(scope="module")
def stub():
    with contextlib.closing(start()) as worker:
        yield worker


def test_weights_in_use_are_never_overwritten(stub):
    """Random orders under random schedules of versions; each sees its own version's weights."""
    moves = random.Random(0)
    version, asked = 100, []
    held = stub.update_weights(snapshot(version))
    for _ in range(150):
        move = moves.random()
        if move < 0.5:
            asked.append((version, ask(stub, held, "look", moves.choice([0.0, 0.003]))))
        elif move < 0.8:
            version += 1
            held = stub.update_weights(snapshot(version))
        else:  # an evaluation, of the held version or of a later one
            later = version + moves.choice([0, 1])
            assert stub.answer(snapshot(later), LOOK)[:2] == (later, float(later))
        assert float(held.weights["a"][0, 0]) == version
    for expected, answer in asked:
        assert answer()[:2] == (expected, float(expected))


def test_weights_of_several_versions_stay():
    with contextlib.closing(start(versions=3)) as worker:
        held = [worker.update_weights(snapshot(version)) for version in range(4)]
        worker.answer(snapshot(9), LOOK)
        for newest in (4, 5):
            held = [*held[-2:], worker.update_weights(snapshot(newest))]
            asked = [ask(worker, each, "look", 0.01) for each in held]
            assert [answer()[:2] for answer in asked] == [
                (version, float(version)) for version in range(newest - 2, newest + 1)
            ]


def test_weights_in_the_dtype_of_the_sampler():
    """The other process sees them rounded, the trainer keeps all bits."""
    with contextlib.closing(start(dtype=torch.bfloat16)) as worker:
        exact = 1 + 2**-20
        given = Snapshot(1, {"a": torch.full((3, 2), exact), "b": torch.full((5,), exact)})
        held = worker.update_weights(given)
        given.weights["a"].zero_()
        assert held.weights["a"][0, 0] == exact
        assert ask(worker, held, "look")()[:2] == (1, 1.0)


def test_evaluations_go_first(stub):
    held = stub.update_weights(snapshot(1000))
    asked = [ask(stub, held, "look", 0.2) for _ in range(4)]
    evaluated = stub.answer(snapshot(1001), LOOK)
    assert evaluated[:2] == (1001, 1001.0)
    times = [answer()[2] for answer in asked]
    assert times == sorted(times)
    assert evaluated[2] < times[-1]


def test_errors_of_the_worker(stub):
    held = stub.update_weights(snapshot(2000))
    with pytest.raises(FloatingPointError, match="diverged") as caught:
        ask(stub, held, "fail")()
    assert "in fail" in "".join(caught.value.__notes__)
    with pytest.raises(RuntimeError, match="Local: of this process only") as caught:
        ask(stub, held, "fail_unportably")()
    assert "in fail_unportably" in "".join(caught.value.__notes__)
    assert ask(stub, held, "look")()[0] == 2000


def test_it_is_no_rank_of_torchrun(monkeypatch):
    """Though its trainer is one: vLLM takes the variables for its own."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK",
                 "ROLE_RANK", "ROLE_WORLD_SIZE", "GROUP_WORLD_SIZE",
                 "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RUN_ID"):  # fmt: skip
        monkeypatch.setenv(name, "4")
    monkeypatch.setattr(remote, "get_context", get_context)  # a fork server began before
    with contextlib.closing(start()) as worker:
        assert ask(worker, worker.update_weights(snapshot(1)), "world")() == set()


def test_signals_are_ignored(stub):
    held = stub.update_weights(snapshot(3000))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        os.kill(stub._process.pid, number)
        assert ask(stub, held, "look")()[0] == 3000


def test_user_error_at_start():
    with pytest.raises(UserError, match=r"model\.path=nowhere"):
        start(refuse)


@pytest.mark.parametrize(
    ("order", "reason"), [(("look", 1000), "signal 9, Killed"), (("leave",), "exit code 3")]
)
def test_dead_worker(order, reason):
    with contextlib.closing(start(timeout=10_000)) as worker:
        held = worker.update_weights(snapshot(1))
        drawn = ask(worker, held, "look")
        drawn()
        lost, behind = ask(worker, held, *order), ask(worker, held, "look")
        if order[0] == "look":
            os.kill(worker._process.pid, signal.SIGKILL)
        for answer in (lost, behind):
            with pytest.raises(WorkerLost, match=reason):
                answer()
        with pytest.raises(WorkerLost, match=reason):
            ask(worker, held, "look")()
        assert drawn()[0] == 1  # what was drawn whole stays whole


@pytest.mark.parametrize("hang", ["asleep", "stopped"])
def test_hung_worker(hang):
    """Even if it hangs within a message, or with the pipe to it full."""
    with contextlib.closing(start()) as worker:
        worker.timeout = 1.0
        held = worker.update_weights(snapshot(1))
        if hang == "stopped":
            os.kill(worker._process.pid, signal.SIGSTOP)
        lost = ask(worker, held, "look", 1000, *["full"] * 1_000_000)
        ask(worker, held, "look", 1000, *["full"] * 1_000_000)
        with pytest.raises(WorkerLost, match=r"no answer for 1 s \(pipeline\.timeout\)"):
            lost()
        pid = worker._process.pid
    assert gone(pid, 0.1)


def test_close_leaves_nothing():
    worker = start()
    pid = worker._process.pid
    ask(worker, worker.update_weights(snapshot(1)), "look", 1000)  # within a batch: by force
    worker.close()
    worker.close()
    assert gone(pid, 0.1)
    assert not list(Path("/dev/shm").glob(f"torch_{os.getpid()}_*"))


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's help is Linux's")
def test_worker_dies_with_its_trainer():
    script = (
        "import os, test_overlap as t\n"
        "worker = t.start()\n"
        "t.ask(worker, worker.update_weights(t.snapshot(1)), 'look', 1000)\n"
        "print(worker._process.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)"
    )
    out = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parent, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert gone(int(out.stdout))


def test_shared_weights():
    head = torch.randn(4, 3)
    weights = {"embed": head, "scale": torch.ones(2, dtype=torch.bfloat16), "head": head}
    shared = SharedWeights.like(weights, None)
    assert shared.block.nbytes == 2 * 64  # 12 numbers and 2, each in a multiple of 64 bytes
    room = shared.tensors()
    for name, tensor in weights.items():
        room[name].copy_(tensor)
    for name, tensor in weights.items():
        assert torch.equal(room[name], tensor)
        assert room[name].dtype == tensor.dtype


def test_too_little_shared_memory():
    with pytest.raises(UserError, match=r"shared memory \(/dev/shm\)"):
        SharedWeights.like({"a": torch.zeros(1).expand(1 << 50)}, None)


# Configuration.


CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("name", "own", "count", "ranks", "number"),
    [("auto", CPU, 2, 1, None), ("auto", CUDA, 2, 1, 1),
     ("auto", torch.device("cuda", 1), 4, 2, 3), ("cuda:0", CUDA, 1, 1, 0),
     ("cuda:3", CUDA, 4, 1, 3)],
)  # fmt: skip
def test_device_number(name, own, count, ranks, number):
    assert pipeline.device_number(name, own, count, ranks) == number


def test_impossible_device(monkeypatch):
    with pytest.raises(UserError, match=r"pipeline\.device=cuda:1: the run is on cpu"):
        pipeline.device_number("cuda:1", CPU, 2, 1)
    with pytest.raises(UserError, match=r"pipeline\.device=cuda:2: there are 2 CUDA devices"):
        pipeline.device_number("cuda:2", CUDA, 2, 1)
    for count, ranks in ((1, 1), (4, 4), (7, 4)):  # a GPU that trains does not draw unasked
        with pytest.raises(UserError, match=rf"auto: .* need {2 * ranks} CUDA .* has {count};"):
            pipeline.device_number("auto", CUDA, count, ranks)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-5")
    assert pipeline.visible_device(1) == "GPU-5"
