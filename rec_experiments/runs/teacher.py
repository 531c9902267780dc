"""The teacher of a run: another run's model, or one of transformers."""

import dataclasses
import os
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerFast
from transformers.configuration_utils import PretrainedConfig

from rec_experiments.common.errors import UserError
from rec_experiments.config.experiment import Experiment
from rec_experiments.policy.chat import ChatTemplate
from rec_experiments.policy.models import Pretrained
from rec_experiments.runs.checks import check_context
from rec_experiments.runs.run_folder import CONFIG
from rec_experiments.runs.saved import model_of, source_of


def load_teacher(
    path: str, experiment: Experiment, chat: ChatTemplate, student: PretrainedConfig
) -> PreTrainedModel:
    """On the host, frozen.

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
