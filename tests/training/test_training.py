"""Gradients, schedule and resume of the real training path, on the tiny model.

1. The gradient does not depend on equal sequences being computed once. Responses without a
   verdict are in no baseline, no loss and no denominator.
2. A resumed run is the uninterrupted one, bit for bit, with a damaged checkpoint too.
"""

import copy
import dataclasses

import conftest
import pytest
import torch
from conftest import SMALL, accumulate_gradient, assert_same_result, experiment

import rec_experiments
from rec_experiments.common.distributed import ALONE
from rec_experiments.policy.batching import TokenSequence
from rec_experiments.policy.logprobs import ForwardPass
from rec_experiments.runs.checkpoints import Checkpoints
from rec_experiments.runs.prepare import prepare
from rec_experiments.runs.run_folder import RunFolder
from rec_experiments.training import gradient as training
from rec_experiments.training.trainer import measures_kl


def gradient_of(model, rollouts, algorithm="grpo"):
    model, parts = copy.deepcopy(model), rec_experiments.algorithm(algorithm).parts
    log = accumulate_gradient(model, rollouts, parts)
    return torch.cat([p.grad.flatten() for p in model.parameters()]), log.reduce()


@pytest.mark.parametrize("algorithm", ["reinforce", "grpo", "opmd", "red_drop"])
def test_repeated_sequences_are_computed_once(mini_batch, algorithm, monkeypatch):
    model, rollouts = mini_batch
    like = [0, 0, 0, 0, 4, 5, 5, 4, 8, 9, 10, 9, 12, 13, 14, 15]  # in groups of 4
    same = rollouts.rows(torch.tensor(like))
    repeated = dataclasses.replace(same, reward_B=rollouts.reward_B)
    computed, forward = [], ForwardPass.__call__

    def counted(self, model, rows, *options):
        computed.append(len(rows))
        return forward(self, model, rows, *options)

    monkeypatch.setattr(ForwardPass, "__call__", counted)
    once, once_log = gradient_of(model, repeated, algorithm)
    assert sum(computed) == len(set(like))
    monkeypatch.setattr(
        training,
        "distinct",
        lambda rows: [
            TokenSequence(int(rows.prompt_length_B[i]), int(rows.length_B[i]), i, [i])
            for i in range(16)
        ],
    )
    apart, apart_log = gradient_of(model, repeated, algorithm)
    # The library's norm rounds its gradient to float32, here of a sum, there of each summand.
    torch.testing.assert_close(once, apart, rtol=0, atol=1e-6 * float(apart.abs().max()))
    for name, value in apart_log.items():
        assert once_log[name] == pytest.approx(value, rel=1e-9, abs=1e-12), name


# AsymRE learns from any batch, also from one without reward: the weights move at each step.
MOVING = (*SMALL, "algo=asymre")


def run(path, *overrides, until=None):
    return conftest.run(path, *MOVING, *overrides, until=until)


@pytest.mark.parametrize(
    "sync",
    [("sync=on_policy",), ("sync.interval=2", "sync.offset=3"), ("sync=offline",)],
)  # fmt: skip
def test_resume(tmp_path, sync):
    overrides = ("steps=6", "checkpoint_every=2", *sync)
    whole = run(tmp_path / "whole", *overrides)
    for until in (1, 3, 4):
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "cut", *overrides, until=until)
    assert_same_result(run(tmp_path / "cut", *overrides), whole)


@pytest.mark.parametrize("damage", ["flip", "truncate"])
def test_damaged_checkpoint(tmp_path, damage):
    overrides = ("steps=5", "checkpoint_every=1")
    whole = run(tmp_path / "whole", *overrides)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", *overrides, until=4)
    newest = sorted((tmp_path / "cut" / "checkpoints").glob("step_*"))[-1]
    state = newest / "rank_0.pt"
    data = bytearray(state.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 1
        state.write_bytes(data)
    else:
        state.write_bytes(data[: len(data) // 2])
    folder = RunFolder(tmp_path / "cut")
    assert folder.load_checkpoint()[1] == [newest.name]
    assert_same_result(run(tmp_path / "cut", *overrides), whole)


def test_weights_that_draw_are_written_once(tmp_path):
    """If they are those of the policy, and not those of an earlier step."""
    trainer = prepare(experiment(*SMALL))
    trainer.rollouts.update_weights(0, 0, trainer.model)
    sizes = []
    for step in (0, 1):
        checkpoints = Checkpoints(tmp_path / f"{step}", ALONE)
        checkpoints.folder.mkdir()
        checkpoints.save(step, trainer.state.state(step, None), None)
        sizes.append((checkpoints.of(step) / "rank_0.pt").stat().st_size)
        found = checkpoints.read(step)["weights"]
        conftest.assert_equal(found["behavior"], found["model"])
    weights = sum(parameter.nbytes for parameter in trainer.model.parameters())
    assert weights <= sizes[1] - sizes[0] < 1.1 * weights + 10_000


def test_zero_gradient_is_a_step(mini_batch):
    """Equal rewards: zero gradients, not absent ones, so that momentum goes on as it would."""
    model, rollouts = mini_batch
    equal = dataclasses.replace(rollouts, reward_B=torch.full((16,), 0.9, dtype=torch.float64))
    grad, _ = gradient_of(model, equal)
    assert torch.equal(grad, torch.zeros_like(grad))


@pytest.mark.parametrize("every", [1, 2, 5])
def test_kl_every(tmp_path, every):
    measured = [
        [measures_kl(every, block * every + n) for n in range(every)] for block in range(99)
    ]
    assert {sum(block) for block in measured} == {1}
    assert {block.index(True) for block in measured} == set(range(every))  # not always the same
    assert not any(measures_kl(0, update) for update in range(99))
    rows = run(tmp_path / "run", "steps=5", f"kl_every={every}").metrics()
    assert ["train/kl" in row for row in rows[1:]] == [measures_kl(every, u) for u in range(5)]


def test_unverified_responses_do_not_train(mini_batch):
    """The gradient is that of the others alone: in no baseline, no loss and no denominator."""
    model, rollouts = mini_batch
    lost = torch.isin(torch.arange(16), torch.tensor([1, 6, 7]))
    rewards = torch.where(lost, 1e3, torch.arange(16) % 3).double()
    all_rows = dataclasses.replace(rollouts, reward_B=rewards, judged_B=~lost)
    others = all_rows.rows((~lost).nonzero()[:, 0])
    for algorithm in ("grpo", "opmd", "red_weight"):
        ours, log = gradient_of(model, all_rows, algorithm)
        theirs, expected = gradient_of(model, others, algorithm)
        assert theirs.abs().max() > 1e-4
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-13)
        assert log["train/loss"] == pytest.approx(expected["train/loss"], rel=1e-9)
