"""Training on two ranks compared with one.

1. Weights agree up to rounding after ten steps (gradients: test_update_shapes.py).
2. A resumed run equals the uninterrupted one bit for bit, also after SIGKILL of a rank.
3. If a checkpoint is damaged on one rank, all ranks skip it.
4. A failing rank ends the run; its error is printed once.
6. Rank 0 can draw for all, in flight and after a resume: the batches are those of one rank.
"""

import contextlib
import copy
import itertools
import json
import os
import re
import shutil
import signal
import sys
import time
from unittest import mock

import pytest
import torch
from conftest import (
    SMALL,
    assert_equal,
    experiment,
    resolve,
    timeless,
)
from hypothesis import given
from hypothesis import strategies as st
from language_models import tiny_llama
from ranks import RANKS, outcome, pids, torchrun
from safetensors.torch import load_file, save_file

from rec_experiments.common import distributed
from rec_experiments.common.distributed import World, whole
from rec_experiments.policy.batching import collate
from rec_experiments.policy.logprobs import ForwardPass, Wanted, compute_logprobs
from rec_experiments.policy.models import Pretrained
from rec_experiments.runs.checkpoints import Checkpoints
from rec_experiments.runs.prepare import frozen, prepare, without_weights
from rec_experiments.runs.run_folder import RunFolder
from rec_experiments.samplers.native import Native

pytestmark = pytest.mark.usefixtures("padded_rows")  # which ranks that share a model have


def scores_around_a_step(world, model, rollouts):
    """Log-probabilities before and after the parameters move, with no backward pass between."""
    model = world.split(copy.deepcopy(model))
    rows = collate(rollouts.sequences)
    parameters = list(model.parameters())  # as an optimizer holds them
    before = score_of(model, rows)
    with torch.no_grad():
        for parameter in parameters:
            parameter.mul_(1.1)
    return before, score_of(model, rows)


def weights_of_a_split(world):
    """Of a model that each rank has begun with other weights, and of a copy without any."""
    model = experiment(*MOVING).model.model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(world.rank)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    copied = world.split(without_weights(model), weights=model.state_dict())
    split = world.split(model)
    return before, *({n: whole(w) for n, w in m.state_dict().items()} for m in (copied, split))


def test_ranks_get_the_weights_of_the_first(ranks):
    found = ranks(weights_of_a_split)
    first, other = (before for before, *_ in found)
    assert not any(torch.equal(first[name], other[name]) for name in first)
    for _, copied, split in found:
        assert_equal(copied, first)
        assert_equal(split, first)


def weights_from_files(world, folder):
    """Of the policy and its reference, on ranks that never hold the model as a whole."""
    with mock.patch.object(Pretrained, "model", side_effect=AssertionError):
        trainer = prepare(
            experiment(
                "dataset=arithmetic", "dataset.max_prompt_tokens=64", "model=pretrained",
                f"model.path={folder}", "kl_every=1",
                f"ranks={world.size}",
            ),
            world=world,
        )  # fmt: skip
    models = trainer.model, trainer.policies.models["reference"]
    return [{name: whole(w).detach() for name, w in m.state_dict().items()} for m in models]


def test_the_first_rank_reads_weights_one_by_one(ranks, tmp_path):
    """From files of bfloat16, in which one of two tied weights is left out."""
    source = experiment("model=pretrained", f"model.path={tiny_llama(tmp_path)}").model
    source.model().to(torch.bfloat16).save_pretrained(tmp_path)
    expected = source.model().state_dict()
    for policy, reference in ranks(weights_from_files, tmp_path):
        assert_equal(policy, dict(expected))
        assert_equal(reference, dict(expected))


def test_files_with_other_weights_are_left_to_the_library(tmp_path):
    source = experiment("model=pretrained", f"model.path={tiny_llama(tmp_path)}").model
    skeleton = source.skeleton()
    assert source.stored(skeleton).keys() == skeleton.state_dict().keys()
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    for changed in ({"model.norm.weight": torch.ones(3)}, {"model.norm.weight": None}):
        some = {name: w for name, w in {**weights, **changed}.items() if w is not None}
        save_file(some, file)
        assert source.stored(skeleton) is None
    file.write_bytes(b"damaged")
    assert source.stored(skeleton) is None


