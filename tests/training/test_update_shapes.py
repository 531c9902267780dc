"""Many shapes of update through one composition, each against the objective written out.

1. A model's gradient is that of the objective in float64, row by row, for any split into
   micro-batches and ranks, whether a piece reads its own rows or the whole mini-batch.
2. Several updates a batch, a moving average, replay and refill train as written out by hand.

tests/algo/test_field.py compares the losses themselves with their objectives.
"""

import copy
import dataclasses

import conftest
import numpy as np
import objectives as o
import pieces
import pytest
import torch
from conftest import SMALL, by_row, experiment
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils.rnn import pad_sequence
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

import rec_experiments
from rec_experiments.algo.regularizers import ExactKl
from rec_experiments.common.batch import Sequences, StepIndex
from rec_experiments.common.distributed import ALONE, whole
from rec_experiments.policy import logprobs
from rec_experiments.policy.batching import Limits, collate
from rec_experiments.policy.logprobs import ForwardPass, compute_logprobs
from rec_experiments.policy.models import Tiny
from rec_experiments.runs.prepare import prepare
from rec_experiments.runs.run_folder import RunFolder
from rec_experiments.training.gradient import GradientPass, MiniBatch
from rec_experiments.training.metrics import TokenLog
from rec_experiments.training.policies import BatchStart, Interpolated, MovingAverage
from rec_experiments.training.trainer import Trainer
from rec_experiments.training.updates import Updates

METHODS = sorted(pieces.METHODS)
INDEX = StepIndex(batch=0, epoch=0, mini_batch=0, step=3)
OBJECTIVES = {
    "ppo": lambda x: o.ppo(x, x.mean),
    "cispo": lambda x: o.cispo(x, x.mean, cap=1.3),
    "gspo": lambda x: o.gspo(x, x.standard, low=0.03, high=0.04),
    "topr": lambda x: o.taper(x, o.token_mean, x.mean),
    "m2po": lambda x: o.m2po(x, x.mean, threshold=0.02),
    "bapo": lambda x: o.bapo(x, x.mean, target=0.45),
    "decoupled_ppo": lambda x: o.decoupled_ppo(x, x.mean, x.proximal),
}


def exact_norm(self, hidden_states):
    """The library's norm without its cast to float32."""
    variance = hidden_states.pow(2).mean(-1, keepdim=True)
    return self.weight * hidden_states * torch.rsqrt(variance + self.variance_epsilon)


@pytest.fixture(scope="module")
def drawn(mini_batch):
    """The same with log-probabilities of a proximal policy."""
    model, rollouts = mini_batch
    rng = np.random.default_rng(0)
    proximal_BT = rollouts.logp_BT + 0.1 * torch.from_numpy(rng.normal(size=rollouts.mask_BT.shape))
    proximal_BT = proximal_BT.where(rollouts.live_BT, 0.0)
    return model, dataclasses.replace(rollouts, logps={"proximal": proximal_BT})


def logp_by_row(model, rollouts) -> list[torch.Tensor]:
    """Each row through the model by itself."""
    return [
        compute_logprobs(model, collate(Sequences.of([row.prompt], [row.tokens])), 1.0).logp_BT[0]
        for row in by_row(rollouts)
    ]


def gradient_by_hand(model, rollouts, objective) -> torch.Tensor:
    loss = objective(o.rows_of(rollouts, logp_by_row(model, rollouts)))
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, [*model.parameters()])])


def gradient_on(
    world, model, rollouts, algorithm, size, proximal=None, reference=None, temperature=1.0
):
    """The gradient as training computes it, and its metrics, on one rank or many."""
    Qwen2RMSNorm.forward, norm = exact_norm, Qwen2RMSNorm.forward
    try:
        model = world.split(copy.deepcopy(model))
        others = {} if reference is None else {"reference": world.split(copy.deepcopy(reference))}
        gradient = GradientPass(
            algorithm=algorithm,
            forward=ForwardPass(temperature=temperature, compute_dtype=torch.float32),
            limits=Limits(sequences=size, tokens=None),
            others=others,
            proximal=proximal,
            kl=bool(others),
            world=world,
        )
        log = gradient.accumulate(model, MiniBatch.of(rollouts, algorithm, INDEX, 0, model))
        log = TokenLog.joined(world.gather(log.cpu()))
        return torch.cat([whole(p.grad).flatten() for p in model.parameters()]), log.reduce()
    finally:
        Qwen2RMSNorm.forward = norm


def scaled(model):
    """Another policy: weights times 1.1."""
    other = copy.deepcopy(model).requires_grad_(False)
    for parameter in other.parameters():
        parameter.mul_(1.1)
    return other


