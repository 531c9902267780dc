"""verl's policy losses, advantages and corrections and this package: the same gradient, advantage
and weight for every token, method by method. And the other way round: what `export-loss` writes, in
verl's registries.

verl cannot be imported without ray and a cluster's packages, so its files of losses and corrections
are loaded alone; what they import beside PyTorch is stood in for by the few sums that they use.
Skipped where verl is not installed (pip install --no-deps verl).
"""

import dataclasses
import functools
import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest import mock

import pytest
import torch
from batches import batch, name, ours, rows, same

import rec_experiments
from rec_experiments.algo.loss import tokens
from rec_experiments.cli import export_loss

SPEC = importlib.util.find_spec("verl")
if SPEC is None:
    pytest.skip("verl is not installed: pip install --no-deps verl", allow_module_level=True)
PLACE = Path(SPEC.submodule_search_locations[0])
OF_A_LOSS = (  # settings below `policy_loss`
    "dro_beta", "clip_cov_ratio", "clip_cov_lb", "clip_cov_ub", "kl_cov_ratio", "ppo_kl_coef",
)  # fmt: skip


class Config(SimpleNamespace):
    """Of an actor: attributes, and `get`."""

    def get(self, key, default=None):
        return getattr(self, key, default)


def masked_sum(values, mask, axis=None):
    return (values * mask).sum(axis)


def masked_mean(values, mask, axis=None):
    return masked_sum(values, mask, axis) / mask.sum(axis)


def module(name: str, **contents) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(contents)
    return made


@functools.cache
def loaded(file: str) -> ModuleType:
    """A file of verl's trainer/ppo, by itself."""
    sums = module("verl.utils.torch_functional", masked_sum=masked_sum, masked_mean=masked_mean)
    utils = module("verl.utils", torch_functional=sums, as_torch_index=None, group_mean_std=None)
    stand_ins = [
        *map(module, ["verl", "verl.trainer", "verl.workers"]),
        utils,
        sums,
        module("verl.utils.import_utils", deprecated=lambda *_: lambda function: function),
        module("verl.trainer.config", AlgoConfig=type("AlgoConfig", (), {})),
        module("verl.trainer.config.algorithm", RolloutCorrectionConfig=Config),
        module("verl.workers.config", ActorConfig=Config),
        module("verl.workers.config.actor", PolicyLossConfig=Config),
        module("verl.protocol", DataProto=Config),
    ]
    spec = importlib.util.spec_from_file_location(f"verl_{file}", PLACE / f"trainer/ppo/{file}.py")
    found = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, {each.__name__: each for each in stand_ins}):
        spec.loader.exec_module(found)
    return found


losses = functools.partial(loaded, "core_algos")


def theirs(row: dict, x: dict) -> torch.Tensor:
    """∂ loss / ∂ logp of verl, B x T."""
    settings = {"clip_ratio": 0.2, "clip_ratio_low": None, "clip_ratio_high": None, **row["call"]}
    aggregation = settings.pop("aggregation", "token-mean")
    config = Config(
        global_batch_info={},
        policy_loss=SimpleNamespace(**{key: settings.pop(key, None) for key in OF_A_LOSS}),
        **settings,
    )
    logp = x["logp"].clone().requires_grad_()
    weights = None
    if row.get("given") == "sampler":
        weights = (x["behavior"] - x["sampler"]).exp().clamp(max=2.0)
    loss, _ = losses().get_policy_loss_fn(config.loss)(
        old_log_prob=x["behavior"],
        log_prob=logp,
        advantages=x["advantages"][:, None].expand_as(logp),
        response_mask=x["mask"].to(logp.dtype),
        loss_agg_mode=aggregation,
        config=config,
        rollout_is_weights=weights,
    )
    loss.backward()
    return logp.grad