def scores_of_references(world, model, rollouts):
    """In bfloat16: with a reference that is cast as it is gathered, and with one kept so."""
    model, dtype = model.float(), torch.bfloat16
    policy = world.split(copy.deepcopy(model), dtype)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(1.1)
    forward = ForwardPass(temperature=1.0, compute_dtype=dtype)
    found = []
    for kept, chunked in itertools.product((None, dtype), (False, True)):
        own = world.split(frozen(without_weights(model, kept)), dtype, model.state_dict())
        wanted = Wanted(others={"reference": own}, kl=True)
        scores = forward(policy, rollouts.sequences, wanted, chunked)
        found.append([scores.kl_BT.detach(), scores.others["reference"]])
    return found


def test_a_reference_in_the_dtype_of_passes(ranks, mini_batch):
    for *cast, whole_kept, chunks_kept in ranks(scores_of_references, *mini_batch):
        assert_equal([whole_kept, chunks_kept], cast)
        assert whole_kept[0].abs().max() > 1e-3


def score_of(model, rows):
    with torch.no_grad():
        return compute_logprobs(model, rows, 1.0).logp_BT


def test_weights_after_a_step(ranks, mini_batch):
    expected = scores_around_a_step(distributed.ALONE, *mini_batch)
    assert not torch.allclose(*expected)
    for scores in ranks(scores_around_a_step, *mini_batch):
        torch.testing.assert_close(scores, expected, rtol=1e-11, atol=1e-12)


@given(st.integers(0, 100), st.integers(1, 9))
def test_shares(n, ranks):
    shares = [list(range(n))[World(rank, ranks).share(n)] for rank in range(ranks)]
    assert [i for share in shares for i in share] == list(range(n))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


# AsymRE moves the weights at each step. One group is decoded at a time, so that the sampler sees
# the same shapes however the groups are shared.
MOVING = (*SMALL, "algo=asymre", "sampler.max_rows=4", "model.heads=2", "eval_problems=7")


def run_on(world, path, overrides, until=None, base=MOVING):
    """Train to the end, or until a row, on one rank or many. Rows, full weights, own state."""
    overrides = (*base, *overrides, f"ranks={world.size}")
    folder = RunFolder(path, world)
    config = resolve(*overrides)
    folder.check(config)
    folder.start(config, {})
    trainer = prepare(experiment(*overrides), world=world)
    notes = []

    def stop(row):
        if row["step"] == until:
            raise InterruptedError

    with contextlib.closing(trainer.rollouts.worker):
        try:
            trainer.train(folder, stop, notes.append)
        except InterruptedError:
            assert until is not None
    folder.unlock()
    weights = {name: whole(t).detach() for name, t in trainer.model.state_dict().items()}
    return [*map(timeless, folder.metrics())], weights, folder.load_checkpoint()[0], notes


