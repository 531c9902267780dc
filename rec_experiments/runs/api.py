"""Experiments for people who write Python rather than command lines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rec_experiments.config import experiment as typed
from rec_experiments.config import schema
from rec_experiments.config.composition import compose, composing
from rec_experiments.config.identity import run_path


@dataclass(frozen=True, slots=True)
class Experiment:
    """One experiment, as `python -m rec_experiments` with the same overrides would compose it.

    settings: typed, what the run goes by.
    """

    settings: typed.Experiment

    @classmethod
    def compose(cls, *overrides: str) -> Experiment:
        """Raises UserError for an unknown choice, a misspelt key or a value out of range."""
        with composing():
            config = compose("config", list(overrides))
            return cls(schema.build(config, typed.Experiment))

    @property
    def config(self) -> dict[str, Any]:
        """All values, resolved, as config.yaml of the run has them."""
        return self.settings.config()

    @property
    def path(self) -> Path:
        """The run folder, whether it is there or not."""
        return run_path(self.config)

    def run(self) -> Path:
        """Train to the end in this process, or go on where an earlier call or command stopped.

        Returns the run folder; `load_runs` reads it. Raises UserError for what the user can mend.
        It exits as the command does if it is told to stop. Only in the main thread.
        """
        from rec_experiments.runs.run import run  # torch loads only for a real run

        return run(self.settings)
