"""The one forward pass that training and its metrics share."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import (
    LlamaForCausalLM,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
)

from rec_experiments.distributed import whole
from rec_experiments.policy.head import (
    LOGITS_AT_ONCE,
    REFERENCE,
    Head,
    entropy_and_kl,
    tempered_logp,
    token_scores,
)

# Families whose logits are `lm_head` of the hidden states and nothing after it.
PLAIN_HEADS = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)


class Rows(NamedTuple):
    """B sequences of P prompt tokens, padded left, and T response tokens, padded right."""

    input_ids: Tensor  # B x (P + T)
    attention_mask: Tensor  # B x (P + T)
    response_length: int  # T

    def to(self, device: torch.device) -> "Rows":
        return Rows(self.input_ids.to(device), self.attention_mask.to(device), self.response_length)


def collate(
    prompts: list[list[int]], responses: list[list[int]], pad_id: int, response_width: int = 0
) -> Rows:
    """Rows with the responses aligned at one column. `response_width` is a least T."""
    P = max(len(prompt) for prompt in prompts)
    T = max(response_width, *(len(response) for response in responses))
    rows = [
        (P - len(prompt), prompt + response, T - len(response))  # padding left, tokens, right
        for prompt, response in zip(prompts, responses, strict=True)
    ]
    ids = [[pad_id] * left + tokens + [pad_id] * right for left, tokens, right in rows]
    attended = [[0] * left + [1] * len(tokens) + [0] * right for left, tokens, right in rows]
    return Rows(torch.tensor(ids), torch.tensor(attended), T)


def head_output(model: PreTrainedModel, rows: Rows) -> Tensor:
    """What the head makes of the hidden state before each response token: logits, B x T x V.

    The last token is not read: nothing comes after it.
    """
    mask = rows.attention_mask[:, :-1]
    return model(
        input_ids=rows.input_ids[:, :-1],
        attention_mask=mask,
        position_ids=(mask.cumsum(1) - 1).clamp(min=0),
        use_cache=False,
        logits_to_keep=rows.response_length,
    ).logits


def autocast(device: torch.device, dtype: torch.dtype) -> torch.autocast:
    """The precision of the trainer's forward passes; float32 leaves that of the weights."""
    return torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32)


class Scores(NamedTuple):
    """Of each response token, B x T: its log-probability (differentiable), and the entropy of the
    policy and its divergence KL(π_θ ‖ π_reference) at that position (both without gradient, in
    nats; the divergence is None without a reference). Padding may hold anything."""

    logp_BT: Tensor
    entropy_BT: Tensor
    kl_BT: Tensor | None

    def rows(self, index_B: Tensor) -> "Scores":
        """These rows, each as often as it is named."""
        kl_BT = None if self.kl_BT is None else self.kl_BT[index_B]
        return Scores(self.logp_BT[index_B], self.entropy_BT[index_B], kl_BT)


def score(
    model: PreTrainedModel, reference: PreTrainedModel | None, rows: Rows, temperature: float
) -> Scores:
    """One forward pass of the model, and one of the reference where there is one.

    The ratio π_θ/π_old is only right if the trainer and the sampler use the same temperature.
    Logits of more than LOGITS_AT_ONCE elements are never made as a whole, if the head is the plain
    one of a family in PLAIN_HEADS; fewer gain nothing from being made twice. Other families
    (a soft cap on the logits, a scale) keep the library's own path, with all logits in memory.
    """
    both = [model] if reference is None else [model, reference]
    logits = rows.input_ids.shape[0] * rows.response_length * model.config.vocab_size
    if logits > LOGITS_AT_ONCE and all(map(has_plain_head, both)):
        return _score_in_chunks(model, reference, rows, temperature)
    logp_BTV = tempered_logp(head_output(model, rows), temperature)
    targets_BT1 = rows.input_ids[:, -rows.response_length :, None]
    logp_BT = logp_BTV.gather(-1, targets_BT1).squeeze(-1)
    with torch.no_grad():
        reference_BTV = None
        if reference is not None:
            reference_BTV = tempered_logp(head_output(reference, rows), temperature)
        return Scores(logp_BT, *entropy_and_kl(logp_BTV, reference_BTV))


def has_plain_head(model: nn.Module) -> bool:
    """Whether the logits are exactly `lm_head` of the hidden states, a linear layer and no more."""
    if not isinstance(model, PLAIN_HEADS):
        return False
    return getattr(model.lm_head.forward, "__func__", None) is nn.Linear.forward


def _score_in_chunks(
    model: PreTrainedModel, reference: PreTrainedModel | None, rows: Rows, temperature: float
) -> Scores:
    """`score` with the head's own forward replaced, so that it returns scores and not logits.

    It runs inside the model's forward on purpose: only there are the weights whole if they are
    sharded over ranks (FSDP), and only there does the gradient find its way back to the shards.
    """
    live_BT = rows.attention_mask[:, -rows.response_length :].bool()
    target_N = rows.input_ids[:, -rows.response_length :][live_BT]
    others = {}
    if reference is not None:
        with torch.no_grad(), _head_forward(reference, lambda hidden_BTD: hidden_BTD):
            hidden_ND = head_output(reference, rows)[live_BT]
        weight_VD, bias_V = reference.lm_head.weight, reference.lm_head.bias
        others[REFERENCE] = Head(
            hidden_ND, whole(weight_VD), None if bias_V is None else whole(bias_V)
        )

    def scores_of(hidden_BTD: Tensor) -> Tensor:
        """What the library takes for logits: B x T x 2 or, with KL, 3. 0 at padding."""
        head = Head(hidden_BTD[live_BT], model.lm_head.weight, model.lm_head.bias)
        scores = token_scores(head, others, target_N, temperature, kl=bool(others))
        scores_NX = torch.stack([x_N for x_N in scores[:3] if x_N is not None], dim=-1)
        shape = (*live_BT.shape, scores_NX.shape[1])
        return scores_NX.new_zeros(shape).index_put((live_BT,), scores_NX)

    with _head_forward(model, scores_of):
        logp_BT, entropy_BT, *kl = head_output(model, rows).unbind(-1)
    return Scores(logp_BT, entropy_BT.detach(), kl[0].detach() if kl else None)


@contextmanager
def _head_forward(model: PreTrainedModel, forward: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """For a while the head computes `forward`; its weights, names and hooks stay as they are."""
    model.lm_head.forward = forward
    try:
        yield
    finally:
        del model.lm_head.forward