@pytest.mark.parametrize("name", METHODS)
def test_gradient_by_hand(name, drawn, ranks, monkeypatch):
    """The same, written by hand, in micro-batches of 1, 3 and all, on one rank and on two."""
    found, rows, algorithm = {}, {}, pieces.method(name)
    proximal = BatchStart() if "proximal" in algorithm.needs.logps else None
    for size in (1, 3, None):
        given = (*drawn, algorithm, size, proximal)
        found[size], rows[size] = gradient_on(ALONE, *given)
        for rank, (together, row) in enumerate(ranks(gradient_on, *given)):
            found[size, rank], rows[size, rank] = together, row
    monkeypatch.setattr(Qwen2RMSNorm, "forward", exact_norm)
    expected = gradient_by_hand(*drawn, OBJECTIVES[name])
    largest = float(expected.abs().max())
    assert largest > 1e-4
    for how, gradient in found.items():
        torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-10 * largest, msg=str(how))
    for how, row in rows.items():
        assert row == pytest.approx(rows[None], rel=1e-9, abs=1e-12), how


# Presets with every piece that reads the whole mini-batch, the whole vocabulary or another policy.
# Those that see one row at a time are split without a model in tests/algo/test_field.py.
PRESETS = [
    "gspo", "red_drop", "copg", "bapo", "a3po", "ppo_ewma", "tis", "max_at_k_off_policy",
    "grpo regularizer=kl_exact", "scalerl", "clip_cov clip.fraction=0.2 clip.above=0",
    "kl_cov regularizer.fraction=0.2",
]  # fmt: skip


def with_all_policies(rollouts, computed: bool):
    """The rows as the trainer sees them after the sampler: κ and ρ on both sides of the bounds,
    rows of several versions. computed: the proximal policy comes with no batch."""
    rng = np.random.default_rng(1)
    noise = 0.2 * rng.normal(size=rollouts.mask_BT.shape) + np.linspace(-0.3, 0.3, 16)[:, None]
    recomputed_BT = (rollouts.logp_BT + torch.from_numpy(noise)).where(rollouts.live_BT, 0.0)
    logps = {"behavior": recomputed_BT} | ({} if computed else rollouts.logps)
    return dataclasses.replace(rollouts, logps=logps, version_BX=torch.arange(16)[:, None] % 4)


@pytest.mark.parametrize("preset", PRESETS)
def test_gradient_of_any_split(preset, drawn, ranks):
    """Into micro-batches of 1, 3 and all; and over two ranks."""
    model, rollouts = drawn
    algorithm = rec_experiments.algorithm(*preset.split())
    computed = isinstance(algorithm.proximal, Interpolated)
    batch = model, with_all_policies(rollouts, computed), algorithm.parts
    others = algorithm.proximal, scaled(model) if algorithm.parts.needs_reference else None
    expected, _ = gradient_on(ALONE, *batch, None, *others)
    largest = float(expected.abs().max())
    assert largest > 1e-4
    cuts = [gradient_on(ALONE, *batch, size, *others) for size in (1, 3)]
    cuts += ranks(gradient_on, *batch, 3, *others)
    for found, _ in cuts:
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10 * largest)


@pytest.mark.parametrize(("rows", "size"), [([3], None), ([0, 5, 9, 13], 2)])
def test_a_rank_without_rows(rows, size, drawn, ranks):
    model, rollouts = drawn
    algorithm = rec_experiments.algorithm("asymre").parts
    batch = model, rollouts.rows(torch.tensor(rows)), algorithm, size, None, scaled(model)
    alone, row = gradient_on(ALONE, *batch)
    assert alone.abs().max() > 1e-4
    for together, its_row in ranks(gradient_on, *batch):
        torch.testing.assert_close(together, alone, rtol=1e-12, atol=1e-15)
        assert its_row == pytest.approx(row, rel=1e-11, abs=1e-13)


EXTRAS = {  # a regulariser, and what it adds to each token's loss
    "spread": (pieces.Spread(), lambda kl, entropy: 0.3 * kl - 0.2 * entropy),
    "kl_exact": (ExactKl(beta=0.3), lambda kl, entropy: 0.3 * kl),
}


