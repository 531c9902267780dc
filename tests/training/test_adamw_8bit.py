"""AdamW with moments of 8 bits.

1. Moments take a byte each, and steps are those of AdamW but for rounding.
2. A resumed run is bit for bit the uninterrupted one.
3. What it cannot do is one line.
"""

from unittest import mock

import pytest
import torch
from conftest import SMALL, assert_same_result, experiment, run
from torch.utils._pytree import tree_leaves

from rec_experiments.common.errors import UserError
from rec_experiments.plan.memory import moment_bytes
from rec_experiments.runs.prepare import prepare

pytest.importorskip("bitsandbytes", reason="the extra adamw_8bit is not installed")

EIGHT = "optimizer=adamw_8bit"


def test_steps_are_those_of_adamw_to_rounding():
    layers, moved = [], []
    for name in ("adamw", "adamw_8bit"):
        torch.manual_seed(0)
        layer = torch.nn.Linear(128, 64)
        choice = experiment(*SMALL, f"optimizer={name}", "optimizer.learning_rate=0.01").optimizer
        optimizer, start = choice.build(layer), layer.weight.detach().clone()
        for step in range(5):
            for weight in layer.parameters():
                weight.grad = torch.randn_like(weight)
            choice.step(optimizer, layer, step)
        layers.append((layer, optimizer))
        moved.append(layer.weight.detach() - start)
    exact, eight = moved
    assert exact.abs().mean() > 0.005
    assert (eight - exact).norm() < 0.05 * exact.norm()
    layer, optimizer = layers[1]
    state = optimizer.state[layer.weight]
    large = sum(state[name].nbytes for name in ("state1", "state2", "absmax1", "absmax2"))
    planned = experiment("setting=paper/gsm8k", EIGHT)  # weights of float32
    assert large == moment_bytes(planned, layer.weight.nbytes)
    torch.testing.assert_close(layer.bias, layers[0][0].bias)  # too small for 8 bits


@pytest.mark.parametrize("extra", [(), ("async_checkpoints=true",)])
def test_a_resumed_run_is_the_uninterrupted_one(extra, tmp_path):
    own = (*SMALL, EIGHT, "algo=asymre", "sync.interval=2", "sync.offset=1", *extra)
    entire = run(tmp_path / "entire", *own)
    moments = entire.load_checkpoint()[0]["weights"]["optimizer"]
    assert any(isinstance(x, torch.Tensor) and x.dtype == torch.uint8 for x in tree_leaves(moments))
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", *own, until=2)
    assert_same_result(run(tmp_path / "cut", *own), entire)


def test_what_it_cannot_do_is_one_line():
    with pytest.raises(UserError, match=r"optimizer=adamw_8bit: needs ranks=1; use"):
        experiment(*SMALL, EIGHT, "ranks=2")
    own = experiment(*SMALL, EIGHT)
    with (
        mock.patch("importlib.util.find_spec", return_value=None),
        pytest.raises(UserError, match="optimizer=adamw_8bit: bitsandbytes is not installed"),
    ):
        prepare(own)
