"""Forward and backward pass of a plain Llama or Qwen2 over the tree of a micro-batch's prefixes.

A small model is bound by memory traffic, so what counts is how often each tensor is read and
written. Linear layers see each prefix once, only attention is padded, a norm's weight is multiplied
into the layer that reads it, rotary pairs of channels are complex numbers, and the backward pass is
written out.

U: prefixes; B rows of at most L positions.
"""

import functools
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.activations import ACT2FN
from transformers.models.llama import modeling_llama as llama
from transformers.models.qwen2 import modeling_qwen2 as qwen2

from rec_experiments.policy.batching import TreeBatch

# The modules of a supported model. The embedding and the rotary embedding are called; of the others
# only the weights are read.
CLASSES = {
    *(llama.LlamaForCausalLM, llama.LlamaModel, llama.LlamaDecoderLayer, llama.LlamaAttention),
    *(llama.LlamaMLP, llama.LlamaRMSNorm, llama.LlamaRotaryEmbedding),
    *(qwen2.Qwen2ForCausalLM, qwen2.Qwen2Model, qwen2.Qwen2DecoderLayer, qwen2.Qwen2Attention),
    *(qwen2.Qwen2MLP, qwen2.Qwen2RMSNorm, qwen2.Qwen2RotaryEmbedding),
    *(nn.Linear, nn.Embedding, nn.ModuleList, type(ACT2FN["silu"])),
}
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# The most weights in a layer's matrices. Every pass copies them, which costs more than it saves for
# larger layers.
LARGEST_LAYER = 2**21
# Rotary embeddings whose angles depend on the position alone.
STATIC_ROPE = ("default", "linear", "llama3", "yarn")
# The most positions for plain products. Forward and backward take .5 of the time of torch's kernel
# at 40 positions, .9 at 64, 1.4 at 96.
LONGEST_SHORT = 64
# Each sum of exponentials must lie between these. An exponential that underflows, below 1e-38, is
# then negligible, and products with values overflow only if values exceed 1e18.
SMALLEST_SUM, LARGEST_SUM = 1e-20, 1e20

# From the gradient by the output to that by queries, keys and values, H x B x L x E.
Pull = Callable[[Tensor], Tensor]


def is_plain(model: PreTrainedModel) -> bool:
    """Whether each layer is pre-norm causal attention with static rotary embeddings, then a
    pre-norm gated MLP, and the head is a linear layer."""
    return (
        type(model) in (llama.LlamaForCausalLM, qwen2.Qwen2ForCausalLM)
        and model.config.hidden_act == "silu"
        and not getattr(model.model, "has_sliding_layers", False)
        and model.model.rotary_emb.rope_type in STATIC_ROPE
    )


def is_open() -> bool:
    """Whether the environment allows the fast path."""
    return os.environ.get("REC_FAST_PATH", "1") != "0"


def supports(model: PreTrainedModel) -> bool:
    """Whether the model is exactly what is computed here: small, plain, on the CPU, in float32 or
    float64 throughout, with no other kind of module and no hooks."""
    if not is_open() or not is_plain(model) or model.device.type != "cpu":
        return False
    config = model.config
    if config._attn_implementation != "sdpa" or (model.training and config.attention_dropout):
        return False
    dtypes: set[torch.dtype] = set()
    for module in model.modules():  # a single loop, because every pass asks
        own = vars(module)
        if type(module) not in CLASSES or "forward" in own or own.get("gradient_checkpointing"):
            return False
        if any(own[hooks] for hooks in HOOKS):
            return False
        dtypes.update(x.dtype for x in own["_parameters"].values() if x is not None)
    return dtypes in ({torch.float32}, {torch.float64}) and all(
        map(_layer_fits, model.model.layers)
    )


def _layer_fits(layer: Any) -> bool:
    attention, mlp = layer.self_attn, layer.mlp
    read_together = (attention.q_proj, attention.k_proj, attention.v_proj)
    others = (attention.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj)
    return (
        len({linear.bias is not None for linear in read_together}) == 1
        and all(linear.bias is None for linear in others)
        and sum(each.weight.numel() for each in (*read_together, *others)) <= LARGEST_LAYER
    )


