"""$TITLE, for verl 0.9. Written by

    $COMMAND

$ABOUT

Set VERL_USE_EXTERNAL_MODULES to the name of this module and, on the command line of verl,

    algorithm.adv_estimator=$NAME actor_rollout_ref.actor.policy_loss.loss_mode=$NAME

The mean over $MEAN_OVER replaces loss_agg_mode. The weights of verl's own rollout correction are
refused; its penalties on entropy and KL are added as they are for any loss.
"""

import numpy as np
import torch
from verl.trainer.ppo.core_algos import register_adv_est, register_policy_loss

import rec_experiments

ALGORITHM = rec_experiments.algorithm("$PRESET")
MEAN_OVER = "$MEAN_OVER"


@register_adv_est("$NAME")
def advantages(token_level_rewards, response_mask, index, config=None, **_):
    """Of whole groups, B x T, twice: as advantages and as returns."""
    rewards = token_level_rewards.sum(1)
    groups = torch.from_numpy(np.unique(index, return_inverse=True)[1]).to(rewards.device)
    advantages = ALGORITHM.advantages(rewards, groups, response_mask.sum(1)).to(rewards.dtype)
    advantages = advantages[:, None] * response_mask
    return advantages, advantages


@register_policy_loss("$NAME")
def loss(
    old_log_prob, log_prob, advantages, response_mask, loss_agg_mode="token-mean", config=None,
    rollout_is_weights=None,
):  # fmt: skip
    """The share of a micro-batch in the loss of the whole mini-batch, and metrics."""
    if rollout_is_weights is not None:
        raise ValueError("algorithm.rollout_correction: its weights are no part of $NAME")
    out = ALGORITHM(
        logp=log_prob,
        behavior_logp=old_log_prob,
        advantages=advantages,
        groups=torch.arange(len(log_prob), device=log_prob.device),
        mask=response_mask,
    )
    whole = config.global_batch_info
    if MEAN_OVER == "responses":
        own, total = response_mask.any(1).sum(), whole.get("global_batch_size")
    else:
        own, total = response_mask.sum(), whole.get("batch_num_tokens")
    total = own if total is None else total
    metrics = {name.replace("train/", "actor/$NAME/"): x for name, x in out.metrics.items()}
    return out.loss * own / total * whole.get("dp_size", 1), metrics
