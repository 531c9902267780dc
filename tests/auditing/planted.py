"""Batches of a model that is sampled here, clean and with one fault each."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

import rec_experiments
from rec_experiments.common.batch import Sequences, padded
from rec_experiments.policy.logprobs import ForwardPass

Columns = dict[str, Any]
QUESTIONS = (
    "Hi!", "Say yes or no.", "What is 2 + 2?", "Name a color.", "Name a city.", "Who are you?",
    "Is fire hot?", "Count to five.",
)  # fmt: skip


@dataclass
class Lab:
    """A model with its prompts; `group` responses of up to `limit` tokens are drawn for each.

    rate: of the gradient steps between versions. start, behind: the model at the start, and one
    step before `model`.
    """

    model: PreTrainedModel
    prompts: list[list[int]]
    eos: int
    group: int = 8
    limit: int = 32
    rate: float = 3e-4
    start: PreTrainedModel = field(init=False)
    behind: PreTrainedModel = field(init=False)
    drawn: dict[tuple, Columns] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.start = self.behind = copy.deepcopy(self.model)

    def step(self, batch: Columns) -> None:
        """One gradient step of GRPO on a batch, which makes the next version."""
        self.behind, self.model = self.model, copy.deepcopy(self.model).train()
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.rate)
        for block in torch.arange(len(batch["tokens"])).split(32):
            rows = sequences(batch, block)
            width = rows.token_BT.shape[1]
            loss = rec_experiments.algorithm("grpo")(
                logp=self.forward()(self.model, rows).logp_BT,
                behavior_logp=batch["behavior_logp"][block, :width].float(),
                groups=batch["groups"][block],
                mask=batch["mask"][block, :width],
                advantages=batch["advantages"][block],
            ).loss
            loss.backward()
        optimizer.step()
        self.model.eval().requires_grad_(True)

    def forward(self, temperature: float = 1.0, dtype: torch.dtype = torch.float32) -> ForwardPass:
        return ForwardPass(temperature=temperature, compute_dtype=dtype)

    @torch.no_grad()
    def score(self, model: PreTrainedModel, batch: Columns, **how: Any) -> Tensor:
        """B x T of the tokens of a batch, by the trainer's forward pass."""
        found = torch.zeros(batch["tokens"].shape)
        for block in torch.arange(len(found)).split(16):
            rows = sequences(batch, block)
            logp_BT = self.forward(**how)(model, rows).logp_BT.float()
            found[block, : logp_BT.shape[1]] = logp_BT
        return found

    def batch(self, seed: int, drawn_by: PreTrainedModel | None = None, **how: Any) -> Columns:
        """A clean batch of the current policy at step 5, drawn by it or by another model, with all
        columns but the loss. Each is drawn once."""
        name = (seed, drawn_by, self.model, *how.items())
        if name not in self.drawn:
            self.drawn[name] = self._batch(seed, drawn_by or self.model, **how)
        return {**self.drawn[name]}

    def _batch(self, seed: int, drawn_by: PreTrainedModel, **how: Any) -> Columns:
        prompts = [prompt for prompt in self.prompts for _ in range(self.group)]
        tokens, logps, finished = sample(drawn_by, prompts, self.eos, self.limit, seed=seed, **how)
        found: Columns = {
            "prompts": prompts,
            "tokens": padded(tokens, torch.long),
            "mask": padded([[1] * len(row) for row in tokens], torch.bool),
            "sampler_logp": padded(logps, torch.float32),
            "finished": torch.tensor(finished),
            "groups": torch.arange(len(self.prompts)).repeat_interleave(self.group),
            "rewards": torch.tensor([float(sum(row) % 2) for row in tokens]),
            "versions": torch.full((len(tokens),), 5 if drawn_by is self.model else 4),
            "step": 5,
            "eos": self.eos,
        }
        found["advantages"] = standard(found["rewards"], found["groups"])
        found["logp"] = self.score(self.model, found)
        if drawn_by is self.model:
            found["behavior_logp"] = found["logp"].clone()
        else:
            found["behavior_logp"] = self.score(drawn_by, found)
        return found


def sequences(batch: Columns, rows: Tensor) -> Sequences:
    """Prompts and responses of these rows."""
    return Sequences.of([batch["prompts"][b] for b in rows], [unpadded(batch, b) for b in rows])


def unpadded(batch: Columns, row: Any) -> list[int]:
    return batch["tokens"][row][: int(batch["mask"][row].sum())].tolist()