def hidden_states(model: PreTrainedModel, batch: TreeBatch) -> Tensor:
    """The hidden states that the head reads, one before each response token, N x D."""
    decoder, config = model.model, model.config
    cos_1UE, sin_1UE = decoder.rotary_emb(decoder.embed_tokens.weight, batch.position_ids[None])
    half = cos_1UE.shape[-1] // 2
    turn_U1E = torch.complex(cos_1UE[0, :, None, :half], sin_1UE[0, :, None, :half])
    heads, key_heads = config.num_attention_heads, config.num_key_value_heads
    places = _Places.of(batch, heads, key_heads)
    x_UD = decoder.embed_tokens(batch.input_ids)
    for layer in decoder.layers:
        shape = _Shape.of(layer, heads, key_heads)
        if torch.is_grad_enabled():
            x_UD = _Layer.apply(x_UD, shape, places, turn_U1E, *_Parameters.of(layer))
        else:
            weights = _Weights.of(_Parameters.of(layer), shape)
            x_UD = _forward(x_UD, shape, places, turn_U1E, weights)[0]
    return _Last.apply(x_UD, decoder.norm.weight, batch.keep_N, decoder.norm.variance_epsilon)


class _Shape(NamedTuple):
    heads: int
    key_heads: int
    width: int  # of a head
    scaling: float
    epsilon: float  # of the norm before attention
    mlp_epsilon: float

    @classmethod
    def of(cls, layer: Any, heads: int, key_heads: int) -> "_Shape":
        return cls(
            heads,
            key_heads,
            layer.self_attn.head_dim,
            layer.self_attn.scaling,
            layer.input_layernorm.variance_epsilon,
            layer.post_attention_layernorm.variance_epsilon,
        )


class _Places(NamedTuple):
    """Indices between prefixes, U x H, and attention's places, H x B x L, query heads first.

    source_X: the prefix and head at each place. first_X: the first place of each prefix and head;
    first_query_X: the same for query heads. again_X: the places of repeats; again_source_X: their
    prefixes and heads.
    """

    rows: tuple[int, int]  # B and L
    source_X: Tensor
    first_X: Tensor
    first_query_X: Tensor
    again_X: Tensor
    again_source_X: Tensor

    @classmethod
    def of(cls, batch: TreeBatch, heads: int, key_heads: int) -> "_Places":
        head_H = torch.arange(heads + 2 * key_heads)
        begin_H = head_H * batch.place_BL.numel()
        B, L = batch.place_BL.shape
        return cls(
            (B, L),
            (batch.place_BL.flatten() * len(head_H) + head_H[:, None]).flatten(),
            (batch.first_U[:, None] + begin_H).flatten(),
            (batch.first_U[:, None] + begin_H[:heads]).flatten(),
            (batch.again_X[:, None] + begin_H).flatten(),
            (batch.again_place_X[:, None] * len(head_H) + head_H).flatten(),
        )


class _Parameters(NamedTuple):
    """The parameters of a layer."""

    q_XD: Tensor
    k_XD: Tensor
    v_XD: Tensor
    q_bias_X: Tensor | None
    k_bias_X: Tensor | None
    v_bias_X: Tensor | None
    norm_D: Tensor
    o_DX: Tensor
    gate_FD: Tensor
    up_FD: Tensor
    mlp_norm_D: Tensor
    down_DF: Tensor

    @classmethod
    def of(cls, layer: Any) -> "_Parameters":
        attention, mlp = layer.self_attn, layer.mlp
        q, k, v = attention.q_proj, attention.k_proj, attention.v_proj
        return cls(
            q_XD=q.weight,
            k_XD=k.weight,
            v_XD=v.weight,
            q_bias_X=q.bias,
            k_bias_X=k.bias,
            v_bias_X=v.bias,
            norm_D=layer.input_layernorm.weight,
            o_DX=attention.o_proj.weight,
            gate_FD=mlp.gate_proj.weight,
            up_FD=mlp.up_proj.weight,
            mlp_norm_D=layer.post_attention_layernorm.weight,
            down_DF=mlp.down_proj.weight,
        )


