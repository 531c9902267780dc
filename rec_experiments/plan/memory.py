"""Memory of each phase of a run.

Weights, gradients, optimizer state and their copies are counted. What a micro-batch adds is
measured: the trainer's forward pass and its backward pass run on tensors without values, on models
of a few layers, and split over ranks by FSDP2 in a process group without processes. Layers are
alike, so the memory of a deeper model follows from two shallow ones.
"""

import contextlib
import warnings
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_map_only
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from rec_experiments.common import distributed
from rec_experiments.common.distributed import World
from rec_experiments.config.experiment import Experiment
from rec_experiments.plan.passes import largest_pass, recomputes
from rec_experiments.policy.head import REFERENCE
from rec_experiments.policy.logprobs import ForwardPass
from rec_experiments.policy.lora import adapted, trained
from rec_experiments.policy.models import Adapted
from rec_experiments.rollout.pipeline import Overlap
from rec_experiments.runs.parts import compute_dtype, frozen_roles
from rec_experiments.training.gradient import begin_gradient
from rec_experiments.training.optimizers import AdamW8bit

LAYERS = (3, 4)  # of the models that are measured; FSDP holds less with fewer


class Meter(TorchDispatchMode):
    """Observes the memory of tensors: the `peak`, in bytes, of all that are made within, as long as
    anything refers to them. Sizes are read after each operation, since FSDP resizes its memory."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._alive: dict[int, Any] = {}  # weak references to storages, by identity

    def see(self, tensor: Tensor) -> None:
        """Count a tensor, also one that was made before."""
        if is_traceable_wrapper_subclass(tensor):
            parts = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
            tree_map_only(Tensor, self.see, parts)
            return
        storage = tensor.untyped_storage()
        if (key := id(storage)) not in self._alive:
            self._alive[key] = weakref.ref(storage, lambda _: self._alive.pop(key, None))

    def held(self) -> int:
        """Bytes now."""
        storages = [reference() for reference in list(self._alive.values())]
        return sum(storage.nbytes() for storage in storages if storage is not None)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        tree_map_only(Tensor, self.see, result)
        self.peak = max(self.peak, self.held())
        return result


@dataclass(frozen=True, slots=True)
class Use:
    """Peaks in bytes: on one device, and on the host for the process that drives it."""

    device: float
    host: float


def configuration(shape: dict[str, Any]) -> PretrainedConfig:
    return AutoConfig.for_model(**shape)


def build(experiment: Experiment, shape: dict[str, Any]) -> PreTrainedModel:
    source: Any = experiment.model
    model = AutoModelForCausalLM.from_config(
        configuration(shape),
        dtype=getattr(torch, source.dtype),
        attn_implementation=source.attention,
    )
    source.check_family(model)
    if source.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    return adapted(model, source.lora) if isinstance(source, Adapted) else model


def model_bytes(experiment: Experiment, shape: dict[str, Any]) -> tuple[int, int]:
    """Bytes of the weights to draw with, in their own dtype, and of those that training changes,
    which are the same weights or adapters beside them; tied ones count once."""
    with torch.device("meta"):
        model = build(experiment, shape)
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
    experiment: Experiment, shape: dict[str, Any], prompt_tokens: int
) -> dict[str, Use]:
    """The peak of each phase for each rank, without its sampler.

    shape: the model's configuration. prompt_tokens: see `passes.prompt_length`. Phase `recompute`
    is that of the process that samples, if it recomputes log-probabilities beside training.
    """
    ranks, (weights, changed) = experiment.ranks, model_bytes(experiment, shape)
    adapter = changed if isinstance(experiment.model, Adapted) else 0
    held = weights + adapter  # by the model that is trained
    part, step_part = held / ranks, changed / ranks
    moments = moment_bytes(experiment, step_part)
    config = configuration(shape)
    source: Any = experiment.model
    embedding = config.vocab_size * config.hidden_size * getattr(torch, source.dtype).itemsize
    roles, overlaps = frozen_roles(experiment), isinstance(experiment.pipeline, Overlap)
    moves = experiment.reference.swap_every
    alone = REFERENCE in roles and ranks == 1  # the reference waits on the host, or has no copy
    waiting = weights if alone and not (adapter and not moves) else 0
    frozen = len(roles) - alone  # on the device
    moved = len([role for role in roles if role != REFERENCE or moves])
    # The weights that the next batches are sampled from.
    held_here = step_part if ranks > 1 and not overlaps else 0  # on the device, split
    held_whole = changed if ranks == 1 and not overlaps else 0
    slots = 2 * weights if overlaps else 0  # shared memory for the process that samples
    copy = weights if recomputes(experiment) and not overlaps else 0
    adds = {
        gradient: pass_memory(experiment, shape, prompt_tokens, gradient)
        for gradient in ([True, False] if recomputes(experiment) else [True])
    }

    resident = part * (1 + frozen) + moments + held_here + copy
    whole = held + max(0, frozen - 1) * part + (held if frozen else 0)
    whole = max(whole, held + frozen * part + copy) if ranks > 1 else held * (1 + frozen)
    brought = reference_on_device(experiment, weights, config) if waiting else 0
    snapshot = step_part if experiment.kl_every else 0  # the weights before the optimizer's step
    largest = embedding / ranks
    if ranks == 1:
        restored = resident + 2 * largest
    else:
        twice = config.tie_word_embeddings  # a tied embedding is in the state under both names
        restored = resident + step_part + part * moved + 2 * held_here
        restored += (2 + twice) * largest
    host = waiting + slots + held_whole
    # Overlap's weights that are sampled from are whole on every rank, but for adapters.
    behavior = weights if overlaps and not adapter else step_part
    state = step_part + moments + part * moved + behavior
    saving = state if experiment.async_checkpoints else 0
    found = {
        "start": Use(whole if ranks > 1 else whole + copy, waiting + max(weights, slots)),
        "sample": Use(resident + adds.get(False, 0) * bool(copy), host + saving),
        "train": Use(resident + step_part + brought + adds[True], host + saving),
        "step": Use(
            resident + step_part + snapshot * (ranks > 1), host + saving + snapshot * (ranks == 1)
        ),
        "save": Use(resident, host + saving),
        "resume": Use(restored, host + state),
    }
    if recomputes(experiment) and overlaps:
        found["recompute"] = Use(max(2 * weights, weights + adds[False]), 0)
    return found


def reference_on_device(experiment: Experiment, weights: float, config: PretrainedConfig) -> float:
    """Bytes of a reference that waits on the host, while a gradient is computed: its linear layers
    come in the compute dtype, embeddings and head in their own. Nothing is copied on a CPU."""
    if experiment.device == "cpu":
        return 0
    source: Any = experiment.model
    own = getattr(torch, source.dtype).itemsize
    share = min(1, compute_dtype(experiment).itemsize / own)
    tables = config.vocab_size * config.hidden_size * own * (1 if config.tie_word_embeddings else 2)
    return tables + (weights - tables) * share


def pass_memory(
    experiment: Experiment, shape: dict[str, Any], prompt_tokens: int, gradient: bool
) -> float:
    """Bytes that the largest micro-batch adds to weights and gradients at its peak. gradient: of
    training, with its backward pass, or of recomputing log-probabilities on one device."""
    few, more = (
        _measure(experiment, {**shape, "num_hidden_layers": n}, prompt_tokens, gradient)
        for n in LAYERS
    )
    a_layer = (more - few) / (LAYERS[1] - LAYERS[0])
    return few + (shape["num_hidden_layers"] - LAYERS[0]) * a_layer


def _measure(
    experiment: Experiment, shape: dict[str, Any], prompt_tokens: int, gradient: bool
) -> float:
    source: Any = experiment.model
    compute = compute_dtype(experiment)
    forward = ForwardPass(
        pad_id=0,
        temperature=1.0,
        compute_dtype=compute,
        packed=source.packed,
        shared=source.shared_prompts,
        fast_path=False,
    )
    rows = largest_pass(experiment, prompt_tokens)
    roles = frozen_roles(experiment) if gradient else []
    with torch.device("meta"):
        model, *others = (build(experiment, shape) for _ in range(1 + len(roles)))
    batch = forward.layout([model, *others], rows)
    with (
        fake_world(experiment.ranks if gradient else 1) as world,
        warnings.catch_warnings(action="ignore"),  # tensors without values have no address
        FakeTensorMode(allow_non_fake_inputs=True),
    ):
        meter = Meter()
        for each in (model, *others):
            allocate(each)
            if world.size > 1:
                world.shard(each, compute)
        begin_gradient(model)
        frozen = {
            r: each.eval().requires_grad_(False) for r, each in zip(roles, others, strict=True)
        }
        for each in (model, *others):
            for parameter in each.parameters():
                meter.see(parameter)
                if parameter.grad is not None:
                    meter.see(parameter.grad)
        before = meter.held()
        with meter, torch.set_grad_enabled(gradient):
            dense = experiment.algorithm().needs.dense if gradient else frozenset()
            scores = forward.score(
                model,
                batch,
                others=frozen,
                kl=REFERENCE in frozen,
                differentiable=dense,
                chunked=True,
            )
            if gradient:
                read = [scores.logp_BT, *(getattr(scores, f"{name}_BT") for name in dense)]
                del scores
                sum(x_BT.sum() for x_BT in read).backward()
    return meter.peak - before


def allocate(model: PreTrainedModel) -> None:
    """Put tensors of the current mode in the place of those on the meta device. Not `to_empty`,
    which swaps tensors, and those without values cannot be swapped."""
    made: dict[int, Any] = {}  # tied weights share one
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, old in tensors.items():
                if old is None:
                    continue
                if id(old) not in made:
                    new = torch.empty_like(old, device="cpu")
                    is_parameter = isinstance(old, nn.Parameter)
                    made[id(old)] = nn.Parameter(new, old.requires_grad) if is_parameter else new
                tensors[name] = made[id(old)]


@contextlib.contextmanager
def fake_world(ranks: int) -> Iterator[World]:
    """A world of which only this rank exists; collectives of others do nothing."""
    if ranks == 1:
        yield World()
        return
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        world = World(0, ranks)
        assert world.mesh  # made outside of FakeTensorMode
        yield world
    finally:
        dist.destroy_process_group()
        distributed._mesh.cache_clear()
