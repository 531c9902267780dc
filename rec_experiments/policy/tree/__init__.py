"""The fast CPU path of small models; other packages use only the functions of this module.

Training passes go over the tree of a micro-batch's prefixes, each of which is computed once;
decoding steps run without the library's overhead. Both compute what the library's modules compute,
up to rounding, for plain Llama and Qwen2 models. `REC_FAST_PATH=0` in the environment disables
this path: every model then goes through the library's modules.
"""

import os

from transformers import PreTrainedModel

from rec_experiments.policy.tree import forward
from rec_experiments.policy.tree.batch import TreeBatch
from rec_experiments.policy.tree.decoding_step import DecodingStep
from rec_experiments.policy.tree.forward import hidden_states

__all__ = ["TreeBatch", "decoder", "hidden_states", "supports"]


def is_open() -> bool:
    return os.environ.get("REC_FAST_PATH", "1") != "0"


def supports(model: PreTrainedModel) -> bool:
    """Whether `hidden_states` can compute the model's training passes."""
    return is_open() and forward.fits(model)


def decoder(model: PreTrainedModel) -> DecodingStep | None:
    """A fast decoding step that shares the model's weights, or None if the model needs its own."""
    return DecodingStep(model) if is_open() and DecodingStep.fits(model) else None
