"""The trainer's own log-probabilities of a drawn batch, where the sampler's are corrected for."""

import copy
import dataclasses
import time

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rec_experiments.policy.batching import Limits, distinct, micro_batches
from rec_experiments.policy.logprobs import autocast, collate, score
from rec_experiments.types import Rollouts


class LogprobRecomputer:
    """Owns a copy of `model`. limits, compute_dtype: of a forward pass, as in training."""

    def __init__(
        self,
        model: PreTrainedModel,
        pad_id: int,
        temperature: float,
        limits: Limits,
        compute_dtype: torch.dtype,
    ) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.pad_id, self.temperature = pad_id, temperature
        self.limits, self.compute_dtype = limits, compute_dtype

    def load(self, weights: dict[str, Tensor]) -> None:
        """Score with these weights from now on."""
        self.model.load_state_dict(weights)

    @torch.no_grad()
    def __call__(self, rollouts: Rollouts) -> Rollouts:
        """The batch with `recomputed` filled in. The weights must be those that drew it."""
        started = time.perf_counter()
        device = self.model.device
        responses = [response.tokens for response in rollouts.responses]
        recomputed: list[list[float]] = [[] for _ in responses]
        for part in micro_batches(distinct(rollouts.prompts, responses), self.limits):
            batch = collate([s.prompt for s in part], [s.response for s in part], self.pad_id)
            with autocast(device, self.compute_dtype):
                logp_ST = score(self.model, None, batch.to(device), self.temperature).logp_BT
            for sequence, logp in zip(part, logp_ST.tolist(), strict=True):
                for i in sequence.rows:
                    recomputed[i] = logp[: len(sequence.response)]
        seconds = {**rollouts.seconds, "rescore": time.perf_counter() - started}
        return dataclasses.replace(rollouts, recomputed=recomputed, seconds=seconds)
