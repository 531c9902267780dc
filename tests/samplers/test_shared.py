"""Responses shared by the jobs of a sweep.

1. Responses read from a file equal those that the sampler would draw, bit for bit.
2. A file's name depends on everything that a response depends on, to the last bit of a weight.
3. A damaged file is replaced.
4. Only draws of the native sampler from version 0 are shared.
"""

import copy
import dataclasses
import struct
from pathlib import Path

import pytest
import torch
import transformers
from conftest import SMALL, experiment, said, sample
from language_models import SHAPE

from rec_experiments.common import files
from rec_experiments.common.batch import Responses, SampleKey
from rec_experiments.common.rng import TRAIN
from rec_experiments.rollout.worker import RolloutRequest, Snapshot
from rec_experiments.runs.prepare import make_worker, prepare
from rec_experiments.samplers import shared
from rec_experiments.samplers.decoding import NativeSampler
from rec_experiments.samplers.native import Native
from rec_experiments.samplers.shared import SharedDraws

EOS, LIMIT, ROWS = [1, 2], 14, 5
PROMPTS = [list(range(3, 3 + n)) for n in (3, 7, 5)]
DRAWS = [[SampleKey(0, TRAIN, 4, group, k) for k in range(3 + group)] for group in range(3)]
CONFIG = {**SHAPE, "vocab_size": 61, "initializer_range": 0.15}


def build(**config):
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG | config))


MODEL = build()
NATIVE = Native(temperature=1.0, eval_temperature=1.0, max_rows=ROWS, bundle_bytes=0)


def sampler(model=MODEL, **other) -> NativeSampler:
    """One that counts the calls of `sample` in `calls`."""
    given = {"eos_ids": EOS, "max_response_tokens": LIMIT, "max_rows": ROWS} | other
    made = NativeSampler(copy.deepcopy(model), **given)
    made.calls, sample = 0, made.sample

    def counted(*arguments):
        made.calls += 1
        return sample(*arguments)

    made.sample = counted
    return made


def bits(responses):
    """With each log-probability as its eight bytes."""
    return [
        [(r.tokens, [struct.pack("<d", x) for x in r.logp], r.finished, r.mask) for r in of_prompt]
        for of_prompt in responses
    ]


@pytest.fixture
def first(tmp_path):
    """What was drawn and written down."""
    return sample(SharedDraws(sampler(), tmp_path), PROMPTS, DRAWS, 1.0)


def test_read(tmp_path, first):
    drawn = sample(sampler(), PROMPTS, DRAWS, 1.0)
    second = SharedDraws(sampler(), tmp_path)
    read = [sample(second, PROMPTS, DRAWS, 1.0) for _ in range(2)]
    assert second.sampler.calls == 0
    assert bits(first) == bits(drawn) == bits(read[0]) == bits(read[1])
    assert {type(x) for r in read[0][0] for x in (r.finished, *r.mask)} == {bool}
    assert {r.finished for of_prompt in drawn for r in of_prompt} == {True, False}


def test_loaded_weights(tmp_path, first):
    other = {name: weight * 1.5 for name, weight in MODEL.state_dict().items()}
    again = SharedDraws(sampler(), tmp_path)
    again.load(other)
    bare = sampler()
    bare.load(other)
    assert sample(again, PROMPTS, DRAWS, 1.0) == sample(bare, PROMPTS, DRAWS, 1.0) != first
    assert again.sampler.calls == 1
    again.load(MODEL.state_dict())
    assert sample(again, PROMPTS, DRAWS, 1.0) == first
    assert again.sampler.calls == 1


def next_float():
    """The model with one weight moved to the next float."""
    model = copy.deepcopy(MODEL)
    weight = model.get_parameter("model.layers.1.mlp.up_proj.weight").data.view(-1)
    weight[7] = torch.nextafter(weight[7], torch.tensor(9.0))
    return model


def key(**other):
    """The draws with one key changed."""
    changed = copy.deepcopy(DRAWS)
    changed[1][2] = dataclasses.replace(changed[1][2], **other)
    return changed


