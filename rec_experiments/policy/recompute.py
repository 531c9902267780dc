"""The trainer's log-probabilities of a batch, for algorithms that correct the sampler's."""

import dataclasses
import time
from collections.abc import Mapping

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rec_experiments.common.batch import Rollouts
from rec_experiments.policy.batching import (
    Limits,
    distinct,
    first_rows,
    micro_batches,
    rows_and_places,
)
from rec_experiments.policy.logprobs import ForwardPass, frozen_copy


class LogprobRecomputer:
    """It owns a copy of `model`. forward, limits: those of training."""

    def __init__(self, model: PreTrainedModel, forward: ForwardPass, limits: Limits) -> None:
        self.model = frozen_copy(model, forward.compute_dtype)
        self.forward, self.limits = forward, limits

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Replace the weights."""
        self.model.load_state_dict(weights)

    @torch.no_grad()
    def __call__(self, rollouts: Rollouts, start: int = 0) -> Rollouts:
        """Add `behavior` to the batch's logps, or change it from token `start` on. The loaded
        weights must be those that sampled these tokens."""
        started = time.perf_counter()
        sequences, zeros_BT = rollouts.sequences, torch.zeros_like(rollouts.logp_BT)
        logp_BT = rollouts.logps.get("behavior", zeros_BT).clone()
        for part in micro_batches(distinct(sequences), self.limits):
            found_UT = self.forward(self.model, sequences.rows(first_rows(part))).logp_BT
            index_B, place_B = rows_and_places(part)
            width = found_UT.shape[1]
            logp_BT[index_B, start:width] = found_UT[place_B, start:].to(logp_BT)
        spent = rollouts.seconds.get("recompute", 0.0) + time.perf_counter() - started
        return dataclasses.replace(
            rollouts,
            logps={**rollouts.logps, "behavior": logp_BT.where(rollouts.live_BT, 0.0)},
            seconds={**rollouts.seconds, "recompute": spent},
        )
