"""The native sampler: any decoder-only transformers model, on the device where the model is.

Draws that have said the same so far are one prefix, computed once: at first the prompts, which part
where a draw chooses another token. A token is chosen by inverse CDF from a uniform that its draw
names, so a response depends on its `SampleKey` and the weights, not on what was sampled beside it.
(The batch's shape still reaches the last bits of a logit.)

The B rows are the responses in flight, the U prefixes those in the cache.
"""

import inspect
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import Cache, DynamicCache, LlamaForCausalLM, PreTrainedModel, Qwen2ForCausalLM
from transformers.cache_utils import DynamicLayer

from rec_experiments.rng import uniforms
from rec_experiments.types import Response, SampleKey

# exp(logit - max) is counted in units of 2^-44: finer than float32 needs, and the integer sum over
# up to 2^18 entries stays below 2^63.
CDF_UNIT = 2.0**44
# Ended prefixes leave the cache once this share of it has ended: to move it costs more.
COMPACT_SHARE = 0.25
# Added to the attention scores of padding: its weight is then exactly 0.
HIDDEN = 1e30
# The fused step attends over a multiple of this many positions, the unused ones masked: torch has
# a slow kernel for the tiniest matrix products.
SPAN = 32


class _Buffer(DynamicLayer):
    """A layer of key/value cache that writes into a preallocated buffer; it never concatenates."""

    def __init__(self, prompt: DynamicLayer, extra: int) -> None:
        """The cache of the prompts, with room for `extra` more tokens."""
        super().__init__()
        self.dtype, self.device, self.is_initialized = prompt.dtype, prompt.device, True
        self.length = prompt.get_seq_length()
        self.buffers = [
            functional.pad(x_UJPE, (0, 0, 0, extra)) for x_UJPE in (prompt.keys, prompt.values)
        ]
        self._view()

    def _view(self) -> None:
        self.keys, self.values = (x_UJLE[:, :, : self.length] for x_UJLE in self.buffers)

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        start, self.length = self.length, self.length + key_states.shape[2]
        for x_UJLE, new in zip(self.buffers, (key_states, value_states), strict=True):
            x_UJLE[:, :, start : self.length] = new
        self._view()
        return self.keys, self.values

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.buffers = [x_UJLE.index_select(0, beam_idx) for x_UJLE in self.buffers]
        self._view()


@dataclass(slots=True)
class _State:
    """What decoding keeps of the prefixes: their cache, mask and next position."""

    cache: Cache
    mask_UL: Tensor  # 1 where there is a token, 0 where there is padding or none yet
    position_U: Tensor  # of the next token
    length: int  # cache positions in use, the same for every prefix

    @classmethod
    def after(cls, cache: Cache, mask_UP: Tensor, extra: int) -> "_State":
        """The state after the prompts, with room for `extra` tokens."""
        for i, layer in enumerate(cache.layers):
            if type(layer) is DynamicLayer:  # not a sliding window and the like
                cache.layers[i] = _Buffer(layer, extra)
        return cls(cache, functional.pad(mask_UP, (0, extra)), mask_UP.sum(1), mask_UP.shape[1])

    def append(self) -> None:
        """Make room in the mask for one more token per prefix."""
        self.mask_UL[:, self.length] = 1
        self.length += 1

    def branch(self, parent_M: Tensor) -> Tensor:
        """Go on with these prefixes, in ascending order, each as often as it is named.

        Returns the place of each. Others may stay in the cache.
        """
        few_ended = len(parent_M) > (1 - COMPACT_SHARE) * len(self.position_U)
        if few_ended and bool((parent_M.diff() > 0).all()):
            return parent_M
        self.cache.reorder_cache(parent_M)
        self.mask_UL, self.position_U = self.mask_UL[parent_M], self.position_U[parent_M]
        return torch.arange(len(parent_M), device=parent_M.device)


