"""Configuration of the native sampler, which needs only torch and transformers (`decoding`)."""

import copy
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rec_experiments.types import Piece

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from rec_experiments.samplers.decoding import NativeSampler


@dataclass(kw_only=True)
class Native(Piece):
    """The native sampler; conf/sampler/native.yaml explains the values.

    Raises ValueError for a temperature that is not above 0, a negative eval_temperature, max_rows
    below 1, or negative bundle_bytes.
    """

    temperature: float
    eval_temperature: float
    max_rows: int | None
    bundle_bytes: int

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise ValueError(f"temperature={self.temperature}: must be above 0")
        if not 0 <= self.eval_temperature < math.inf:
            raise ValueError(f"eval_temperature={self.eval_temperature}: must be at least 0")
        if self.max_rows is not None and self.max_rows < 1:
            raise ValueError(f"max_rows={self.max_rows}: must be at least 1, or null for all")
        if self.bundle_bytes < 0:
            raise ValueError(
                f"bundle_bytes={self.bundle_bytes}: must be at least 0, for one batch at a time"
            )

    def bundle(self, model: "PreTrainedModel", tokens: int) -> int:
        """As many batches of `tokens` tokens as fit their keys and values into bundle_bytes, but at
        least one. Heads are counted as if none shared its keys."""
        config = model.config.get_text_config()
        a_token = 2 * config.num_hidden_layers * config.hidden_size * model.dtype.itemsize
        return max(1, self.bundle_bytes // (tokens * a_token))

    def build(
        self,
        model: "PreTrainedModel",
        eos_ids: list[int],
        pad_id: int | None,
        max_prompt_tokens: int,
        max_response_tokens: int,
    ) -> "NativeSampler":
        """A sampler with a copy of `model`. Prompts may have any length."""
        from rec_experiments.samplers.decoding import NativeSampler

        return NativeSampler(
            copy.deepcopy(model), eos_ids, pad_id, max_response_tokens, self.max_rows
        )