SEVERAL = ("updates.epochs=2", "updates.mini_batches=2")
SHAPES = {
    "one update a batch": (),
    "a moving average": (
        *SEVERAL, "ratio=proximal", "proximal=moving_average", "clip=one_side", "weight=importance",
    ),
    "replay": (*SEVERAL, "buffer=replay", "buffer.reuse=1", "reference=swapped"),
    "refill": ("buffer=refill", "buffer.redraws=1", "correction=truncated"),
    "in flight": (
        "sync=in_flight", "sync.interval=1", "sync.tokens=5", "sync.late=drop", "sync.max_age=3",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "shape",
    [
        "one update a batch",
        "in flight",
        pytest.param("a moving average", marks=pytest.mark.long),
    ],
)
def test_ten_steps_of_two_ranks(ranks, tmp_path, shape):
    """Same responses, metrics and weights, up to float32 rounding."""
    overrides = ("steps=10", "sync.interval=3", "sync.offset=1", "micro_batch_size=3",
                 "eval_every=3", "optimizer.learning_rate=0.002", *SHAPES[shape])  # fmt: skip
    rows, weights, _, _ = run_on(distributed.ALONE, tmp_path / "one", overrides)
    start = prepare(experiment(*MOVING)).model.state_dict()
    assert max((weights[name] - start[name]).abs().max() for name in weights) > 0.005
    (two_rows, two_weights, _, _), (_, other_weights, _, _) = ranks(
        run_on, tmp_path / "two", overrides
    )
    assert len(two_rows) == len(rows) == 11
    for row, two_row in zip(rows, two_rows, strict=True):
        assert two_row == pytest.approx(row, rel=1e-3, abs=1e-5), row["step"]
    for name, tensor in weights.items():
        torch.testing.assert_close(two_weights[name], tensor, rtol=1e-4, atol=2e-5)
        assert torch.equal(two_weights[name], other_weights[name])
    samples = [(tmp_path / n / "samples.jsonl").read_text() for n in ("one", "two")]
    assert samples[0] == samples[1]


OFF_POLICY = ("steps=6", "checkpoint_every=2", "sync.interval=2", "sync.offset=3")


def assert_same(one, other):
    """Bit for bit, on every rank."""
    for (rows, weights, _, _), (other_rows, other_weights, _, _) in zip(one, other, strict=True):
        assert json.dumps(rows) == json.dumps(other_rows)
        assert all(torch.equal(weights[name], other_weights[name]) for name in weights)


def test_resumed_run(ranks, tmp_path):
    entire = ranks(run_on, tmp_path / "whole", OFF_POLICY)
    for until in (1, 3, 5):
        ranks(run_on, tmp_path / "cut", OFF_POLICY, until)
    shutil.copytree(tmp_path / "cut", tmp_path / "damaged")
    resumed = ranks(run_on, tmp_path / "cut", OFF_POLICY)
    assert "resumed after gradient step 4" in resumed[0][3]
    assert_same(resumed, entire)
    for (_, _, state, _), (_, _, other, _) in zip(resumed, entire, strict=True):
        assert_equal(state, other)
    parts = [state["weights"]["optimizer"][0]["exp_avg"] for _, _, state, _ in entire]
    assert sum(map(len, parts)) == len(next(iter(entire[0][1].values())))  # each has its own rows

    newest = max((tmp_path / "damaged" / "checkpoints").glob("step_*"))
    file = newest / "rank_1.pt"
    file.write_bytes(file.read_bytes()[:-1])
    resumed = ranks(run_on, tmp_path / "damaged", OFF_POLICY)
    for _, _, _, notes in resumed:  # on all ranks
        assert f"checkpoint {newest.name} is damaged and was skipped" in notes
        assert "resumed after gradient step 2" in notes
    assert_same(resumed, entire)


def run_led(world, path, overrides, until=None):
    """As `run_on`, with a sampler of which rank 0 draws for all, in a process of its own."""
    with mock.patch.object(Native, "for_all_ranks", True):
        return run_on(world, path, (*overrides, "pipeline=overlap"), until)


@pytest.mark.parametrize("shape", ["one update a batch", "in flight"])
def test_the_first_rank_draws_for_all(ranks, tmp_path, shape):
    """Evaluations meet weights that the sampler has and weights that it has not."""
    overrides = ("steps=7", "sync.interval=3", "eval_every=2", *SHAPES[shape])
    rows, weights, _, _ = run_on(distributed.ALONE, tmp_path / "one", overrides)
    ranks(run_led, tmp_path / "two", overrides, 4)
    resumed = ranks(run_led, tmp_path / "two", overrides)
    assert "resumed after gradient step 3" in resumed[0][3]
    for two_rows, two_weights, _, _ in resumed:
        for row, two_row in zip(rows, two_rows, strict=True):
            assert two_row == pytest.approx(row, rel=1e-3, abs=1e-5), row["step"]
        for name, tensor in weights.items():
            torch.testing.assert_close(two_weights[name], tensor, rtol=1e-4, atol=2e-5)


def saved_bytes(world, folder):
    """The size of this rank's file with weights as the process that draws shares them: views of one
    block, two of them tied."""
    block = torch.zeros(100_000)
    tied, other = block[:40_000].view(200, 200), block[40_000:].view(300, 200)
    weights = {"one": tied, "tied": tied.view(200, 200), "other": other}
    checkpoints = Checkpoints(folder, world)
    checkpoints.save(1, {"step": 1, "weights": {"behavior": weights}}, None)
    world.barrier()  # the first rank completes it
    return (checkpoints.of(1) / f"rank_{world.rank}.pt").stat().st_size


def test_files_hold_the_rows_of_their_rank_alone(ranks, tmp_path):
    for size in ranks(saved_bytes, tmp_path):
        assert 200_000 < size < 205_000  # half of 100,000 numbers of 4 bytes


# A process that aborts where the interpreter is taken down, as one with gloo's threads may.
FRAGILE = """
import os
from rec_experiments.cli.main import main

class Fragile:
    abort = os.abort
    def __del__(self):
        self.abort()

fragile = Fragile()
main()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.long
def test_killed_and_resumed_run(ranks, tmp_path):
    overrides = ("steps=24", "checkpoint_every=4", "eval_every=12", "sync.interval=3",
                 "sync.offset=2")  # fmt: skip
    arguments = (*MOVING, *overrides, "ranks=2", "run_dir=killed")
    entire = ranks(run_on, tmp_path / "whole", overrides)
    folder = RunFolder(tmp_path / "killed")
    for number, struck, row in (
        (signal.SIGTERM, (1,), 1), (signal.SIGKILL, (1,), 6), (signal.SIGKILL, (0, 1), 13),
    ):  # fmt: skip
        process = torchrun(*arguments, cwd=tmp_path)
        while process.poll() is None and len(folder.metrics()) <= row:
            time.sleep(0.01)
        started = pids(process)
        for rank in struck:
            os.kill(started[rank], number)
        assert outcome(process)[0] != 0
        if number == signal.SIGTERM:  # the ranks agree to stop after the same step
            assert folder.status()["state"] == "interrupted"
            newest = max(folder.checkpoints.glob("step_*")).name
            assert int(newest.removeprefix("step_")) == folder.last_step() < 4
        else:
            assert folder.status()["state"] != "done"
    script = tmp_path / "fragile.py"
    script.write_text(FRAGILE)
    code, out, err = outcome(torchrun(*arguments, program=(str(script),), cwd=tmp_path))
    assert code == 0, err
    assert re.search(r"resumed after gradient step (12|16|20|24)", out)
    assert [*map(timeless, folder.metrics())] == entire[0][0]
    for rank in range(RANKS):
        newest = sorted(folder.checkpoints.glob("step_*"))[-1]
        state = torch.load(newest / f"rank_{rank}.pt", weights_only=True)
        assert_equal(state["weights"]["model"], entire[rank][2]["weights"]["model"])


def test_failing_rank(tmp_path):
    """Not code 0, one traceback, and the reason in status.json, though rank 0 is innocent."""
    script = tmp_path / "broken.py"
    script.write_text(
        "import os, rec_experiments.training.trainer as t\n"
        "update = t.Trainer.update\n"
        "def boom(trainer, rollouts, index):\n"
        "    if rollouts.index == 1 and trainer.world.rank == 1: raise RuntimeError('no luck')\n"
        "    return update(trainer, rollouts, index)\n"
        "t.Trainer.update = boom\n"
        "from rec_experiments.cli.main import main\n"
        "main()\n"
    )
    code, _, err = outcome(
        torchrun(*MOVING, "ranks=2", "run_dir=run", program=(str(script),), cwd=tmp_path)
    )
    assert code not in (0, 2)
    assert err.count("RuntimeError: no luck") == 1, err
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["state"] == "failed"
    assert status["reason"] == "RuntimeError: no luck"
    assert "in boom" in status["traceback"]
    rows = RunFolder(tmp_path / "run").metrics()
    assert [row["step"] for row in rows] == [0, 1]


def test_user_error_is_printed_once(tmp_path):
    line = (
        "error: ranks=3: must be the number of processes that were started, 2; "
        "this starts 3: torchrun --nproc-per-node 3 -m rec_experiments "
    )
    code, out, err = outcome(torchrun(*SMALL, "ranks=3", cwd=tmp_path))
    assert code != 0
    assert [said.startswith(line) for said in err.splitlines() if said[:6] == "error:"] == [True]
    assert out == ""
    assert "rec_experiments/" not in err  # no traceback of ours; torchrun adds a report of its own
    assert list(tmp_path.iterdir()) == []
