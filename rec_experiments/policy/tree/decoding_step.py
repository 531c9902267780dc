"""One decoding step of a plain Llama or Qwen2, without the library's overhead per step."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from rec_experiments.policy.tree.forward import is_open, is_plain

Linear = tuple[Tensor, Tensor | None]  # weight and bias


class LayerCache(Protocol):
    """The keys and values of one layer: two buffers, X x J x L x E, with X >= U and more positions
    than are in use."""

    buffers: list[Tensor]

    def write(self, key_UJTE: Tensor, value_UJTE: Tensor) -> None:
        """Append T tokens to each prefix."""


class _Norm(NamedTuple):
    weight_D: Tensor
    epsilon: float
    epsilon_1: Tensor  # epsilon as a tensor, for addcmul
    on_cpu: bool

    @classmethod
    def of(cls, norm: Any) -> "_Norm":
        weight_D, epsilon = norm.weight, norm.variance_epsilon
        on_cpu = weight_D.device.type == "cpu"
        return cls(weight_D, epsilon, weight_D.new_full((1,), epsilon), on_cpu)

    def __call__(self, x_UD: Tensor) -> Tensor:
        """x / √(mean x² + ε) · weight. Torch's own is one kernel on a GPU and seven on a CPU."""
        if not self.on_cpu:
            return functional.rms_norm(x_UD, self.weight_D.shape, self.weight_D, self.epsilon)
        norm_U1 = torch.linalg.vector_norm(x_UD, dim=-1, keepdim=True)
        square_U1 = torch.addcmul(self.epsilon_1, norm_U1, norm_U1, value=1 / x_UD.shape[-1])
        return (x_UD * square_U1.rsqrt_()).mul_(self.weight_D)


class _Layer(NamedTuple):
    """The parameters of a decoder layer, in order of use."""

    attention_norm: _Norm
    qkv: Linear
    scaling: float
    o: Linear
    mlp_norm: _Norm
    gate_up: Linear
    down: Linear

    @classmethod
    def of(cls, layer: Any) -> "_Layer":
        attention, mlp = layer.self_attn, layer.mlp
        return cls(
            _Norm.of(layer.input_layernorm),
            _fuse(attention.q_proj, attention.k_proj, attention.v_proj),
            attention.scaling,
            _fuse(attention.o_proj),
            _Norm.of(layer.post_attention_layernorm),
            _fuse(mlp.gate_proj, mlp.up_proj),
            _fuse(mlp.down_proj),
        )


class DecodingStep:
    """Projections that read the same input are fused into one matrix. The model's parameters become
    views of it, so weights that are loaded in place are seen here, and nothing is stored twice.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.layers = [_Layer.of(layer) for layer in model.model.layers]
        self.norm = _Norm.of(model.model.norm)
        self.heads = model.config.num_attention_heads
        self.key_heads = model.config.num_key_value_heads
        self.cos_LE = self.sin_LE = torch.empty(0)

    def __call__(
        self, token_U: Tensor, position_U: Tensor, bias_UL: Tensor, cache: Sequence[LayerCache]
    ) -> Tensor:
        """Logits after one more token per prefix, U x V.

        bias_UL: added to the attention scores; -inf at padding and at positions not in use yet.
        """
        x_UD = self.model.model.embed_tokens(token_U)
        count, span = bias_UL.shape
        self._tabulate_rotations(span)
        cos_U1E = self.cos_LE.index_select(0, position_U)[:, None]
        sin_U1E = self.sin_LE.index_select(0, position_U)[:, None]
        half = cos_U1E.shape[-1] // 2
        heads, key_heads = self.heads, self.key_heads
        # The query heads that share a key head are the Q rows of one small matrix.
        bias_U11L = bias_UL[:, None, None]
        bias_ZQL = bias_U11L.expand(-1, key_heads, heads // key_heads, -1).flatten(0, 1)
        for layer, layer_cache in zip(self.layers, cache, strict=True):
            qkv_UX = functional.linear(layer.attention_norm(x_UD), *layer.qkv)
            qkv_UHE = qkv_UX.unflatten(1, (heads + 2 * key_heads, -1))
            rotated_UHE = qkv_UHE[:, : heads + key_heads]
            rotated_UHE = torch.addcmul(
                rotated_UHE * cos_U1E, rotated_UHE.roll(half, dims=-1), sin_U1E
            )
            layer_cache.write(rotated_UHE[:, heads:, None], qkv_UHE[:, heads + key_heads :, None])
            key_ZLE, value_ZLE = (
                x_XJLE.flatten(0, 1)[: len(bias_ZQL), :span] for x_XJLE in layer_cache.buffers
            )
            query_ZQE = rotated_UHE[:, :heads].reshape(*bias_ZQL.shape[:2], -1)
            score_ZQL = torch.baddbmm(bias_ZQL, query_ZQE, key_ZLE.mT, alpha=layer.scaling)
            mixed_ZQE = torch.bmm(score_ZQL.softmax(dim=-1), value_ZLE)
            x_UD = _add_linear(x_UD, mixed_ZQE.reshape(count, -1), *layer.o)
            gate_up_UX = functional.linear(layer.mlp_norm(x_UD), *layer.gate_up)
            gate_UF, up_UF = gate_up_UX.chunk(2, dim=-1)
            x_UD = _add_linear(x_UD, functional.silu(gate_UF).mul_(up_UF), *layer.down)
        return self.model.lm_head(self.norm(x_UD))

    def _tabulate_rotations(self, positions: int) -> None:
        """Make tables of cosines and signed sines for at least this many positions."""
        if len(self.cos_LE) >= positions:
            return
        weight = self.model.lm_head.weight
        position_1L = torch.arange(2 * positions, device=weight.device)[None]
        cos_1LE, sin_1LE = self.model.model.rotary_emb(weight, position_1L)
        half = cos_1LE.shape[-1] // 2
        self.cos_LE = cos_1LE[0]
        self.sin_LE = torch.cat((-sin_1LE[0, :, :half], sin_1LE[0, :, half:]), dim=-1)


def _add_linear(x_UD: Tensor, y_UX: Tensor, weight_DX: Tensor, bias_D: Tensor | None) -> Tensor:
    """x + linear(y)."""
    if bias_D is not None:
        x_UD = x_UD + bias_D
    return torch.addmm(x_UD, y_UX, weight_DX.mT)


def _fuse(*linears: nn.Linear) -> Linear:
    """Stack the weights (and biases) of linear layers, whose own become views of the stack."""
    sizes = [linear.out_features for linear in linears]
    weight = torch.cat([linear.weight.data for linear in linears])
    for linear, part in zip(linears, weight.split(sizes), strict=True):
        linear.weight.data = part
    if linears[0].bias is None:
        return weight, None
    bias = torch.cat([linear.bias.data for linear in linears])
    for linear, part in zip(linears, bias.split(sizes), strict=True):
        linear.bias.data = part
    return weight, bias


def decoder(model: PreTrainedModel) -> DecodingStep | None:
    """A fast decoding step that shares the model's weights, or None if the model needs its own."""
    fits = is_open() and is_plain(model) and model.dtype == torch.float32
    return DecodingStep(model) if fits else None
