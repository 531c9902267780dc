"""Hydra's side of a sweep: it finds plug-ins only in the namespace hydra_plugins."""

from typing import Any

from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

# Hydra's overrides that describe the sweep, not a job.
OF_THE_SWEEP = ("hydra.sweeper.", "hydra/sweeper=", "hydra.mode=")


class ArmSweeper(Sweeper):
    """Hands a multirun to rec_experiments.sweeps.launch."""

    def __init__(self, **node: Any):
        self.node = node  # hydra.sweeper as composed

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        overrides = config.hydra.overrides  # a job is composed without those of the sweep
        overrides.hydra = [line for line in overrides.hydra if not line.startswith(OF_THE_SWEEP)]
        self.loader, self.config, self.task = hydra_context.config_loader, config, task_function

    def sweep(self, arguments: list[str]) -> None:
        from rec_experiments.sweeps.launch import launch  # Hydra imports every plug-in

        launch(self.config, self.node, self.compose, self.task, arguments)

    def compose(self, overrides: list[str]) -> DictConfig:
        """The configuration of a job."""
        config = self.loader.load_sweep_config(self.config, overrides)
        with open_dict(config):
            del config["hydra"]
        return config
