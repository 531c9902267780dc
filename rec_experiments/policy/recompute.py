"""The trainer's log-probabilities of a batch, for algorithms that correct the sampler's."""

import copy
import dataclasses
import time
from collections.abc import Mapping

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rec_experiments.policy.batching import Limits, distinct, micro_batches
from rec_experiments.policy.logprobs import ForwardPass
from rec_experiments.types import Rollouts


class LogprobRecomputer:
    """It owns a copy of `model`. forward, limits: those of training."""

    def __init__(self, model: PreTrainedModel, forward: ForwardPass, limits: Limits) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.forward, self.limits = forward, limits

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Replace the weights."""
        self.model.load_state_dict(weights)

    @torch.no_grad()
    def __call__(self, rollouts: Rollouts, start: int = 0) -> Rollouts:
        """Add `behavior` to the batch's logps, or change it from token `start` on. The loaded
        weights must be those that sampled these tokens."""
        started = time.perf_counter()
        responses = [response.tokens for response in rollouts.responses]
        logps = [logp[:start] for logp in rollouts.logps.get("behavior", [[]] * len(responses))]
        for part in micro_batches(distinct(rollouts.prompts, responses), self.limits):
            logp_UT = self.forward(self.model, part).logp_BT
            for sequence, logp in zip(part, logp_UT.tolist(), strict=True):
                for row in sequence.rows:
                    logps[row] += logp[len(logps[row]) : len(sequence.response)]
        spent = rollouts.seconds.get("recompute", 0.0) + time.perf_counter() - started
        seconds = {**rollouts.seconds, "recompute": spent}
        return dataclasses.replace(
            rollouts, logps={**rollouts.logps, "behavior": logps}, seconds=seconds
        )
