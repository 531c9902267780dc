"""The optimizer: its warm-up, and a restored state that the checkpoint's file cannot change."""

import pytest
import torch
from conftest import experiment

from rec_experiments.common.distributed import World
from rec_experiments.runs.checkpoints import Checkpoints
from rec_experiments.training.state import restore_optimizer


def test_restored_optimizer_owns_its_tensors(tmp_path):
    model = torch.nn.Linear(300, 300)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(3, 300)).sum().backward()
    optimizer.step()
    checkpoints = Checkpoints(tmp_path, World())
    checkpoints.save(1, {"step": 1, "weights": {"optimizer": optimizer.state_dict()}}, None)
    state, _ = checkpoints.load(None)
    restored = torch.optim.AdamW(model.parameters())
    restore_optimizer(restored, state["weights"]["optimizer"])
    del state
    file = checkpoints.of(1) / "rank_0.pt"
    size = file.stat().st_size
    with open(file, "r+b") as other:  # in place: the pages that nothing has written to show it
        other.write(b"\1" * size)
    for parameter in model.parameters():
        for name, value in optimizer.state[parameter].items():
            assert torch.equal(restored.state[parameter][name], value)


def test_warm_up():
    """A quarter of the rate at the first of four steps, all of it from the fourth on."""
    warm = experiment("optimizer.learning_rate=0.4", "optimizer.warmup_steps=4").optimizer
    assert [warm.rate(step) for step in range(6)] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])
    assert (
        experiment("optimizer.learning_rate=0.4", "optimizer.warmup_steps=0").optimizer.rate(0)
        == 0.4
    )


def test_a_step_takes_the_rate_of_its_number():
    """The first step of AdamW moves every weight by the rate, whatever the gradient."""
    warm = experiment(
        "optimizer.learning_rate=0.4", "optimizer.warmup_steps=4", "optimizer.weight_decay=0"
    ).optimizer
    for step, rate in ((0, 0.1), (2, 0.3)):
        model = torch.nn.Linear(2, 2, bias=False)
        optimizer, before = warm.build(model), model.weight.detach().clone()
        model(torch.ones(1, 2)).sum().backward()
        warm.step(optimizer, model, step)
        assert (before - model.weight.detach()).flatten().tolist() == pytest.approx([rate] * 4)
        assert model.weight.grad is None
