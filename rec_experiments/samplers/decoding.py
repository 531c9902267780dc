"""The native sampler for any decoder-only transformers model, on the model's device.

Responses that share a prefix share its computation: first the prompts, which branch where responses
choose different tokens. Each token is chosen by inverse CDF from a uniform number that its sample
key determines, so a response depends on its `SampleKey` and the weights, not on other responses.
(The batch's shape still affects the last bits of a logit.)

B: responses in flight. U: their distinct prefixes, which are in the cache.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from itertools import count

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedModel

from rec_experiments.common.batch import Responses, SampleKey, padded
from rec_experiments.common.rng import uniforms
from rec_experiments.policy import tree
from rec_experiments.samplers.prefixes import Memory, Prefixes

# The unit of exp(logit - max) is 2^-44: finer than float32, and the integer sum over up to 2^18
# entries stays below 2^63.
CDF_UNIT = 2.0**44
# The most bytes of keys and values at once if `max_rows` is None. Without a bound an evaluation of
# GSM8K with 1.5B parameters would take 96 GB.
CACHE_AT_ONCE = 2**33
# What is added to the logits after each of U sequences, U x V, given the sequences and V.
LogitNoise = Callable[[list[list[int]], int], Tensor]


def _occurrences(numbers: list[int]) -> list[int]:
    """For each number, how often it has occurred before."""
    counts = {n: count() for n in numbers}
    return [next(counts[n]) for n in numbers]


def _sequences(
    prompts: list[list[int]], token_TB: Tensor, prefix_B: Tensor, row_B: Tensor
) -> list[list[int]]:
    """The prompt and the tokens of each prefix, by its place. prompts: of all responses."""
    one_of = dict(zip(prefix_B.tolist(), row_B.tolist(), strict=True))
    return [prompts[row] + token_TB[:, row].tolist() for _, row in sorted(one_of.items())]


class NativeSampler:
    """Implements `protocols.InFlightSampler`. It takes over `model`: pass a copy.

    eos_ids: each of them ends a response. max_rows: the most responses decoded at once, None for
    CACHE_AT_ONCE. perturb: changes the weights of its argument in place, after each load; None for
    exactly those loaded. logit_noise: is added to all logits; None for nothing.
    A prompt and its response must fit the model's context; the caller checks that.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        eos_ids: list[int],
        max_response_tokens: int,
        max_rows: int | None,
        perturb: Callable[[PreTrainedModel], None] | None = None,
        logit_noise: LogitNoise | None = None,
    ) -> None:
        self.model = model.eval().requires_grad_(False)
        self.perturb, self.logit_noise = perturb, logit_noise
        if perturb:
            perturb(self.model)
        if model.dtype == torch.float32 and "flash" in model.config._attn_implementation:
            model.set_attn_implementation("sdpa")  # flash attention has no float32
        self.eos = torch.tensor(eos_ids, dtype=torch.long, device=model.device)
        self.decoder = tree.decoder(model)
        self.accepts = inspect.signature(model.forward).parameters
        self.limit = max_response_tokens
        self.max_rows = max_rows
        self.memory = Memory()

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Copy `weights` into the model in place. A tied parameter may have any of its names.

        Raises ValueError if a parameter is missing or unknown.
        """
        missing, unknown = self.model.load_state_dict(weights, strict=False)
        own = self.model.state_dict()
        loaded = {own[name].data_ptr() for name in weights if name in own}
        missing = [name for name in missing if own[name].data_ptr() not in loaded]
        if missing or unknown:
            raise ValueError(f"weights do not fit: missing {missing}, unknown {unknown}")
        if self.perturb:
            self.perturb(self.model)

    def sample(
        self, prompts: list[list[int]], draws: list[list[SampleKey]], temperature: float
    ) -> Responses:
        """For each prompt one response per key, in the same order.

        temperature: log-probabilities are of softmax(logits / temperature). 0 is greedy, with
        log-probabilities at temperature 1.
        Raises FloatingPointError if the policy's logits are not finite.
        """
        return self.sample_in_flight(prompts, draws, temperature, (), False)

    @torch.inference_mode()
    def sample_in_flight(
        self,
        prompts: list[list[int]],
        draws: list[list[SampleKey]],
        temperature: float,
        policies: Sequence[tuple[int, Mapping[str, Tensor]]],
        keeps_cache: bool,
    ) -> Responses:
        """As the protocol says; without `policies`, by the loaded weights alone."""
        rows = [(n, draw) for n, named in enumerate(draws) for draw in named]
        size = self.max_rows or self._rows_at_once(max(map(len, prompts), default=0))
        found = []
        for start in range(0, len(rows), size):
            try:
                part = rows[start : start + size]
                found.append(self._decode(prompts, part, temperature, dict(policies), keeps_cache))
            finally:
                self.memory.release()
        return Responses.joined(found)

    def _rows_at_once(self, prompt_tokens: int) -> int:
        """How many responses fit into CACHE_AT_ONCE if no two share a prefix."""
        config = self.model.config.get_text_config()
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = config.hidden_size // config.num_attention_heads
        width = getattr(config, "head_dim", None) or width
        a_token = 2 * config.num_hidden_layers * heads * width * self.model.dtype.itemsize
        return max(1, CACHE_AT_ONCE // ((prompt_tokens + self.limit) * a_token))

    def _decode(
        self,
        prompts: list[list[int]],
        rows: list[tuple[int, SampleKey]],
        temperature: float,
        policies: dict[int, Mapping[str, Tensor]],
        keeps_cache: bool,
    ) -> Responses:
        """The responses of `rows`, each the index of a prompt and a key. policies: the weights by
        their first token."""
        device = self.model.device
        used = sorted({n for n, _ in rows})
        place = {n: i for i, n in enumerate(used)}
        if 0 in policies:
            self.load(policies[0])
        logits_UV, prefixes = self._prefill([prompts[n] for n in used], self.limit, len(rows))

        # Responses to one prompt have different columns, hence so do those that share a prefix.
        columns = _occurrences([n for n, _ in rows])
        column_B = torch.tensor(columns, device=device)
        prefix_B = torch.tensor([place[n] for n, _ in rows], device=device)
        row_B = torch.arange(len(rows), device=device)  # the response of each row in flight
        uniform_TB = torch.from_numpy(uniforms([draw for _, draw in rows], self.limit)).to(device)
        token_TB = torch.full((self.limit, len(rows)), -1, dtype=torch.long, device=device)
        logp_TB = torch.zeros((self.limit, len(rows)), device=device)
        width, vocabulary = 1 + max(columns), logits_UV.shape[1]
        scratch_XV = logits_UV.new_empty((len(rows), vocabulary), dtype=torch.long)
        of_row = [prompts[n] for n, _ in rows]
        for t in range(self.limit):
            if self.logit_noise:
                logits_UV = logits_UV + self.logit_noise(
                    _sequences(of_row, token_TB[:t], prefix_B, row_B), vocabulary
                ).to(device)
            cell_B = prefix_B * width + column_B  # in U x width
            uniform_UX = uniform_TB.new_zeros(len(logits_UV), width)
            uniform_UX.view(-1).index_copy_(0, cell_B, uniform_TB[t].index_select(0, row_B))
            token_UX, logp_UX = choose(logits_UV, uniform_UX, temperature, scratch_XV)
            chosen_B = token_UX.view(-1).index_select(0, cell_B)
            token_TB[t].index_copy_(0, row_B, chosen_B)
            logp_TB[t].index_copy_(0, row_B, logp_UX.view(-1).index_select(0, cell_B))
            live = (~torch.isin(chosen_B, self.eos)).nonzero()[:, 0]
            if not len(live) or t + 1 == self.limit:
                break
            all_go_on = len(live) == len(row_B)
            if not all_go_on:
                row_B, column_B = row_B[live], column_B[live]
                prefix_B, chosen_B = prefix_B[live], chosen_B[live]
            pair_M, pair_B = torch.unique(prefix_B * vocabulary + chosen_B, return_inverse=True)
            if all_go_on and len(pair_M) == prefixes.count:  # no prefix branches or ends
                prefix_B, token_M = pair_B, pair_M % vocabulary
            else:
                parent_M = pair_M // vocabulary
                place_M = prefixes.branch(parent_M)
                prefix_B = place_M[pair_B]
                token_M = torch.empty_like(pair_M)
                token_M[place_M] = pair_M - parent_M * vocabulary
            if len(pair_M) == len(row_B) and width > 1:  # no two rows share a prefix
                column_B, width = torch.zeros_like(row_B), 1
            if t + 1 in policies:
                self.load(policies[t + 1])
            if t + 1 in policies and not keeps_cache:
                logits_UV, prefixes = self._prefill(
                    _sequences(of_row, token_TB[: t + 1], prefix_B, row_B),
                    self.limit - t - 1,
                    len(row_B),
                )
            else:
                logits_UV = self._step(token_M, prefixes)
        return self._responses(token_TB.T, logp_TB.T)

    def _prefill(
        self, sequences: list[list[int]], extra: int, most: int
    ) -> tuple[Tensor, Prefixes]:
        """Logits after each of U sequences, U x V, and the sequences as prefixes, with room for
        `extra` more tokens. most: the most prefixes that they may become."""
        device = self.model.device
        ids_UP, mask_UP = (
            padded(rows, torch.long, left=True).to(device)
            for rows in (sequences, [[1] * len(row) for row in sequences])
        )
        cache = DynamicCache(config=self.model.config)
        position_UP = (mask_UP.cumsum(dim=1) - 1).clamp(min=0)
        logits_UV = self._forward(ids_UP, mask_UP, position_UP, cache)
        return logits_UV, Prefixes.after(cache, mask_UP, extra, self.memory, most)

    def _step(self, token_U: Tensor, prefixes: Prefixes) -> Tensor:
        """Logits after one more token per prefix, U x V."""
        prefixes.append()
        if self.decoder:
            logits_UV = self.decoder(
                token_U, prefixes.position_U, prefixes.bias_UL, prefixes.cache.layers
            )
        else:
            logits_UV = self._forward(
                token_U[:, None], prefixes.mask_UL, prefixes.position_U[:, None], prefixes.cache
            )
        prefixes.position_U.add_(1)
        return logits_UV

    def _forward(self, ids: Tensor, mask: Tensor, positions: Tensor, cache: Cache) -> Tensor:
        """The library's forward pass: logits of the last position, U x V. It extends the cache."""
        optional = {"position_ids": positions, "logits_to_keep": 1}
        known = {name: value for name, value in optional.items() if name in self.accepts}
        output = self.model(
            input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True, **known
        )
        return output.logits[:, -1]

    def _responses(self, token_BT: Tensor, logp_BT: Tensor) -> Responses:
        """Cut each row after its first end token."""
        if not logp_BT.isfinite().all():
            raise FloatingPointError("the policy's logits are not finite: it has diverged")
        end_BT = torch.isin(token_BT, self.eos)
        finished_B = end_BT.any(dim=1)
        length_B = torch.where(finished_B, end_BT.int().argmax(dim=1) + 1, self.limit).cpu()
        live_BT = torch.arange(int(length_B.max())) < length_B[:, None]
        width = live_BT.shape[1]
        return Responses(
            token_BT=token_BT[:, :width].cpu().where(live_BT, 0),
            length_B=length_B,
            mask_BT=live_BT,
            finished_B=finished_B.cpu(),
            logp_BT=logp_BT[:, :width].cpu().where(live_BT, 0.0),
        )