def standard(rewards: Tensor, groups: Tensor) -> Tensor:
    """GRPO's advantages."""
    found = torch.zeros_like(rewards)
    for group in groups.unique():
        own = rewards[groups == group]
        found[groups == group] = (own - own.mean()) / (own.std() + 1e-6)
    return found


@torch.no_grad()
def sample(
    model: PreTrainedModel,
    prompts: list[list[int]],
    eos: int,
    limit: int,
    *,
    seed: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int | None = None,
    raw: bool = False,
) -> tuple[list[list[int]], list[list[float]], list[bool]]:
    """Tokens, log-probabilities of the distribution that is sampled (`raw`: of the model before
    temperature and truncation), and whether each response ended."""
    rng = torch.Generator().manual_seed(seed)
    ids = padded(prompts, torch.long, left=True)
    mask = padded([[1] * len(prompt) for prompt in prompts], torch.long, left=True)
    cache, done = None, torch.zeros(len(prompts), dtype=torch.bool)
    tokens, logps, lives = [], [], []
    for _ in range(limit):
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        out = model(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache,
            use_cache=True, logits_to_keep=1,
        )  # fmt: skip
        cache, logits = out.past_key_values, out.logits[:, -1].float()
        own = logits.log_softmax(-1)
        logits = logits / temperature
        if top_k is not None:
            logits = logits.masked_fill(logits < logits.topk(top_k).values[:, -1:], -torch.inf)
        if top_p < 1:
            ordered, order = logits.softmax(-1).sort(-1, descending=True)
            cut = ordered.cumsum(-1) - ordered >= top_p
            logits = logits.masked_fill(cut.gather(1, order.argsort(-1)), -torch.inf)
        chosen = logits.softmax(-1).multinomial(1, generator=rng)
        reported = own if raw else logits.log_softmax(-1)
        lives.append(~done)
        tokens.append(chosen[:, 0])
        logps.append(reported.gather(1, chosen)[:, 0])
        done = done | (chosen[:, 0] == eos)
        if done.all():
            break
        ids, mask = chosen, torch.cat([mask, torch.ones_like(chosen)], 1)
    live = torch.stack(lives, 1)
    return (
        [row[kept].tolist() for row, kept in zip(torch.stack(tokens, 1), live, strict=True)],
        [row[kept].tolist() for row, kept in zip(torch.stack(logps, 1), live, strict=True)],
        done.tolist(),
    )


# Losses, as trainers compute them -----------------------------------------------------------------


def loss(batch: Columns, micro: int | None = None, mean: str = "tokens", power: int = 1) -> float:
    """PPO's surrogate with truncated importance sampling for the sampler, in float32."""
    ratio = (batch["logp"] - batch["behavior_logp"]).exp()
    advantage = batch["advantages"][:, None].float()
    own = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    kappa = (batch["behavior_logp"] - batch["sampler_logp"]).exp().clamp(max=2.0)
    own = own * kappa**power * batch["mask"]
    parts = zip(own.split(micro or len(own)), batch["mask"].split(micro or len(own)), strict=True)
    if mean == "tokens":
        return float(torch.stack([x.sum() / m.sum() for x, m in parts]).mean())
    return float(torch.stack([(x.sum(1) / m.sum(1)).mean() for x, m in parts]).mean())


# Faults -------------------------------------------------------------------------------------------


def shifted(batch: Columns) -> Columns:
    return {**batch, "sampler_logp": batch["sampler_logp"].roll(1, 1)}


