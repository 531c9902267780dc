"""Models and tokenizers, and the one forward pass that training and its metrics share."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from rec_experiments.types import Message, Piece, UserError

DTYPES = ("float32", "bfloat16", "float16")
PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}"
    "{% if not loop.last %}\n{% endif %}{% endfor %}"
)


@dataclass(kw_only=True, slots=True)
class WarmStart:
    """A short supervised phase for a model that starts from nothing.

    steps: gradient steps. batch_size: demonstrations in each. learning_rate: the peak of a cosine.
    seed: of initialisation, author and order; not the seed of a run, which all start alike.
    """

    steps: int
    batch_size: int
    learning_rate: float
    seed: int

    def __post_init__(self) -> None:
        if self.steps < 0 or self.batch_size < 1 or not self.learning_rate > 0 or self.seed < 0:
            raise ValueError(
                f"warm_start={self}: steps and seed must be at least 0, batch_size at least 1, "
                "learning_rate greater than 0"
            )


@dataclass(kw_only=True, slots=True)
class Tiny(Piece):
    """A small Qwen2 over bytes, made on the spot: nothing to download.

    hidden_size, layers, heads, intermediate_size: as in Qwen2. init_std: standard deviation of the
    initial weights. context: tokens of prompt and response together.
    """

    hidden_size: int
    layers: int
    heads: int
    intermediate_size: int
    init_std: float
    context: int
    warm_start: WarmStart

    def __post_init__(self) -> None:
        for name in ("hidden_size", "layers", "heads", "intermediate_size", "context"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")
        if self.hidden_size % (2 * self.heads):
            raise ValueError(
                f"heads={self.heads}: 2 x heads must divide hidden_size={self.hidden_size}"
            )
        if not self.init_std > 0:
            raise ValueError(f"init_std={self.init_std}: must be greater than 0")

    def tokenizer(self) -> PreTrainedTokenizerFast:
        return byte_tokenizer()

    def model(self) -> PreTrainedModel:
        tokenizer = self.tokenizer()
        torch.manual_seed(self.warm_start.seed)
        return Qwen2ForCausalLM(
            Qwen2Config(
                vocab_size=len(tokenizer),
                hidden_size=self.hidden_size,
                intermediate_size=self.intermediate_size,
                num_hidden_layers=self.layers,
                num_attention_heads=self.heads,
                num_key_value_heads=self.heads,
                max_position_embeddings=self.context,
                initializer_range=self.init_std,
                tie_word_embeddings=True,
                bos_token_id=None,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
            )
        )

    def describe(self) -> str:
        return f"tiny Qwen2, {self.layers} layers of width {self.hidden_size}, bytes as tokens"


@dataclass(kw_only=True, slots=True)
class Pretrained(Piece):
    """A causal language model of transformers: a hub name or a local folder.

    dtype: weights and arithmetic, as torch names it. attention: implementation, as transformers
    names it. gradient_checkpointing: recompute activations in the backward pass.
    """

    path: str
    dtype: str
    attention: str
    gradient_checkpointing: bool

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype={self.dtype}: must be {', '.join(DTYPES)}")

    def tokenizer(self) -> PreTrainedTokenizerFast:
        return self._load(AutoTokenizer)

    def model(self) -> PreTrainedModel:
        model = self._load(
            AutoModelForCausalLM,
            dtype=getattr(torch, self.dtype),
            attn_implementation=self.attention,
        )
        if self.gradient_checkpointing:
            model.gradient_checkpointing_enable()
        return model

    def _load(self, auto: Any, **options: Any) -> Any:
        try:
            return auto.from_pretrained(self.path, **options)
        except (OSError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise UserError(
                f"model.path={self.path}: cannot be loaded ({reason}); give a local folder, or a "
                "hub name that this machine can reach and, for a gated model, a token (HF_TOKEN)"
            ) from error

    def describe(self) -> str:
        return f"{self.path}, {self.dtype}"


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, so that any text runs through it; plus <pad> and <eos>."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: i for i, symbol in enumerate(["<pad>", "<eos>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", padding_side="left"
    )
    fast.chat_template = PLAIN_TEMPLATE
    return fast


class Codec:
    """Text to tokens and back, as one model wants it."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, model: PreTrainedModel):
        self.tokenizer = tokenizer
        stops = model.generation_config.eos_token_id  # several ids for some families
        stops = stops if isinstance(stops, list) else [stops]
        self.eos_ids = sorted({i for i in [*stops, tokenizer.eos_token_id] if i is not None})
        # A model without a pad token never attends to it, so any id serves.
        self.pad_id = tokenizer.pad_token_id
        if self.pad_id is None:
            self.pad_id = self.eos_ids[0]
        self.context = model.config.max_position_embeddings

    def encode(self, messages: tuple[Message, ...]) -> list[int]:
        text = self.tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=True
        )
        return self.tokenizer.encode(text, add_special_tokens=False)

    def encode_all(self, prompts: list[tuple[Message, ...]]) -> list[list[int]]:
        """At least one prompt, each as `encode` has it; many at once take half the time."""
        texts = self.tokenizer.apply_chat_template(
            [list(messages) for messages in prompts], tokenize=False, add_generation_prompt=True
        )
        return self.tokenizer(texts, add_special_tokens=False, return_attention_mask=False)[
            "input_ids"
        ]

    def encode_response(self, text: str) -> list[int]:
        return [*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id]

    def decode(self, tokens: list[int]) -> str:
        return self.tokenizer.decode(tokens, skip_special_tokens=True)


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


