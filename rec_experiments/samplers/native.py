"""Configuration of the native sampler, which needs only torch and transformers (`decoding`)."""

import copy
import functools
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Protocol, runtime_checkable

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from rec_experiments.common.pieces import Piece
from rec_experiments.common.protocols import Sampler

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from rec_experiments.samplers.decoding import LogitNoise, NativeSampler

COLDEST = 1e-3  # a lower temperature overflows the logits of float32


@runtime_checkable
class SamplerChoice(Protocol):
    """temperature, eval_temperature: of training and of evaluation; 0 is greedy. for_all_ranks:
    rank 0 draws for all of them, on devices that are none of theirs.
    """

    temperature: float
    eval_temperature: float
    for_all_ranks: ClassVar[bool]

    def check(self) -> None:
        """Raise UserError, before anything is loaded, if what it needs is not installed."""

    def bundle(self, model: "PreTrainedModel", tokens: int) -> int:
        """How many batches of one version are best sampled together, at least 1. tokens: the most
        that a batch can have, including prompts."""

    def build(
        self,
        model: "PreTrainedModel",
        eos_ids: list[int],
        max_prompt_tokens: int,
        max_response_tokens: int,
    ) -> Sampler: ...


class Native(Piece):
    """The native sampler; conf/sampler/native.yaml explains the values."""

    for_all_ranks: ClassVar[bool] = False
    temperature: Annotated[float, Field(ge=COLDEST)]
    eval_temperature: NonNegativeFloat
    max_rows: PositiveInt | None
    bundle_bytes: NonNegativeInt

    def __post_init__(self) -> None:
        if 0 < self.eval_temperature < COLDEST:
            raise ValueError(
                f"eval_temperature={self.eval_temperature}: must be at least {COLDEST}, or 0"
            )

    def check(self) -> None:
        """It needs nothing that could be missing."""

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
        max_prompt_tokens: int,
        max_response_tokens: int,
    ) -> "NativeSampler":
        """A sampler with a copy of `model`. Prompts may have any length."""
        from rec_experiments.samplers.decoding import NativeSampler

        return NativeSampler(
            self.copied(model),
            eos_ids,
            max_response_tokens,
            self.max_rows,
            self.perturb,
            self.added_to_logits(),
        )

    def copied(self, model: "PreTrainedModel") -> "PreTrainedModel":
        return copy.deepcopy(model)

    def perturb(self, model: "PreTrainedModel") -> None:
        """Change the sampler's weights after each load; here they stay those of the trainer."""

    def added_to_logits(self) -> "LogitNoise | None":
        """What is added to the sampler's logits; here nothing."""
        return None


class Mismatched(Native):
    """The native sampler with perturbed weights; conf/sampler/bfloat16.yaml explains the values."""

    compute_dtype: Literal["bfloat16", "float16"] | None
    quantization: Literal["int8", "fp8"] | None
    noise: NonNegativeFloat
    noise_seed: NonNegativeInt

    def copied(self, model: "PreTrainedModel") -> "PreTrainedModel":
        import torch

        own = super().copied(model)
        return own.to(getattr(torch, self.compute_dtype)) if self.compute_dtype else own

    def perturb(self, model: "PreTrainedModel") -> None:
        from rec_experiments.samplers.mismatch import perturb

        perturb(model, self.quantization, self.noise, self.noise_seed)


class NoisyLogits(Mismatched):
    """Noise on the logits as well; conf/sampler/noisy_logits.yaml explains the values."""

    logit_noise: NonNegativeFloat

    def added_to_logits(self) -> "LogitNoise":
        from rec_experiments.samplers.mismatch import logit_noise

        return functools.partial(logit_noise, size=self.logit_noise, seed=self.noise_seed)
