"""Memory of each phase of a run, counted from the code that trains on tensors without values.

Every phase runs twice, on models of a few layers, and the rest follows: layers are alike, so that
each adds the same. So are the chunks of tokens that the head takes: the first and the last two are
run. What waits on the host is counted apart (`distributed.HOST`).
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from rec_experiments import distributed
from rec_experiments.config.experiment import Experiment
from rec_experiments.distributed import World, kept
from rec_experiments.plan.meter import Meter
from rec_experiments.plan.passes import batch_of, full_pass, recomputes
from rec_experiments.policy import head
from rec_experiments.policy.batching import Pass
from rec_experiments.rollout.pipeline import Overlap
from rec_experiments.rollout.remote import layout
from rec_experiments.rollout.worker import Snapshot
from rec_experiments.runs.parts import (
    compute_dtype,
    forward_pass,
    frozen_roles,
    gradient_pass,
    make_policies,
)
from rec_experiments.runs.prepare import place
from rec_experiments.training.gradient import MiniBatch, begin_gradient
from rec_experiments.training.optimizers import restore
from rec_experiments.training.weights import copied, on_device

LAYERS = (2, 4)  # of the models that are run
DEVICE, WAITING = "cpu", "meta"  # stand for a GPU and for its host
PAD_ID = 0

Chunks = Callable[[int, int], Iterator[slice]]  # of so many tokens and a vocabulary


@dataclass(frozen=True, slots=True)
class Use:
    """Bytes: the most on a device, and on the host for the process of that device."""

    device: float
    host: float

    def at(self, other: "Use", layers: int) -> "Use":
        """Of so many layers, if this is of LAYERS[0] and `other` of LAYERS[1]."""
        share = (layers - LAYERS[0]) / (LAYERS[1] - LAYERS[0])
        return Use(
            self.device + share * (other.device - self.device),
            self.host + share * (other.host - self.host),
        )


def training_memory(
    experiment: Experiment, shape: dict[str, Any], prompt_tokens: int, host: str = WAITING
) -> dict[str, Use]:
    """Of each phase what training holds on each of its devices, the sampler apart.

    shape: the model's configuration. prompt_tokens: of the rows of a pass that a limit of tokens
    bounds (`prompt_of`), whose responses are of full length and which is as large as the limits
    allow. host: DEVICE for a run on a CPU, where both share one memory.
    """
    few, more = (
        _counted(experiment, {**shape, "num_hidden_layers": layers}, prompt_tokens, host)
        for layers in LAYERS
    )
    return {phase: use.at(more[phase], shape["num_hidden_layers"]) for phase, use in few.items()}


def model_bytes(experiment: Experiment, shape: dict[str, Any]) -> int:
    """Of the model's weights, in their own dtype."""
    with FakeTensorMode():
        one, two = (
            bytes_of(model_of(experiment, {**shape, "num_hidden_layers": n}).state_dict())
            for n in (1, 2)
        )
    return one + (shape["num_hidden_layers"] - 1) * (two - one)


def _counted(
    experiment: Experiment, shape: dict[str, Any], prompt_tokens: int, host: str
) -> dict[str, Use]:
    batch = batch_of(experiment, full_pass(experiment, prompt_tokens))
    with (
        pretended(experiment.ranks) as world,
        mock.patch.object(distributed, "HOST", host),
        mock.patch.object(PreTrainedModel, "to", moved),
        mock.patch.object(head, "_chunks", few_chunks(head._chunks)),
        warnings.catch_warnings(action="ignore"),  # of torch, to itself: they have no data pointer
        FakeTensorMode(allow_non_fake_inputs=True),
        Meter() as meter,
    ):
        phases = Phases(experiment, world, meter)
        if recomputes(experiment) and isinstance(experiment.pipeline, Overlap):
            phases.recompute_elsewhere(model_of(experiment, shape), batch)
        return phases.run(model_of(experiment, shape), batch)


def model_of(experiment: Experiment, shape: dict[str, Any]) -> PreTrainedModel:
    """On the host, as it is loaded."""
    source: Any = experiment.model
    with torch.device(distributed.HOST):
        model = AutoModelForCausalLM.from_config(
            configuration(shape),
            dtype=getattr(torch, source.dtype),
            attn_implementation=source.attention,
        )
    source.check_family(model)
    if source.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    return model


def few_chunks(chunks: Chunks) -> Chunks:
    """Of the chunks, the first and the last two: no other holds more, or anything beyond itself."""

    def few(tokens: int, vocabulary: int) -> Iterator[slice]:
        found = list(chunks(tokens, vocabulary))
        return iter([*found[:1], *found[1:][-2:]])

    return few


def moved(model: PreTrainedModel, device: torch.device | str) -> PreTrainedModel:
    """`Module.to`, which refuses tensors without values."""
    if next(model.parameters()).device.type == torch.device(device).type:
        return model
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None:
                there = weight.detach().to(device)
                module._parameters[name] = torch.nn.Parameter(there, weight.requires_grad)
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else buffer.to(device)
    model.tie_weights()
    return model


