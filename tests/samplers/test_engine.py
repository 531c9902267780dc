"""How the vLLM sampler starts its engine, with a stand-in for vLLM that records what it is asked.

1. Models of one configuration share a folder, so that what vLLM compiled is found again.
2. The start, which is silent, is told in two lines.
3. Batches of one version are drawn in one call, as many as are configured.
4. Batch invariance is the user's choice: nothing sets it.
"""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
from conftest import experiment
from transformers import Qwen2Config, Qwen2ForCausalLM

from rec_experiments.determinism import secure
from rec_experiments.errors import UserError


class Engine:
    """In the place of vllm.LLM."""

    drawn: ClassVar[list] = []
    fails = False

    def generate(self, *arguments, **options):
        self.drawn.append(arguments)
        if self.fails:
            raise RuntimeError("no kernel\nfor this head size")
        return []


@pytest.fixture
def started(monkeypatch, tmp_path):
    """What the engines were started with."""
    platform = SimpleNamespace(is_cuda=lambda: False, is_cpu=lambda: True)
    found = []

    def engine(model, **options):
        found.append((Path(model), options))
        return Engine()

    fake = SimpleNamespace(LLM=engine, SamplingParams=lambda **options: options)
    monkeypatch.setitem(sys.modules, "vllm", fake)
    monkeypatch.setitem(sys.modules, "vllm.platforms", SimpleNamespace(current_platform=platform))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: True)
    monkeypatch.setenv("REC_EXPERIMENTS_CACHE", str(tmp_path / "cache"))
    return found


def tiny(layers):
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=9, hidden_size=8, intermediate_size=8, num_hidden_layers=layers,
            num_attention_heads=2, num_key_value_heads=2,
        )
    )  # fmt: skip


def start(model):
    experiment("sampler=vllm").sampler.build(model, [1], 0, 16, 8)


def test_models_of_one_configuration_share_a_folder(started):
    for layers in (1, 1, 2):
        start(tiny(layers))
    folders = [folder for folder, _ in started]
    assert folders[0] == folders[1] != folders[2]
    config = json.loads((folders[0] / "config.json").read_text())
    assert config["architectures"] == ["Qwen2ForCausalLM"]
    assert config["num_hidden_layers"] == 1


def test_a_cache_that_cannot_be_written_is_one_line(started, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("REC_EXPERIMENTS_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"^sampler=vllm: the cache folder cannot be written \("):
        start(tiny(1))


def test_the_start_is_told(started, capsys):
    start(tiny(1))
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith("vLLM is starting; the first time it compiles")
    assert last.startswith("vLLM has started in ")


def test_a_token_is_drawn_on_trial(started, monkeypatch):
    """Kernels that are missing fail only when they run: before the run has begun."""
    monkeypatch.setattr(Engine, "drawn", [])
    start(tiny(1))
    [(prompt, parameters)] = Engine.drawn
    assert prompt == {"prompt_token_ids": [0]}
    assert parameters["max_tokens"] == 1
    monkeypatch.setattr(Engine, "fails", True)
    with pytest.raises(UserError, match=r"cannot run this model here \(no kernel for this head"):
        start(tiny(1))


def test_batches_of_a_call_and_responses_at_once_are_those_of_the_layout(started):
    for layout, batches, responses in (
        ("gpus=1x80gb", 20, 512), ("gpus=2x80gb", 1, 512), ("gpus=1x24gb", 20, 128),
    ):  # fmt: skip
        sampler = experiment("setting=paper/gsm8k", layout).sampler
        assert sampler.bundle(tiny(1), tokens=10**9) == batches
        assert sampler.max_num_seqs == responses
    start(tiny(1))
    assert started[0][1]["max_num_seqs"] == experiment("sampler=vllm").sampler.max_num_seqs


def test_batch_invariance_is_not_set(started, monkeypatch):
    monkeypatch.delenv("VLLM_BATCH_INVARIANT", raising=False)
    secure(True)
    start(tiny(1))
    assert "VLLM_BATCH_INVARIANT" not in os.environ
