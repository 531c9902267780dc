"""`export-loss`: presets as losses of other trainers.

1. A loss that needs more than the trainer hands over is refused in one line, and nothing is
   written.
2. The files are Python whatever the names in them, and say what a loss leaves out.
3. prime-rl's interface, with a stand-in for its two dataclasses: the sum of all responses, divided
   by the tokens, has the gradient of the whole mini-batch. TRL and verl: tests/peers.
"""

import ast
import functools
import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from unittest import mock

import pytest
import torch
from conftest import refused
from torch import Tensor

import rec_experiments
from rec_experiments.cli import export_loss
from rec_experiments.cli.main import main
from rec_experiments.common.errors import UserError

composed = functools.cache(rec_experiments.algorithm)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            ("m2po", "--trainer=trl"),
            "m2po: its loss compares all responses of a mini-batch; TRL pas",
        ),
        (
            ("a3po", "--trainer=verl"),
            "a3po: its loss reads log-probabilities of the proximal policy",
        ),
        (
            ("gspo", "--trainer=prime_rl"),
            "gspo: its loss is a mean over responses; prime-rl divides",
        ),
        (("grpo", "--trainer=trl", "truncation=mask"), "grpo: its loss depends on which responses"),
        (
            ("grpo", "--trainer=trl", "regularizer=kl_exact"),
            "grpo: its loss reads the exact kl; TRL",
        ),
        (("grpo", "--trainer=trl", "--out=loss.txt"), "--out=loss.txt: the name must end in .py"),
        (("grpo", "--trainer=trl", "updates=twice"), "updates=twice: configures a run"),
        (("nothing", "--trainer=trl"), "algo=nothing: no such choice; allowed: a3po, aspo"),
    ],
    ids=" ".join,
)
def test_refused(words, reason, monkeypatch, capfd, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert reason in refused(["export-loss", *words], monkeypatch, capfd)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("preset", "carriers"),
    [
        ("rec_ring", {"trl": "tokens", "verl": "tokens", "prime_rl": "tokens"}),
        ("red_weight", {"trl": "tokens", "verl": "tokens", "prime_rl": "tokens"}),
        ("vespo", {"trl": "responses", "verl": "responses"}),
        ("tis", {"trl": "tokens"}),
        ("red_drop", {}),
        ("pairwise", {}),
        ("max_at_k_off_policy", {}),
        ("copg", {}),
    ],
)
def test_which_trainers_carry_a_preset(preset, carriers):
    found = {}
    for name, peer in export_loss.PEERS.items():
        try:
            found[name] = export_loss.carried(preset, composed(preset), peer)
        except UserError:
            continue
    assert found == carriers


@pytest.mark.parametrize("trainer", export_loss.PEERS)
def test_file(trainer, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        sys, "argv", ["", "export-loss", "dapo", f"--trainer={trainer}", "clip.low=.1"]
    )
    main()
    assert capsys.readouterr().out == f"rec_dapo_{trainer}.py: its first lines say how to use it\n"
    text = (tmp_path / f"rec_dapo_{trainer}.py").read_text()
    compile(text, "file", "exec")
    assert 'rec_experiments.algorithm("dapo", "clip.low=.1")' in text
    assert f"export-loss dapo --trainer {trainer} clip.low=.1\n" in text
    assert "A loss cannot carry the rest of the preset: `buffer` NoReplay (redraws 3)" in text
    assert "$" not in text
    assert max(map(len, text.splitlines())) <= 100


@dataclass
class LossInputs:
    """As in prime-rl 0.8."""

    trainer_logprobs: Tensor
    inference_logprobs: Tensor
    ref_logprobs: Tensor | None
    advantages: Tensor
    loss_mask: Tensor
    loss_weights: Tensor | None = None


def prime_rl(preset: str) -> ModuleType:
    """The file as a module."""
    stand_in = ModuleType("prime_rl.trainer.rl.loss")
    vars(stand_in).update(LossInputs=LossInputs, LossOutputs=SimpleNamespace)
    module = ModuleType("exported")
    with mock.patch.dict(sys.modules, {stand_in.__name__: stand_in}):
        exec(export_loss.text(preset, [], "prime_rl", "exported"), vars(module))
    return module


@pytest.mark.parametrize("preset", ["grpo", "rec_ring", "red_weight", "opmd"])
def test_prime_rl(preset):
    random = torch.Generator().manual_seed(3)
    mask = torch.arange(9) < torch.tensor([2, 9, 5, 1, 7, 0])[:, None]
    mask[:, :1] = False  # of a prompt
    behavior = -torch.rand(mask.shape, generator=random, dtype=torch.float64)
    logp = behavior + 0.3 * torch.randn(mask.shape, generator=random, dtype=torch.float64)
    advantages = torch.tensor([1.0, -1.0, 0.5, -0.5, 2.0, 1.0], dtype=torch.float64)
    whole, apart = logp.clone().requires_grad_(), logp.clone().requires_grad_()
    composed(preset)(
        logp=whole, behavior_logp=behavior, mask=mask, advantages=advantages,
        groups=torch.arange(6) // 3,
    ).loss.backward()  # fmt: skip
    exported = prime_rl(preset).loss
    outputs = [
        exported(
            LossInputs(apart[row], behavior[row], None, advantages[row] * mask[row], mask[row])
        )
        for row in range(6)
    ]
    (sum(out.loss for out in outputs) / mask.sum()).backward()
    assert whole.grad.abs().max() > 1e-3
    torch.testing.assert_close(apart.grad, whole.grad, rtol=1e-12, atol=1e-15)
    assert all(value.ndim == 0 for value in outputs[0].metrics.values())


def test_prime_rl_refuses_what_it_would_ignore():
    exported, x = prime_rl("grpo").loss, torch.full((3,), -1.0)
    live = torch.ones(3, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"^loss_weights: a weight per token"):
        exported(LossInputs(x, x, None, x, live, loss_weights=x))
    with pytest.raises(ValueError, match=r"^advantages must be the same at all live tokens"):
        exported(LossInputs(x, x, None, torch.arange(3.0), live))


@pytest.mark.parametrize("trainer", export_loss.PEERS)
def test_any_name_stays_in_the_docstring(trainer):
    hostile = 'a""" \\N{x} \'b\''
    quoted = hostile.replace("'", "\\'")
    text = export_loss.text("grpo", [f"algo.name='{quoted}'"], trainer, "exported")
    tree = ast.parse(text)
    assert ast.get_docstring(tree).startswith(f"{hostile} (Eq. 8), for ")
    kinds = {type(node) for node in tree.body[1:]}
    assert kinds <= {ast.Import, ast.ImportFrom, ast.Assign, ast.FunctionDef, ast.ClassDef}


def test_prime_rl_says_that_it_keeps_its_own_advantages():
    said = "A loss cannot carry the rest of the preset: `advantage` LengthWeighted."
    assert said in export_loss.text("opo", [], "prime_rl", "exported")
    assert said not in export_loss.text("opo", [], "verl", "exported")