class _Weights(NamedTuple):
    """The matrices of a layer as a pass reads them. Queries, keys and values are one matrix with
    one bias; matrices that read a norm include its weight, except `plain_XD`.

    The two channels of each rotary pair are neighbours; attention scores do not depend on the order
    of channels.
    """

    plain_XD: Tensor  # queries, keys and values without the norm's weight
    qkv_XD: Tensor
    bias_X: Tensor | None
    o_DX: Tensor
    gate_FD: Tensor
    up_FD: Tensor
    down_DF: Tensor

    @classmethod
    def of(cls, layer: _Parameters, shape: _Shape) -> "_Weights":
        order_X = torch.from_numpy(_order(shape.heads, shape.key_heads, shape.width)[0])
        plain_XD = torch.cat((layer.q_XD, layer.k_XD, layer.v_XD)).index_select(0, order_X)
        biases = [x for x in (layer.q_bias_X, layer.k_bias_X, layer.v_bias_X) if x is not None]
        bias_X = torch.cat(biases).index_select(0, order_X) if biases else None
        return cls(
            plain_XD,
            plain_XD * layer.norm_D,
            bias_X,
            layer.o_DX,
            layer.gate_FD * layer.mlp_norm_D,
            layer.up_FD * layer.mlp_norm_D,
            layer.down_DF,
        )


