"""The trainer's own log-probabilities of a drawn batch, where the sampler's are corrected for."""

import copy
import dataclasses
import time

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rec_experiments.models import collate, score
from rec_experiments.types import Rollouts


class Rescorer:
    """Owns a copy of `model`. micro_batch_size: sequences per forward pass, None for all."""

    def __init__(
        self, model: PreTrainedModel, pad_id: int, temperature: float, micro_batch_size: int | None
    ) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.pad_id, self.temperature, self.size = pad_id, temperature, micro_batch_size

    @torch.no_grad()
    def __call__(self, weights: dict[str, Tensor], rollouts: Rollouts) -> Rollouts:
        """The batch with `recomputed` filled in. weights: those of the version that drew it."""
        started = time.perf_counter()
        self.model.load_state_dict(weights)
        responses = [response.tokens for response in rollouts.responses]
        recomputed: list[list[float]] = []
        size = self.size or len(responses)
        for start in range(0, len(responses), size):
            chunk = responses[start : start + size]
            rows = collate(rollouts.prompts[start : start + size], chunk, self.pad_id)
            logp_BT = score(self.model, None, rows.to(self.model.device), self.temperature).logp_BT
            recomputed += [
                logp[: len(tokens)] for logp, tokens in zip(logp_BT.tolist(), chunk, strict=True)
            ]
        seconds = {**rollouts.seconds, "rescore": time.perf_counter() - started}
        return dataclasses.replace(rollouts, recomputed=recomputed, seconds=seconds)
