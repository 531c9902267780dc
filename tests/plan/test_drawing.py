"""What draws, in a plan.

1. A correction takes a copy of the model and a pass of its own, in turn and beside training.
2. Weights that draw beside training are whole on each rank, in memory and in its state, and so are
   policies that move.
3. A cache in which no response can be decoded is one line; what vLLM asks to be free is counted.
"""

import pytest
from conftest import experiment
from test_plan import GUARDED, SMALL, VALUES

from rec_experiments.errors import UserError
from rec_experiments.plan import budget, memory

FEW = SMALL | {"num_hidden_layers": 3}
PLAIN = (*GUARDED, "micro_batch_tokens=64", "kl_every=0")
WEIGHTS = 4 * (2 * 512 * 64 + 3 * (64 * 64 * 3 + 64 * 96 * 3 + 2 * 64) + 64)  # bytes


def counted(*overrides):
    return memory.training_memory(experiment(*PLAIN, *overrides), FEW, 100)


def test_a_correction_has_a_copy_of_the_model():
    plain, corrected = counted(), counted("correction=truncated")
    for phase in plain:
        more = corrected[phase].device - plain[phase].device
        most = 2 if phase == "sample" else 1.01  # there with its pass
        assert WEIGHTS * 0.99 < more < WEIGHTS * most, phase
    beside = counted("correction=truncated", "pipeline=overlap")
    assert beside["train"].device == pytest.approx(plain["train"].device, rel=0.02)
    assert 2 * WEIGHTS < beside["recompute"].device < 2.2 * WEIGHTS  # at its start


def test_a_correction_on_one_gpu_is_refused():
    """It would end in the first draw: 69 GB of 75 without it, and a copy of 13 GB."""
    found = budget.plan(
        experiment("setting=paper/toolace", "correction=truncated"), "h100-80", VALUES
    )
    assert not found.fits


def test_a_state_written_beside_overlapped_training_holds_the_weights_that_draw():
    plain, goes_on = (
        counted("pipeline=overlap", "ranks=4", f"async_checkpoints={choice}")
        for choice in ("false", "true")
    )
    for phase in ("sample", "train", "step", "save"):
        assert plain[phase].host == pytest.approx(2 * WEIGHTS, rel=0.02), phase
        more = goes_on[phase].host - plain[phase].host
        assert more == pytest.approx((3 / 4 + 1) * WEIGHTS, rel=0.02), phase
    files = plain["resume"].host - plain["save"].host
    assert files == pytest.approx((3 / 4 + 1) * WEIGHTS, rel=0.02)


def test_a_state_holds_policies_that_move():
    waits, goes_on = (
        counted("algo=ppo_ewma", f"async_checkpoints={choice}") for choice in ("false", "true")
    )
    more = goes_on["sample"].host - waits["sample"].host
    assert more == pytest.approx(5 * WEIGHTS, rel=0.02)


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("gpu_memory_utilization=0.05", r"=0\.05: leaves 0\.00 GB for keys and values, and a p"),
        ("kv_cache_memory_bytes=1000", r"=1000: leaves 0\.00 GB .* of 3072 tokens need 0\.09 GB"),
    ],
)
def test_a_cache_without_room_is_one_line(override, line):
    exp = experiment("setting=paper/gsm8k", "gpus=2x80gb", f"sampler.{override}")
    with pytest.raises(UserError, match=rf"sampler\.{override.partition('=')[0]}{line}"):
        budget.plan(exp, "h100-80", VALUES)


def test_what_the_engine_asks_for_must_be_free_when_it_starts():
    phases = [
        budget.plan(
            experiment("setting=paper/gsm8k", f"sampler.gpu_memory_utilization={share}"),
            "h100-80", VALUES,
        ).memory[budget.TRAINS]
        for share in (0.3, 0.9)
    ]  # fmt: skip
    assert phases[1]["start"] - phases[0]["start"] == pytest.approx(0.6 * 80e9)
    assert phases[1]["train"] == phases[0]["train"]
