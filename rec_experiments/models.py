"""Models and tokenizers, and the one forward pass that training and its metrics share."""

import math
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from huggingface_hub.errors import GatedRepoError
from jinja2 import TemplateError
from safetensors import SafetensorError
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaForCausalLM,
    MistralForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
)
from transformers.utils import logging

from rec_experiments.head import (
    LOGITS_AT_ONCE,
    Head,
    entropy_and_kl,
    tempered_logp,
    token_scores,
)
from rec_experiments.types import Message, Piece, Response, UserError

# float16 would need its loss scaled, or small gradients become 0.
DTYPES = ("float32", "bfloat16")
ATTENTIONS = ("eager", "sdpa", "flex_attention", *(f"flash_attention_{n}" for n in (2, 3, 4)))
# Families whose logits are `lm_head` of the hidden states and nothing after it.
PLAIN_HEADS = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
# "Today" of chat templates that name a date, so that a run does not depend on its day. It is the
# one that Llama 3's templates themselves fall back to.
TODAY = date(2024, 7, 26)
PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}"
    "{% if message['role'] == 'system' %}{{ '\\n' }}{% endif %}{% endfor %}"
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
    compute_dtype: ClassVar[str] = "float32"  # of so small a model no other is of use

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

    dtype: of weights, gradients and sampling. compute_dtype: of the trainer's forward and backward
    pass, under autocast; float32 for that of the weights. attention: implementation, as
    transformers names it. gradient_checkpointing: recompute activations in the backward pass.
    """

    path: str
    dtype: str
    compute_dtype: str
    attention: str
    gradient_checkpointing: bool

    def __post_init__(self) -> None:
        for name, allowed in (
            ("dtype", DTYPES), ("compute_dtype", DTYPES), ("attention", ATTENTIONS),
        ):  # fmt: skip
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)}: must be {', '.join(allowed)}")
        if self.attention.startswith("flash") and {self.dtype, self.compute_dtype} == {"float32"}:
            raise ValueError(
                f"attention={self.attention}: needs compute_dtype=bfloat16; in float32 use sdpa"
            )

    def tokenizer(self) -> PreTrainedTokenizerFast:
        return self._load(AutoTokenizer)

    def model(self) -> PreTrainedModel:
        try:
            model = self._load(
                AutoModelForCausalLM,
                dtype=getattr(torch, self.dtype),
                attn_implementation=self.attention,
            )
        except ImportError as error:  # the package of an attention
            raise UserError(
                f"model.attention={self.attention}: cannot be used here ({_first_line(error)}); "
                "sdpa needs nothing but torch"
            ) from error
        if self.gradient_checkpointing:
            model.gradient_checkpointing_enable()
        return model

    def _load(self, auto: Any, **options: Any) -> Any:
        if not sys.stderr.isatty():
            logging.disable_progress_bar()  # its redrawn line fills a log file
        try:
            return auto.from_pretrained(self.path, **options)
        except (OSError, ValueError, SafetensorError) as error:
            raise UserError(f"model.path={self.path}: {_advice(self.path, error)}") from error

    def describe(self) -> str:
        low = "" if self.compute_dtype == "float32" else f", computed in {self.compute_dtype}"
        return f"{self.path}, {self.dtype}{low}"


def _advice(path: str, error: Exception) -> str:
    """Why a model could not be loaded, and how to get it."""
    reason = _first_line(error)
    if Path(path).is_dir():
        return (
            f"the folder holds no model that can be loaded ({reason}); it needs config, weights "
            "and tokenizer, as save_pretrained writes them"
        )
    if path.startswith((".", "/", "~")):
        return "no such folder; give a folder with a model, or a hub name as OWNER/NAME"
    if isinstance(error.__cause__, GatedRepoError):
        return (
            f"is gated; accept its terms at https://huggingface.co/{path}, then set HF_TOKEN or "
            "run `hf auth login`"
        )
    return (
        f"cannot be fetched from the hub ({reason}); download it where there is a network with "
        f"`hf download {path} --local-dir FOLDER`, and give the folder"
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


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


# Stands for a model's turn where a chat template is rendered to see what follows one.
TURN = "\N{OBJECT REPLACEMENT CHARACTER}"


class Codec:
    """Text to tokens and back, as one model wants it.

    Raises UserError for a tokenizer without chat template, or a template that refuses a prompt.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, model: PreTrainedModel):
        self.tokenizer = tokenizer
        if not tokenizer.chat_template:
            raise UserError(
                f"model.path={tokenizer.name_or_path}: its tokenizer has no chat template; choose "
                "an instruct model, or put a chat_template.jinja into a local copy of this one"
            )
        stops = model.generation_config.eos_token_id  # several ids for some families
        stops = stops if isinstance(stops, list) else [stops]
        self.eos_ids = sorted({i for i in [*stops, tokenizer.eos_token_id] if i is not None})
        if not self.eos_ids:
            raise UserError(
                f"model.path={tokenizer.name_or_path}: names no end token, so no response would "
                "end; put eos_token_id into generation_config.json of a local copy"
            )
        # A model without a pad token never attends to it, so any id serves.
        self.pad_id = tokenizer.pad_token_id
        if self.pad_id is None:
            self.pad_id = self.eos_ids[0]
        self.context = model.config.max_position_embeddings
        # Templates of reasoning models open the reasoning themselves. The tag is part of what the
        # model says, so it stands before the response for whoever reads it.
        opened = re.search(r"<think>\s*\Z", self._render(({"role": "user", "content": "?"},)))
        self.opening = opened[0] if opened else ""

    def _render(self, messages: tuple[Message, ...]) -> str:
        try:
            return self.tokenizer.apply_chat_template(
                list(messages),
                tokenize=False,
                add_generation_prompt=True,
                strftime_now=TODAY.strftime,
            )
        except TemplateError as error:
            raise UserError(
                f"model.path={self.tokenizer.name_or_path}: its chat template refuses a prompt of "
                f"{' + '.join(message['role'] for message in messages)} ({_first_line(error)}); "
                "choose another model, or edit the template in a local copy"
            ) from error

    def encode(self, messages: tuple[Message, ...]) -> list[int]:
        return self.tokenizer.encode(self._render(messages), add_special_tokens=False)

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

    def encode_reply(self, text: str) -> list[int]:
        """What stands between two turns of the model: `text` as a user's message.

        It is all that the chat template puts after the end token of one turn and before the next,
        tokenised by itself. Raises UserError for a template that does not show the model's turns.
        """
        before = {"role": "user", "content": "?"}, {"role": "assistant", "content": TURN}
        rendered = self._render((*before, {"role": "user", "content": text}))
        _, shown, rest = rendered.partition(TURN)
        if not shown:
            raise UserError(
                "model: its chat template has no place for the turns of a conversation, which this "
                "data set needs; choose another model or another data set"
            )
        for end in self.tokenizer.convert_ids_to_tokens(self.eos_ids):  # the model wrote it
            if rest.lstrip().startswith(end):
                rest = rest.lstrip().removeprefix(end)
        return self.tokenizer.encode(rest, add_special_tokens=False)

    def decode(self, tokens: list[int]) -> str:
        """The text of a response, with the tag that the template opened for it."""
        return self.opening + self.tokenizer.decode(tokens, skip_special_tokens=True)

    def turns(self, response: Response) -> list[str]:
        """The texts of the policy's turns."""
        return [text for written, text in self._parts(response) if written]

    def transcript(self, response: Response) -> str:
        """The whole response as text for people, the environment's turns in ⟦ ⟧."""
        parts = self._parts(response)
        return "".join(text if written else f"⟦{text.strip()}⟧" for written, text in parts)

    def _parts(self, response: Response) -> list[tuple[bool, str]]:
        """Whether the policy wrote it, and its text, of each turn."""
        pairs = zip(response.mask, response.tokens, strict=True)
        parts = []
        for written, turn in groupby(pairs, key=lambda pair: pair[0]):
            tokens = [token for _, token in turn]
            text = self.decode(tokens)
            parts.append((written, text if written else text.removeprefix(self.opening)))
        return parts


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
    """What the head makes of the hidden state before each response token: logits, B x T x V."""
    positions = (rows.attention_mask.cumsum(1) - 1).clamp(min=0)
    return model(
        input_ids=rows.input_ids,
        attention_mask=rows.attention_mask,
        position_ids=positions,
        use_cache=False,
        logits_to_keep=rows.response_length + 1,
    ).logits[:, :-1]


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
    reference_head = None
    if reference is not None:
        with torch.no_grad(), _head_forward(reference, lambda hidden_BTD: hidden_BTD):
            hidden_ND = head_output(reference, rows)[live_BT]
        weight_VD, bias_V = reference.lm_head.weight, reference.lm_head.bias
        reference_head = Head(
            hidden_ND, _whole(weight_VD), None if bias_V is None else _whole(bias_V)
        )

    def scores_of(hidden_BSD: Tensor) -> Tensor:
        """What the library takes for logits: B x S x 2 or, with KL, 3; S = T + 1. 0 at padding."""
        live_BS = functional.pad(live_BT, (0, 1))
        head = Head(hidden_BSD[live_BS], model.lm_head.weight, model.lm_head.bias)
        scores = token_scores(head, reference_head, target_N, temperature)
        scores_NX = torch.stack([x_N for x_N in scores if x_N is not None], dim=-1)
        shape = (*live_BS.shape, scores_NX.shape[1])
        return scores_NX.new_zeros(shape).index_put((live_BS,), scores_NX)

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


