"""Starts vLLM's server for runs with sampler=vllm_server, on this machine, with the model and the
lengths that these overrides compose. Its weights are random until a run pushes some. Ctrl-C ends
it."""

import os
from typing import Annotated

from rec_experiments.cli.parser import overrides
from rec_experiments.common.errors import UserError


def main(
    *words: Annotated[
        str, overrides("of the run, with sampler=vllm_server: setting=paper/guru sampler.url=…")
    ],
) -> None:
    """Raises UserError for another sampler, and if vLLM is not installed."""
    from rec_experiments.policy.models import Pretrained  # imports torch
    from rec_experiments.runs.api import Experiment
    from rec_experiments.samplers.vllm import check_installed
    from rec_experiments.samplers.vllm_server import VllmServer

    experiment = Experiment.compose(*words).settings
    sampler, source, dataset = experiment.sampler, experiment.model, experiment.dataset
    if not isinstance(sampler, VllmServer):
        raise UserError("serve: the overrides must choose sampler=vllm_server, as the run's do")
    if len(sampler.urls) > 1:
        raise UserError("serve: sampler.url must name the one server to start, as http://HOST:PORT")
    check_installed()
    model = source.skeleton() if isinstance(source, Pretrained) else source.model()
    longest = dataset.max_prompt_tokens + dataset.max_response_tokens
    command, environment = sampler.command(model, longest)
    os.execvpe(command[0], command, environment)
