"""The same training as a plain loop over a transformers model: `plain_loop.py FOLDER NAME [ROWS]`.

`generate`, forward and backward passes over as many rows (by default the whole batch), clipped
surrogate, AdamW. It shares nothing between responses and skips nothing.
"""

import itertools
import sys
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from work import NEVER_CLIPPED, Pace, Work, keep_first_gradient

CLIP = 0.2


class Batch(NamedTuple):
    """ids, mask: B x (P + T). live: tokens of the responses, B x T. advantage: B x 1. old: log-
    probabilities of the version that drew them, B x T; None for the model's own."""

    ids: Tensor
    mask: Tensor
    live: Tensor
    advantage: Tensor
    old: Tensor | None


def logprobs(model: PreTrainedModel, ids: Tensor, mask: Tensor, T: int) -> Tensor:
    """Of the last T tokens, B x T."""
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    logits = model(
        input_ids=ids, attention_mask=mask, position_ids=positions, logits_to_keep=T + 1
    ).logits[:, :-1]
    return torch.log_softmax(logits, -1).gather(-1, ids[:, -T:, None]).squeeze(-1)


def left_padded(rows: list[list[int]], pad: int) -> tuple[Tensor, Tensor]:
    width = max(map(len, rows))
    ids = [[pad] * (width - len(row)) + row for row in rows]
    mask = [[0] * (width - len(row)) + [1] * len(row) for row in rows]
    return torch.tensor(ids), torch.tensor(mask)


class Drawer:
    """Draws all batches of one version at once."""

    def __init__(self, work: Work, pace: Pace, model: PreTrainedModel):
        self.work, self.pace, self.model = work, pace, model
        self.tokenizer = AutoTokenizer.from_pretrained(work.model)
        self.problems = work.problems()
        self.pad, self.eos = self.tokenizer.pad_token_id, self.tokenizer.eos_token_id

    def draw(self, number: int) -> list[Batch]:
        work, K = self.work, self.work.group_size
        count = work.per_version
        chosen = [self.problems[(number * count + i) % len(self.problems)] for i in range(count)]
        texts = [problem["prompt"] for problem in chosen]
        prompts = self.tokenizer(texts, add_special_tokens=False)["input_ids"]
        ids, mask = left_padded(prompts, self.pad)
        P = ids.shape[1]
        ids = self.generated(ids, mask) if number else self.given(prompts, ids)
        is_end = ids[:, P:] == self.eos
        live = is_end.cumsum(1) - is_end.int() == 0  # up to the first end token
        self.pace.tokens += int(live.sum())
        texts = self.tokenizer.batch_decode(
            ids[:, P:].where(live, self.pad), skip_special_tokens=True
        )
        answers = [problem["answer"] for problem in chosen for _ in range(K)]
        reward = torch.tensor(
            [work.reward(text, answer) for text, answer in zip(texts, answers, strict=True)]
        ).view(-1, K)
        advantage = (reward - reward.mean(1, keepdim=True)).view(-1, 1)
        whole = torch.cat([mask.repeat_interleave(K, 0), live.long()], 1)
        return [self.batch(*(x.split(work.rows)[i] for x in (ids, whole, live, advantage)))
                for i in range(work.interval)]  # fmt: skip

    def given(self, prompts: list[list[int]], ids: Tensor) -> Tensor:
        """The first draw is the one that all train on."""
        rows = [row["tokens"] for row in self.work.first_draw(prompts)]
        width = max(map(len, rows))
        written = torch.tensor([row + [self.pad] * (width - len(row)) for row in rows])
        return torch.cat([ids.repeat_interleave(self.work.group_size, 0), written], 1)

    def generated(self, ids: Tensor, mask: Tensor) -> Tensor:
        with self.pace.sampling():
            return self.model.generate(
                input_ids=ids, attention_mask=mask, do_sample=True, temperature=1.0, top_k=0,
                num_return_sequences=self.work.group_size, max_new_tokens=self.work.limit,
                eos_token_id=self.eos, pad_token_id=self.pad,
            )  # fmt: skip

    def batch(self, ids: Tensor, mask: Tensor, live: Tensor, advantage: Tensor) -> Batch:
        """The policy moves away from the batches that wait, so they keep its log-probabilities."""
        old = None
        if self.work.interval > 1:
            with torch.no_grad():
                old = logprobs(self.model, ids, mask, live.shape[1])
        return Batch(ids, mask, live, advantage, old)


def passes(batch: Batch, rows: int) -> Iterator[Batch]:
    """The batch in parts."""
    for i in range(0, len(batch.ids), rows):
        yield Batch(*(x if x is None else x[i : i + rows] for x in batch))


def loss(model: PreTrainedModel, batch: Batch, tokens: Tensor) -> Tensor:
    """GRPO's clipped surrogate, summed over tokens and divided by those of the whole batch."""
    logp = logprobs(model, batch.ids, batch.mask, batch.live.shape[1])
    ratio = (logp - (logp.detach() if batch.old is None else batch.old)).exp()
    clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
    surrogate = torch.minimum(ratio * batch.advantage, clipped * batch.advantage)
    return -(surrogate * batch.live).sum() / tokens


def run(work: Work, name: str, rows: int) -> None:
    pace = Pace()
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(work.model).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=work.learning_rate, weight_decay=0.01)
    drawer = Drawer(work, pace, model)
    keep_first_gradient(work, name, model)
    pace.ready()
    for number in itertools.count():
        for batch in drawer.draw(number):
            for part in passes(batch, rows):
                loss(model, part, batch.live.sum()).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), NEVER_CLIPPED)
            optimizer.step()
            optimizer.zero_grad()
            pace.stepped()


if __name__ == "__main__":
    shared = Work.load(sys.argv[1])
    run(shared, sys.argv[2], int(sys.argv[3]) if sys.argv[3:] else shared.rows)
