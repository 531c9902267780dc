"""verl's policy losses and this package: the same gradient for every token, method by method. And
the other way round: what `export-loss` writes, in verl's registries.

verl cannot be imported without ray and a cluster's packages, so its file of losses is loaded alone;
what that imports beside PyTorch is stood in for by the few sums that the losses use. Skipped where
verl is not installed (pip install --no-deps verl).
"""

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


def masked_sum(values, mask):
    return (values * mask).sum()


def masked_mean(values, mask):
    return masked_sum(values, mask) / mask.sum()


def module(name: str, **contents) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(contents)
    return made


@functools.cache
def losses() -> ModuleType:
    """verl's core_algos.py."""
    sums = module("verl.utils.torch_functional", masked_sum=masked_sum, masked_mean=masked_mean)
    utils = module("verl.utils", torch_functional=sums, as_torch_index=None, group_mean_std=None)
    stand_ins = [
        *map(module, ["verl", "verl.trainer", "verl.workers"]),
        utils,
        sums,
        module("verl.utils.import_utils", deprecated=lambda *_: lambda function: function),
        module("verl.trainer.config", AlgoConfig=type("AlgoConfig", (), {})),
        module("verl.workers.config", ActorConfig=Config),
    ]
    spec = importlib.util.spec_from_file_location(
        "verl_core_algos", PLACE / "trainer" / "ppo" / "core_algos.py"
    )
    loaded = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, {each.__name__: each for each in stand_ins}):
        spec.loader.exec_module(loaded)
    return loaded


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
    x = batch(0, 0.3)
    rewards, mask = torch.linspace(0, 1, len(x["mask"])).double() ** 2, x["mask"]
    whole, apart = (x["logp"].clone().requires_grad_() for _ in range(2))
    rec_experiments.algorithm(preset)(
        logp=whole, behavior_logp=x["behavior"], rewards=rewards, groups=x["groups"], mask=mask
    ).loss.backward()
    by_token = torch.zeros_like(x["logp"])
    by_token[:, 0] = rewards
    uid = x["groups"].numpy().astype(str).astype(object)
    advantages, _ = advantages_of(
        token_level_rewards=by_token, response_mask=mask.double(), index=uid, config=None
    )
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
