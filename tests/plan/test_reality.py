"""The plan against docs/results/plan.jsonl, which tests/benchmarks/plan_reality.py has measured.

1. Memory of gradient steps within 10 %.
2. Times within 25 %, of gradient steps with one rate of operations for all steps on a device.
"""

import json
from pathlib import Path
from statistics import median

import pytest
from benchmarks.plan_reality import PROMPT_TOKENS, SHAPES, overrides
from conftest import experiment

from rec_experiments.plan import budget, constants, memory, usual
from rec_experiments.plan.cost import step_cost
from rec_experiments.plan.sampler import SamplerMemory

ARCHIVE = Path(__file__).parents[2] / "docs" / "results" / "plan.jsonl"
LINES = [json.loads(line) for line in ARCHIVE.read_text().splitlines()]
STEPS = [line for line in LINES if line["part"][0] == "step"]
QUICK = (["step", "20M", "false", "true", "1"], ["step", "20M", "true", "false", "0"])


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(
            line,
            id=" ".join(line["part"]),
            marks=() if line["part"] in QUICK else pytest.mark.long,
        )
        for line in STEPS
    ],
)
def test_memory(line):
    _, name, *variant = line["part"]
    exp = experiment(*overrides(name, variant))
    found = memory.training_memory(exp, SHAPES[name], PROMPT_TOKENS)
    planned = max(found[phase].device + found[phase].host for phase in ("train", "step"))
    assert planned == pytest.approx(line["bytes"], rel=0.1)


def seconds_of(exp, config, operations, **values):
    """Of the passes of a gradient step, at a rate of operations."""
    parameters = memory.model_bytes(exp, config)[0] / 4
    gpu = {"operations": operations, "bandwidth": 1.0, "memory": 1.0}
    sampler = SamplerMemory(0.0, 1.0, 0.0, None)
    known = usual() | {"train_efficiency": 1.0} | values
    return step_cost(exp, config, sampler, gpu, known, parameters, 0.0).seconds["train"]


def test_times_of_steps_on_a_cpu():
    """Rows are full and all alike."""
    work = []
    for line in STEPS:
        _, name, *variant = line["part"]
        exp = experiment(*overrides(name, variant))
        lengths = {"prompt_tokens": PROMPT_TOKENS, "response_tokens": 192, "padding": 0.0}
        share = len(memory.largest_pass(exp, PROMPT_TOKENS)) / exp.batch_size / exp.group_size
        work.append(share * seconds_of(exp, SHAPES[name], 1.0, **lengths))
    rate = median(each / line["seconds"] for each, line in zip(work, STEPS, strict=True))
    for each, line in zip(work, STEPS, strict=True):
        assert each / rate == pytest.approx(line["seconds"], rel=0.25), line


def test_time_of_a_step_on_an_h100():
    """Of 1.5B on 96 x 8 responses, by the constants of a plan."""
    [line] = [line for line in LINES if line["part"] == ["step 1.5B"]]
    exp = experiment(
        "setting=paper/gsm8k", "kl_every=0", "batch_size=96", "group_size=8",
        "model.gradient_checkpointing=true", "model.shared_prompts=false",
    )  # fmt: skip
    config = budget.configuration(exp)
    rate = constants()["gpus"]["h100-80"]["operations"] * usual()["train_efficiency"]
    planned = seconds_of(exp, config, rate, prompt_tokens=160, response_tokens=256, padding=0.0)
    assert planned == pytest.approx(line["seconds"], rel=0.25)


@pytest.mark.parametrize("part", ["push", "save"])
def test_rates(part):
    for line in LINES:
        if line["part"][0] == part:
            assert usual()[f"{part}_gb_per_second"] == pytest.approx(
                line["gb_per_second"], rel=0.25
            )
