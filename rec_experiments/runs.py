"""A run on disk as an experiment, and its model at a checkpoint."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rec_experiments import schema
from rec_experiments.composition import explain
from rec_experiments.errors import UserError
from rec_experiments.experiment import Experiment
from rec_experiments.policy.models import Pretrained
from rec_experiments.records.joining import read_joined
from rec_experiments.records.reading import read_object
from rec_experiments.records.run_folder import CONFIG, STATES

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def experiment_of(run: Path, overrides: list[str]) -> Experiment:
    """The experiment of a run folder, with other values. Raises UserError for a folder that is
    none, and for an override that is not of a single value."""
    if not (run / CONFIG).is_file():
        raise UserError(f"{run}: is no run folder; it has no {CONFIG}")
    config: Any = schema.restore(read_object(run / CONFIG))
    for override in overrides:
        key, _, _ = override.partition("=")
        if key in config and OmegaConf.is_config(config[key]):
            raise UserError(
                f"{override}: of a run only single values can be changed, as {key}.KEY=…; export "
                "the run, and evaluate its folder on another data set"
            )
    try:
        config = OmegaConf.merge(config, OmegaConf.from_dotlist(overrides))
    except OmegaConfBaseException as error:
        raise UserError(explain(error)) from error
    return schema.build(config, Experiment)


def model_of(run: Path, experiment: Experiment, step: int | None) -> tuple["PreTrainedModel", int]:
    """The model of a run at its newest checkpoint that is whole, or at the one after `step` steps,
    on the host; and that number of steps. Newer ones that are damaged are named on stderr."""
    state, damaged = read_joined(run / STATES, step)
    for name in damaged:
        print(f"checkpoint {name} is damaged and was passed over", file=sys.stderr)
    source = experiment.model
    model = source.skeleton() if isinstance(source, Pretrained) else source.model()
    model.load_state_dict(state["model"], assign=True)
    model.tie_weights()
    return model, state["step"]
