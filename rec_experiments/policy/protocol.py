"""What a choice of model offers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


class ModelChoice(Protocol):
    """compute_dtype: of forward and backward pass; float32 for that of the weights."""

    @property
    def compute_dtype(self) -> str: ...

    def tokenizer(self) -> PreTrainedTokenizerFast: ...

    def model(self) -> PreTrainedModel:
        """A new one. Raises UserError for what the user can mend."""

    def describe(self) -> str:
        """The model, for people."""
