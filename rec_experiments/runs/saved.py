"""A run on disk as an experiment, and its model at a checkpoint."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rec_experiments.common.distributed import ALONE, digest_of
from rec_experiments.common.errors import UserError, first_line
from rec_experiments.common.pieces import TARGET
from rec_experiments.config import schema
from rec_experiments.config.composition import explain
from rec_experiments.config.experiment import Experiment
from rec_experiments.policy import lora
from rec_experiments.policy.models import Adapted, ModelChoice, Pretrained
from rec_experiments.runs import provenance
from rec_experiments.runs.checkpoints import Checkpoints
from rec_experiments.runs.reading import read_object
from rec_experiments.runs.run_folder import CONFIG, PROVENANCE, STATES, read_config
from rec_experiments.training.protocol import State

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def experiment_of(run: Path, overrides: list[str]) -> Experiment:
    """The experiment of a run folder, with other values. Raises UserError for a folder that is
    none, and for an override that is not of a single value."""
    if not (run / CONFIG).is_file():
        raise UserError(f"{run}: is not a run folder; it has no {CONFIG}")
    config: Any = _restored(run, overrides)
    values = []
    for override in overrides:
        key, _, value = override.partition("=")
        if key not in config or not OmegaConf.is_config(config[key]):
            values.append(override)
        elif config[key].get(TARGET) != value:  # a class of the folder may be named, to trust it
            raise UserError(
                f"{override}: only single values of a run can be changed, as in {key}.KEY=…; "
                "export the run to evaluate it on another data set"
            )
    try:
        config = OmegaConf.merge(config, OmegaConf.from_dotlist(values))
    except OmegaConfBaseException as error:
        raise UserError(explain(error)) from error
    except yaml.YAMLError as error:
        raise UserError(f"{' '.join(overrides)}: cannot be read ({first_line(error)})") from error
    return schema.build(config, Experiment)


def _restored(run: Path, words: list[str]) -> DictConfig:
    """The configuration of a run folder, each value within its range. words: of the command line,
    which may name classes of its own. Raises UserError that names the folder for any other."""
    saved = read_config(run)
    try:
        config = schema.restore(saved, words)
        schema.build(config, Experiment)
    except (OmegaConfBaseException, UserError, TypeError, OverflowError) as error:
        raise _foreign(run, error) from error
    return config


def source_of(run: Path) -> ModelChoice:
    """Which model a run trained. Its data set and verifier are neither imported nor needed. Raises
    UserError for a folder that is none of a run, and for a model that only the folder names."""
    if not (run / CONFIG).is_file():
        raise UserError(f"{run}: is not a run folder; it has no {CONFIG}")
    saved = read_config(run)
    try:
        values: Any = OmegaConf.to_container(schema.restore({"model": saved["model"]})["model"])
        return cast("ModelChoice", schema.piece("model", values))
    except (KeyError, OmegaConfBaseException, UserError, TypeError, OverflowError) as error:
        raise _foreign(run, error) from error


def _foreign(run: Path, error: Exception) -> UserError:
    return UserError(
        f"run folder {run}: its {CONFIG} is not that of a run of this code ({explain(error)})"
    )


def model_of(
    run: Path, source: ModelChoice, step: int | None, merged: bool = True
) -> tuple["PreTrainedModel", int]:
    """The model of a run after `step` gradient steps, or at its newest intact checkpoint, on the
    host; and that number of steps. Damaged checkpoints that are newer are named on stderr.

    merged: put adapters, if there are any, into the weights that they belong to.

    Raises UserError if there is no such checkpoint, or if it is of another model than that of the
    configuration.
    """
    state = read_state(run / STATES, step)
    try:
        weights = state["weights"]["model"]
        if isinstance(source, Adapted):
            base = source.model()
            check_base(run, source, base)
            model = lora.loaded(base, source.lora, weights, merged)
        else:
            model = source.skeleton() if isinstance(source, Pretrained) else source.model()
            model.load_state_dict(weights, assign=True)
    except (RuntimeError, KeyError, TypeError, AttributeError) as error:  # also: too little memory
        raise UserError(
            f"run folder {run}: the state after step {state['step']} does not fit the model of the "
            f"configuration, {source.describe()} ({first_line(error)})"
        ) from error
    model.tie_weights()
    return model, state["step"]


def check_base(run: Path, source: Adapted, base: "PreTrainedModel") -> None:
    """Raise UserError if these are not the weights that a run's adapters were trained beside."""
    origin, now = read_object(run / PROVENANCE), {"base": digest_of(base.state_dict())}
    if provenance.changed(origin, now):
        raise UserError(
            f"model.path={source.path}: does not hold the weights that the adapters of {run} were "
            "trained beside; restore the model"
        )


def read_state(folder: Path, step: int | None) -> State:
    """The state after `step` gradient steps, or the newest intact one. folder: the checkpoints."""
    checkpoints = Checkpoints(folder, ALONE)
    steps = checkpoints.steps()
    if not steps:
        raise UserError(f"{folder}: holds no checkpoint")
    if step is not None and step not in steps:
        raise UserError(f"step={step}: has no checkpoint; allowed: {', '.join(map(str, steps))}")
    damaged: list[str] = []
    for each in steps if step is None else [step]:
        if (state := checkpoints.read(each)) is not None:
            for name in damaged:
                print(f"checkpoint {name} is damaged and was skipped", file=sys.stderr)
            return state
        damaged.append(checkpoints.of(each).name)
    raise UserError(f"{folder}: {', '.join(damaged)}: damaged")