@pytest.mark.parametrize(
    ("whole_batch", "extra"), [(False, "spread"), (True, "spread"), (False, "kl_exact")]
)
def test_exact_entropy_and_kl(whole_batch, extra, drawn, monkeypatch):
    """By the library's own logits and autograd, row by row; and in any cut, in chunks or not."""
    monkeypatch.setattr(Qwen2RMSNorm, "forward", exact_norm)
    policy, rollouts = drawn
    reference = scaled(policy)
    model, rows = copy.deepcopy(policy), []
    for response in by_row(rollouts):
        prompt = response.prompt
        ids = torch.tensor([prompt + response.tokens])
        p, q = (
            torch.log_softmax(m(ids).logits[0, len(prompt) - 1 : -1] / 0.7, -1)
            for m in (model, reference)
        )
        entropy, kl = -(p.exp() * p).sum(-1), (p.exp() * (p - q.detach())).sum(-1)
        added = EXTRAS[extra][1](kl, entropy)
        rows.append((p[range(len(response.tokens)), response.tokens], added))
    x, name = o.rows_of(rollouts, [logp for logp, _ in rows]), "m2po" if whole_batch else "ppo"
    added = sum(each.sum() for _, each in rows) / x.mask.sum()
    (OBJECTIVES[name](x) + added).backward()
    expected = torch.cat([p.grad.flatten() for p in model.parameters()])
    largest = float(expected.abs().max())
    algorithm = pieces.compose(**pieces.METHODS[name], regularizer=EXTRAS[extra][0])
    for size, chunk in ((1, 1000), (3, 1000), (None, 1000), (None, 7), (3, 5)):
        monkeypatch.setattr(logprobs, "LOGITS_AT_ONCE", chunk * model.config.vocab_size)
        found, _ = gradient_on(ALONE, policy, rollouts, algorithm, size, None, reference, 0.7)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10 * largest)


def test_batch_start_with_exact_kl(tmp_path, monkeypatch):
    """The policy alone is scored there, so no KL may be asked for, though the loss has one."""
    overrides = ["ratio=proximal", "updates.epochs=2", "steps=4", "kl_every=0"]
    exp = experiment(*SMALL, *overrides)
    exp = dataclasses.replace(exp, regularizer=pieces.Spread())
    monkeypatch.setattr(logprobs, "LOGITS_AT_ONCE", 700)
    folder = RunFolder(tmp_path / "run")
    folder.start(exp.config(), {})
    assert prepare(exp).train(folder)


def test_batch_start_without_dropout(tmp_path, monkeypatch):
    """So it does not depend on what was drawn before: a resumed run is the uninterrupted one."""
    overrides = [
        "ratio=proximal", "weight=importance", "updates.epochs=2", "steps=4", "algo=asymre",
        "kl_every=0",
    ]  # fmt: skip
    build = Tiny.model

    def noisy(self):
        model = build(self)
        model.config.attention_dropout = 0.2
        for layer in model.model.layers:
            layer.self_attn.attention_dropout = 0.2
        return model

    monkeypatch.setattr(Tiny, "model", noisy)
    whole = conftest.run(tmp_path / "whole", *SMALL, *overrides)
    for until in (3, 4):
        with pytest.raises(KeyboardInterrupt):
            conftest.run(tmp_path / "cut", *SMALL, *overrides, until=until)
    conftest.assert_same_result(conftest.run(tmp_path / "cut", *SMALL, *overrides), whole)


@given(st.integers(1, 4), st.integers(1, 6), st.booleans(), st.integers(1, 12), st.integers(0, 60))
@settings(deadline=None)
def test_mini_batches_partition_groups(epochs, parts, shuffle, groups, update):
    updates = Updates(epochs=epochs, mini_batches=parts, shuffle=shuffle)
    index = updates.index_of(update)
    assert index.step == update == (index.batch * epochs + index.epoch) * parts + index.mini_batch
    assert index.epoch < epochs
    dealt = [
        g
        for part in range(parts)
        for g in updates.groups(index._replace(mini_batch=part), groups, 7)
    ]
    assert sorted(dealt) == list(range(groups))
    sizes = [len(updates.groups(index._replace(mini_batch=p), groups, 7)) for p in range(parts)]
    assert max(sizes) - min(sizes) <= 1


def test_shuffles_by_epoch_and_seed():
    updates = Updates(epochs=2, mini_batches=4, shuffle=True)
    orders = {
        tuple(updates.groups(StepIndex(batch, epoch, part, 0), 32, seed))
        for batch in range(2)
        for epoch in range(2)
        for part in range(4)
        for seed in range(2)
    }
    assert len(orders) == 2 * 2 * 4 * 2


# Whole runs, against the same written out: rows one by one, objectives, AdamW.

SHAPES = {
    "ppo": ("ppo", ["updates=ppo"]),
    "m2po": ("m2po", ["updates.epochs=2", "updates.mini_batches=2"]),
    "decoupled_ppo": ("decoupled_ppo", ["updates=ppo", "proximal=batch_start"]),
    "a3po": ("decoupled_ppo", ["sync.offset=2", "sync.interval=1", "proximal=interpolated"]),
    "replay of several updates": (
        "decoupled_ppo",
        [
            "buffer=replay", "buffer.reuse=1", "updates.epochs=2", "proximal=moving_average",
            "proximal.decay=0.6",
        ],
    ),
    "refill": ("ppo", ["buffer=refill", "updates.mini_batches=2"]),
}  # fmt: skip
RUN = (*SMALL, "steps=8", "sync.interval=2", "kl_every=0", "optimizer.learning_rate=0.01")


