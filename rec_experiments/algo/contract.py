"""Checks the pieces of an algorithm once, on a small made-up mini-batch, before training.

The loss relies on these checks. A result of the wrong shape would be broadcast, and a weight with a
gradient or a piece that changes its input would change the gradient of other pieces, without any
error.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rec_experiments.algo.advantages import DropNegatives, with_lengths
from rec_experiments.algo.inputs import LossInput, Outcomes, Undeclared
from rec_experiments.common.batch import StepIndex, Tensor
from rec_experiments.common.errors import UserError
from rec_experiments.common.pieces import Piece

if TYPE_CHECKING:
    from rec_experiments.algo.loss import Algorithm


def check(algorithm: Algorithm) -> None:
    """Call every piece as a run does.

    Raises UserError, which names the class, if a piece returns a tensor of the wrong shape, changes
    its input, or reads log-probabilities or a dense quantity that its `needs` does not declare; if
    a clip is not boolean; if a weight, ratio or correction has a gradient; and if an advantage of
    lengths meets a data weighting that leaves out responses.
    """
    import numpy as np

    piece: Any = algorithm.advantage
    if piece.needs.lengths and isinstance(algorithm.data_weighting, DropNegatives):
        raise UserError(
            f"{type(piece).__name__}: needs all responses of a group; "
            "data_weighting=drop_negatives leaves some out"
        )
    outcomes = _outcomes()
    rewards_B, groups_B = outcomes.rewards_B, outcomes.groups_B
    _call(algorithm.truncation, rewards_B, outcomes.finished_B)
    advantage = with_lengths(algorithm.advantage, outcomes.mask_BT.sum(1))
    _has_shape(algorithm.advantage, _call(advantage, rewards_B, groups_B), rewards_B)
    rng = np.random.default_rng(0)
    weighted = _call(algorithm.data_weighting, advantage, rewards_B, groups_B, rng)
    _has_shape(algorithm.data_weighting, weighted.advantage_B, rewards_B)
    batch = _batch(algorithm, outcomes)

    def of(piece: Any, *arguments: Any, constant: bool = True) -> Any:
        result = _call(piece, *arguments, _declared(batch, piece))
        if result is None and piece in (algorithm.correction, algorithm.regularizer):
            return None
        _has_shape(piece, result, batch.mask_BT)
        if constant and result.requires_grad:
            raise UserError(
                f"{type(piece).__name__}: returned a tensor with a gradient; it must have "
                "none (.detach())"
            )
        return result

    log_ratio_BT = of(algorithm.ratio)
    kept_BT = of(algorithm.clip, log_ratio_BT)
    if kept_BT.dtype != batch.mask_BT.dtype:
        raise UserError(
            f"{type(algorithm.clip).__name__}: returned numbers of {kept_BT.dtype}; a clip returns "
            "a boolean mask, True for tokens that keep their gradient"
        )
    of(algorithm.weight, log_ratio_BT)
    of(algorithm.correction)
    of(algorithm.regularizer, constant=False)
    loss = _call(algorithm.aggregation, batch.logp_BT * batch.mask_BT, batch.advantages)
    _has_shape(algorithm.aggregation, loss, rewards_B.sum())


def _outcomes() -> Outcomes:
    """Two groups of three responses: both signs and 0 as advantages, one response cut at the
    limit, and three lengths."""
    import torch

    return Outcomes(
        rewards_B=torch.tensor([1.0, 0.0, 0.5, 0.0, 1.0, 0.0], dtype=torch.float64),
        groups_B=torch.tensor([0, 0, 0, 1, 1, 1]),
        mask_BT=torch.arange(4) < torch.tensor([4, 2, 3, 4, 1, 4])[:, None],
        finished_B=torch.tensor([True, True, False, True, True, True]),
        judged_B=torch.ones(6, dtype=torch.bool),
    )


def _batch(algorithm: Algorithm, outcomes: Outcomes) -> LossInput:
    """Log-probabilities between −3 and 0, another set for each policy."""
    import numpy as np
    import torch

    rng = np.random.default_rng(0)

    def drawn() -> Tensor:
        return torch.from_numpy(-3 * rng.random(outcomes.mask_BT.shape)).float()

    return LossInput(
        logp_BT=drawn().requires_grad_(),
        logps={role: drawn() for role in sorted(algorithm.needs.logps | {"behavior"})},
        advantages=algorithm.advantages(outcomes, rng),
        groups_B=outcomes.groups_B,
        version_BX=torch.zeros_like(outcomes.groups_B)[:, None],
        index=StepIndex(batch=0, epoch=0, mini_batch=0, step=0),
        dense={name: -drawn().requires_grad_() for name in sorted(algorithm.needs.dense)},
    )


def _declared(batch: LossInput, piece: Piece) -> LossInput:
    """The batch with the log-probabilities and dense quantities that a piece declares."""
    import dataclasses

    roles = piece.needs.logps | {"behavior"}
    return dataclasses.replace(
        batch,
        logps={role: batch.logps[role] for role in roles},
        dense={name: batch.dense[name] for name in piece.needs.dense},
    )


def _call(piece: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a piece. Raises UserError if it changes its input or reads what it did not
    declare."""
    given = [each for each in arguments if hasattr(each, "_version")]
    for batch in arguments:
        if isinstance(batch, LossInput):
            given += [batch.logp_BT, batch.mask_BT, batch.advantage_B, *batch.logps.values()]
    before = [tensor._version for tensor in given]
    name = type(getattr(piece, "func", piece)).__name__  # of a partial, what it calls
    try:
        inspect.signature(piece).bind(*arguments)
    except TypeError as error:
        raise UserError(f"{name}: cannot be called like a piece of its group ({error})") from error
    try:
        result = piece(*arguments)
    except Undeclared as error:
        reason = f"reads {error.name}, which its `needs` does not declare"
        raise UserError(f"{name}: {reason}") from error
    if [tensor._version for tensor in given] != before:
        raise UserError(f"{name}: changes one of its input tensors; make a copy")
    return result


def _has_shape(piece: object, result: Any, promised: Tensor) -> None:
    shape = getattr(result, "shape", None)
    if shape != promised.shape:
        returned = type(result).__name__ if shape is None else f"a tensor of shape {tuple(shape)}"
        raise UserError(
            f"{type(piece).__name__}: returned {returned}; must be a tensor of shape "
            f"{tuple(promised.shape)}, by responses{' and tokens' if promised.ndim == 2 else ''}"
        )
