"""What became of a job, in one line."""

import traceback
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.types import TaskFunction
from omegaconf import DictConfig, open_dict


class JobFailed(Exception):
    """Why a job failed, in one line."""


class Contained:
    """A task whose every end is a result: leaving the process would end the whole sweep.

    An interruption does leave it: it is meant for the whole process.
    """

    def __init__(self, task: TaskFunction):
        self.task = task

    def __call__(self, config: DictConfig) -> Any:
        try:
            return self.task(config)
        except SystemExit as error:  # a user's mistake, told already
            from rec_experiments.config.composition import explain
            from rec_experiments.errors import INTERRUPTED

            if error.code in INTERRUPTED:
                raise
            raise JobFailed(explain(error.__context__ or error)) from None
        except Exception:
            traceback.print_exc()
            raise


def why_failed(job: JobReturn) -> str | None:
    """Why a job failed, or None. Reading its return value would raise."""
    return in_one_line(job._return_value) if job.status is JobStatus.FAILED else None


def in_one_line(error: BaseException) -> str:
    """The last line of an error's report."""
    if isinstance(error, JobFailed):
        return str(error)
    return traceback.format_exception_only(error)[-1].strip()


def without_hydra(config: DictConfig) -> DictConfig:
    config = config.copy()
    with open_dict(config):
        del config["hydra"]
    return config
