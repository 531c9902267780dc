"""Trajectories of several turns of policy and environment.

1. Loss, gradient and metrics depend only on the policy's tokens; the environment's are context.
2. The data set decides how a trajectory continues, within its limits; no token is changed.
3. Each turn has its own random numbers.
4. The tokens between two turns are those of the chat template.
5. The calculator: demonstrations, and a run that resumes bit for bit.
"""

import copy
import dataclasses
import json
from itertools import product
from types import SimpleNamespace

import numpy as np
import objectives as o
import pytest
import torch
from conftest import (
    SMALL,
    accumulate_gradient,
    assert_same_result,
    by_row,
    experiment,
    run,
    sample,
)

import rec_experiments
from rec_experiments.common import rng
from rec_experiments.common.batch import Responses, Rollouts, SampleKey
from rec_experiments.common.problems import MultiTurnDataset, Problem, VerifierResult
from rec_experiments.datasets.verifiers.verifier_pool import inline_verifier
from rec_experiments.policy.chat import ChatTemplate
from rec_experiments.policy.models import PLAIN_TEMPLATE, WarmStart, byte_tokenizer
from rec_experiments.policy.warm_start import trajectory, warm_start
from rec_experiments.rollout.reward import AsVerified
from rec_experiments.rollout.worker import LocalWorker, RolloutRequest, Snapshot
from rec_experiments.runs.prepare import prepare

EOS = 1


def tiny():
    torch.manual_seed(0)
    return experiment("model.hidden_size=16", "model.layers=1", "model.heads=2").model.model()


BARE = "{% for m in messages %}{{ m.content }}{% endfor %}"


def codec_of(template: str, eos: str) -> ChatTemplate:
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"eos_token": eos})
    tokenizer.chat_template = template
    model = SimpleNamespace(
        generation_config=SimpleNamespace(eos_token_id=[tokenizer.eos_token_id, EOS]),
        config=SimpleNamespace(max_position_embeddings=4096),
    )
    return ChatTemplate(tokenizer, model)


# 1. The environment's tokens are context

PROMPTS = [[5, 6, 7], [8, 9]]


def rollouts_of(masks: list[list[bool]], seed: int = 0) -> Rollouts:
    """Random trajectories with these masks, two prompts in turn, rewards 0, 1, 2, 0, 1, …"""
    draws = np.random.default_rng(seed)
    groups = [i % 2 for i in range(len(masks))]
    return Rollouts.verified(
        Responses.of(
            [draws.integers(2, 200, len(mask)).tolist() for mask in masks],
            [[float(draws.normal(-5.5, 0.5)) * written for written in mask] for mask in masks],
            masks=masks,
        ),
        prompts=[PROMPTS[group] for group in groups],
        groups=groups,
        results=[VerifierResult(reward=float(i % 3), accuracy=0.0) for i in range(len(masks))],
    )


def gradient_of(model, rollouts, *choices, reference=None, micro_batch_size=3):
    model = copy.deepcopy(model)
    log = accumulate_gradient(
        model,
        rollouts,
        rec_experiments.algorithm(*choices).parts,
        temperature=0.8,
        micro_batch_size=micro_batch_size,
        reference=reference,
    )
    return torch.cat([p.grad.flatten() for p in model.parameters()]), log.reduce()


@pytest.fixture(scope="module")
def model():
    return tiny().double()


PATTERNS = ("TTTFFTT", "TFT", "TTTTT", "TFFFTTFT", "TTF", "T")  # True: written by the policy
TRAJECTORIES = [[c == "T" for c in pattern] for pattern in PATTERNS]


@pytest.mark.parametrize("garbage", [float("nan"), -1e30])
@pytest.mark.parametrize(
    "choices",
    [("grpo",), ("opmd", "regularizer=opmd_token"), ("asymre",), ("red_drop",),
     ("grpo", "aggregation=sequence_mean")],
)  # fmt: skip
def test_environment_logp_is_never_read(model, garbage, choices):
    rollouts, reference = rollouts_of(TRAJECTORIES), copy.deepcopy(model)
    logp_BT = rollouts.logp_BT.where(rollouts.mask_BT, garbage)
    spoilt = dataclasses.replace(rollouts, logp_BT=logp_BT)
    gradient, log = gradient_of(model, rollouts, *choices, reference=reference)
    other, other_log = gradient_of(model, spoilt, *choices, reference=reference)
    assert gradient.isfinite().all()
    assert torch.equal(gradient, other)
    assert log == other_log


