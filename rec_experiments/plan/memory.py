"""Memory of each phase of a run.

Weights, gradients, optimizer state and their copies are counted. What a micro-batch adds is
measured: the trainer's forward pass and its backward pass run on tensors without values, on models
of a few layers. Layers are alike, so the memory of a deeper model follows from two shallow ones.
Several ranks are assumed to add as much each as one: FSDP gathers layers where one rank casts them.
"""

import copy
import sys
import weakref
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, UntypedStorage
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_map_only
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from rec_experiments.common.batch import Sequences
from rec_experiments.config.experiment import Experiment
from rec_experiments.policy.logprobs import Wanted
from rec_experiments.policy.lora import adapted, trained
from rec_experiments.policy.models import Adapted
from rec_experiments.rollout.pipeline import Overlap
from rec_experiments.runs.prepare import (
    compute_dtype,
    drawing_dtype,
    forward_pass,
    frozen_roles,
)
from rec_experiments.training.gradient import begin_gradient
from rec_experiments.training.policies import Teacher
from rec_experiments.training.updates import AdamW8bit

LAYERS = (3, 4)  # of the models that are measured


class Meter(TorchDispatchMode):
    """Observes the memory of tensors: the `peak`, in bytes, of all that are made within, as long as
    anything refers to them. Sizes are read after each operation, since FSDP resizes its memory."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._alive: weakref.WeakSet[UntypedStorage] = weakref.WeakSet()

    def _see(self, tensor: Tensor) -> None:
        if is_traceable_wrapper_subclass(tensor):
            parts = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
            tree_map_only(Tensor, self._see, parts)
            return
        self._alive.add(tensor.untyped_storage())

    def held(self) -> int:
        """Bytes now."""
        return sum(storage.nbytes() for storage in self._alive)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        tree_map_only(Tensor, self._see, result)
        self.peak = max(self.peak, self.held())
        return result


@dataclass(frozen=True, slots=True)
class Use:
    """Peaks in bytes: on one device, and on the host for the process that drives it."""

    device: float
    host: float


def recomputes(experiment: Experiment) -> bool:
    """Whether each process that samples also holds a copy of the trainer's model."""
    return "sampler" in experiment.algorithm().needs.logps


def build(experiment: Experiment, config: PretrainedConfig) -> PreTrainedModel:
    source: Any = experiment.model
    model = AutoModelForCausalLM.from_config(
        config, dtype=getattr(torch, source.dtype), attn_implementation=source.attention
    )
    source.check_family(model)
    if source.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    return adapted(model, source.lora) if isinstance(source, Adapted) else model


def model_bytes(experiment: Experiment, config: PretrainedConfig) -> tuple[int, int]:
    """Bytes of the weights to draw with, in their own dtype, and of those that training changes,
    which are the same weights or adapters beside them; tied ones count once."""
    with torch.device("meta"):
        model = build(experiment, config)
    changed = sum(parameter.nbytes for parameter in trained(model).values())
    every = sum(parameter.nbytes for parameter in model.parameters())
    return (every - changed or every), changed


def moment_bytes(experiment: Experiment, changed: float) -> float:
    """Bytes of AdamW's two moments of trained weights that take `changed` bytes: two copies, or of
    each number two bytes and its share of the scales, one of float32 for 256 numbers."""
    if not isinstance(experiment.optimizer, AdamW8bit):
        return 2 * changed
    adapters = isinstance(experiment.model, Adapted)  # of float32
    source: Any = experiment.model
    itemsize = 4 if adapters else getattr(torch, source.dtype).itemsize
    return 2 * (1 + 4 / 256) * changed / itemsize


