"""The native sampler: any decoder-only transformers model, on the device where the model is.

Each prompt is computed once and its key/value cache repeated for its draws. A token is chosen by
inverse CDF from a uniform that its draw names, so a response depends on its `Draw` and the weights,
not on what was sampled beside it. (The batch's shape still reaches the last bits of a logit.)

Shape suffixes: N prompts, B rows (responses in flight), P prompt tokens, T response tokens,
L = P + T cache positions, V vocabulary entries.
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
from rec_experiments.types import Draw, Response

# exp(logit - max) is counted in units of 2^-44: finer than float32 needs, and the integer sum over
# up to 2^18 entries stays below 2^63.
CDF_UNIT = 2.0**44
# Finished rows leave the batch once this share of its rows has finished.
COMPACT_SHARE = 0.25
# Added to the attention scores of padding: its weight is then exactly 0.
HIDDEN = 1e30
# The fused step attends over a multiple of this many positions, the unused ones masked: torch has
# a slow kernel for the tiniest matrix products.
SPAN = 32


class _Buffer(DynamicLayer):
    """A layer of key/value cache that writes into a preallocated buffer; it never concatenates."""

    def __init__(self, prompt: DynamicLayer, prompt_B: Tensor, extra: int) -> None:
        """Repeat the cache of the prompts for their rows, with room for `extra` more tokens."""
        super().__init__()
        self.dtype, self.device, self.is_initialized = prompt.dtype, prompt.device, True
        self.length = prompt.get_seq_length()
        self.buffers = [
            _with_room(x_NHPD, prompt_B, extra) for x_NHPD in (prompt.keys, prompt.values)
        ]
        self._view()

    def _view(self) -> None:
        self.keys, self.values = (x_BHLD[:, :, : self.length] for x_BHLD in self.buffers)

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        start, self.length = self.length, self.length + key_states.shape[2]
        for x_BHLD, new in zip(self.buffers, (key_states, value_states), strict=True):
            x_BHLD[:, :, start : self.length] = new
        self._view()
        return self.keys, self.values

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.buffers = [x_BHLD.index_select(0, beam_idx) for x_BHLD in self.buffers]
        self._view()


def _with_room(x_NHPE: Tensor, prompt_B: Tensor, extra: int) -> Tensor:
    """A buffer that starts with x, repeated for its rows, and goes on with zeros."""
    _, heads, length, size = x_NHPE.shape
    buffer_BHLE = x_NHPE.new_empty(len(prompt_B), heads, length + extra, size)
    buffer_BHLE[:, :, :length] = x_NHPE[prompt_B]
    buffer_BHLE[:, :, length:] = 0
    return buffer_BHLE


@dataclass(slots=True)
class _State:
    """What decoding keeps of the rows in flight: their cache, mask and next position."""

    cache: Cache
    mask_BL: Tensor  # 1 where there is a token, 0 where there is padding or none yet
    position_B: Tensor  # of the next token
    length: int  # cache positions in use, the same in every row

    @classmethod
    def repeat(cls, cache: Cache, mask_NP: Tensor, prompt_B: Tensor, extra: int) -> "_State":
        """Repeat the state after the prompts for their rows, with room for `extra` tokens."""
        for i, layer in enumerate(cache.layers):
            if type(layer) is DynamicLayer:
                cache.layers[i] = _Buffer(layer, prompt_B, extra)
            else:  # a sliding window and the like: the library knows how
                layer.reorder_cache(prompt_B)
        mask_BL = functional.pad(mask_NP[prompt_B], (0, extra))
        return cls(cache, mask_BL, mask_NP.sum(dim=1)[prompt_B], mask_NP.shape[1])

    def append(self) -> None:
        """Make room in the mask for one more token per row."""
        self.mask_BL[:, self.length] = 1
        self.length += 1

    def keep(self, rows: Tensor) -> None:
        """Drop all rows but these."""
        self.cache.reorder_cache(rows)
        self.mask_BL, self.position_B = self.mask_BL[rows], self.position_B[rows]


def _left_pad(sequences: list[list[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Token ids and mask, both N x P."""
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

    def __call__(self, token_B: Tensor, state: _State) -> Tensor:
        """Logits after one more token per row, B x V. D hidden size, H query heads, G key heads."""
        decoder, config = self.model.model, self.model.config
        x_BD = decoder.embed_tokens(token_B)
        cos_B1E, sin_B1E = decoder.rotary_emb(x_BD, state.position_B[:, None])
        half = cos_B1E.shape[-1] // 2
        sin_B1E = torch.cat((-sin_B1E[..., :half], sin_B1E[..., half:]), dim=-1)
        span = math.ceil(state.length / SPAN) * SPAN
        bias_B11L = ((state.mask_BL[:, :span] - 1) * HIDDEN)[:, None, None]
        heads, key_heads = config.num_attention_heads, config.num_key_value_heads
        for i, layer in enumerate(decoder.layers):
            qkv_BD = functional.linear(_rms_norm(x_BD, layer.input_layernorm), *self.qkv[i])
            qkv_BHE = qkv_BD.unflatten(1, (heads + 2 * key_heads, -1))
            rotated_BHE = qkv_BHE[:, : heads + key_heads]
            rotated_BHE = torch.addcmul(
                rotated_BHE * cos_B1E, rotated_BHE.roll(half, dims=-1), sin_B1E
            )
            state.cache.update(
                rotated_BHE[:, heads:, None], qkv_BHE[:, heads + key_heads :, None], i
            )
            key_BGLE, value_BGLE = (x_BGLE[:, :, :span] for x_BGLE in state.cache.layers[i].buffers)
            # The query heads of a key head are the rows of one small matrix.
            query_BGRE = rotated_BHE[:, :heads].unflatten(1, (key_heads, -1))
            score_BGRL = (query_BGRE * layer.self_attn.scaling) @ key_BGLE.mT + bias_B11L
            mixed_BGRE = score_BGRL.softmax(dim=-1) @ value_BGLE
            x_BD = x_BD + layer.self_attn.o_proj(mixed_BGRE.flatten(1))
            gate_up_BF = functional.linear(
                _rms_norm(x_BD, layer.post_attention_layernorm), *self.gate_up[i]
            )
            gate_BF, up_BF = gate_up_BF.chunk(2, dim=-1)
            x_BD = x_BD + layer.mlp.down_proj(functional.silu(gate_BF) * up_BF)
        return self.model.lm_head(_rms_norm(x_BD, decoder.norm))


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


