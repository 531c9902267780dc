"""Hydra's side of a sweep: it finds plug-ins only in the namespace hydra_plugins."""

from typing import Any

from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class ArmSweeper(Sweeper):
    """Hands a multirun to rec_experiments.sweeps.launch."""

    def __init__(self, **node: Any):
        self.node = node  # hydra.sweeper as composed

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.config, self.task = config, task_function

    def sweep(self, arguments: list[str]) -> None:
        from rec_experiments.sweeps.launch import launch  # Hydra imports every plug-in

        launch(self.config, self.node, self.task, arguments)