@pytest.mark.parametrize("weight", ["none", "importance"])
def test_gradient_of_the_policys_tokens(model, weight):
    """Against a loop over rows without padding: token-mean of A · ρ · ∇ log π, as of Eq. 17."""
    rollouts = rollouts_of(TRAJECTORIES)
    other = tiny().double()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.2)
    gradient, log = gradient_of(model, rollouts, "reinforce", f"weight={weight}", reference=other)

    mine, logp, entropies, divergences = copy.deepcopy(model), [], [], []
    for r in by_row(rollouts):
        ids = torch.tensor([r.prompt + r.tokens])
        now_TV, then_TV = (
            torch.log_softmax(m(ids).logits[0, len(r.prompt) - 1 : -1].double() / 0.8, -1)
            for m in (mine, other)
        )
        logp.append(now_TV[range(len(r.tokens)), r.tokens])
        entropies.append(-(now_TV.exp() * now_TV).sum(1)[r.mask].detach())
        divergences.append((now_TV.exp() * (now_TV - then_TV)).sum(1)[r.mask].detach())
    x = o.rows_of(rollouts, logp)
    ratio = o.sg(x.r)
    loss = o.token_mean(x, x.mean[:, None] * (ratio if weight == "importance" else 1) * x.logp)
    loss.backward()
    expected = torch.cat([p.grad.flatten() for p in mine.parameters()])
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-8)  # logp is kept in float32
    assert log["train/loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert log["train/entropy"] == pytest.approx(float(torch.cat(entropies).mean()), rel=1e-5)
    assert log["train/kl"] == pytest.approx(float(torch.cat(divergences).mean()), rel=1e-5)
    assert log["train/ratio_mean"] == pytest.approx(float(ratio[x.mask].mean()), rel=1e-5)


def test_warm_start_of_the_policys_tokens():
    """What an environment says last is no context of anything: it must not matter at all."""
    plan = WarmStart(steps=3, batch_size=2, learning_rate=1e-2, seed=0)
    starts = []
    for said, written in (([9, 9, 9], False), ([4, 5, 6], False), ([4, 5, 6], True)):
        model = tiny()
        mask = [True, False, True] + [written] * 3
        warm_start(model, [([7, 8], [10, 11, 12, *said], mask)] * 6, plan)
        starts.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(starts[0], starts[1])
    assert not torch.equal(starts[1], starts[2])


# 2. A trajectory turn by turn, with a sampler that reads from a script

LIMIT, MAX_TURNS = 16, 3


@dataclasses.dataclass
class Parrot:
    """Says `<number of turns>`, ends at a full stop; its verifier sees all turns."""

    max_prompt_tokens, max_response_tokens, max_turns = 8, LIMIT, MAX_TURNS
    verifier_workers, verifier_timeout = 0, 1.0

    def load(self):
        return [], []

    def describe(self):
        return "parrot"

    def reply(self, problem, turns):
        return None if turns[-1].endswith(".") else f"{problem.answer}{len(turns)}"

    def outcome(self, turns):
        return "|".join(turns)

    def verify(self, response, answer):
        return VerifierResult(reward=float(len(response)), accuracy=float("|" in response))


class Script:
    """Response k of group g, turn t, is `lines[g][k][t]`; it ends unless it says `…`."""

    def __init__(self, chat: ChatTemplate, lines: list[list[list[str]]]):
        self.chat, self.lines, self.calls = chat, lines, []

    def load(self, weights):
        pass

    def sample(self, prompts, keys, temperature):
        self.calls.append((prompts, keys))
        return Responses.joined([self._response(key) for named in keys for key in named])

    def _response(self, key: SampleKey) -> Responses:
        line = self.lines[key.group][key.response][key.turn]
        tokens = self.chat.encode_response(line.removesuffix("…"))
        tokens = tokens[: -1 if line.endswith("…") else None]
        logp = [-float(i + 1) - key.turn for i in range(len(tokens))]
        return Responses.of([tokens], [logp], [not line.endswith("…")])


def play(lines: list[list[list[str]]]) -> tuple[Rollouts, Script, ChatTemplate]:
    chat = codec_of(BARE, "<eos>")
    sampler, task = Script(chat, lines), Parrot()
    assert isinstance(task, MultiTurnDataset)
    problems = [Problem(({"role": "user", "content": f"{g}="},), str(g)) for g in range(len(lines))]
    keys = [
        [SampleKey(0, rng.TRAIN, 4, g, k) for k in range(len(named))]
        for g, named in enumerate(lines)
    ]
    adjust = AsVerified()
    worker = LocalWorker(sampler, chat, inline_verifier(task.verify), task, adjust)
    return worker.answer(Snapshot(4, {}), RolloutRequest(problems, keys, 1.0)), sampler, chat


LINES = [
    [
        ["a."],  # the environment has nothing to add
        ["ab", "c", "d."],
        ["a", "b", "c"],  # the last turn that is allowed
        ["abc…"],  # cut by the sampler
        ["a", "bc…"],
        ["abcdefghij", "kl.mn"],  # cut after three tokens of the second turn
    ],
    [
        ["abcdefghijklmn", "o."],  # 15 tokens, so that the reply is cut in its midst
        ["abcdefghijklm", "n."],  # the reply fills the last place
        ["abcdefghijkl", "m."],  # one token is left, and the sampler is given it
    ],
]
EXPECTED = [
    [
        ("a.", True, 1),
        ("ab⟦01⟧c⟦02⟧d.", True, 3),
        ("a⟦01⟧b⟦02⟧c", True, 3),
        ("abc", False, 1),
        ("a⟦01⟧bc", False, 2),
        ("abcdefghij⟦01⟧kl.", False, 2),
    ],
    [
        ("abcdefghijklmn⟦1⟧", False, 1),
        ("abcdefghijklm⟦11⟧", False, 1),
        ("abcdefghijkl⟦11⟧m", False, 2),
    ],
]


def test_trajectories():
    rollouts, _, chat = play(LINES)
    rows = by_row(rollouts)
    turns = rollouts.turns_B.tolist()
    found = [
        (chat.transcript(r.tokens, r.mask), r.finished, n) for r, n in zip(rows, turns, strict=True)
    ]
    assert found == [expected for group in EXPECTED for expected in group]
    assert rollouts.group_B.tolist() == [0] * 6 + [1] * 3
    for r in rows:
        assert len(r.tokens) <= LIMIT
        assert all(written or logp == 0 for written, logp in zip(r.mask, r.logp, strict=True))
    assert (rows[1].reward, rows[1].accuracy) == (len("ab|c|d."), 1.0)
    assert (rows[0].reward, rows[0].accuracy) == (len("a."), 0.0)


# 3. Random numbers


def test_random_numbers_of_turns():
    names = list(product([0, 1, 2, (1 << 32) - 1], repeat=2))
    keys = [SampleKey(0, rng.TRAIN, 1, 2, *name) for name in names]
    assert len({*map(tuple, rng.uniforms(keys, 4).T)}) == len(names)
    assert len({rng.integer(key) for key in keys}) == len(names)


# 4. Chat templates


CHAT_ML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HEADERS = (
    "{{ '<|begin|>' }}{% for m in messages %}<|head|>{{ m.role }}<|/head|>\n\n"
    "{{ m.content | trim }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|head|>assistant<|/head|>\n\n{% endif %}"
)
BRACKETS = (
    "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %} {{ m.content }} </s>{% endif %}{% endfor %}"
)
TEMPLATES = {
    "plain": (PLAIN_TEMPLATE, "<eos>", "out"),
    "chat-ml": (
        CHAT_ML, "<|im_end|>", "\n<|im_start|>user\nout<|im_end|>\n<|im_start|>assistant\n",
    ),
    "headers": (
        HEADERS, "<|eot|>",
        "<|head|>user<|/head|>\n\nout<|eot|><|head|>assistant<|/head|>\n\n",
    ),
    "brackets": (BRACKETS, "</s>", "[INST] out [/INST]"),
}  # fmt: skip


@pytest.mark.parametrize("name", TEMPLATES)
def test_template_between_turns(name):
    template, eos, expected = TEMPLATES[name]
    chat = codec_of(template, eos)
    reply = chat.encode_reply("out")
    assert chat.tokenizer.decode(reply) == expected
    messages = [
        {"role": "user", "content": "3+4="},
        {"role": "assistant", "content": "?3+4"},
        {"role": "user", "content": "out"},
    ]
    whole = chat.encode(tuple(messages))
    made = [*chat.encode(tuple(messages[:1])), *chat.encode_response("?3+4"), *reply]
    if name == "plain":  # it has no end token to show
        made.remove(chat.tokenizer.eos_token_id)
    text = chat.tokenizer.decode(made)
    assert text.replace(" ", "") == chat.tokenizer.decode(whole).replace(" ", "")
    assert made == whole or name == "brackets"  # there blanks stand around a turn


# 5. The calculator

CALCULATOR = (  # a warm start just long enough for trajectories of several turns
    "dataset=calculator",
    "model.warm_start.steps=80",
    "model.warm_start.batch_size=32",
    "model.warm_start.learning_rate=6e-3",
)


@pytest.fixture(scope="module")
def calculator():
    exp = experiment(*SMALL, *CALCULATOR)
    trainer = prepare(exp)
    keys = [[SampleKey(0, rng.TRAIN, 0, g, k) for k in range(4)] for g in range(6)]
    snapshot = Snapshot.of(trainer.model, 0)
    rollouts = trainer.rollouts.worker.answer(
        snapshot, RolloutRequest(trainer.rollouts.problems[:6], keys, 1.0)
    )
    assert max(rollouts.turns_B) >= 3
    return exp, trainer, rollouts


def test_each_turn_drawn_alone(calculator):
    """Each turn of each trajectory, drawn again alone from the tokens before it."""
    _, trainer, rollouts = calculator
    sampler = trainer.rollouts.worker.sampler
    seen = 0
    for i, r in enumerate(by_row(rollouts)):
        starts = [t for t in range(len(r.mask)) if r.mask[t] and not (t and r.mask[t - 1])]
        for turn, start in enumerate(starts):
            key = SampleKey(0, rng.TRAIN, 0, i // 4, i % 4, turn)
            [[again]] = sample(sampler, [r.prompt + r.tokens[:start]], [[key]], 1.0)
            n = min(len(again.tokens), len(r.tokens) - start)
            assert again.tokens[:n] == r.tokens[start : start + n]
            assert again.logp[:n] == pytest.approx(r.logp[start : start + n], abs=1e-4)
            seen += turn > 0
    assert seen > 5


def test_resume(tmp_path):
    overrides = (
        *SMALL, "algo=asymre", *CALCULATOR, "steps=6", "checkpoint_every=2", "sync=on_policy",
        "sync.offset=2",
    )  # fmt: skip
    whole = run(tmp_path / "whole", *overrides)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", *overrides, until=3)
    assert_same_result(run(tmp_path / "cut", *overrides), whole)
    rows = whole.metrics()
    assert all(row["train/turns"] > 2 for row in rows[1:])
    for row in rows[1:]:
        assert row["train/response_length"] * 16 == row["tokens/response"]
    shown = [json.loads(line)["response"] for line in (whole.path / "samples.jsonl").open()]
    assert any("⟦" in text for text in shown)


@pytest.mark.parametrize(
    ("turn", "reply"),
    [("?3+4", "7"), ("?7+7", "6"), ("?7*5", "3"), ("?9*9", "1"), ("3+4", None), ("?3+4 ", None),
     ("#7", None), ("?3-4", None), ("?33+4", None), ("?3+4\n", None), ("", None), ("?٣+4", None)],
)  # fmt: skip
def test_calculator_replies(turn, reply):
    task = experiment(*CALCULATOR).dataset
    problem = Problem((), "")
    assert task.reply(problem, [turn]) == task.reply(problem, ["?1+1", turn]) == reply


def test_demonstrations():
    """Each is what the environment would have said; a perfect author is always right."""
    sets = ("dataset.hard_error=0", "dataset.easy_error=0"), ()
    rates = []
    for overrides in sets:
        exp = experiment(*SMALL, *CALCULATOR, *overrides)
        task, chat = exp.dataset, ChatTemplate(byte_tokenizer(), tiny())
        problems = task.load()[0]
        right = []
        for i, said in task.demonstrations(problems, 300, 0):
            tokens, mask = trajectory(task, chat, problems[i], said)
            assert chat.turns(tokens, mask) == said
            assert len(tokens) <= task.max_response_tokens
            assert len(said) <= task.max_turns
            assert task.reply(problems[i], said) is None
            answer = task.verify(task.outcome(said), problems[i].answer)
            right.append(answer.accuracy)
        rates.append(np.mean(right))
    assert rates[0] == 1
    assert 0.3 < rates[1] < 0.6
