"""Experiments in Python, without the command line."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rec_experiments.config import experiment as typed
from rec_experiments.config import schema
from rec_experiments.config.composition import composing
from rec_experiments.config.identity import run_path


@dataclass(frozen=True, slots=True)
class Experiment:
    """One experiment, composed like `python -m rec_experiments` with the same overrides.

    settings: the typed configuration. overrides: those it was composed with, which name the run in
    displays.
    """

    settings: typed.Experiment
    overrides: tuple[str, ...] = ()

    @classmethod
    def compose(cls, *overrides: str) -> Experiment:
        """Raises UserError for an unknown choice, a misspelt key or a value out of range."""
        with composing() as compose:
            config = compose("config", list(overrides))
            return cls(schema.build(config, typed.Experiment), overrides)

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
