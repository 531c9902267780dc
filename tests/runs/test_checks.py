"""What is refused before a run starts."""

import importlib.util
from types import SimpleNamespace

import pytest
import torch
from conftest import experiment

from rec_experiments.common.distributed import ALONE, current, join
from rec_experiments.common.errors import UserError
from rec_experiments.datasets.reduction import Reduction
from rec_experiments.runs.checks import check_rope, pick_device
from rec_experiments.runs.prepare import prepare


def model(kind, nested):
    rope = {"rope_type": kind, "original_max_position_embeddings": 4096}
    settings = {"full_attention": rope} if nested else rope
    return SimpleNamespace(rope_parameters=settings, max_position_embeddings=131072)


def limits(response):
    return SimpleNamespace(max_prompt_tokens=1024, max_response_tokens=response)


@pytest.mark.parametrize(("kind", "nested"), [("longrope", False), ("dynamic", True)])
def test_rope_that_depends_on_the_batch_is_refused(kind, nested):
    check_rope(limits(3072), model(kind, nested=nested))
    check_rope(limits(100_000), model("yarn", nested=nested))
    with pytest.raises(UserError, match=f"exceed 4096 tokens.*{kind}"):
        check_rope(limits(3073), model(kind, nested=nested))


def test_why_there_is_no_cuda(monkeypatch):
    """A build without CUDA, and one whose driver is too old."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(UserError, match=r"device=cuda: torch .* is a build without CUDA; install"):
        pick_device("cuda", ALONE)

    def old():
        raise RuntimeError("The NVIDIA driver on your system is too old\nmore")

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "init", old)
    with pytest.raises(UserError, match=r"built for CUDA 13\.0, finds no device \(.* too old\)"):
        pick_device("cuda", ALONE)


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
def test_vllm_is_looked_for_before_anything_is_loaded(monkeypatch):
    monkeypatch.setattr(Reduction, "load", lambda _: pytest.fail("data were loaded"))
    with pytest.raises(UserError, match=r"sampler=vllm: vLLM is not installed"):
        prepare(experiment("sampler=vllm"))


def test_a_stray_rank_is_one_line(monkeypatch):
    """Without the number of ranks, as some schedulers leave it."""
    monkeypatch.setenv("RANK", "5")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert current() == ALONE
    with pytest.raises(UserError, match="RANK=5: is set without WORLD_SIZE; unset it"):
        join()
