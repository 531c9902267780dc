"""A restored optimizer does not depend on the checkpoint's file."""

import torch

from rec_experiments.distributed import World
from rec_experiments.runs.checkpoints import Checkpoints
from rec_experiments.training.optimizers import restore


def test_restored_optimizer_owns_its_tensors(tmp_path):
    model = torch.nn.Linear(300, 300)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(3, 300)).sum().backward()
    optimizer.step()
    checkpoints = Checkpoints(tmp_path, World())
    checkpoints.save(1, {"step": 1, "weights": {"optimizer": optimizer.state_dict()}}, None)
    state, _ = checkpoints.load(None)
    restored = torch.optim.AdamW(model.parameters())
    restore(restored, state["weights"]["optimizer"])
    del state
    file = checkpoints.of(1) / "rank_0.pt"
    size = file.stat().st_size
    with open(file, "r+b") as other:  # in place: the pages that nothing has written to show it
        other.write(b"\1" * size)
    for parameter in model.parameters():
        for name, value in optimizer.state[parameter].items():
            assert torch.equal(restored.state[parameter][name], value)
