"""Forward and backward pass of a plain Llama or Qwen2 over the tree of a pass's prefixes.

A small model moves more bytes than it multiplies numbers, so what counts is how often each tensor
is read and written. Here linear layers see each prefix once, nothing is padded but inside of
attention, a norm's weight is multiplied into the layer that reads it, pairs of channels turn as one
complex number, and the backward pass is written out. Attention of short rows is plain products:
torch's own kernel is made for long ones.

Suffixes are as in `types.py`: U prefixes; B rows of at most L positions.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.activations import ACT2FN
from transformers.models.llama import modeling_llama as llama
from transformers.models.qwen2 import modeling_qwen2 as qwen2

from rec_experiments.policy.token_batch import TreeBatch
from rec_experiments.samplers.fused_step import is_plain

# Of the modules of a model that is computed here, the embedding and what makes angles of positions
# are called; the others are read.
CLASSES = {
    *(llama.LlamaForCausalLM, llama.LlamaModel, llama.LlamaDecoderLayer, llama.LlamaAttention),
    *(llama.LlamaMLP, llama.LlamaRMSNorm, llama.LlamaRotaryEmbedding),
    *(qwen2.Qwen2ForCausalLM, qwen2.Qwen2Model, qwen2.Qwen2DecoderLayer, qwen2.Qwen2Attention),
    *(qwen2.Qwen2MLP, qwen2.Qwen2RMSNorm, qwen2.Qwen2RotaryEmbedding),
    *(nn.Linear, nn.Embedding, nn.ModuleList, type(ACT2FN["silu"])),
}
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# Weights of a layer's matrices. They are copied in every pass, which larger ones cost more than
# they save.
LARGEST_LAYER = 2**21
# Positions up to which attention is computed by `_ShortAttention`: at 40 in .6 of the time of
# torch's, at 64 in .9, at 128 in 1.1.
LONGEST_SHORT = 64


def fits(model: PreTrainedModel) -> bool:
    """Whether the model is exactly what is computed here: small, plain, on the host, in float32 or
    float64 throughout, without a module that computes otherwise and without anybody listening."""
    if not is_plain(model) or model.device.type != "cpu":
        return False
    config = model.config
    if config._attn_implementation != "sdpa" or (model.training and config.attention_dropout):
        return False
    dtypes: set[torch.dtype] = set()
    for module in model.modules():  # once: this is asked for in every pass
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
    """What the head reads before each response token, N x D."""
    decoder, config = model.model, model.config
    cos_1UE, sin_1UE = decoder.rotary_emb(decoder.embed_tokens.weight, batch.position_ids[None])
    half = cos_1UE.shape[-1] // 2
    turn_U1E = torch.complex(cos_1UE[0, :, None, :half], sin_1UE[0, :, None, :half])
    heads = (config.num_attention_heads, config.num_key_value_heads)
    x_UD = decoder.embed_tokens(batch.input_ids)
    for layer in decoder.layers:
        weights = _weights(layer, *heads)
        if torch.is_grad_enabled():
            x_UD = _Layer.apply(x_UD, _Shape.of(layer, heads), batch, turn_U1E, *weights)
        else:
            x_UD = _forward(x_UD, _Shape.of(layer, heads), batch, turn_U1E, *weights)[0]
    unit_UD = _Unit.apply(x_UD, decoder.norm.variance_epsilon)
    return (unit_UD * decoder.norm.weight).index_select(0, batch.keep_N)


class _Shape(NamedTuple):
    heads: int
    key_heads: int
    scaling: float
    epsilon: float  # of the norm before attention
    mlp_epsilon: float

    @classmethod
    def of(cls, layer: Any, heads: tuple[int, int]) -> "_Shape":
        return cls(
            *heads,
            layer.self_attn.scaling,
            layer.input_layernorm.variance_epsilon,
            layer.post_attention_layernorm.variance_epsilon,
        )


def _weights(layer: Any, heads: int, key_heads: int) -> tuple[Any, ...]:
    """The matrices of a layer: queries, keys and values as one, with its bias; what mixes heads;
    gate and up as one; down. What reads a norm holds the norm's weight.

    The channels of a head that turn together stand side by side, which no score can tell.
    """
    attention, mlp = layer.self_attn, layer.mlp

    def paired(rows: Tensor, count: int) -> Tensor:
        return rows.view(count, 2, -1, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)

    qkv_XD = torch.cat(
        (
            paired(attention.q_proj.weight, heads),
            paired(attention.k_proj.weight, key_heads),
            attention.v_proj.weight,
        )
    )
    bias_X = None
    if attention.q_proj.bias is not None:
        bias_X = torch.cat(
            (
                paired(attention.q_proj.bias, heads),
                paired(attention.k_proj.bias, key_heads),
                attention.v_proj.bias,
            )
        )
    gate_up_XD = torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight))
    return (
        qkv_XD * layer.input_layernorm.weight,
        bias_X,
        attention.o_proj.weight,
        gate_up_XD * layer.post_attention_layernorm.weight,
        mlp.down_proj.weight,
    )


class _Kept(NamedTuple):
    """Of a layer's forward pass, for the backward pass. unit: what a norm gives without its weight.
    scale: of each token, by which it does so."""

    unit_UD: Tensor
    scale_U1: Tensor
    query: Tensor  # B x X x L x E, with keys and values the leaves of a graph that ends in `mixed`
    key: Tensor
    value: Tensor
    mixed: Tensor
    mixed_UX: Tensor
    mlp_unit_UD: Tensor
    mlp_scale_U1: Tensor
    gate_up_UX: Tensor
    opened_UF: Tensor  # silu(gate)


def _forward(
    x_UD: Tensor,
    shape: _Shape,
    batch: TreeBatch,
    turn_U1E: Tensor,
    qkv_XD: Tensor,
    bias_X: Tensor | None,
    o_DX: Tensor,
    gate_up_XD: Tensor,
    down_DF: Tensor,
) -> tuple[Tensor, _Kept]:
    """A layer's output, and what its backward pass needs."""
    unit_UD, scale_U1 = _unit(x_UD, shape.epsilon)
    qkv_UX = functional.linear(unit_UD, qkv_XD, bias_X)
    _turn(qkv_UX, turn_U1E, shape)
    B, L = batch.place_BL.shape
    rows_BLHE = qkv_UX.index_select(0, batch.place_BL.flatten()).view(
        B, L, shape.heads + 2 * shape.key_heads, -1
    )
    query, key, value = rows_BLHE.transpose(1, 2).split(
        (shape.heads, shape.key_heads, shape.key_heads), dim=1
    )
    query, key, value = (x.detach().requires_grad_() for x in (query, key, value))
    if L <= LONGEST_SHORT:
        mixed = _ShortAttention.apply(query, key, value, shape.scaling)
    else:
        mixed = functional.scaled_dot_product_attention(
            query, key, value,
            is_causal=True, scale=shape.scaling, enable_gqa=shape.heads != shape.key_heads,
        )  # fmt: skip
    mixed_UX = mixed.detach().transpose(1, 2).reshape(B * L, -1).index_select(0, batch.first_U)
    middle_UD = torch.addmm(x_UD, mixed_UX, o_DX.mT)
    mlp_unit_UD, mlp_scale_U1 = _unit(middle_UD, shape.mlp_epsilon)
    gate_up_UX = mlp_unit_UD @ gate_up_XD.mT
    gate_UF, up_UF = gate_up_UX.chunk(2, dim=-1)
    opened_UF = functional.silu(gate_UF)
    y_UD = torch.addmm(middle_UD, opened_UF * up_UF, down_DF.mT)
    return y_UD, _Kept(
        unit_UD, scale_U1, query, key, value, mixed, mixed_UX,
        mlp_unit_UD, mlp_scale_U1, gate_up_UX, opened_UF,
    )  # fmt: skip


