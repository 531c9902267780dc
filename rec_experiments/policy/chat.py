"""Text to tokens and back for one model: chat template, end tokens, turns."""

import re
from datetime import date
from itertools import groupby, takewhile
from typing import TYPE_CHECKING

import numpy as np
from jinja2 import TemplateError

from rec_experiments.common.errors import UserError, first_line
from rec_experiments.common.problems import Message

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

# The date in chat templates that name one, so that runs do not depend on the day: Llama 3's own
# default.
TODAY = date(2024, 7, 26)
# Placeholder for a turn of the model, to find what a chat template puts after one.
TURN = "\N{OBJECT REPLACEMENT CHARACTER}"
# The tag at the end of a prompt that opens reasoning, with what follows it: <think>, [THINK],
# ◁think▷, <|begin_of_thought|>.
_OPENED = re.compile(r"(<[\w:]+>|\[[A-Z]+\]|◁\w+▷|<\|begin_\w+\|>)([^<\[◁]*)\Z")
# Part of <pad>, [PAD], ｜▁pad▁｜. A padding token without one, as `!`, may belong to a response.
_MARKED = re.compile(r"[<\[|｜]")


class ChatTemplate:
    """The tokenizer and chat template of one model.

    Raises UserError for a tokenizer without a chat template or an end token, for a model whose
    configuration has no longest context, and if the template refuses a prompt.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerFast", model: "PreTrainedModel"):
        self.tokenizer = tokenizer
        if not tokenizer.chat_template:
            raise UserError(
                f"model.path={tokenizer.name_or_path}: its tokenizer has no chat template; choose "
                "an instruct model, or put a chat_template.jinja into a local copy of this one"
            )
        stops = model.generation_config.eos_token_id  # some families have several
        stops = stops if isinstance(stops, list) else [stops]
        self.eos_ids = sorted({i for i in [*stops, tokenizer.eos_token_id] if i is not None})
        if not self.eos_ids:
            raise UserError(
                f"model.path={tokenizer.name_or_path}: has no end token, so no response would "
                "end; put eos_token_id into generation_config.json of a local copy"
            )
        # Tokens that a response's text leaves out. Other special tokens stay: some tokenizers mark
        # <think>, <answer> or <tool_call> as special, and verifiers read them.
        self.unseen_ids = {*self.eos_ids, tokenizer.bos_token_id}
        pad = tokenizer.pad_token
        if pad and _MARKED.search(pad):
            self.unseen_ids.add(tokenizer.pad_token_id)
        context: int | None = getattr(model.config, "max_position_embeddings", None)
        if context is None:
            raise UserError(
                f"model.path={tokenizer.name_or_path}: its config.json has no "
                "max_position_embeddings, the longest context; add it to a local copy"
            )
        self.context = context
        # Templates of reasoning models open the reasoning themselves, each with its own tag. It
        # belongs to the response, so decoding adds it, always as <think>.
        self.opening, self.closing = self._reasoning()

    def _reasoning(self) -> tuple[str, str]:
        """What stands in front of a response, and the template's tag that ends its reasoning. Both
        are empty if the template does not open any."""
        question = {"role": "user", "content": "?"}
        prompt = self._render((question,))
        try:
            past = self._render((question, {"role": "assistant", "content": TURN}), prompts=False)
        except UserError:  # a template without turns of the model
            past = ""
        # What both texts begin with ends with the header of any turn of the model.
        pairs = zip(prompt, past.partition(TURN)[0], strict=False)
        header = len([*takewhile(lambda pair: pair[0] == pair[1], pairs)])
        opened = _OPENED.search(prompt, header)
        if opened is None:
            return "", ""
        tag, rest = opened.groups()
        closing = tag.replace("begin", "end") if "|" in tag else f"{tag[0]}/{tag[1:]}"
        return f"<think>{rest}", closing

    def _render(self, messages: tuple[Message, ...], prompts: bool = True) -> str:
        """prompts: whether the text ends where the model's next turn begins."""
        try:
            return self.tokenizer.apply_chat_template(
                list(messages),
                tokenize=False,
                add_generation_prompt=prompts,
                strftime_now=TODAY.strftime,
            )
        except (TemplateError, TypeError) as error:  # the latter: a variable of another type
            raise UserError(
                f"model.path={self.tokenizer.name_or_path}: its chat template refuses a prompt of "
                f"{' + '.join(message['role'] for message in messages)} ({first_line(error)}); "
                "choose another model, or edit the template in a local copy"
            ) from error

    def encode(self, messages: tuple[Message, ...]) -> list[int]:
        return self.tokenizer.encode(self._render(messages), add_special_tokens=False)

    def encode_all(self, prompts: list[tuple[Message, ...]]) -> list[list[int]]:
        """`encode` of each prompt, faster. There must be at least one."""
        texts = [self._render(messages) for messages in prompts]
        return self.tokenizer(texts, add_special_tokens=False, return_attention_mask=False)[
            "input_ids"
        ]

    def encode_response(self, text: str) -> list[int]:
        return [*self.tokenizer.encode(text, add_special_tokens=False), self.tokenizer.eos_token_id]

    def encode_reply(self, text: str) -> list[int]:
        """The tokens between two turns of the model, with `text` as a user's message.

        They are everything that the chat template puts between the end token of one turn and the
        next turn. Raises UserError for a template that omits the model's turns.
        """
        before = {"role": "user", "content": "?"}, {"role": "assistant", "content": TURN}
        rendered = self._render((*before, {"role": "user", "content": text}))
        _, shown, rest = rendered.partition(TURN)
        if not shown:
            raise UserError(
                "model: its chat template omits earlier turns of a conversation, which this "
                "data set needs; choose another model or another data set"
            )
        for end in self.tokenizer.convert_ids_to_tokens(self.eos_ids):  # the model wrote it
            if rest.lstrip().startswith(end):
                rest = rest.lstrip().removeprefix(end)
        return self.tokenizer.encode(rest, add_special_tokens=False)

    def decode(self, tokens: list[int]) -> str:
        """The text of a response. Reasoning that the template opened begins with <think> and ends
        with </think>, whatever the template's own tags are."""
        # As an array: checking each number of a list takes transformers longer than decoding.
        seen = [token for token in tokens if token not in self.unseen_ids]
        text = self.tokenizer.decode(np.array(seen, dtype=np.int64))
        return self.opening + (text.replace(self.closing, "</think>") if self.closing else text)

    def turns(self, tokens: list[int], mask: list[bool]) -> list[str]:
        """The texts of the policy's turns of a response, without the environment's. mask: True for
        tokens of the policy."""
        return [text for written, text in self._parts(tokens, mask) if written]

    def transcript(self, tokens: list[int], mask: list[bool]) -> str:
        """The whole response for display, with the environment's turns in ⟦ ⟧."""
        parts = self._parts(tokens, mask)
        return "".join(text if written else f"⟦{text.strip()}⟧" for written, text in parts)

    def _parts(self, tokens: list[int], mask: list[bool]) -> list[tuple[bool, str]]:
        """For each turn whether the policy wrote it, and its text."""
        pairs = zip(mask, tokens, strict=True)
        parts = []
        for written, turn in groupby(pairs, key=lambda pair: pair[0]):
            text = self.decode([token for _, token in turn])
            parts.append((written, text if written else text.removeprefix(self.opening)))
        return parts