def _whole(parameter: Tensor) -> Tensor:
    """The parameter, gathered from all ranks if it is sharded."""
    return parameter.full_tensor() if isinstance(parameter, DTensor) else parameter


def warm_start(
    model: nn.Module,
    rows: list[tuple[list[int], list[int], list[bool]]],
    pad_id: int,
    plan: WarmStart,
    on_step: Callable[[int, int], None] = lambda step, total: None,
) -> None:
    """Supervised learning of (prompt, response, mask), `plan.batch_size` a step, in order.

    Only the response tokens where the mask is True are learned.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=plan.learning_rate, betas=(0.9, 0.98))
    model.train()
    for step in range(plan.steps):
        for group in optimizer.param_groups:
            group["lr"] = plan.learning_rate * 0.5 * (1 + math.cos(math.pi * step / plan.steps))
        chunk = rows[step * plan.batch_size : (step + 1) * plan.batch_size]
        prompts, responses, masks = (list(column) for column in zip(*chunk, strict=True))
        batch = collate(prompts, responses, pad_id)
        logp_BT = score(model, None, batch, temperature=1.0).logp_BT
        mask_BT = nn.utils.rnn.pad_sequence([torch.tensor(m) for m in masks], batch_first=True)
        loss = -(logp_BT * mask_BT).sum() / mask_BT.sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        on_step(step + 1, plan.steps)
    model.zero_grad(set_to_none=True)  # nothing of it may reach the first step of the run
