"""Whether a run fits: memory of each phase on each kind of device and on the host."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from transformers import PretrainedConfig

from rec_experiments.common.errors import UserError
from rec_experiments.config import plugins
from rec_experiments.config.experiment import Experiment
from rec_experiments.config.labels import gpus_of
from rec_experiments.plan import at, constants
from rec_experiments.plan.cost import Cost, step_cost
from rec_experiments.plan.memory import (
    Use,
    configuration,
    model_bytes,
    moment_bytes,
    training_memory,
)
from rec_experiments.plan.passes import recomputes
from rec_experiments.plan.sampler import GB, ITEMSIZE, SamplerMemory, check_cache, sampler_memory
from rec_experiments.policy.models import Pretrained
from rec_experiments.rollout.pipeline import Overlap
from rec_experiments.runs.prepare import frozen_roles

SHAPES = Path(__file__).with_name("shapes.yaml")
HOST = "host"
TRAINS, DRAWS = "trains", "draws"  # kinds of device
AWAKE = ("start", "sample")  # phases in which the sampler has its memory


def shape_of(experiment: Experiment) -> dict[str, Any]:
    """The model's configuration: from shapes.yaml, or from its folder or hub name."""
    source = experiment.model
    if not isinstance(source, Pretrained):
        raise UserError(
            "model: a plan needs a model of transformers, as in model=qwen2.5-7b-instruct"
        )
    shapes: dict[str, Any] = yaml.safe_load(SHAPES.read_text(encoding="utf-8"))
    if source.path in shapes:
        return dict(shapes[source.path])
    found = source.shape()
    layers = getattr(found, "num_hidden_layers", None)
    if layers is None:
        raise UserError(
            f"model.path={source.path}: the configuration of {found.model_type} has no "
            "num_hidden_layers; a plan needs a model whose layers are alike"
        )
    shape = {"model_type": found.model_type, **found.to_diff_dict(), "layer_types": None}
    for usual, own in found.attribute_map.items():  # as n_layer for num_hidden_layers
        if own in shape:
            shape[usual] = shape.pop(own)
    return {**shape, "num_hidden_layers": layers}


def check_context(experiment: Experiment, config: PretrainedConfig) -> None:
    """Raise UserError for responses that are longer than the model's context."""
    context: int | None = getattr(config, "max_position_embeddings", None)
    response = experiment.dataset.max_response_tokens
    if context and response >= context:
        raise UserError(
            f"dataset.max_response_tokens={response}: must be below the model's context of "
            f"{context} tokens"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """memory: bytes by place (a device that trains, one that draws, or the host as a whole) and
    phase. limits: bytes of each place. parameters: of the model. quick, slow: the cost if all that
    is uncertain turns out well, or badly."""

    experiment: Experiment
    gpus: int
    parameters: float
    memory: dict[str, dict[str, float]]
    limits: dict[str, float]
    cost: Cost
    quick: Cost
    slow: Cost

    def worst(self) -> tuple[str, str, float]:
        """The place and phase that fill their limit most, and the share of it that they fill."""
        shares = (
            (place, phase, used / self.limits[place])
            for place, phases in self.memory.items()
            for phase, used in phases.items()
        )
        return max(shares, key=lambda found: found[2])

    @property
    def fits(self) -> bool:
        return self.worst()[2] <= 1

    def hours(self, cost: Cost) -> float:
        """All gradient steps and checkpoints, without evaluations."""
        seconds, exp = cost.seconds, self.experiment
        saved = 0.0 if exp.async_checkpoints else seconds["save"] / exp.checkpoint_every
        return exp.steps * (seconds["step"] + saved) / 3600


def plan(experiment: Experiment, gpu: str, values: dict[str, float]) -> Plan:
    """gpu: a name in constants.yaml. values: of its `values`, some of them replaced."""
    shape = shape_of(experiment)
    config = configuration(shape)
    check_context(experiment, config)
    card = constants()["gpus"][gpu]
    weights, changed = model_bytes(experiment, shape)
    training = training_memory(experiment, shape, int(values["prompt_tokens"]))
    sampler = sampler_memory(experiment, weights, card["memory"], values)
    check_cache(experiment, config, sampler)
    gpus = gpus_of(experiment.config()) or experiment.ranks
    source: Any = experiment.model
    parameters = weights / ITEMSIZE[source.dtype]
    # The largest weight, and its copy on the way to a sampler.
    largest = config.vocab_size * config.hidden_size * (ITEMSIZE[source.dtype] + 2)
    # A checkpoint: weights, two moments, the weights that sample, and policies that move.
    moves = experiment.reference.swap_every
    moved = [role for role in frozen_roles(experiment) if role != "reference" or moves]
    state = 2 * changed + moment_bytes(experiment, changed) + weights * len(moved)
    cost, quick, slow = (
        step_cost(experiment, config, sampler, card, each, parameters, state)
        for each in (values, at("quick", values), at("slow", values))
    )
    free = card["memory"] - min(values["margin_gb"] * GB, card["memory"] / 12)
    return Plan(
        experiment=experiment,
        gpus=gpus,
        parameters=parameters,
        memory=places(experiment, training, sampler, weights, largest, values),
        limits={TRAINS: free, DRAWS: free, HOST: values["host_gb_per_gpu"] * GB * gpus},
        cost=cost,
        quick=quick,
        slow=slow,
    )


def places(
    experiment: Experiment,
    training: dict[str, Use],
    sampler: SamplerMemory,
    weights: float,
    largest: float,
    values: dict[str, float],
) -> dict[str, dict[str, float]]:
    """Memory by place and phase. weights: bytes of the model. largest: bytes of its largest weight
    and of the copy for the sampler."""
    beside, ranks = isinstance(experiment.pipeline, Overlap), experiment.ranks
    process = values["context_gb"] * GB
    nccl = values["nccl_gb"] * GB if ranks > 1 else 0.0
    lost = 1 + values["fragmentation"]
    device = {phase: use.device * lost + process + nccl for phase, use in training.items()}
    host = {phase: use.host for phase, use in training.items()}
    device["sample"] += largest  # while the sampler is given new weights
    host["save"] += largest
    found = {}
    if beside:
        # Where it recomputes log-probabilities, it has the trainer's model twice as it starts.
        copies = 2 * weights if recomputes(experiment) else 0.0
        found[DRAWS] = {"draw": sampler.drawing + process + copies * lost}
    else:
        for phase in device:
            if phase in AWAKE or sampler.asleep is None:
                device[phase] += sampler.drawing
            else:
                device[phase] += sampler.asleep
                host[phase] += sampler.weights
        device["start"] += max(0.0, sampler.asked - sampler.drawing)
    processes = ranks * (2 if beside else 1) * values["process_gb"] * GB
    found[TRAINS] = device
    found[HOST] = {phase: ranks * used + processes for phase, used in host.items()}
    return found


def layouts() -> list[str]:
    """The choices of config group gpus, such as 8x80gb."""
    return sorted(file.stem for file in (plugins.CONF / "gpus").glob("*.yaml"))