@functools.cache
def _order(heads: int, key_heads: int, width: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The new order of the rows of queries, keys and values, and its inverse."""
    turned = (heads + key_heads) * width
    order_X = np.arange(turned + key_heads * width)
    order_X[:turned] = order_X[:turned].reshape(-1, 2, width // 2).swapaxes(1, 2).ravel()
    return order_X, order_X.argsort()


class _Kept(NamedTuple):
    """Results of a layer's forward pass for its backward pass. unit: a norm's output without its
    weight. scale: the factor of each token in it."""

    weights: _Weights
    unit_UD: Tensor
    scale_U1: Tensor
    pull: Pull  # attention's backward pass
    mixed_UX: Tensor
    mlp_unit_UD: Tensor
    mlp_scale_U1: Tensor
    gate_UF: Tensor
    up_UF: Tensor
    opened_UF: Tensor  # silu(gate)


def _forward(
    x_UD: Tensor, shape: _Shape, places: _Places, turn_U1E: Tensor, weights: _Weights
) -> tuple[Tensor, _Kept]:
    """A layer's output, and the results that its backward pass needs."""
    unit_UD, scale_U1 = _unit(x_UD, shape.epsilon)
    qkv_UX = functional.linear(unit_UD, weights.qkv_XD, weights.bias_X)
    _turn(qkv_UX, turn_U1E, shape)
    in_rows_HBLE = (
        qkv_UX.view(-1, shape.width)
        .index_select(0, places.source_X)
        .view(-1, *places.rows, shape.width)
    )
    mixed_XBLE, pull = attend(in_rows_HBLE, shape.heads, shape.scaling)
    mixed_XE = mixed_XBLE.reshape(-1, shape.width)
    mixed_UX = mixed_XE.index_select(0, places.first_query_X).view(len(x_UD), -1)
    middle_UD = torch.addmm(x_UD, mixed_UX, weights.o_DX.mT)
    mlp_unit_UD, mlp_scale_U1 = _unit(middle_UD, shape.mlp_epsilon)
    gate_UF, up_UF = mlp_unit_UD @ weights.gate_FD.mT, mlp_unit_UD @ weights.up_FD.mT
    opened_UF = functional.silu(gate_UF)
    y_UD = torch.addmm(middle_UD, opened_UF * up_UF, weights.down_DF.mT)
    return y_UD, _Kept(
        weights, unit_UD, scale_U1, pull, mixed_UX,
        mlp_unit_UD, mlp_scale_U1, gate_UF, up_UF, opened_UF,
    )  # fmt: skip


class _Layer(torch.autograd.Function):
    """A decoder layer."""

    @staticmethod
    def forward(
        ctx: Any,
        x_UD: Tensor,
        shape: _Shape,
        places: _Places,
        turn_U1E: Tensor,
        *parameters: Tensor,
    ) -> Tensor:
        weights = _Weights.of(_Parameters(*parameters), shape)
        y_UD, kept = _forward(x_UD, shape, places, turn_U1E, weights)
        ctx.save_for_backward(turn_U1E, *parameters)
        ctx.shape, ctx.places, ctx.kept = shape, places, kept
        return y_UD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_UD: Tensor) -> tuple[Tensor | None, ...]:
        turn_U1E, *parameters = ctx.saved_tensors
        layer, shape, places, kept = _Parameters(*parameters), ctx.shape, ctx.places, ctx.kept
        if kept is None:
            raise RuntimeError("a pass over a tree of prefixes can be differentiated only once")
        ctx.kept, weights = None, kept.weights

        down_grad_DF = grad_UD.mT @ (kept.opened_UF * kept.up_UF)
        product_grad_UF = grad_UD @ weights.down_DF
        up_grad_UF = product_grad_UF * kept.opened_UF
        gate_grad_UF = torch.ops.aten.silu_backward(product_grad_UF.mul_(kept.up_UF), kept.gate_UF)
        unit_grad_UD = (gate_grad_UF @ weights.gate_FD).addmm_(up_grad_UF, weights.up_FD)
        middle_grad_UD = _through_unit(grad_UD, unit_grad_UD, kept.mlp_unit_UD, kept.mlp_scale_U1)

        o_grad_DX = middle_grad_UD.mT @ kept.mixed_UX
        qkv_grad_UX = _through_attention(middle_grad_UD @ weights.o_DX, shape, places, kept.pull)
        _turn(qkv_grad_UX, turn_U1E.conj(), shape)
        x_grad_UD = _through_unit(
            middle_grad_UD, qkv_grad_UX @ weights.qkv_XD, kept.unit_UD, kept.scale_U1
        )

        # The gradients of matrices that read a norm are by their products with its weight.
        qkv_grad_XD = qkv_grad_UX.mT @ kept.unit_UD
        gate_grad_FD = gate_grad_UF.mT @ kept.mlp_unit_UD
        up_grad_FD = up_grad_UF.mT @ kept.mlp_unit_UD
        norm_grad_D = (qkv_grad_XD * weights.plain_XD).sum(0)
        mlp_norm_grad_D = (gate_grad_FD * layer.gate_FD).sum(0)
        mlp_norm_grad_D += (up_grad_FD * layer.up_FD).sum(0)
        back_X = torch.from_numpy(_order(shape.heads, shape.key_heads, shape.width)[1])
        sizes = [len(layer.q_XD), len(layer.k_XD), len(layer.v_XD)]
        q_grad_XD, k_grad_XD, v_grad_XD = (
            qkv_grad_XD.mul_(layer.norm_D).index_select(0, back_X).split(sizes)
        )
        biases: tuple[Tensor | None, ...] = (None, None, None)
        if weights.bias_X is not None:
            biases = qkv_grad_UX.sum(0).index_select(0, back_X).split(sizes)
        grads = _Parameters(
            q_XD=q_grad_XD,
            k_XD=k_grad_XD,
            v_XD=v_grad_XD,
            q_bias_X=biases[0],
            k_bias_X=biases[1],
            v_bias_X=biases[2],
            norm_D=norm_grad_D,
            o_DX=o_grad_DX,
            gate_FD=gate_grad_FD.mul_(layer.mlp_norm_D),
            up_FD=up_grad_FD.mul_(layer.mlp_norm_D),
            mlp_norm_D=mlp_norm_grad_D,
            down_DF=down_grad_DF,
        )
        return x_grad_UD, None, None, None, *grads


def _turn(qkv_UX: Tensor, turn_U1E: Tensor, shape: _Shape) -> None:
    """Rotate queries and keys by the angles of their positions, in place."""
    turned = shape.heads + shape.key_heads
    qkv_UHE2 = qkv_UX.view(len(qkv_UX), turned + shape.key_heads, -1, 2)
    torch.view_as_complex(qkv_UHE2[:, :turned]).mul_(turn_U1E)


