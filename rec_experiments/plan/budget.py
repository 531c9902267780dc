"""Whether a run fits: memory of each phase on each kind of device and on the host."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from transformers import AutoConfig, PretrainedConfig

from rec_experiments.config import schema
from rec_experiments.config.experiment import Experiment
from rec_experiments.datasets import hub
from rec_experiments.errors import UserError, first_line
from rec_experiments.plan.assumed import assumptions
from rec_experiments.plan.cost import Cost, step_cost
from rec_experiments.plan.memory import Use, configuration, model_bytes, training_memory
from rec_experiments.plan.passes import pass_of, rows_of_update
from rec_experiments.plan.sampler import (
    ITEMSIZE,
    SamplerMemory,
    cache_bytes_per_token,
    sampler_memory,
)
from rec_experiments.policy.head import REFERENCE
from rec_experiments.policy.models import Pretrained
from rec_experiments.rollout.pipeline import Overlap
from rec_experiments.runs.api import Experiment as Composed
from rec_experiments.runs.parts import frozen_roles
from rec_experiments.samplers.vllm import Vllm
from rec_experiments.sweeps import gpus_of

FOLDER = Path(__file__).parent
GB = 1e9
HOST = "host"
TRAINS, DRAWS = "trains", "draws"  # kinds of device


def shape_of(experiment: Experiment) -> dict[str, Any]:
    """The model's configuration: from shapes.yaml, or the folder or hub name it is loaded from."""
    source = experiment.model
    if not isinstance(source, Pretrained):
        raise UserError(
            "model: a plan is for a model of transformers, as model=qwen2.5-7b-instruct"
        )
    shapes: dict[str, Any] = yaml.safe_load((FOLDER / "shapes.yaml").read_text(encoding="utf-8"))
    if source.path in shapes:
        return dict(shapes[source.path])
    if not Path(source.path).is_dir():
        hub.silence()  # asks once, in place of many times
    try:
        found = AutoConfig.from_pretrained(source.path)
    except (OSError, ValueError) as error:
        raise UserError(
            f"model.path={source.path}: its configuration cannot be read ({first_line(error)}); "
            f"known without it: {', '.join(shapes)}"
        ) from error
    layers = getattr(found, "num_hidden_layers", None)
    if layers is None:
        raise UserError(
            f"model.path={source.path}: a plan is for a model of layers that are alike, and the "
            f"configuration of {found.model_type} has no num_hidden_layers"
        )
    shape = {"model_type": found.model_type, **found.to_diff_dict(), "layer_types": None}
    for usual, own in found.attribute_map.items():  # as n_layer of num_hidden_layers
        if own in shape:
            shape[usual] = shape.pop(own)
    return {**shape, "num_hidden_layers": layers}


def check_context(experiment: Experiment, config: PretrainedConfig) -> None:
    """Raise UserError for responses that the model cannot read to their end: a plan counts with
    rows of that length."""
    context: int | None = getattr(config, "max_position_embeddings", None)
    response = experiment.dataset.max_response_tokens
    if context and response >= context:
        raise UserError(
            f"dataset.max_response_tokens={response}: must be below the model's context of "
            f"{context} tokens"
        )


def check_pass(
    experiment: Experiment, config: PretrainedConfig, prompt_tokens: int, card: float
) -> None:
    """Raise UserError for a pass whose hidden states alone, one of each token of a response at the
    entrance of each layer, are beyond a device of `card` bytes: it cannot fit, and would be long to
    count."""
    rows, _ = pass_of(experiment, prompt_tokens)
    length = experiment.dataset.max_response_tokens
    a_token = config.num_hidden_layers * config.hidden_size
    a_token *= ITEMSIZE[experiment.model.compute_dtype]
    needed = rows * length * a_token
    if needed > card:
        raise UserError(
            f"micro_batch_tokens={experiment.micro_batch_tokens or 'null'}: a pass of {rows} "
            f"responses of {length} tokens keeps {needed / GB:.3g} GB of hidden states at least, "
            f"and a GPU has {card / GB:.0f}; must be below {card // a_token:.0f}"
        )


