"""One whole off-policy run in one file: REC-OneSide-NoIS under any (interval, offset).

    python notebooks/one_run.py

It gives the numbers of `python -m rec_experiments sync=interval20` until rounding first changes a
token; a test compares the two over a few steps. It has no Hydra, checkpoints, ranks or caches. From
the package it takes what is not reinforcement learning: the task, the tiny model with its
supervised start, and the names of random numbers.

Sizes: B responses in a batch (prompts × K), P prompt tokens, T response tokens, V vocabulary.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
import yaml
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from rec_experiments.common import rng
from rec_experiments.common.batch import SampleKey
from rec_experiments.common.problems import Problem
from rec_experiments.datasets.reduction import Reduction
from rec_experiments.policy.chat import ChatTemplate
from rec_experiments.policy.models import Tiny, WarmStart
from rec_experiments.policy.warm_start import load_warm_start


@dataclass
class Settings:
    """Those of conf/config.yaml. interval, offset: when the sampler gets new weights."""

    seed: int = 0
    steps: int = 150
    prompts: int = 16
    group_size: int = 8  # K
    interval: int = 20
    offset: int = 0
    clip_low: float = 0.2
    clip_high: float = 0.2
    learning_rate: float = 3e-5
    eval_every: int = 15
    eval_problems: int = 256


@dataclass
class Batch:
    """B responses, padded. mask_BT: True where a token was sampled. logp_BT: log-probability of
    each token under the policy that drew it."""

    prompts: list[list[int]]
    tokens_BT: Tensor
    mask_BT: Tensor
    logp_BT: Tensor
    rewards_B: Tensor


# Which policy draws a batch: Section 4 of the paper -----------------------------------------------


def version_of(batch: int, interval: int, offset: int) -> int:
    """Return the number of gradient steps behind the policy that draws this batch."""
    return max(0, batch - batch % interval - offset)


# Rollouts ----------------------------------------------------------------------------------------


def left_padded(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Return tokens and attention mask, B × the longest row. Padding is never attended to."""
    width = max(map(len, rows))
    tokens = torch.tensor([[0] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    return tokens, mask


def choose(logits_BV: Tensor, uniform_B: Tensor) -> Tensor:
    """Return a token for each row by inverse CDF."""
    cdf_BV = logits_BV.double().softmax(-1).cumsum(-1)
    at_B1 = uniform_B[:, None] * cdf_BV[:, -1:]
    return torch.searchsorted(cdf_BV, at_B1, right=True)[:, 0]


@torch.no_grad()
def sample(
    model: PreTrainedModel,
    chat: ChatTemplate,
    prompts: list[list[int]],
    keys: list[SampleKey],
    limit: int,
) -> tuple[Tensor, Tensor]:
    """Return responses of up to `limit` tokens and their mask, both B × T.

    A key names the uniform numbers of a response, so it is the same in any batch.
    """
    tokens_BP, attention_BP = left_padded(prompts)
    uniform_TB = torch.from_numpy(rng.uniforms(keys, limit))
    cache, position_BP = (
        DynamicCache(config=model.config),
        (attention_BP.cumsum(1) - 1).clamp(min=0),
    )
    alive_B = torch.ones(len(prompts), dtype=torch.bool)
    columns, masks = [], []
    for uniform_B in uniform_TB:
        logits_BV = model(
            input_ids=tokens_BP,
            attention_mask=attention_BP,
            position_ids=position_BP,
            past_key_values=cache,
        ).logits[:, -1]
        token_B = choose(logits_BV, uniform_B)
        columns.append(token_B)
        masks.append(alive_B)
        alive_B = alive_B & ~torch.isin(token_B, torch.tensor(chat.eos_ids))
        if not alive_B.any():
            break
        tokens_BP, position_BP = token_B[:, None], position_BP[:, -1:] + 1
        attention_BP = torch.cat([attention_BP, torch.ones_like(tokens_BP)], dim=1)
    return torch.stack(columns, 1), torch.stack(masks, 1)


def logprobs(model: PreTrainedModel, batch: Batch) -> Tensor:
    """Return the log-probability of each response token under the model, B × T."""
    tokens_BP, attention_BP = left_padded(batch.prompts)
    tokens_BL = torch.cat([tokens_BP, batch.tokens_BT], dim=1)
    attention_BL = torch.cat([attention_BP, batch.mask_BT.long()], dim=1)
    position_BL = (attention_BL.cumsum(1) - 1).clamp(min=0)
    first = tokens_BP.shape[1] - 1  # a token is predicted at the position before it
    logits_BTV = model(
        input_ids=tokens_BL, attention_mask=attention_BL, position_ids=position_BL
    ).logits[:, first:-1]
    return logits_BTV.log_softmax(-1).gather(2, batch.tokens_BT[:, :, None])[:, :, 0]


def rollouts(
    policy: PreTrainedModel,
    chat: ChatTemplate,
    task: Reduction,
    problems: list[Problem],
    keys: list[SampleKey],
) -> Batch:
    """Return one verified response to each problem."""
    prompts = chat.encode_all([problem.messages for problem in problems])
    tokens_BT, mask_BT = sample(policy, chat, prompts, keys, task.max_response_tokens)
    texts = [chat.decode(row[mask].tolist()) for row, mask in zip(tokens_BT, mask_BT, strict=True)]
    rewards = [
        task.verify(text, problem.answer).reward
        for text, problem in zip(texts, problems, strict=True)
    ]
    batch = Batch(prompts, tokens_BT, mask_BT, torch.empty(0), torch.tensor(rewards))
    with torch.no_grad():
        batch.logp_BT = logprobs(policy, batch)
    return batch


# The algorithm ------------------------------------------------------------------------------------


def group_advantages(rewards_B: Tensor, group_size: int) -> Tensor:
    """Return the reward minus the mean reward of the responses to the same prompt (Eq. 1)."""
    rewards_GK = rewards_B.double().view(-1, group_size)
    return (rewards_GK - rewards_GK.mean(1, keepdim=True)).view(-1)


def rec_one_side(
    logp_BT: Tensor, batch: Batch, advantage_B: Tensor, low: float, high: float
) -> Tensor:
    """Return the loss of REC-OneSide-NoIS: REINFORCE on the tokens that are not clipped, without
    importance weights, as a mean over all response tokens (Section 4.1)."""
    ratio_BT = (logp_BT.detach() - batch.logp_BT).exp()
    advantage_B1 = advantage_B[:, None].float()
    too_likely_BT = (advantage_B1 > 0) & (ratio_BT > 1 + high)
    too_unlikely_BT = (advantage_B1 < 0) & (ratio_BT < 1 - low)
    kept_BT = batch.mask_BT & ~too_likely_BT & ~too_unlikely_BT
    return -(advantage_B1 * logp_BT * kept_BT).sum() / batch.mask_BT.sum()


# The run ------------------------------------------------------------------------------------------


def defaults(name: str) -> dict:
    """Return the values of a file of conf."""
    values = yaml.safe_load((Path(__file__).parent.parent / "conf" / f"{name}.yaml").read_text())
    del values["_target_"]
    return values


def requests(
    step: int, train: list[Problem], settings: Settings
) -> tuple[list[Problem], list[SampleKey]]:
    """Return the problems of a batch, each K times, and the names of their random numbers.

    Each epoch has an order of its own.
    """
    seed, size = settings.seed, settings.prompts
    places = [divmod(place, len(train)) for place in range(step * size, (step + 1) * size)]
    orders = {
        epoch: rng.generator(seed, rng.ORDER, epoch).permutation(len(train)) for epoch, _ in places
    }
    problems = [train[orders[epoch][place]] for epoch, place in places]
    ks = range(settings.group_size)
    keys = [SampleKey(seed, rng.TRAIN, step, group, k) for group in range(size) for k in ks]
    return [problem for problem in problems for _ in ks], keys


def run(settings: Settings, warm_steps: int | None = None, **task_values: int) -> list[dict]:
    """Train; return a row per gradient step with the training reward and, where it was evaluated,
    the accuracy.

    warm_steps: supervised steps before, None for those of conf. task_values: values of the task
    that replace those in conf.
    """
    torch.set_num_threads(1)
    task = Reduction(**defaults("dataset/reduction") | task_values)
    values = defaults("model/tiny")
    warm = values.pop("warm_start") | ({} if warm_steps is None else {"steps": warm_steps})
    source = Tiny(**values, warm_start=WarmStart(**warm))
    model = source.model()
    chat = ChatTemplate(source.tokenizer(), model)
    train, held_out = task.load()
    load_warm_start(source, task, model, chat, train, print, lambda step, total: None)

    def state() -> dict[str, Tensor]:
        return {name: value.clone() for name, value in model.state_dict().items()}

    def accuracy(step: int) -> float:
        problems = held_out[: settings.eval_problems]
        keys = [SampleKey(settings.seed, rng.EVAL, step, n, 0) for n in range(len(problems))]
        return float(rollouts(model, chat, task, problems, keys).rewards_B.double().mean())

    sampler = source.model()  # the policy that draws; its weights may be old
    history = {0: state()}  # the weights after each gradient step that some batch still needs
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.999), weight_decay=0.01
    )
    rows = [{"step": 0, "accuracy": accuracy(0)}]
    for step in range(settings.steps):
        version = version_of(step, settings.interval, settings.offset)
        sampler.load_state_dict(history[version])
        batch = rollouts(sampler, chat, task, *requests(step, train, settings))
        advantage_B = group_advantages(batch.rewards_B, settings.group_size)
        logp_BT = logprobs(model, batch)
        loss = rec_one_side(logp_BT, batch, advantage_B, settings.clip_low, settings.clip_high)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        history[step + 1] = state()
        needed = version_of(step + 1, settings.interval, settings.offset)
        history = {each: weights for each, weights in history.items() if each >= needed}
        rows.append({"step": step + 1, "reward": float(batch.rewards_B.double().mean())})
        if (step + 1) % settings.eval_every == 0 or step + 1 == settings.steps:
            rows[-1]["accuracy"] = accuracy(step + 1)
            print(f"step {step + 1}  accuracy {rows[-1]['accuracy']:.3f}  age {step - version}")
    return rows


if __name__ == "__main__":
    run(Settings())