def _rms_norm(x_BD: Tensor, norm: Any) -> Tensor:
    return functional.rms_norm(x_BD, x_BD.shape[-1:], norm.weight, norm.variance_epsilon)


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
        self, prompts: list[list[int]], draws: list[list[Draw]], temperature: float
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
        self, prompts: list[list[int]], rows: list[tuple[int, Draw]], temperature: float
    ) -> list[Response]:
        """The responses of `rows`, each a prompt's index and a draw."""
        device = self.model.device
        used = sorted({n for n, _ in rows})
        place = {n: i for i, n in enumerate(used)}
        prompt_B = torch.tensor([place[n] for n, _ in rows], device=device)
        ids_NP, mask_NP = (x.to(device) for x in _left_pad([prompts[n] for n in used], self.pad_id))
        cache = DynamicCache(config=self.model.config)
        position_NP = (mask_NP.cumsum(dim=1) - 1).clamp(min=0)
        logits_BV = self._forward(ids_NP, mask_NP, position_NP, cache)[prompt_B]
        state = _State.repeat(cache, mask_NP, prompt_B, self.limit)

        uniform_BT = torch.from_numpy(
            np.stack([uniforms(draw, self.limit) for _, draw in rows])
        ).to(device)
        token_BT = torch.full((len(rows), self.limit), -1, dtype=torch.long, device=device)
        logp_BT = torch.zeros((len(rows), self.limit), device=device)
        row_B = torch.arange(len(rows), device=device)  # where each row in flight is reported
        scratch_BV = torch.empty_like(logits_BV, dtype=torch.long)
        live_B = torch.ones(len(rows), dtype=torch.bool, device=device)
        for t in range(self.limit):
            chosen_B, chosen_logp_B = choose(
                logits_BV, uniform_BT[row_B, t], temperature, scratch_BV
            )
            token_BT[row_B, t] = chosen_B
            logp_BT[row_B, t] = chosen_logp_B
            live_B &= ~torch.isin(chosen_B, self.eos)
            n_live = int(live_B.sum())
            if n_live == 0 or t + 1 == self.limit:
                break
            if n_live <= (1 - COMPACT_SHARE) * len(row_B):
                keep = live_B.nonzero()[:, 0]
                state.keep(keep)
                row_B, chosen_B, live_B = row_B[keep], chosen_B[keep], live_B[keep]
            logits_BV = self._step(chosen_B, state)
        return self._responses(token_BT, logp_BT)

    def _step(self, token_B: Tensor, state: _State) -> Tensor:
        """Logits after one more token per row, B x V."""
        state.append()
        if self.fused:
            logits_BV = self.fused(token_B, state)
        else:
            mask_BL = state.mask_BL[:, : state.length]
            logits_BV = self._forward(
                token_B[:, None], mask_BL, state.position_B[:, None], state.cache
            )
        state.position_B += 1
        return logits_BV

    def _forward(self, ids: Tensor, mask: Tensor, positions: Tensor, cache: Cache) -> Tensor:
        """The library's forward: logits of the last position, B x V. Extends the cache."""
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
    logits_BV: Tensor, uniform_B: Tensor, temperature: float, scratch_BV: Tensor
) -> tuple[Tensor, Tensor]:
    """One token per row by inverse CDF, and its float32 log-probability.

    uniform_B: float64 in [0, 1). scratch_BV: int64, at least B rows, overwritten; fresh memory of
    that size at every token is slow. The CDF counts probability in integers, so it is exact in any
    order of summation and for any vocabulary: a token of probability 0 is never chosen. Tokens
    less likely than 2^-44 of the likeliest are left out.
    """
    shifted_BV = logits_BV.float() / (temperature or 1.0)
    shifted_BV -= shifted_BV.amax(dim=-1, keepdim=True)
    cdf_BV = scratch_BV[: len(logits_BV)].copy_(shifted_BV.exp().mul_(CDF_UNIT))
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
