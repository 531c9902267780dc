"""The interface of a model choice in the configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


@runtime_checkable
class ModelChoice(Protocol):
    """compute_dtype: of forward and backward pass; float32 means that of the weights."""

    @property
    def compute_dtype(self) -> str: ...

    def tokenizer(self) -> PreTrainedTokenizerFast: ...

    def model(self) -> PreTrainedModel:
        """Build or load the model. Raises UserError for what the user can fix."""

    def describe(self) -> str:
        """The model in words."""