def _through_attention(mixed_grad_UX: Tensor, shape: _Shape, places: _Places, pull: Pull) -> Tensor:
    """The gradient by queries, keys and values of each prefix. Only a prefix's first place reads
    the output; keys and values sum over all places."""
    B, L = places.rows
    in_rows_XE = mixed_grad_UX.new_zeros(shape.heads * B * L, shape.width)
    in_rows_XE.index_copy_(0, places.first_query_X, mixed_grad_UX.view(-1, shape.width))
    grad_XE = pull(in_rows_XE.view(shape.heads, B, L, -1)).view(-1, shape.width)
    found_XE = grad_XE.index_select(0, places.first_X)
    found_XE.index_add_(0, places.again_source_X, grad_XE.index_select(0, places.again_X))
    return found_XE.view(len(mixed_grad_UX), -1)


def _unit(x_UD: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """x / √(mean x² + ε) of each token, and the factor 1 / √…"""
    norm_U1 = torch.linalg.vector_norm(x_UD, dim=-1, keepdim=True)
    scale_U1 = norm_U1.square_().div_(x_UD.shape[-1]).add_(epsilon).rsqrt_()
    return x_UD * scale_U1, scale_U1


def _through_unit(
    residual_UD: Tensor, grad_UD: Tensor, unit_UD: Tensor, scale_U1: Tensor
) -> Tensor:
    """The gradient by a norm's input, from that by its output, plus that of the residual:
    residual + scale · (g − unit · mean(g · unit)). `grad_UD` is overwritten."""
    mean_U1 = (grad_UD * unit_UD).mean(dim=-1, keepdim=True)
    return torch.addcmul(residual_UD, grad_UD.addcmul_(unit_UD, mean_U1, value=-1), scale_U1)


class _Last(torch.autograd.Function):
    """The final norm, before each response token."""

    @staticmethod
    def forward(ctx: Any, x_UD: Tensor, weight_D: Tensor, keep_N: Tensor, epsilon: float) -> Tensor:
        unit_UD, scale_U1 = _unit(x_UD, epsilon)
        ctx.save_for_backward(unit_UD, scale_U1, weight_D, keep_N)
        return (unit_UD * weight_D).index_select(0, keep_N)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_ND: Tensor) -> tuple[Tensor | None, ...]:
        unit_UD, scale_U1, weight_D, keep_N = ctx.saved_tensors
        grad_UD = torch.zeros_like(unit_UD).index_add_(0, keep_N, grad_ND)
        weight_grad_D = (grad_UD * unit_UD).sum(0)
        nothing_UD = grad_UD.new_zeros(()).expand_as(grad_UD)
        x_grad_UD = _through_unit(nothing_UD, grad_UD.mul_(weight_D), unit_UD, scale_U1)
        return x_grad_UD, weight_grad_D, None, None


# Attention --------------------------------------------------------------------------------------


def attend(in_rows_HBLE: Tensor, heads: int, scaling: float) -> tuple[Tensor, Pull]:
    """The output of attention over B rows, X x B x L x E with X query heads, and its backward pass.

    in_rows_HBLE: the heads of queries, then of keys, then of values.
    """
    key_heads = (len(in_rows_HBLE) - heads) // 2
    query_XBLE, key_JBLE, value_JBLE = in_rows_HBLE.split((heads, key_heads, key_heads))
    way = _by_products if in_rows_HBLE.shape[2] <= LONGEST_SHORT else _by_torch
    return way(query_XBLE, key_JBLE, value_JBLE, scaling)


