"""A run on disk: its experiment, its model at a checkpoint, as a folder of transformers, or as the
teacher of another run."""

import contextlib
import dataclasses
import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from safetensors import SafetensorError
from transformers import PreTrainedModel, PreTrainedTokenizerFast
from transformers.configuration_utils import PretrainedConfig

from rec_experiments.common.distributed import ALONE, digest_of
from rec_experiments.common.errors import UserError, first_line
from rec_experiments.common.files import remove, sync_folder, writing
from rec_experiments.common.pieces import TARGET
from rec_experiments.config import schema
from rec_experiments.config.composition import explain
from rec_experiments.config.experiment import Experiment
from rec_experiments.policy import lora
from rec_experiments.policy.chat import ChatTemplate
from rec_experiments.policy.models import Adapted, ModelChoice, Pretrained
from rec_experiments.runs import provenance
from rec_experiments.runs.checkpoints import Checkpoints
from rec_experiments.runs.checks import check_context
from rec_experiments.runs.reading import read_object
from rec_experiments.runs.run_folder import CONFIG, PROVENANCE, STATES, read_config
from rec_experiments.training.protocol import State


def experiment_of(run: Path, overrides: list[str]) -> Experiment:
    """The experiment of a run folder, with other values. Raises UserError for a folder that is
    none, and for an override that is not of a single value."""
    saved = read_config(run)
    with _of_this_code(run):
        config: Any = schema.restore(saved, overrides)
        schema.build(config, Experiment)  # each value of the folder is within its range
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


def source_of(run: Path) -> ModelChoice:
    """Which model a run trained. Its data set and verifier are neither imported nor needed. Raises
    UserError for a folder that is none of a run, and for a model that only the folder names."""
    saved = read_config(run)
    with _of_this_code(run):
        values: Any = OmegaConf.to_container(schema.restore({"model": saved["model"]})["model"])
        return cast("ModelChoice", schema.piece("model", values))


@contextlib.contextmanager
def _of_this_code(run: Path) -> Iterator[None]:
    """Name the folder in the error for a configuration that this code cannot read."""
    try:
        yield
    except (KeyError, OmegaConfBaseException, UserError, TypeError, OverflowError) as error:
        raise UserError(
            f"run folder {run}: its {CONFIG} is not that of a run of this code ({explain(error)})"
        ) from error


def model_of(
    run: Path, source: ModelChoice, step: int | None, merged: bool = True
) -> tuple[PreTrainedModel, int]:
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


def check_base(run: Path, source: Adapted, base: PreTrainedModel) -> None:
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


def export(run: Path, out: Path, step: int | None, adapter: bool = False) -> int:
    """Write model and tokenizer to the folder `out`, or leave nothing behind.

    step: gradient steps of the checkpoint; None for the newest one. Returns them. adapter: write
    the adapter alone, as peft does; otherwise it is merged into the weights.
    Raises UserError if `out` exists or cannot be written, or if there is no adapter.
    """
    if out.exists():
        raise UserError(f"{out}: exists already; choose another folder")
    source = source_of(run)
    if adapter and not isinstance(source, Adapted):
        raise UserError(f"part=adapter: {run} trained all weights; leave the option out")
    model, step = model_of(run, source, step, merged=not adapter)
    partial = out.with_name(f".{secrets.token_hex(8)}.partial")
    made = [folder for folder in out.parents if not folder.exists()]  # innermost first
    with writing(out):
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            model.save_pretrained(partial)
            source.tokenizer().save_pretrained(partial)
            os.replace(partial, out)
        except BaseException as error:
            with contextlib.suppress(OSError):
                remove(partial)
            for folder in made:
                with contextlib.suppress(OSError):
                    folder.rmdir()
            if isinstance(error, SafetensorError):  # raised on a full disk
                raise UserError(f"{out}: cannot be written ({first_line(error)})") from error
            raise
        sync_folder(out.parent)
    return step


def load_teacher(
    path: str, experiment: Experiment, chat: ChatTemplate, student: PretrainedConfig
) -> PreTrainedModel:
    """The teacher of a run, on the host, frozen.

    path: a run folder, or a model of transformers, which is loaded as the run's own model is.
    student: the configuration of that model. Raises UserError for a model that cannot be loaded, or
    that cannot judge the student's tokens.
    """
    try:
        teacher, tokenizer = _loaded(path, experiment.model)
        if tokenizer.get_vocab() != chat.tokenizer.get_vocab():
            raise UserError("its tokens are not those of the model that it would teach")
        if teacher.config.vocab_size != student.vocab_size:
            raise UserError(
                f"it has {teacher.config.vocab_size} logits, and the model that it would teach has "
                f"{student.vocab_size}"
            )
        check_context(experiment.dataset, teacher.config.max_position_embeddings)
    except UserError as error:
        reason = str(error).removeprefix(f"model.path={path}: ")
        raise UserError(f"reference.path={path}: {reason}") from error
    return teacher.requires_grad_(False)


def _loaded(path: str, own: Any) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    folder = Path(os.path.expanduser(path))
    if (folder / CONFIG).is_file():
        source = source_of(folder)
        return model_of(folder, source, None)[0], source.tokenizer()
    if not isinstance(own, Pretrained):
        raise UserError("is not a run folder; this model takes no other teacher")
    other = dataclasses.replace(own, path=path)
    return other.model(), other.tokenizer()
