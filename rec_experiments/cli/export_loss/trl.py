"""$TITLE, for TRL 1.16. Written by

    $COMMAND

$ABOUT

Use `Trainer` as you use GRPOTrainer. It ignores these options of GRPOConfig: loss_type, epsilon,
delta, scale_rewards, importance_sampling_level, vllm_importance_sampling_mode and those of the
entropy. A method with a reference policy needs a beta above 0, so that TRL computes the reference;
the value of beta is ignored. It works for text models only.
"""

import torch
from trl import GRPOTrainer

import rec_experiments

ALGORITHM = rec_experiments.algorithm("$PRESET")
MEAN_OVER = "$MEAN_OVER"


class Trainer(GRPOTrainer):
    """A GRPOTrainer with the advantage and the loss of ALGORITHM."""

    def _calculate_rewards(self, *args, **kwargs):
        self.rewards_per_func = super()._calculate_rewards(*args, **kwargs)
        return self.rewards_per_func

    def _generate_and_score_completions(self, inputs):
        """TRL's batch, with advantages of all groups, before it is shuffled and cut."""
        output = super()._generate_and_score_completions(inputs)
        rewards = self.rewards_per_func  # of all processes, one column per function
        scored = ~rewards.isnan().all(1)
        rewards = (rewards * self.reward_weights.to(rewards.device)).nansum(1)
        size = self.num_generations if self.model.training else self.num_generations_eval
        groups = torch.arange(len(rewards), device=rewards.device) // size
        lengths = self.accelerator.gather(_mask(output).sum(1))
        advantages = rewards.double().new_zeros(len(rewards))
        advantages[scored] = ALGORITHM.advantages(rewards[scored], groups[scored], lengths[scored])
        own = len(output["advantages"])
        first = self.accelerator.process_index * own
        output["advantages"] = advantages[first : first + own].to(output["advantages"].dtype)
        return output

    def _compute_loss(self, model, inputs):
        completion_ids, mask = inputs["completion_ids"], _mask(inputs)
        logp, _, _ = self._get_per_token_logps_and_entropies(
            model,
            torch.cat([inputs["prompt_ids"], completion_ids], dim=1),
            torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1),
            completion_ids.size(1),
        )
        old = inputs.get("old_per_token_logps")  # None: drawn by the current policy
        old = logp.detach() if old is None else old
        sampler = inputs.get("sampling_per_token_logps")  # NaN: vLLM could not score the token
        out = ALGORITHM(
            logp=logp,
            behavior_logp=old,
            sampler_logp=None if sampler is None else sampler.where(~sampler.isnan(), old),
            reference_logp=inputs.get("ref_per_token_logps"),
            advantages=inputs["advantages"],
            groups=torch.arange(len(logp), device=logp.device),
            mask=mask,
        )
        mode = "train" if self.model.training else "eval"
        for name, value in out.metrics.items():
            self._metrics[mode][name.removeprefix("train/")].append(value)
        micro_batches = self.current_gradient_accumulation_steps if mode == "train" else 1
        if MEAN_OVER == "responses":
            return out.loss / micro_batches
        # As TRL's dapo: the tokens of all processes, in this step's share of the generated batch.
        share = micro_batches / self.args.steps_per_generation if mode == "train" else 1
        tokens = inputs["num_items_in_batch"].clamp(min=1) * share / self.accelerator.num_processes
        return out.loss * mask.sum() / tokens


def _mask(batch):
    """1 at tokens of the policy, 0 at padding and at results of tools."""
    return batch["completion_mask"] * batch.get("tool_mask", 1)