def check_cache(experiment: Experiment, config: PretrainedConfig, sampler: SamplerMemory) -> None:
    """Raise UserError for a cache in which vLLM could not decode one response: it would not
    start."""
    engine, task = experiment.sampler, experiment.dataset
    longest = task.max_prompt_tokens + task.max_response_tokens
    needed = longest * cache_bytes_per_token(experiment, config)
    if isinstance(engine, Vllm) and sampler.cache < needed:
        key = "kv_cache_memory_bytes"
        if engine.kv_cache_memory_bytes is None:
            key = "gpu_memory_utilization"
        raise UserError(
            f"sampler.{key}={getattr(engine, key):g}: leaves {max(0, sampler.cache) / GB:.2f} GB "
            f"for keys and values, and a prompt and response of {longest} tokens need "
            f"{needed / GB:.2f} GB"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Of one run. memory: bytes by place (a device that trains, one that draws, or the host of all)
    and phase. limits: of each place. parameters: of the model."""

    experiment: Experiment
    gpus: int
    parameters: float
    memory: dict[str, dict[str, float]]
    limits: dict[str, float]
    cost: Cost

    def worst(self) -> tuple[str, str, float]:
        """Place, phase, and by how many times its limit it is filled, where that is most."""
        return max(
            (
                (place, phase, used / self.limits[place])
                for place, phases in self.memory.items()
                for phase, used in phases.items()
            ),
            key=lambda found: found[2],
        )

    @property
    def fits(self) -> bool:
        return self.worst()[2] <= 1


def plan(experiment: Experiment, gpu: str, values: dict[str, float]) -> Plan:
    """gpu: a name in assumptions.yaml. values: those of its `values`."""
    shape = shape_of(experiment)
    config = configuration(shape)
    check_context(experiment, config)
    card = assumptions()["gpus"][gpu]
    check_pass(experiment, config, int(values["prompt_tokens"]), card["memory"])
    weights = model_bytes(experiment, shape)
    training = training_memory(experiment, shape, int(values["prompt_tokens"]))
    sampler = sampler_memory(experiment, weights, card["memory"], values)
    check_cache(experiment, config, sampler)
    gpus = gpus_of(experiment.config()) or experiment.ranks
    source: Any = experiment.model
    parameters = weights / ITEMSIZE[source.dtype]
    largest = config.vocab_size * config.hidden_size * (ITEMSIZE[source.dtype] + 2)
    # Weights, two moments, what batches are drawn from, which beside training each rank has, and
    # policies that move.
    beside, moves = isinstance(experiment.pipeline, Overlap), experiment.reference.swap_every
    moved = [role for role in frozen_roles(experiment) if role != REFERENCE or moves]
    state = weights * (3 + (experiment.ranks if beside else 1) + len(moved))
    return Plan(
        experiment=experiment,
        gpus=gpus,
        parameters=parameters,
        memory=places(experiment, training, sampler, largest, values),
        limits={
            TRAINS: card["memory"] - values["margin_gb"] * GB,
            DRAWS: card["memory"] - values["margin_gb"] * GB,
            HOST: values["host_gb_per_gpu"] * GB * gpus,
        },
        cost=step_cost(experiment, config, sampler, card, values, parameters, state),
    )


def places(
    experiment: Experiment,
    training: dict[str, Use],
    sampler: SamplerMemory,
    largest: float,
    values: dict[str, float],
) -> dict[str, dict[str, float]]:
    """Memory by place and phase. largest: of a weight and of its copy on its way to a sampler."""
    beside, ranks = isinstance(experiment.pipeline, Overlap), experiment.ranks
    process = values["context_gb"] * GB
    nccl = values["nccl_gb"] * GB if ranks > 1 else 0.0
    lost = 1 + values["fragmentation"]
    device = {phase: use.device * lost + process + nccl for phase, use in training.items()}
    device["push"] = device["sample"] + largest
    host = {phase: use.host for phase, use in training.items()}
    host["push"] = host["sample"]
    host["save"] += largest
    found = {}
    if beside:
        again = training["recompute"].device * lost if "recompute" in training else 0.0
        found[DRAWS] = {"draw": sampler.drawing + process + again}
    else:
        stays = sampler.drawing if sampler.asleep is None else sampler.asleep
        awake = ("start", "sample", "push")
        for phase in device:
            device[phase] += sampler.drawing if phase in awake else stays
            if sampler.asleep is not None and phase not in awake:
                host[phase] += sampler.weights
        device["start"] += max(0.0, sampler.asked - sampler.drawing)
    processes = ranks * (2 if beside else 1)
    each = processes * values["process_gb"] * GB
    order = ("start", "hold", "sample", "push", "train", "step", "save", "resume")
    found[TRAINS] = {phase: device[phase] for phase in order}
    found[HOST] = {phase: ranks * host[phase] + each for phase in order}
    return found


def alternatives(experiment: Experiment, gpus: str) -> Iterator[list[str]]:
    """Overrides that take less memory, the least change first. gpus: the layout now, if any."""
    longest = experiment.dataset.max_prompt_tokens + experiment.dataset.max_response_tokens
    budget = rows_of_update(experiment) * longest  # more of them change nothing
    budget = min(budget, experiment.micro_batch_tokens or budget)
    while budget // 2 >= longest:
        budget //= 2
        yield [f"micro_batch_tokens={budget}"]
    layouts = sorted(file.stem for file in (schema.CONF / "gpus").glob("*.yaml"))
    yield from ([f"gpus={name}"] for name in layouts if int(name[0]) > int((gpus or "0")[0]))


def what_fits(
    overrides: list[str], gpu: str, values: dict[str, float], experiment: Experiment
) -> str | None:
    """The first alternative that fits, for people."""
    chosen = next((o.partition("=")[2] for o in overrides if o.startswith("gpus=")), "")
    chosen = chosen or f"{gpus_of(experiment.config())}x"
    for extra in alternatives(experiment, chosen):
        kept = [o for o in overrides if o.partition("=")[0] != extra[0].partition("=")[0]]
        other = Composed.compose(*kept, *extra).settings
        if plan(other, gpu, values).fits:
            return " ".join(extra)
    return None