@pytest.mark.parametrize(
    ("made", "asked"),
    [
        ({"model": next_float()}, {}),
        ({"model": build(rms_norm_eps=1e-5)}, {}),
        ({"eos_ids": [1]}, {}),
        ({"max_response_tokens": LIMIT - 1}, {}),
        ({"max_rows": None}, {}),
        ({}, {"temperature": 0.9}),
        ({}, {"prompts": [*PROMPTS[:2], [*PROMPTS[2][:-1], 60]]}),
        ({}, {"draws": [*DRAWS[:2], DRAWS[2][:-1]]}),
        ({}, {"draws": key(attempt=9)}),
    ],
)
def test_differences_are_drawn(tmp_path, first, made, asked):
    asked = {"prompts": PROMPTS, "draws": DRAWS, "temperature": 1.0} | asked
    other = SharedDraws(sampler(**made), tmp_path)
    assert sample(other, *asked.values()) == sample(sampler(**made), *asked.values())
    assert other.sampler.calls == 1


def torn(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-9])


def whole_but_fewer(file: Path) -> None:
    files.write_with_digest(file, shared._pack(Responses.of([[3]])))


@pytest.mark.parametrize(
    "harm",
    [
        torn,
        whole_but_fewer,
        lambda file: file.with_suffix(".sha256").unlink(),
    ],
)
def test_damaged_file(tmp_path, first, harm):
    [file] = tmp_path.glob("*.pt")
    sound = file.read_bytes()
    harm(file)
    again = SharedDraws(sampler(), tmp_path)
    assert sample(again, PROMPTS, DRAWS, 1.0) == first
    assert again.sampler.calls == 1
    assert [*tmp_path.glob("*.pt")] == [file]
    assert file.read_bytes() == sound
    assert sample(SharedDraws(sampler(), tmp_path), PROMPTS, DRAWS, 1.0) == first


@pytest.fixture(scope="module")
def trainer():
    """A small run before its first step."""
    return prepare(experiment(*SMALL))


def worker_of(trainer):
    exp = experiment(*SMALL)
    return make_worker(exp, copy.deepcopy(trainer.model), trainer.evaluator.chat)


def request(trainer, batch=0):
    keys = [[SampleKey(0, TRAIN, batch, group, k) for k in range(2)] for group in range(2)]
    return RolloutRequest(trainer.rollouts.problems[:2], keys, 1.0)


def test_only_version_0(trainer, tmp_path, monkeypatch):
    monkeypatch.setenv(shared.FOLDER, str(tmp_path))
    worker, other = worker_of(trainer), worker_of(trainer)
    initial = Snapshot.of(trainer.model, 0)
    moved = Snapshot(3, {name: 1.1 * weight for name, weight in initial.weights.items()})
    expected = worker.answer(initial, request(trainer))
    there = {*tmp_path.iterdir()}
    assert len(there) == 2  # the draws and their digest
    later = worker.answer(moved, request(trainer))
    assert {*tmp_path.iterdir()} == there
    assert said(later) != said(expected)

    # It has the version that was asked for, though it did not draw in between.
    assert said(other.answer(initial, request(trainer))) == said(expected)
    assert said(other.answer(moved, request(trainer))) == said(later)
    monkeypatch.setattr(other.sampler, "sample", None)  # from here on it can only read
    assert said(other.answer(initial, request(trainer))) == said(expected)


def test_only_the_native_sampler(tmp_path, monkeypatch):
    """What others draw may depend on more than what names a file: vLLM's, a class or a
    configuration of a package from outside, a model that computes in ways of its own."""

    class Other(NativeSampler):
        pass

    class Derived(Native):
        pass

    monkeypatch.setenv(shared.FOLDER, str(tmp_path))
    assert isinstance(shared.among_jobs(NATIVE, sampler()), SharedDraws)
    assert shared.among_jobs(NATIVE, object()) is None
    assert shared.among_jobs(NATIVE, Other(copy.deepcopy(MODEL), EOS, LIMIT, ROWS)) is None
    assert shared.among_jobs(Derived(**dataclasses.asdict(NATIVE)), sampler()) is None