def configuration(shape: dict[str, Any]) -> PretrainedConfig:
    return AutoConfig.for_model(**shape)


@contextlib.contextmanager
def pretended(ranks: int) -> Iterator[World]:
    """A world of so many ranks, of which this one alone is there: it hears nothing of others."""
    if ranks == 1:
        yield World(device=DEVICE)
        return
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        world = World(0, ranks, DEVICE)
        assert world.mesh  # made now, of tensors with values
        yield world
    finally:
        dist.destroy_process_group()
        distributed._mesh.cache_clear()


class Phases:
    """Runs the phases one after the other and notes what each holds at most."""

    def __init__(self, experiment: Experiment, world: World, meter: Meter):
        self.experiment, self.world, self.meter = experiment, world, meter
        self.found: dict[str, Use] = {}

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.meter.reset()
        yield
        self.found[name] = Use(self.meter.most[DEVICE], self.meter.most[WAITING])

    def run(self, model: PreTrainedModel, batch: MiniBatch) -> dict[str, Use]:
        experiment, world = self.experiment, self.world
        compute = compute_dtype(experiment)
        overlaps = isinstance(experiment.pipeline, Overlap)
        with self.phase("start"):
            models, model = place(model, frozen_roles(experiment), world, compute)
            slots = [kept(model.state_dict()) for _ in range(2)] if overlaps else []
            copies = copied_whole(model) if recomputes(experiment) and not overlaps else []
            model = world.split(model, compute)
            optimizer = experiment.optimizer.build(model)
        policies = make_policies(experiment, models)
        with self.phase("hold"):  # in overlap they are held in shared memory
            held = slots[0] if overlaps else Snapshot.of(model, 0).kept().weights
            hook = experiment.updates.hook()
            if hook:
                hook.before_update(hook.index_of(0), model)
        gradient = gradient_pass(experiment, PAD_ID, policies, world)
        part = Pass(batch.sequences, needs_gradient=True, chunked=True)
        begin_gradient(model)
        experiment.optimizer.step(optimizer, model, batch.index.step)  # makes its state
        others = gradient.others.values()
        with self.phase("train"), on_device(others, world.device, compute):
            begin_gradient(model)
            gradient.compute(model, part, batch)
        with self.phase("step"):
            before = copied(model) if gradient.kl else None
            experiment.optimizer.step(optimizer, model, batch.index.step)
            del before
        with self.phase("sample"):  # what is there while the sampler works, or after it
            for copy in copies:
                self.recompute(copy, batch)
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "policies": policies.state(),
            "hook": hook.state() if hook else {},
            "held": held,
        }
        with self.phase("save"):  # as it is written, a tensor at a time
            packed = distributed.pack(state)
        if experiment.async_checkpoints:
            self.found |= self.beside_a_write(packed)
        del held, hook
        state.clear()
        with self.phase("resume"):  # files on the host, then each rank's part to its device
            packed = distributed.copied_to_host(packed)
            optimizer.state.clear()
            state = world.unpack(packed)
            model.load_state_dict(state["model"])
            restore(optimizer, state["optimizer"])
            policies.restore(state["policies"])
            hook = experiment.updates.hook()
            if hook:
                hook.restore(state["hook"])
            if not overlaps:  # else they go to where others were held
                state["held"] = Snapshot(0, state["held"]).kept().weights
        return self.found

    def recompute(self, model: PreTrainedModel, batch: MiniBatch) -> None:
        """The pass of `LogprobRecomputer`."""
        with torch.no_grad():
            forward_pass(self.experiment, PAD_ID)(model, batch.sequences)

    def recompute_elsewhere(self, model: PreTrainedModel, batch: MiniBatch) -> None:
        """The same on the device of a process that draws."""
        with self.phase("recompute"):
            [copy] = copied_whole(model)
            del model  # which that process has loaded
            self.recompute(copy, batch)

    def beside_a_write(self, packed: Any) -> dict[str, Use]:
        """The phases that a state may be written in, with its copy."""
        before = Use(self.meter.now[DEVICE], self.meter.now[WAITING])
        copy = distributed.copied_to_host(packed)
        device = self.meter.now[DEVICE] - before.device  # where a run's host is its device
        host = self.meter.now[WAITING] - before.host
        del copy
        return {
            name: Use(self.found[name].device + device, self.found[name].host + host)
            for name in ("sample", "train", "step", "save")
        }


def copied_whole(model: PreTrainedModel) -> list[PreTrainedModel]:
    """A frozen copy that is not split, on the model's device."""
    models, _ = place(model, ["copy"], World(device=DEVICE), torch.float32)
    return [*models.values()]


def bytes_of(weights: Mapping[str, Tensor]) -> int:
    """Of the weights, those that are tied once."""
    sizes, _ = layout(weights)
    return sum(n * dtype.itemsize for dtype, n in sizes.items())
