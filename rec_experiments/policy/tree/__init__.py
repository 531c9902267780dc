"""The fast CPU path of small models; other packages use only the functions of this module.

Training passes go over the tree of a micro-batch's prefixes, each of which is computed once;
decoding steps run without the library's overhead. Both compute what the library's modules compute,
up to rounding, for plain Llama and Qwen2 models. `REC_FAST_PATH=0` in the environment disables
this path: every model then goes through the library's modules.
"""

from rec_experiments.policy.batching import TreeBatch
from rec_experiments.policy.tree.decoding_step import decoder
from rec_experiments.policy.tree.forward import hidden_states, supports

__all__ = ["TreeBatch", "decoder", "hidden_states", "supports"]
