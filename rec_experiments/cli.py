"""The command line: `python -m rec_experiments [group=choice] [key=value] …`."""

from omegaconf import DictConfig

from rec_experiments import distributed, schema
from rec_experiments.command import hydra_main, refuse
from rec_experiments.errors import UserError
from rec_experiments.experiment import Experiment


def main() -> None:
    """Entry point of `python -m rec_experiments`, alone or as one of the ranks of torchrun."""
    try:
        distributed.join()
    except UserError as error:
        refuse(error)
    hydra_main("config", start)
    distributed.leave()


def start(config: DictConfig) -> None:
    """Run the experiment of a composed configuration, as one of the ranks that share it."""
    experiment = schema.build(config, Experiment)
    from rec_experiments.run import run  # torch and transformers load only for a real run

    run(experiment, distributed.current())
