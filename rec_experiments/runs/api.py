"""Experiments in Python, without the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rec_experiments.common import live
from rec_experiments.common.distributed import digest_of
from rec_experiments.common.errors import UserError
from rec_experiments.config import experiment as typed
from rec_experiments.config import schema
from rec_experiments.config.composition import composing
from rec_experiments.config.identity import run_path
from rec_experiments.datasets.own_data import function
from rec_experiments.rollout.pipeline import Overlap

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

Rows = Sequence[Mapping[str, Any]]
Verifier = Callable[[str, str], Any]


@dataclass(frozen=True, slots=True)
class Experiment:
    """One experiment, composed like `python -m rec_experiments` with the same overrides.

    settings: the typed configuration. overrides: those it was composed with, which name the run in
    displays.
    """

    settings: typed.Experiment
    overrides: tuple[str, ...] = ()

    @classmethod
    def compose(
        cls,
        *overrides: str,
        model: tuple[PreTrainedModel, PreTrainedTokenizerFast] | None = None,
        rows: tuple[Rows, Rows] | None = None,
        verifier: Verifier | None = None,
    ) -> Experiment:
        """model (with its tokenizer), rows (for training, for evaluation) and verifier stand in
        place of model.path, dataset.path and dataset.verifier. They are copied, not changed. No
        command can resume or evaluate such a run, only Python code that passes equal objects.

        Raises UserError for an unknown choice, a misspelt key or a value out of range.
        """
        objects: list[str] = []
        if model is not None:
            objects += [*_unless("model=pretrained", overrides), _kept_model(*model)]
        if rows is not None:
            objects += [*_unless("dataset=own", overrides), _kept_rows(*rows)]
        if verifier is not None:
            objects += _named(verifier)
        words = [*overrides, *objects]
        with composing() as compose:
            settings = schema.build(compose("config", words), typed.Experiment)
        if isinstance(settings.pipeline, Overlap) and live.SCHEME in " ".join(objects):
            raise UserError(
                "pipeline=overlap: draws in another process, which does not have the objects of "
                "this one; use pipeline=sequential"
            )
        return cls(settings, tuple(words))

    @property
    def config(self) -> dict[str, Any]:
        """All resolved values, as in the run's config.yaml."""
        return self.settings.config()

    @property
    def path(self) -> Path:
        """The run folder, which need not exist."""
        return run_path(self.config)

    def run(self) -> Path:
        """Train to the end in this process, or resume where an earlier call or command stopped.

        Returns the run folder; `load_runs` reads it. Raises UserError for a user's mistake, and
        SystemExit if a signal stops it. It works in the main thread only.
        """
        from rec_experiments.runs.run import run  # imports torch

        words = [sys.executable, "-m", "rec_experiments", *self.overrides]
        before, sys.orig_argv = sys.orig_argv, words  # provenance records how to repeat the run
        try:
            return run(self.settings)
        finally:
            sys.orig_argv = before

    def trained_model(self) -> PreTrainedModel:
        """The model at the run's newest checkpoint, on the host. Raises UserError if there is
        none."""
        from rec_experiments.runs.saved import model_of

        return model_of(self.path, self.settings.model, step=None)[0]


def _unless(choice: str, overrides: Sequence[str]) -> list[str]:
    """The choice, unless an override chooses for the same group."""
    group, _, _ = choice.partition("=")
    return [] if any(word.startswith(f"{group}=") for word in overrides) else [choice]


def _kept_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> str:
    content = [digest_of(model.state_dict()), model.config.to_json_string()]
    return f"model.path={live.keep((model, tokenizer), *content, str(tokenizer.chat_template))}"


def _kept_rows(train: Rows, evaluation: Rows) -> str:
    named = {"train": [*map(dict, train)], "evaluation": [*map(dict, evaluation)]}
    return f"dataset.path={live.keep(named, json.dumps(named, sort_keys=True, default=str))}"


def _named(verifier: Verifier) -> list[str]:
    """The overrides that name a verifier: its dotted name, which other processes can import, or
    else a live object, which is called in this process and without a deadline."""
    module, name = verifier.__module__, verifier.__qualname__
    if module != "__main__" and "<" not in name and function(f"{module}.{name}") is verifier:
        return [f"dataset.verifier={module}.{name}"]
    code = verifier.__code__
    kept = live.keep(verifier, name, code.co_code.hex(), *code.co_names)
    return [f"dataset.verifier={kept}", "dataset.verifier_workers=0"]