def _left_pad(sequences: list[list[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Token ids and mask, both U x P."""
    width = max(map(len, sequences))
    ids = [[pad_id] * (width - len(row)) + row for row in sequences]
    mask = [[0] * (width - len(row)) + [1] * len(row) for row in sequences]
    return torch.tensor(ids), torch.tensor(mask)


class _FusedStep:
    """One decoding step of a plain Llama or Qwen2, without the library's overhead per step.

    The projections that read the same input become one matrix each. The model's parameters turn
    into views of it, so weights loaded in place are seen here too and nothing is stored twice.
    """

    @staticmethod
    def fits(model: PreTrainedModel) -> bool:
        """Whether the model is exactly what this class computes."""
        return (
            type(model) in (LlamaForCausalLM, Qwen2ForCausalLM)
            and model.dtype == torch.float32
            and model.config.hidden_act == "silu"
            and not getattr(model.model, "has_sliding_layers", False)
        )

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.qkv = [
            _fuse(layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj)
            for layer in model.model.layers
        ]
        self.gate_up = [
            _fuse(layer.mlp.gate_proj, layer.mlp.up_proj) for layer in model.model.layers
        ]

    def __call__(self, token_U: Tensor, state: _State) -> Tensor:
        """Logits after one more token per prefix, U x V."""
        decoder, config = self.model.model, self.model.config
        x_UD = decoder.embed_tokens(token_U)
        cos_U1E, sin_U1E = decoder.rotary_emb(x_UD, state.position_U[:, None])
        half = cos_U1E.shape[-1] // 2
        sin_U1E = torch.cat((-sin_U1E[..., :half], sin_U1E[..., half:]), dim=-1)
        span = math.ceil(state.length / SPAN) * SPAN
        bias_U11L = ((state.mask_UL[:, :span] - 1) * HIDDEN)[:, None, None]
        heads, key_heads = config.num_attention_heads, config.num_key_value_heads
        for i, layer in enumerate(decoder.layers):
            qkv_UX = functional.linear(_rms_norm(x_UD, layer.input_layernorm), *self.qkv[i])
            qkv_UHE = qkv_UX.unflatten(1, (heads + 2 * key_heads, -1))
            rotated_UHE = qkv_UHE[:, : heads + key_heads]
            rotated_UHE = torch.addcmul(
                rotated_UHE * cos_U1E, rotated_UHE.roll(half, dims=-1), sin_U1E
            )
            state.cache.update(
                rotated_UHE[:, heads:, None], qkv_UHE[:, heads + key_heads :, None], i
            )
            key_UJLE, value_UJLE = (x_UJLE[:, :, :span] for x_UJLE in state.cache.layers[i].buffers)
            # The query heads of a key head are the rows of one small matrix.
            query_UJQE = rotated_UHE[:, :heads].unflatten(1, (key_heads, -1))
            score_UJQL = (query_UJQE * layer.self_attn.scaling) @ key_UJLE.mT + bias_U11L
            mixed_UJQE = score_UJQL.softmax(dim=-1) @ value_UJLE
            x_UD = x_UD + layer.self_attn.o_proj(mixed_UJQE.flatten(1))
            gate_up_UX = functional.linear(
                _rms_norm(x_UD, layer.post_attention_layernorm), *self.gate_up[i]
            )
            gate_UF, up_UF = gate_up_UX.chunk(2, dim=-1)
            x_UD = x_UD + layer.mlp.down_proj(functional.silu(gate_UF) * up_UF)
        return self.model.lm_head(_rms_norm(x_UD, decoder.norm))


def _fuse(*linears: nn.Linear) -> tuple[Tensor, Tensor | None]:
    """Stack the weights (and biases) of linear layers; theirs become views of the stack."""
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


def _rms_norm(x_UD: Tensor, norm: Any) -> Tensor:
    return functional.rms_norm(x_UD, x_UD.shape[-1:], norm.weight, norm.variance_epsilon)


class NativeSampler:
    """Implements `rec_experiments.types.Sampler`. It owns `model`: give it a copy.

    eos_ids: each of them ends a response. pad_id: fills short prompts; it is masked, so any token
    will do and None is fine. max_rows: responses decoded at once, None for all.
    A prompt and its response must fit the model's context; the caller refuses those that do not.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        eos_ids: list[int],
        pad_id: int | None,
        max_response_tokens: int,
        max_rows: int | None,
    ) -> None:
        self.model = model.eval().requires_grad_(False)
        if model.dtype == torch.float32 and "flash" in model.config._attn_implementation:
            model.set_attn_implementation("sdpa")  # flash attention does not know float32
        self.eos = torch.tensor(eos_ids, dtype=torch.long, device=model.device)
        self.pad_id = 0 if pad_id is None else pad_id
        self.fused = _FusedStep(model) if _FusedStep.fits(model) else None
        self.accepts = inspect.signature(model.forward).parameters
        self.limit = max_response_tokens
        self.max_rows = max_rows

    def load(self, weights: dict[str, Tensor]) -> None:
        """Copy `weights` into the model, in place. A tied parameter may appear under any name.

        Raises ValueError if a parameter is missing or unknown.
        """
        missing, unknown = self.model.load_state_dict(weights, strict=False)
        own = self.model.state_dict()
        loaded = {own[name].data_ptr() for name in weights if name in own}
        missing = [name for name in missing if own[name].data_ptr() not in loaded]
        if missing or unknown:
            raise ValueError(f"weights do not fit: missing {missing}, unknown {unknown}")

    @torch.inference_mode()
    def sample(
        self, prompts: list[list[int]], draws: list[list[SampleKey]], temperature: float
    ) -> list[list[Response]]:
        """For each prompt one response per draw, in the same order.

        temperature: log-probabilities are of softmax(logits / temperature). 0 takes the likeliest
        token and reports log-probabilities at temperature 1.
        Raises FloatingPointError if the policy's logits are not finite.
        """
        rows = [(n, draw) for n, named in enumerate(draws) for draw in named]
        size = self.max_rows or max(1, len(rows))
        responses: Iterator[Response] = (
            response
            for start in range(0, len(rows), size)
            for response in self._decode(prompts, rows[start : start + size], temperature)
        )
        return [[next(responses) for _ in named] for named in draws]

    def _decode(
        self, prompts: list[list[int]], rows: list[tuple[int, SampleKey]], temperature: float
    ) -> list[Response]:
        """The responses of `rows`, each a prompt's index and a draw."""
        device = self.model.device
        used = sorted({n for n, _ in rows})
        place = {n: i for i, n in enumerate(used)}
        ids_UP, mask_UP = (x.to(device) for x in _left_pad([prompts[n] for n in used], self.pad_id))
        cache = DynamicCache(config=self.model.config)
        position_UP = (mask_UP.cumsum(dim=1) - 1).clamp(min=0)
        logits_UV = self._forward(ids_UP, mask_UP, position_UP, cache)
        state = _State.after(cache, mask_UP, self.limit)

        uniform_BT = torch.from_numpy(
            np.stack([uniforms(draw, self.limit) for _, draw in rows])
        ).to(device)
        token_BT = torch.full((len(rows), self.limit), -1, dtype=torch.long, device=device)
        logp_BT = torch.zeros((len(rows), self.limit), device=device)
        row_B = torch.arange(len(rows), device=device)  # where each row in flight is reported
        prefix_B = torch.tensor([place[n] for n, _ in rows], device=device)
        vocabulary = logits_UV.shape[1]
        scratch_XV = logits_UV.new_empty((len(rows), vocabulary), dtype=torch.long)
        for t in range(self.limit):
            chosen_B, logp_BT[row_B, t] = choose(
                logits_UV[prefix_B], uniform_BT[row_B, t], temperature, scratch_XV
            )
            token_BT[row_B, t] = chosen_B
            live = (~torch.isin(chosen_B, self.eos)).nonzero()[:, 0]
            if not len(live) or t + 1 == self.limit:
                break
            row_B = row_B[live]
            pair_M, pair_B = torch.unique(
                prefix_B[live] * vocabulary + chosen_B[live], return_inverse=True
            )
            place_M = state.branch(pair_M // vocabulary)
            prefix_B = place_M[pair_B]
            token_U = torch.zeros_like(state.position_U)
            token_U[place_M] = pair_M % vocabulary
            logits_UV = self._step(token_U, state)
        return self._responses(token_BT, logp_BT)

    def _step(self, token_U: Tensor, state: _State) -> Tensor:
        """Logits after one more token per prefix, U x V."""
        state.append()
        if self.fused:
            logits_UV = self.fused(token_U, state)
        else:
            mask_UL = state.mask_UL[:, : state.length]
            logits_UV = self._forward(
                token_U[:, None], mask_UL, state.position_U[:, None], state.cache
            )
        state.position_U += 1
        return logits_UV

    def _forward(self, ids: Tensor, mask: Tensor, positions: Tensor, cache: Cache) -> Tensor:
        """The library's forward: logits of the last position, U x V. Extends the cache."""
        optional = {"position_ids": positions, "logits_to_keep": 1}
        known = {name: value for name, value in optional.items() if name in self.accepts}
        output = self.model(
            input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True, **known
        )
        return output.logits[:, -1]

    def _responses(self, token_BT: Tensor, logp_BT: Tensor) -> list[Response]:
        """Cut each row after its first end token."""
        if not logp_BT.isfinite().all():
            raise FloatingPointError("the policy's logits are not finite: it has diverged")
        end_BT = torch.isin(token_BT, self.eos)
        finished_B = end_BT.any(dim=1)
        length_B = torch.where(finished_B, end_BT.int().argmax(dim=1) + 1, self.limit)
        columns = (x.tolist() for x in (token_BT, logp_BT, length_B, finished_B))
        return [
            Response(tokens[:length], logp[:length], finished, [True] * length)
            for tokens, logp, length, finished in zip(*columns, strict=True)
        ]


def choose(
    logits_BV: Tensor, uniform_B: Tensor, temperature: float, scratch_XV: Tensor
) -> tuple[Tensor, Tensor]:
    """One token per row by inverse CDF, and its float32 log-probability.

    uniform_B: float64 in [0, 1). scratch_XV: int64, at least B rows, overwritten; fresh memory of
    that size at every token is slow. The CDF counts probability in integers, so it is exact in any
    order of summation and for any vocabulary: a token of probability 0 is never chosen. Tokens
    less likely than 2^-44 of the likeliest are left out.
    """
    shifted_BV = logits_BV.float() / (temperature or 1.0)
    shifted_BV -= shifted_BV.amax(dim=-1, keepdim=True)
    cdf_BV = scratch_XV[: len(logits_BV)].copy_(shifted_BV.exp().mul_(CDF_UNIT))
    torch.cumsum(cdf_BV, dim=-1, out=cdf_BV)
    total_B1 = cdf_BV[:, -1:]
    if temperature == 0:
        token_B1 = shifted_BV.argmax(dim=-1, keepdim=True)
    else:
        # Below the total even when rounded: a float64 under 1 is at most 1 - 2^-53.
        target_B1 = (uniform_B[:, None] * total_B1).long()
        token_B1 = torch.searchsorted(cdf_BV, target_B1, right=True)
        token_B1.clamp_(max=logits_BV.shape[1] - 1)  # logits that are NaN have no CDF
    logp_B1 = shifted_BV.gather(1, token_B1) - (total_B1 / CDF_UNIT).log().float()
    return token_B1[:, 0], logp_B1[:, 0]