def corrupted(lab: Lab) -> PreTrainedModel:
    """One matrix in the middle of the model was not transferred."""
    model = copy.deepcopy(lab.model)
    matrices = [x for x in model.parameters() if x.ndim == 2]
    with torch.no_grad():
        matrices[len(matrices) // 2].normal_(0, float(matrices[len(matrices) // 2].std()))
    return model


def after_end(batch: Columns) -> Columns:
    """Padding counts, with log-probabilities as a forward pass would give them."""
    width = batch["tokens"].shape[1]
    tail = torch.arange(width) >= batch["mask"].sum(1)[:, None]
    tokens = batch["tokens"].masked_fill(tail, batch["eos"])
    found = {**batch, "tokens": tokens, "mask": torch.ones_like(batch["mask"])}
    for name in ("logp", "behavior_logp", "sampler_logp"):
        found[name] = batch[name].masked_fill(tail, -1.5)
    return found


def without_end(batch: Columns) -> Columns:
    last = torch.arange(batch["mask"].shape[1]) == batch["mask"].sum(1)[:, None] - 1
    return {**batch, "mask": batch["mask"] & ~(last & batch["finished"][:, None])}


def prompt_counts(lab: Lab, batch: Columns) -> Columns:
    """The prompt's tokens but the first stand before the response, and count."""
    rows = [
        (prompt[:1], prompt[1:] + unpadded(batch, b)) for b, prompt in enumerate(batch["prompts"])
    ]
    whole = {
        **{name: batch[name] for name in ("rewards", "groups", "advantages", "finished", "eos")},
        "versions": batch["versions"], "step": batch["step"],
        "prompts": [prompt for prompt, _ in rows],
        "tokens": padded([row for _, row in rows], torch.long),
        "mask": padded([[1] * len(row) for _, row in rows], torch.bool),
    }  # fmt: skip
    whole["logp"] = lab.score(lab.model, whole)
    return {**whole, "behavior_logp": whole["logp"], "groups": batch["groups"]}


def mixed(batch: Columns, prompts: bool) -> Columns:
    """Rows are numbered as if prompts alternated; with or without their prompts in the dump."""
    K = int((batch["groups"] == 0).sum())
    groups = torch.arange(len(batch["groups"])) % (len(batch["groups"]) // K)
    found = {**batch, "groups": groups, "advantages": standard(batch["rewards"], groups)}
    return found if prompts else {k: v for k, v in found.items() if k != "prompts"}


def slow_dropped(lab: Lab, seed: int) -> Columns:
    """The slower half of twice as many responses never arrives: time grows with length."""
    wide = replace(lab, prompts=2 * lab.prompts, drawn={})
    wide.start = lab.start
    batch = wide.batch(seed)
    noise = torch.randn(len(batch["tokens"]), generator=torch.manual_seed(seed))
    seconds = batch["mask"].sum(1) * (0.15 * noise).exp()
    kept = seconds.argsort()[: len(seconds) // 2].sort().values
    return {"group_size": lab.group, **rows_of(batch, kept)}


def rows_of(batch: Columns, kept: Tensor) -> Columns:
    found = {}
    for name, value in batch.items():
        if isinstance(value, Tensor):
            found[name] = value[kept]
        else:
            found[name] = [value[b] for b in kept] if isinstance(value, list) else value
    return found


def low_head(lab: Lab, batch: Columns) -> Tensor:
    """Log-probabilities of a head in bfloat16 on hidden states of float32."""
    model = copy.deepcopy(lab.model)
    head = model.lm_head

    def forward(hidden: Tensor) -> Tensor:
        return torch.nn.functional.linear(hidden.bfloat16(), head.weight.bfloat16()).float()

    head.forward = forward
    return lab.score(model, batch)


def plants(lab: Lab, seed: int) -> dict[str, tuple[str, Callable[[], Columns], bool]]:
    """Every fault by a name of its own: how the audit names it, how it is made, and whether the
    audit needs the model."""

    def with_loss(**how: Any) -> Columns:
        batch = lab.batch(seed, drawn_by=lab.behind)
        # A sampler that computes a little differently, as all do, so that corrections matter.
        noise = 0.02 * torch.randn(batch["tokens"].shape, generator=torch.manual_seed(seed))
        batch["sampler_logp"] = (batch["sampler_logp"] + noise).clamp(max=0)
        return {**batch, "dtype": "bfloat16", "loss": loss(batch, **how)}

    def lacking(batch: Columns, *names: str) -> Columns:
        return {k: v for k, v in batch.items() if k not in names}

    def as_current(batch: Columns) -> Columns:
        return {**batch, "versions": torch.full_like(batch["versions"], 5)}

    def first(batch: Columns) -> Columns:
        start = {"step": 0, "versions": torch.zeros_like(batch["versions"])}
        return {**batch, **start, "reference_logp": lab.score(lab.start, batch)}

    def bos_twice() -> Columns:
        twice = [[lab.eos, lab.eos, *prompt] for prompt in lab.prompts]
        again = replace(lab, prompts=twice, drawn={})
        again.start = lab.start
        return again.batch(seed)

    def drifting() -> Columns:
        batch = lab.batch(seed, drawn_by=lab.behind)
        return {**batch, "learning_rate": 0.0}

    def one_sign() -> Columns:
        batch = lab.batch(seed)
        return {**batch, "advantages": batch["rewards"]}

    def off_centre() -> Columns:
        batch = lab.batch(seed)
        return {**batch, "advantages": batch["rewards"] - 0.1 + 0.2 * (batch["rewards"] > 0)}

    return {
        "temperature 0.7": ("temperature", lambda: lab.batch(seed, temperature=0.7), False),
        "temperature 1.2, raw": (
            "temperature", lambda: lab.batch(seed, temperature=1.3, raw=True), True,
        ),
        "top-p 0.9": ("truncated sampling", lambda: lab.batch(seed, top_p=0.9), False),
        "top-p 0.9, raw": (
            "truncated sampling", lambda: lab.batch(seed, top_p=0.9, raw=True), True,
        ),
        "top-k 3": ("truncated sampling", lambda: lab.batch(seed, top_k=3), False),
        "micro-batches": ("normalisation", lambda: with_loss(micro=16), False),
        "per response": (
            "normalisation",
            lambda: {**with_loss(mean="responses"), "aggregation": "token_mean"},
            False,
        ),
        "drift at rate 0": ("drift at learning rate 0", drifting, False),
        "one version behind": (
            "weights of the sampler",
            lambda: {
                **(batch := as_current(lab.batch(seed, drawn_by=lab.behind))),
                "behavior_logp": batch["logp"],
            },
            False,
        ),
        "corrupted weights": (
            "weights of the sampler",
            lambda: {
                **(batch := as_current(lab.batch(seed, drawn_by=corrupted(lab)))),
                "behavior_logp": batch["logp"],
            },
            False,
        ),
        "shifted": ("shifted log-probabilities", lambda: shifted(lab.batch(seed)), False),
        "after the end": ("end token", lambda: after_end(lab.batch(seed)), False),
        "end left out": ("end token", lambda: without_end(lab.batch(seed)), False),
        "prompt counts": ("prompt tokens", lambda: prompt_counts(lab, lab.batch(seed)), False),
        "doubled BOS": ("doubled BOS", bos_twice, False),
        "mixed groups": ("mixed groups", lambda: mixed(lab.batch(seed), True), False),
        "mixed groups, no prompts": ("mixed groups", lambda: mixed(lab.batch(seed), False), False),
        "one sign": ("advantages", one_sign, False),
        "not centred": ("advantages", off_centre, False),
        "corrected twice": ("double correction", lambda: with_loss(power=2), False),
        "age miscounted": (
            "miscounted age", lambda: as_current(lab.batch(seed, drawn_by=lab.behind)), False,
        ),
        "old of the current": (
            "miscounted age",
            lambda: {
                **(batch := lab.batch(seed, drawn_by=lab.behind)), "behavior_logp": batch["logp"],
            },
            False,
        ),
        "slow dropped": ("short answers preferred", lambda: slow_dropped(lab, seed), False),
        "head in bfloat16": (
            "precision",
            lambda: {
                **(batch := lab.batch(seed)),
                **dict.fromkeys(("logp", "behavior_logp"), low_head(lab, batch)),
            },
            False,
        ),
        "reference moved": ("reference", lambda: first(lab.batch(seed)), False),
    }  # fmt: skip


def low(lab: Lab, seed: int) -> Columns:
    """A clean batch of a policy that both sides compute in bfloat16, each in its own way."""
    drawn_by = copy.deepcopy(lab.model).bfloat16()
    batch = lab.batch(seed, drawn_by=drawn_by)
    logp = lab.score(lab.model, batch, dtype=torch.bfloat16)
    return {
        **batch, "logp": logp, "behavior_logp": logp, "versions": torch.full((len(logp),), 5),
    }  # fmt: skip


def miniature(*overrides: str) -> Lab:
    """The tiny model after its warm start and three gradient steps."""
    from rec_experiments.runs.api import Experiment
    from rec_experiments.runs.prepare import prepare

    trainer = prepare(Experiment.compose("batch_size=8", *overrides).settings)
    worker = trainer.rollouts.worker
    prompts = worker.chat.encode_all([p.messages for p in trainer.rollouts.problems[:8]])
    return _started(Lab(trainer.model.eval(), prompts, worker.chat.eos_ids[0]), 3)


def smollm2() -> Lab:
    """SmolLM2-135M-Instruct after a gradient step, with short prompts."""
    from transformers import AutoTokenizer

    from rec_experiments.auditing.scoring import load
    from rec_experiments.policy import smollm2

    model = load(smollm2.make())
    tokenizer = AutoTokenizer.from_pretrained(smollm2.folder())
    turn = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    prompts = tokenizer([turn.format(question) for question in QUESTIONS])["input_ids"]
    return _started(Lab(model, prompts, tokenizer.eos_token_id, limit=16, rate=1e-5), 1)


def _started(lab: Lab, steps: int) -> Lab:
    for step in range(steps):
        lab.step(lab.batch(100 + step))
    return lab