def shaped_run(name: str, folder, monkeypatch):
    """A float64 run of a method. Returns its experiment, trainer, the initial weights, and what
    each update was given: its batch and its index."""
    method, overrides = SHAPES[name]
    if method == "decoupled_ppo":
        overrides = ["ratio=proximal", *overrides]
    exp = dataclasses.replace(experiment(*RUN, *overrides), **pieces.METHODS[method])
    trainer = prepare(exp)
    for model in (trainer.model, *trainer.policies.models.values()):
        model.double()
    worker = trainer.rollouts.worker
    verify = worker.verifier
    worker.verifier = lambda items: [  # rewards that differ, so that there is a gradient
        dataclasses.replace(result, reward=float(len(text) % 3))
        for result, (text, _) in zip(verify(items), items, strict=True)
    ]
    start = copy.deepcopy(trainer.model)
    given, update = [], Trainer.update

    def spy(trainer, batch, index):
        given.append((batch, index))
        return update(trainer, batch, index)

    monkeypatch.setattr(Trainer, "update", spy)
    folder = RunFolder(folder)
    folder.start(exp.config(), {})
    assert trainer.train(folder)
    return exp, trainer, start, given


def run_by_hand(exp, model, given, objective):
    """The weights after the same updates, and how each moving average ends."""
    average, proximal, rule = copy.deepcopy(model), {}, exp.proximal
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.01)
    for batch, index in given:
        if index.epoch == index.mini_batch == 0:
            proximal = {id(batch): logp_by_row(model, batch)}
        chosen = exp.updates.groups(index, batch.groups, exp.seed)
        rows = [row for row, group in enumerate(batch.group_B.tolist()) if group in chosen]
        mini = dataclasses.replace(batch, logps={}).rows(torch.tensor(rows))
        x = o.rows_of(mini, logp_by_row(model, mini))
        if isinstance(rule, BatchStart):
            x.proximal = pad_sequence([proximal[id(batch)][row] for row in rows], batch_first=True)
        elif isinstance(rule, MovingAverage):
            x.proximal = pad_sequence(logp_by_row(average, mini), batch_first=True)
        else:
            stale_B = index.step - mini.version_BX[:, 0]
            share_B1 = (stale_B - rule.lag).clamp(min=0)[:, None] / stale_B.clamp(min=1)[:, None]
            x.proximal = x.behavior + share_B1 * (x.logp - x.behavior)
        optimizer.zero_grad()
        objective(x).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if isinstance(rule, MovingAverage):
            with torch.no_grad():
                for mine, theirs in zip(average.parameters(), model.parameters(), strict=True):
                    mine.copy_(rule.decay * mine + (1 - rule.decay) * theirs)
    return model, average


@pytest.mark.parametrize("name", sorted(SHAPES.keys() - {"ppo"}))  # refill has its updates
def test_run_by_hand(name, tmp_path, monkeypatch):
    monkeypatch.setattr(Qwen2RMSNorm, "forward", exact_norm)
    exp, trainer, model, given = shaped_run(name, tmp_path / "run", monkeypatch)
    before = [p.detach().clone() for p in model.parameters()]
    objective = OBJECTIVES[SHAPES[name][0]]
    expected, average = run_by_hand(exp, model, given, objective)
    moved = 0.0
    trained = zip(trainer.model.parameters(), expected.parameters(), before, strict=True)
    for mine, theirs, old in trained:
        moved = max(moved, float((theirs.detach() - old).abs().max()))
        torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-10)
    assert moved > 1e-3
    if isinstance(exp.proximal, MovingAverage):
        pairs = zip(
            trainer.policies.models["proximal"].parameters(), average.parameters(), strict=True
        )
        for mine, theirs in pairs:
            torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-10)
    rows = RunFolder(tmp_path / "run").metrics()[1:]
    assert [row["step"] for row in rows] == list(range(1, 9))
    for row, (batch, index) in zip(rows, given, strict=True):
        chosen = exp.updates.groups(index, batch.groups, exp.seed)
        stale = [index.step - row.version for row in by_row(batch) if row.group in chosen]
        found = [row[f"train/staleness{end}"] for end in ("", "_min", "_max")]
        assert found == [pytest.approx(np.mean(stale)), min(stale), max(stale)]


def test_staged_reference_resets_optimizer(tmp_path):
    """After 3 steps, with a swap before batch 2, the moments are those of one step, not three."""
    for choice, taken in (("staged", 1), ("swapped", 3)):
        overrides = (*SMALL, f"reference={choice}", "reference.swap_every=2")
        folder = conftest.run(tmp_path / choice, *overrides)
        state, _ = folder.load_checkpoint()
        moments = state["weights"]["optimizer"]
        assert {int(each["step"]) for each in moments.values()} == {taken}