class _ShortAttention(torch.autograd.Function):
    """Causal attention, B x X x L x E of queries, B x J x L x E of keys and values.

    Every weight exists, Z x X x L: the X rows of a matrix are the positions of all query heads of a
    key head."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        (B, heads, L, E), J = query.shape, key.shape[1]
        query_ZXE, key_ZLE, value_ZLE = (x.reshape(B * J, -1, E) for x in (query, key, value))
        later_LL = query.new_full((L, L), -torch.inf).triu(1)
        score_ZXL = torch.baddbmm(
            later_LL.repeat(heads // J, 1), query_ZXE, key_ZLE.mT, alpha=scaling
        )
        weight_ZXL = score_ZXL.softmax(dim=-1)
        ctx.scaling = scaling
        ctx.save_for_backward(query_ZXE, key_ZLE, value_ZLE, weight_ZXL)
        return torch.bmm(weight_ZXL, value_ZLE).view(query.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query_ZXE, key_ZLE, value_ZLE, weight_ZXL = ctx.saved_tensors
        grad_ZXE = grad.reshape(query_ZXE.shape)
        weight_grad_ZXL = torch.bmm(grad_ZXE, value_ZLE.mT)
        score_grad_ZXL = torch.ops.aten._softmax_backward_data(
            weight_grad_ZXL, weight_ZXL, -1, weight_ZXL.dtype
        ).mul_(ctx.scaling)
        found = (
            torch.bmm(score_grad_ZXL, key_ZLE),
            torch.bmm(score_grad_ZXL.mT, query_ZXE),
            torch.bmm(weight_ZXL.mT, grad_ZXE),
        )
        return *(x.view(len(grad), -1, *grad.shape[2:]) for x in found), None


class _Layer(torch.autograd.Function):
    """A decoder layer. Attention is a graph of its own within it."""

    @staticmethod
    def forward(
        ctx: Any, x_UD: Tensor, shape: _Shape, batch: TreeBatch, turn_U1E: Tensor, *weights: Tensor
    ) -> Tensor:
        with torch.enable_grad():
            y_UD, kept = _forward(
                x_UD.detach(), shape, batch, turn_U1E,
                *(None if w is None else w.detach() for w in weights),
            )  # fmt: skip
        ctx.save_for_backward(turn_U1E, *weights)
        ctx.shape, ctx.batch, ctx.kept = shape, batch, kept
        return y_UD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_UD: Tensor) -> tuple[Tensor | None, ...]:
        turn_U1E, qkv_XD, bias_X, o_DX, gate_up_XD, down_DF = ctx.saved_tensors
        shape, batch, kept = ctx.shape, ctx.batch, ctx.kept
        if kept is None:
            raise RuntimeError("a pass over a tree of prefixes can be differentiated once")
        ctx.kept = None

        gate_UF, up_UF = kept.gate_up_UX.chunk(2, dim=-1)
        down_grad_DF = grad_UD.mT @ (kept.opened_UF * up_UF)
        product_grad_UF = grad_UD @ down_DF
        gate_up_grad_UX = torch.empty_like(kept.gate_up_UX)
        gate_grad_UF, up_grad_UF = gate_up_grad_UX.chunk(2, dim=-1)
        torch.mul(product_grad_UF, kept.opened_UF, out=up_grad_UF)
        product_grad_UF *= up_UF
        gate_grad_UF.copy_(torch.ops.aten.silu_backward(product_grad_UF, gate_UF))
        gate_up_grad_XD = gate_up_grad_UX.mT @ kept.mlp_unit_UD
        middle_grad_UD = _through_unit(
            grad_UD, gate_up_grad_UX @ gate_up_XD, kept.mlp_unit_UD, kept.mlp_scale_U1
        )

        o_grad_DX = middle_grad_UD.mT @ kept.mixed_UX
        qkv_grad_UX = _through_attention(middle_grad_UD @ o_DX, batch, kept)
        _turn(qkv_grad_UX, turn_U1E.conj(), shape)
        qkv_grad_XD = qkv_grad_UX.mT @ kept.unit_UD
        bias_grad_X = None if bias_X is None else qkv_grad_UX.sum(0)
        x_grad_UD = _through_unit(middle_grad_UD, qkv_grad_UX @ qkv_XD, kept.unit_UD, kept.scale_U1)
        return (
            x_grad_UD, None, None, None,
            qkv_grad_XD, bias_grad_X, o_grad_DX, gate_up_grad_XD, down_grad_DF,
        )  # fmt: skip


def _turn(qkv_UX: Tensor, turn_U1E: Tensor, shape: _Shape) -> None:
    """Turn queries and keys by the angles of their positions, in place."""
    turned = shape.heads + shape.key_heads
    qkv_UHE2 = qkv_UX.view(len(qkv_UX), turned + shape.key_heads, -1, 2)
    torch.view_as_complex(qkv_UHE2[:, :turned]).mul_(turn_U1E)


def _through_attention(mixed_grad_UX: Tensor, batch: TreeBatch, kept: _Kept) -> Tensor:
    """The gradient by queries, keys and values of each prefix; that of a row is its first one's
    where rows share what they say, and keys and values gather from all of them."""
    B, X, L, E = kept.query.shape  # of X heads of queries
    rows_grad_XX = mixed_grad_UX.new_zeros(B * L, X * E)
    rows_grad_XX.index_copy_(0, batch.first_U, mixed_grad_UX)
    grads = torch.autograd.grad(
        kept.mixed,
        (kept.query, kept.key, kept.value),
        rows_grad_XX.view(B, L, X, E).transpose(1, 2),
    )
    row_grad_XX = torch.cat([grad.transpose(1, 2) for grad in grads], dim=2).view(B * L, -1)
    found_UX = row_grad_XX.index_select(0, batch.first_U)
    return found_UX.index_add_(0, batch.again_place_X, row_grad_XX.index_select(0, batch.again_X))


def _unit(x_UD: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """x / √(mean x² + ε) of each token, and the factor."""
    norm_U1 = torch.linalg.vector_norm(x_UD, dim=-1, keepdim=True)
    scale_U1 = norm_U1.square_().div_(x_UD.shape[-1]).add_(epsilon).rsqrt_()
    return x_UD * scale_U1, scale_U1


def _through_unit(beside_UD: Tensor, grad_UD: Tensor, unit_UD: Tensor, scale_U1: Tensor) -> Tensor:
    """The gradient by a norm's input, of one by its output, and what comes beside it:
    scale · (g − unit · mean(g · unit)). `grad_UD` is used up."""
    mean_U1 = (grad_UD * unit_UD).mean(dim=-1, keepdim=True)
    return torch.addcmul(beside_UD, grad_UD.addcmul_(unit_UD, mean_U1, value=-1), scale_U1)


class _Unit(torch.autograd.Function):
    """`_unit`, differentiable."""

    @staticmethod
    def forward(ctx: Any, x_UD: Tensor, epsilon: float) -> Tensor:
        unit_UD, scale_U1 = _unit(x_UD, epsilon)
        ctx.save_for_backward(unit_UD, scale_U1)
        return unit_UD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_UD: Tensor) -> tuple[Tensor, None]:
        unit_UD, scale_U1 = ctx.saved_tensors
        zeros = grad_UD.new_zeros(()).expand_as(grad_UD)
        return _through_unit(zeros, grad_UD.clone(), unit_UD, scale_U1), None
