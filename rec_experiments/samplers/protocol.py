"""The interface of a sampler choice in the configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from rec_experiments.common.protocols import Sampler

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@runtime_checkable
class SamplerChoice(Protocol):
    """temperature, eval_temperature: of training and of evaluation; 0 is greedy."""

    temperature: float
    eval_temperature: float

    def check(self) -> None:
        """Raise UserError, before anything is loaded, if what it needs is not installed."""

    def bundle(self, model: PreTrainedModel, tokens: int) -> int:
        """How many batches of one version are best sampled together, at least 1. tokens: the most
        that a batch can have, including prompts."""

    def build(
        self,
        model: PreTrainedModel,
        eos_ids: list[int],
        pad_id: int,
        max_prompt_tokens: int,
        max_response_tokens: int,
    ) -> Sampler: ...
