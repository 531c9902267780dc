"""Whether a run fits: memory of each phase on each kind of device and on the host."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from transformers import AutoConfig, PretrainedConfig

from rec_experiments.common.errors import UserError
from rec_experiments.config import plugins
from rec_experiments.config.experiment import Experiment
from rec_experiments.config.labels import gpus_of
from rec_experiments.plan import at, constants
from rec_experiments.plan.cost import Cost, step_cost
from rec_experiments.plan.memory import (
    Use,
    model_bytes,
    moment_bytes,
    recomputes,
    training_memory,
)
from rec_experiments.plan.sampler import GB, ITEMSIZE, SamplerMemory, check_cache, sampler_memory
from rec_experiments.policy.models import Pretrained
from rec_experiments.rollout.pipeline import Overlap
from rec_experiments.runs.prepare import frozen_roles

SHAPES = Path(__file__).with_name("shapes.yaml")
TRAINS, DRAWS, HOST = "trains", "draws", "host"  # places: two kinds of device, and the host
HEADINGS = {TRAINS: "each training GPU", DRAWS: "each sampling GPU", HOST: "the host"}
AWAKE = ("start", "sample")  # phases in which the sampler has its memory


def configuration(experiment: Experiment) -> PretrainedConfig:
    """The model's configuration: from shapes.yaml, or from its folder or hub name. Raises UserError
    for a model whose layers are not alike, and for responses longer than its context."""
    source, response = experiment.model, experiment.dataset.max_response_tokens
    if not isinstance(source, Pretrained):
        raise UserError(
            "model: a plan needs a model of transformers, as in model=qwen2.5-7b-instruct"
        )
    shapes: dict[str, Any] = yaml.safe_load(SHAPES.read_text(encoding="utf-8"))
    known = source.path in shapes
    found = AutoConfig.for_model(**shapes[source.path]) if known else source.shape()
    if getattr(found, "num_hidden_layers", None) is None:
        raise UserError(
            f"model.path={source.path}: the configuration of {found.model_type} has no "
            "num_hidden_layers; a plan needs a model whose layers are alike"
        )
    context: int | None = getattr(found, "max_position_embeddings", None)
    if context and response >= context:
        raise UserError(
            f"dataset.max_response_tokens={response}: must be below the model's context of "
            f"{context} tokens"
        )
    return found


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
    config = configuration(experiment)
    card = constants()["gpus"][gpu]
    weights, changed = model_bytes(experiment, config)
    training = training_memory(experiment, config, int(values["prompt_tokens"]))
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


def report(found: Plan, gpu: str, values: dict[str, float]) -> list[str]:
    """The lines of a plan."""
    experiment, cost = found.experiment, found.cost
    quick, slow = found.quick, found.slow
    seconds = {
        name: f"{at:.3g} s [{quick.seconds[name]:.3g}, {slow.seconds[name]:.3g}]"
        for name, at in cost.seconds.items()
    }
    lines = [
        f"{experiment.model.describe()}: {found.parameters / 1e9:.2f} G parameters",
        f"{found.gpus} x {gpu}, assumed (--gpu NAME chooses another): {experiment.ranks} train; "
        f"rollouts {experiment.pipeline.describe()}",
        "",
    ]
    for place, phases in found.memory.items():
        lines.append(f"{HEADINGS[place]}, at most {found.limits[place] / GB:.0f} GB")
        for phase, used in phases.items():
            mark = "" if used <= found.limits[place] else "   does not fit"
            lines.append(f"  {phase:8} {used / GB:8.1f} GB{mark}")
    assumed = ", ".join(f"{name} {value:g}" for name, value in values.items())
    lines += [
        "",
        f"a gradient step: {cost.tokens / 1e3:.0f} k tokens, "
        f"{cost.trained / 1e15:.2f} P operations",
        "  " + ", ".join(f"{name} {seconds[name]}" for name in ("draw", "push", "train")),
        f"  together {seconds['step']}; each engine draws {cost.rate / 1e3:.1f} k tokens/s",
        f"  a checkpoint takes {seconds['save']}",
        f"  {experiment.steps} steps take {found.hours(cost):.1f} h "
        f"[{found.hours(quick):.1f}, {found.hours(slow):.1f}], without evaluations",
        f"by these constants (--sources says where each is from): {assumed}",
    ]
    if getattr(experiment.model, "compile_layers", False):
        lines.append("model.compile_layers=true: layers are counted as if they were not compiled")
    return lines


def refusal(found: Plan, gpu: str) -> str:
    """Why the plan does not fit, and what takes less."""
    place, phase, share = found.worst()
    limit = found.limits[place] / GB
    layouts = sorted(f"gpus={file.stem}" for file in (plugins.CONF / "gpus").glob("*.yaml"))
    return (
        f"{phase}: needs {share * limit:.1f} GB on {HEADINGS[place]}, where {limit:.1f} GB of "
        f"{gpu} may be used; lower micro_batch_tokens, or choose a larger layout: "
        f"{', '.join(layouts)}"
    )