def training_memory(
    experiment: Experiment, config: PretrainedConfig, prompt_tokens: int
) -> dict[str, Use]:
    """The peak of each phase for each rank, without its sampler.

    config: of the model. prompt_tokens: see `largest_pass`.
    """
    source: Any = experiment.model
    dtype: torch.dtype = getattr(torch, source.dtype)
    own = dtype.itemsize
    embedding = config.vocab_size * config.hidden_size * own
    ranks, (weights, changed) = experiment.ranks, model_bytes(experiment, config)
    adapter = changed if isinstance(source, Adapted) else 0
    held = weights + adapter  # by the model that is trained
    part, step_part = held / ranks, changed / ranks
    moments = moment_bytes(experiment, step_part)
    roles, overlaps = frozen_roles(experiment), isinstance(experiment.pipeline, Overlap)
    moves, teaches = experiment.reference.swap_every, isinstance(experiment.reference, Teacher)
    # A copy for passes alone has linear layers, or split among ranks all weights, in their dtype.
    tables = embedding * (1 if config.tie_word_embeddings else 2)
    share = min(1, compute_dtype(experiment).itemsize / own)
    low = tables + (weights - tables) * share
    # One process with adapters has the reference anyway. A teacher is taken to be as large.
    reference = 0.0
    if "reference" in roles and (ranks > 1 or teaches or moves or not adapter):
        reference = weights * share / ranks if ranks > 1 else low
    proximal = part if "proximal" in roles else 0.0
    waiting = reference if ranks == 1 and not teaches and not overlaps else 0.0  # on the host
    frozen = proximal + reference - waiting  # on the device
    moved = proximal + (reference if moves else 0.0)
    # The weights that the next batches are sampled from: split on the devices, or on the host.
    led = experiment.sampler.for_all_ranks and ranks > 1
    lower = drawing_dtype(experiment, dtype)  # then they are beside the slots
    sampled = step_part if led or lower or not overlaps else 0
    # Shared memory for the process that samples, which only the first rank has if it leads.
    slots = 2 * weights / (ranks if led else 1) if overlaps else 0
    if lower:
        slots *= lower.itemsize / own
    recomputing = low if recomputes(experiment) and not overlaps else 0
    snapshot = step_part if experiment.kl_every else 0  # the weights before the optimizer's step
    brought = waiting if experiment.device != "cpu" else 0.0

    resident = part + frozen + moments + recomputing + sampled * (ranks > 1)
    # One layer after the other is split. A sampler here is copied from a model without values.
    start = part + frozen + recomputing
    if ranks > 1:
        start += 2 * embedding + (0 if overlaps else weights)
    restored = resident + 2 * embedding / ranks
    if ranks > 1:
        restored += step_part + moved + 2 * sampled
    state = 2 * step_part + moments + moved  # with the weights that are sampled from
    host = waiting + slots + sampled * (ranks == 1)
    saving = host + (state if experiment.async_checkpoints else 0)
    adds = pass_memory(experiment, config, prompt_tokens)
    return {
        # The first rank loads a model whole if its files do not hold its weights one by one.
        "start": Use(start, waiting + slots + weights / ranks),
        "sample": Use(resident, saving),
        "train": Use(resident + step_part + brought + adds, saving),
        "step": Use(
            resident + step_part + snapshot * (ranks > 1), saving + snapshot * (ranks == 1)
        ),
        "resume": Use(restored, host + state),
    }


def pass_memory(experiment: Experiment, config: PretrainedConfig, prompt_tokens: int) -> float:
    """Bytes that the largest micro-batch adds to weights and gradients at its peak."""
    rows = largest_pass(experiment, prompt_tokens)
    few, more = (_measure(experiment, with_layers(config, number), rows) for number in LAYERS)
    return few + (config.num_hidden_layers - LAYERS[0]) * (more - few) / (LAYERS[1] - LAYERS[0])


def with_layers(config: PretrainedConfig, number: int) -> PretrainedConfig:
    """The model with `number` layers."""
    changed = copy.deepcopy(config)
    changed.num_hidden_layers = number
    return changed


def _measure(experiment: Experiment, config: PretrainedConfig, rows: Sequences) -> float:
    forward = replace(forward_pass(experiment), fast_path=False)
    roles, dense = frozen_roles(experiment), experiment.algorithm().needs.dense
    valueless, meter = FakeTensorMode(allow_non_fake_inputs=True), Meter()
    with torch.device("meta"):
        model, *others = (build(experiment, config) for _ in range(1 + len(roles)))
    with valueless, meter:
        for each in (model, *others):
            each.to_empty(device="cpu").tie_weights()
        begin_gradient(model)
        frozen = {
            role: each.eval().requires_grad_(False)
            for role, each in zip(roles, others, strict=True)
        }
    batch = forward.layout([model, *others], rows)
    before = meter.peak = meter.held()
    with valueless, meter:
        wanted = Wanted(others=frozen, kl="reference" in frozen, differentiable=dense)
        scores = forward.score(model, batch, wanted, chunked=True)
        read = [scores.logp_BT, *(getattr(scores, f"{name}_BT") for name in dense)]
        del scores
        sum(x_BT.sum() for x_BT in read).backward()
    return meter.peak - before


def largest_pass(experiment: Experiment, prompt_tokens: int) -> Sequences:
    """The rows of the largest micro-batch: at most those of a mini-batch that one rank computes,
    all of the maximal length.

    Each prompt has `prompt_tokens` tokens if a token limit bounds the micro-batch, else as many as
    the longest prompt that the data set allows.
    """
    source: Any = experiment.model
    task, limit = experiment.dataset, experiment.micro_batch_tokens
    P, T = task.max_prompt_tokens, task.max_response_tokens
    if limit is not None and limit >= P + T:
        P = min(prompt_tokens, P)
    groups = -(-experiment.batch_size // experiment.updates.mini_batches)
    rows = -(-groups * experiment.group_size // experiment.ranks)
    rows = min(rows, experiment.micro_batch_size or sys.maxsize)
    together = min(rows, experiment.group_size) if source.shared_prompts else 1  # of one prompt
    if limit:
        together = max(1, min(together, (limit - P) // T))
        rows = max(1, min(rows, limit // (P + together * T) * together))
    return Sequences.of([[i // together] * P for i in range(rows)], [[i] * T for i in range(rows)])
