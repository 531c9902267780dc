"""The benchmark of the first day on a GPU can fail.

Its runs are made here in miniature, and judged by its own rules. Whole, they pass. Each fault that
they exist for is then built in, and turns them red; so do faults of one rank of two.
"""

import sys
from pathlib import Path

import pytest
import torch
from conftest import run

from rec_experiments.samplers.decoding import NativeSampler

sys.path.insert(0, str(Path(__file__).parent))

import gpu_day

NATIVE = gpu_day.CHECKS["native"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpu_day")
    gpu_day.prepare(folder, tiny=True)
    return folder


def rows_of_run(place: Path, folder: Path) -> list[gpu_day.Row]:
    """Of the check `native`, run in this process."""
    return gpu_day.rows_of(run(folder, *gpu_day.overrides(NATIVE, place, folder, True)).path)


@pytest.fixture(scope="module")
def whole(place, tmp_path_factory):
    return rows_of_run(place, tmp_path_factory.mktemp("whole"))


def drop_later_pushes(monkeypatch):
    load, loaded = NativeSampler.load, []

    def first(sampler, weights):
        if not loaded:
            load(sampler, weights)
        loaded.append(1)

    monkeypatch.setattr(NativeSampler, "load", first)


def push_one_version_late(monkeypatch):
    load, seen = NativeSampler.load, []

    def late(sampler, weights):
        seen.append({name: weights[name].clone() for name in weights})
        load(sampler, seen[max(0, len(seen) - 2)])

    monkeypatch.setattr(NativeSampler, "load", late)


def draw_at_another_temperature(monkeypatch):
    sample = NativeSampler.sample
    monkeypatch.setattr(NativeSampler, "sample", lambda *args: sample(*args[:-1], 1.0))


def skip_every_other_backward(monkeypatch):
    backward, calls = torch.Tensor.backward, []

    def some(tensor):
        calls.append(1)
        if len(calls) % 2:
            backward(tensor)

    monkeypatch.setattr(torch.Tensor, "backward", some)


def skip_the_optimizer(monkeypatch):
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda _: None)


def freeze_half_of_the_weights(monkeypatch):
    step = torch.optim.AdamW.step

    def partly(optimizer):
        for parameter in optimizer.param_groups[0]["params"][::2]:
            parameter.grad = None
        step(optimizer)

    monkeypatch.setattr(torch.optim.AdamW, "step", partly)


def test_the_whole_one_passes(whole):
    assert gpu_day.wrong(whole, None, True) == ""
    assert gpu_day.wrong(whole, whole, True) == ""


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (push_one_version_late, "mismatch"),
        (draw_at_another_temperature, "mismatch"),
        (skip_every_other_backward, "first step: train/grad_norm"),
        (skip_the_optimizer, "step 1: train/weight_step is 0"),
        (freeze_half_of_the_weights, "first step: train/weight_step"),
    ],
)
def test_a_fault_turns_it_red(fault, why, place, whole, tmp_path, monkeypatch):
    fault(monkeypatch)
    assert why in gpu_day.wrong(rows_of_run(place, tmp_path), whole, True)


def test_a_stale_push_is_far_from_the_limit(place, whole, tmp_path, monkeypatch):
    """Also in bfloat16, whose kernels alone differ by hundredths at most."""
    right = max(row.get("train/mismatch", 0) for row in whole)
    drop_later_pushes(monkeypatch)
    stale = max(row.get("train/mismatch", 0) for row in rows_of_run(place, tmp_path))
    assert 100 * right < gpu_day.MISMATCH < stale / 2


ON_RANK_1 = """
import os
import torch

if os.environ.get("RANK") == "1":
"""
FAULTS_OF_A_RANK = {
    "": "",
    "first step: train/weight_step": "torch.optim.AdamW.step = lambda _: None",
    "first step: train/grad_norm": (
        "torch.Tensor.backward = lambda loss, f=torch.Tensor.backward: f(loss * 0)"
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("why", FAULTS_OF_A_RANK)
def test_a_fault_of_one_rank_turns_it_red(why, place, whole, tmp_path, monkeypatch):
    """Python imports sitecustomize in every process that torchrun starts."""
    if why:
        fault = f"{ON_RANK_1}    {FAULTS_OF_A_RANK[why]}\n"
        (tmp_path / "sitecustomize.py").write_text(fault)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    check = gpu_day.CHECKS["two_ranks"]
    words = gpu_day.overrides(check, place, tmp_path / "run", True)
    assert gpu_day.run(check, gpu_day.command(check, words)) == ""
    found = gpu_day.wrong(gpu_day.rows_of(tmp_path / "run"), whole, True)
    assert why in found
    assert bool(found) == bool(why)