def choose(
    logits_UV: Tensor, uniform_UX: Tensor, temperature: float, scratch_XV: Tensor
) -> tuple[Tensor, Tensor]:
    """Tokens by inverse CDF, one for each uniform number, and their float32 log-probabilities.

    uniform_UX: float64 in [0, 1). scratch_XV: int64 with at least U rows, overwritten; new memory
    of that size would cost page faults. The CDF counts probability in integers, so it is exact in
    any order of summation: a token of probability 0 is never chosen. Tokens less likely than
    2^-44 of the likeliest have probability 0.
    """
    shifted_UV = logits_UV.float()
    if temperature not in (0, 1):
        shifted_UV = shifted_UV / temperature
    shifted_UV = shifted_UV - shifted_UV.amax(dim=-1, keepdim=True)
    cdf_UV = scratch_XV[: len(logits_UV)].copy_(shifted_UV.exp().mul_(CDF_UNIT))
    torch.cumsum(cdf_UV, dim=-1, out=cdf_UV)
    total_U1 = cdf_UV[:, -1:]
    if temperature == 0:
        token_UX = shifted_UV.argmax(dim=-1, keepdim=True).expand_as(uniform_UX).contiguous()
    else:
        # Below the total even after rounding: a float64 below 1 is at most 1 - 2^-53.
        target_UX = (uniform_UX * total_U1).long()
        token_UX = torch.searchsorted(cdf_UV, target_UX, right=True)
        token_UX.clamp_(max=logits_UV.shape[1] - 1)  # NaN logits have no CDF
    return token_UX, shifted_UV.gather(1, token_UX) - (total_U1 / CDF_UNIT).log().float()
