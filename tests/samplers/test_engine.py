"""How the vLLM sampler starts its engine, with a stand-in for vLLM that records what it is asked.

1. Models of one configuration share a folder, so that what vLLM compiled is found again.
2. What would fail later, a cache folder or a missing kernel, fails at the start, in one line.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
from conftest import experiment
from transformers import Qwen2Config, Qwen2ForCausalLM

from rec_experiments.common.errors import UserError


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
    experiment("sampler=vllm").sampler.build(model, [1], 16, 8)


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