def _by_torch(
    query_XBLE: Tensor, key_JBLE: Tensor, value_JBLE: Tensor, scaling: float
) -> tuple[Tensor, Pull]:
    with torch.enable_grad():  # a separate graph
        leaves = [x.detach().requires_grad_() for x in (query_XBLE, key_JBLE, value_JBLE)]
        query_BXLE, key_BJLE, value_BJLE = (x.transpose(0, 1) for x in leaves)
        mixed_BXLE = functional.scaled_dot_product_attention(
            query_BXLE, key_BJLE, value_BJLE,
            is_causal=True, scale=scaling, enable_gqa=len(query_XBLE) != len(key_JBLE),
        )  # fmt: skip
        mixed_XBLE = mixed_BXLE.transpose(0, 1)

    def pull(grad_XBLE: Tensor) -> Tensor:
        return torch.cat(torch.autograd.grad(mixed_XBLE, leaves, grad_XBLE))

    return mixed_XBLE.detach(), pull


def _by_products(
    query_XBLE: Tensor, key_JBLE: Tensor, value_JBLE: Tensor, scaling: float
) -> tuple[Tensor, Pull]:
    shape, times = query_XBLE.shape, len(query_XBLE) // len(key_JBLE)
    query_ZLE = (query_XBLE * scaling).flatten(0, 1)
    key_ZLE, value_ZLE = (_repeated(x, times).flatten(0, 1) for x in (key_JBLE, value_JBLE))
    weight_ZLL, total_ZL1 = _weights(query_ZLE, key_ZLE)
    mixed_ZLE = torch.bmm(weight_ZLL, value_ZLE).div_(total_ZL1)

    def pull(grad_XBLE: Tensor) -> Tensor:
        grad_ZLE = grad_XBLE.flatten(0, 1) / total_ZL1
        mean_ZL1 = (grad_ZLE * mixed_ZLE).sum(dim=-1, keepdim=True)
        score_grad_ZLL = torch.bmm(grad_ZLE, value_ZLE.mT).sub_(mean_ZL1).mul_(weight_ZLL)
        found_HBLE = grad_XBLE.new_empty(len(query_XBLE) + 2 * len(key_JBLE), *shape[1:])
        of_query, of_key, of_value = found_HBLE.split((shape[0], len(key_JBLE), len(key_JBLE)))
        _product(score_grad_ZLL, key_ZLE, 1, of_query)
        of_query *= scaling
        _product(score_grad_ZLL.mT, query_ZLE, times, of_key)
        _product(weight_ZLL.mT, grad_ZLE, times, of_value)
        return found_HBLE

    return mixed_ZLE.view(shape), pull


def _weights(query_ZLE: Tensor, key_ZLE: Tensor) -> tuple[Tensor, Tensor]:
    """Attention weights before normalisation, and the sums to divide by."""
    weight_ZLL = torch.bmm(query_ZLE, key_ZLE.mT).exp_().tril_()
    total_ZL1 = weight_ZLL.sum(dim=-1, keepdim=True)
    if _is_exact(total_ZL1):
        return weight_ZLL, total_ZL1
    later_LL = torch.ones_like(weight_ZLL[0], dtype=torch.bool).triu(1)
    score_ZLL = torch.bmm(query_ZLE, key_ZLE.mT).masked_fill_(later_LL, -torch.inf)
    return score_ZLL.softmax(dim=-1), torch.ones_like(total_ZL1)


def _is_exact(total_ZL1: Tensor) -> bool:
    least, most = torch.aminmax(total_ZL1)
    return bool(least > SMALLEST_SUM and most < LARGEST_SUM)


def _repeated(x_JBLE: Tensor, times: int) -> Tensor:
    """Repeat each key or value head for the query heads that share it."""
    return x_JBLE if times == 1 else x_JBLE.repeat_interleave(times, dim=0)


def _product(one_ZLL: Tensor, other_ZLE: Tensor, times: int, found_JBLE: Tensor) -> None:
    """Write the products to `found_JBLE`, summed over the query heads that share a key head."""
    if times == 1:
        torch.bmm(one_ZLL, other_ZLE, out=found_JBLE.view(other_ZLE.shape))
    else:
        product_ZLE = torch.bmm(one_ZLL, other_ZLE)
        found_JBLE.copy_(product_ZLE.view(-1, times, *found_JBLE.shape[1:]).sum(dim=1))
