"""$TITLE, for prime-rl 0.8. Written by

    $COMMAND

$ABOUT

The advantages are prime-rl's (orchestrator.algo), and the mean is over the tokens that it trains
on: all of the policy's with orchestrator.train.filter_zero_advantages = false. The policy that drew
a token is known by the log-probabilities of the inference server. To use it:

    [trainer.loss]
    type = "custom"
    import_path = "$MODULE.loss"
"""

import torch
from prime_rl.trainer.rl.loss import LossInputs, LossOutputs

import rec_experiments

ALGORITHM = rec_experiments.algorithm("$PRESET")


def loss(inputs: LossInputs) -> LossOutputs:
    """The sum over the tokens of one response, which prime-rl divides by the tokens of a step."""
    if inputs.loss_weights is not None:
        raise ValueError("loss_weights: a weight per token is no part of $NAME")
    mask = inputs.loss_mask[None]
    out = ALGORITHM(
        logp=inputs.trainer_logprobs[None],
        behavior_logp=inputs.inference_logprobs[None],
        advantages=inputs.advantages[None],
        groups=torch.zeros(1, dtype=torch.long, device=mask.device),
        mask=mask,
    )
    metrics = {name.removeprefix("train/"): torch.tensor(x) for name, x in out.metrics.items()}
    return LossOutputs(loss=out.loss * mask.sum(), metrics=metrics)