def response_logp(model: nn.Module, rows: Rows, temperature: float) -> Tensor:
    """Log-probabilities of every token at every response position, B x T x V, at `temperature`.

    The ratio π_θ/π_old is only right if the trainer and the sampler use the same temperature.
    """
    positions = (rows.attention_mask.cumsum(1) - 1).clamp(min=0)
    logits_BTV = model(
        input_ids=rows.input_ids,
        attention_mask=rows.attention_mask,
        position_ids=positions,
        use_cache=False,
        logits_to_keep=rows.response_length + 1,
    ).logits[:, :-1]
    precise = torch.promote_types(logits_BTV.dtype, torch.float32)
    return torch.log_softmax(logits_BTV.to(precise) / temperature, dim=-1)


class Scores(NamedTuple):
    """Of each response token, B x T: its log-probability (differentiable), and the entropy of the
    policy and its divergence KL(π_θ ‖ π_reference) at that position (both without gradient, in
    nats; the divergence is None without a reference)."""

    logp_BT: Tensor
    entropy_BT: Tensor
    kl_BT: Tensor | None


def score(model: nn.Module, reference: nn.Module | None, rows: Rows, temperature: float) -> Scores:
    """One forward pass of the model, and one of the reference where there is one."""
    logp_BTV = response_logp(model, rows, temperature)
    targets_BT1 = rows.input_ids[:, -rows.response_length :, None]
    logp_BT = logp_BTV.gather(-1, targets_BT1).squeeze(-1)
    with torch.no_grad():
        p_BTV = logp_BTV.exp()
        entropy_BT = -(p_BTV * logp_BTV).sum(-1)
        kl_BT = None
        if reference is not None:
            reference_BTV = response_logp(reference, rows, temperature)
            kl_BT = (p_BTV * (logp_BTV - reference_BTV)).sum(-1)
    return Scores(logp_BT, entropy_BT, kl_BT)


def warm_start(
    model: nn.Module,
    rows: list[tuple[list[int], list[int]]],
    pad_id: int,
    plan: WarmStart,
    on_step: Callable[[int, int], None] = lambda step, total: None,
) -> None:
    """Supervised learning of (prompt, response) token pairs, `plan.batch_size` a step, in order."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=plan.learning_rate, betas=(0.9, 0.98))
    model.train()
    for step in range(plan.steps):
        for group in optimizer.param_groups:
            group["lr"] = plan.learning_rate * 0.5 * (1 + math.cos(math.pi * step / plan.steps))
        chunk = rows[step * plan.batch_size : (step + 1) * plan.batch_size]
        batch = collate(
            [prompt for prompt, _ in chunk], [response for _, response in chunk], pad_id
        )
        logp_BT = score(model, None, batch, temperature=1.0).logp_BT
        mask_BT = batch.attention_mask[:, -batch.response_length :]
        loss = -(logp_BT * mask_BT).sum() / mask_BT.sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        on_step(step + 1, plan.steps)
    model.zero_grad(set_to_none=True)  # nothing of it may reach the first step of the run