@pytest.mark.parametrize("row", rows("verl"), ids=name)
@pytest.mark.parametrize("spread", [0.01, 0.3, 2.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_gradient_is_verls(row, spread, seed):
    x = batch(seed, spread)
    same(row, theirs(row, x), ours(row, x))


def test_every_loss_of_verl_has_a_row():
    assert set(losses().POLICY_LOSS_REGISTRY) == {
        row["call"]["loss"] for row in rows("verl") + rows("verl", False)
    }


def rewarded() -> tuple[dict, torch.Tensor, dict]:
    """A batch, the reward of each response, and both as verl's estimators take them."""
    x = batch(0, 0.3)
    rewards = torch.linspace(0, 1, len(x["mask"])).double() ** 2
    by_token = torch.zeros_like(x["logp"])
    by_token[:, 0] = rewards
    uid = x["groups"].numpy().astype(str).astype(object)
    given = {"token_level_rewards": by_token, "response_mask": x["mask"].double(), "index": uid}
    return x, rewards, given


@pytest.mark.parametrize(
    ("preset", "name", "settings"),
    [
        ("grpo", "grpo", {}),
        ("dr_grpo", "grpo", {"norm_adv_by_std_in_grpo": False}),
        ("rloo", "rloo", {}),
        ("opo", "opo", {}),
    ],
)
def test_the_advantages_are_verls(preset, name, settings):
    x, rewards, given = rewarded()
    theirs, _ = losses().get_adv_estimator_fn(name)(**given, **settings)
    lengths = x["mask"].sum(1)
    found = rec_experiments.algorithm(preset).advantages(rewards, x["groups"], lengths)
    torch.testing.assert_close(theirs, found[:, None] * x["mask"], rtol=1e-12, atol=1e-15)


# Ours, and verl's rollout_is, its threshold, rollout_rs and its threshold, whose bounds are of 1/κ.
CORRECTIONS = {
    "truncated": ("token", 2.0, None, None),
    "product_truncated": ("sequence", 2.0, None, None),
    "band correction.low=0.8 correction.high=1.25": ("token", "0.8_1.25", None, None),
    "masked_both": (None, None, "seq_sum_k1", f"{1 / 3}_3"),
    "masked_token": ("token", 2.0, "seq_sum_k1", "0.5_2"),
    "masked_product": ("sequence", 2.0, "seq_sum_k1", "0.5_2"),
    "geometric correction.low=0.8 correction.high=1.25": (None, None, "seq_mean_k1", "0.8_1.25"),
    "geometric_token correction.low=0.8 correction.high=1.25": (
        "token", 2.0, "seq_mean_k1", "0.8_1.25",
    ),
    "k3 correction.high=0.08": (None, None, "seq_mean_k3", "0.08"),
    "token_rejected correction.low=0.8 correction.high=1.25": (None, None, "token_k1", "0.8_1.25"),
}  # fmt: skip


@pytest.mark.parametrize("choice", CORRECTIONS)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_corrections_are_verls(choice, seed):
    helper, x = loaded("rollout_corr_helper"), batch(seed, 0.3)
    weighing, cap, rejection, bounds = CORRECTIONS[choice]
    mask = x["mask"].double()
    log_kappa, expected = x["behavior"] - x["sampler"], mask
    if weighing:
        expected, _ = helper.compute_rollout_correction_weights(log_kappa, mask, weighing, cap)
    if rejection:
        kept, _ = helper.compute_rollout_rejection_mask(log_kappa, mask, rejection, bounds)
        expected = expected * kept
    rows = tokens(x["logp"], x["advantages"])
    rows = dataclasses.replace(
        rows,
        logps={"behavior": x["behavior"], "sampler": x["sampler"]},
        advantages=dataclasses.replace(rows.advantages, mask_BT=x["mask"]),
    )
    piece = rec_experiments.algorithm("grpo", *f"correction={choice}".split()).parts.correction
    assert (expected[x["mask"]] == 0).any() == ("truncated" not in choice)
    torch.testing.assert_close(piece(rows) * mask, expected, rtol=1e-12, atol=1e-15)


@functools.cache
def exported(preset: str) -> tuple:
    """Advantage estimator and loss, as verl finds them by their name."""
    with mock.patch.dict(sys.modules, {"verl.trainer.ppo.core_algos": losses()}):
        exec(export_loss.text(preset, [], "verl", "exported"), vars(ModuleType("exported")))
    name = f"rec_{preset}"
    return losses().get_adv_estimator_fn(name), losses().POLICY_LOSS_REGISTRY.pop(name)


@pytest.mark.parametrize("preset", ["grpo", "rec_ring", "opo", "gspo", "dr_grpo", "red_weight"])
def test_exported_loss(preset):
    """Two ranks with a micro-batch each; verl averages gradients over ranks."""
    advantages_of, loss = exported(preset)
    x, rewards, given = rewarded()
    mask = x["mask"]
    whole, apart = (x["logp"].clone().requires_grad_() for _ in range(2))
    rec_experiments.algorithm(preset)(
        logp=whole, behavior_logp=x["behavior"], rewards=rewards, groups=x["groups"], mask=mask
    ).loss.backward()
    advantages, _ = advantages_of(**given, config=None)
    config = Config(
        global_batch_info={
            "dp_size": 2,
            "batch_num_tokens": mask.sum(),
            "global_batch_size": len(mask),
            "loss_scale_factor": None,
        }
    )
    for part in (slice(0, 5), slice(5, None)):
        share, metrics = loss(
            old_log_prob=x["behavior"][part],
            log_prob=apart[part],
            advantages=advantages[part],
            response_mask=mask[part],
            loss_agg_mode="token-mean",
            config=config,
            rollout_is_weights=None,
        )
        (share / 2).backward()
    assert f"actor/rec_{preset}/clip_fraction" in metrics
    same({"within": 1e-9}, apart.grad, whole.grad)


def test_exported_loss_alone():
    """A whole mini-batch at once, of which verl tells nothing."""
    _, loss = exported("grpo")
    x = batch(0, 0.3)
    logp = x["logp"].clone().requires_grad_()
    advantages = x["advantages"][:, None] * x["mask"]
    config = Config(global_batch_info={})
    loss(x["behavior"], logp, advantages, x["mask"], config=config)[0].backward()
    same({"within": 1e-9}, logp.grad, ours({"ours": ["grpo"]}, x))
    with pytest.raises(
        ValueError, match=r"^algorithm\.rollout_correction: its weights are no part"
    ):
        loss(x["behavior"], logp, advantages, x["mask"], rollout_is_weights=x["logp"])
