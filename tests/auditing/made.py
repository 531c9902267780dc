"""Batches for the audit, of this project's own runs."""

import contextlib
from unittest import mock

import torch

from rec_experiments.common.batch import Rollouts, StepIndex
from rec_experiments.runs.api import Experiment
from rec_experiments.runs.prepare import prepare
from rec_experiments.training.gradient import MiniBatch
from rec_experiments.training.trainer import Trainer


class _Enough(Exception):
    """The run has given as many batches as were asked for."""


def of_run(count: int, *overrides: str, every: int = 1) -> list[dict]:
    """The columns of the first `count` batches that a run trains on, one of `every` steps, before
    each gradient step."""
    found: list[dict] = []
    own = Trainer.update

    def update(self: Trainer, batch: Rollouts, index: StepIndex):
        if index.step % every == 0:
            found.append(columns(self, batch, index))
        if len(found) == count:
            raise _Enough
        return own(self, batch, index)

    store = mock.MagicMock()
    store.load_checkpoint.return_value = (None, [])
    trainer = prepare(Experiment.compose(*overrides).settings)
    patched = mock.patch.object(Trainer, "update", update)
    with contextlib.closing(trainer.rollouts.worker), patched, contextlib.suppress(_Enough):
        trainer.train(store)
    return found


@torch.no_grad()
def columns(trainer: Trainer, batch: Rollouts, index: StepIndex) -> dict:
    """What a user would dump of a mini-batch."""
    rows = batch.of_groups(trainer.updates.groups(index, batch.groups, trainer.seed))
    trained = trainer.rollouts.schedule.trained(rows, index.step)
    found = {
        "tokens": rows.token_BT,
        "mask": trained.mask_BT,
        "prompts": _unpadded(rows),
        "logp": trainer.gradient.forward(trainer.model, rows.sequences).logp_BT.cpu(),
        "rewards": rows.reward_B,
        "groups": rows.group_B,
        "versions": rows.version_BX.expand_as(rows.token_BT),
        "step": index.step,
        "finished": rows.finished_B,
        "eos": 1,
    }
    if "behavior" in rows.logps:
        found |= {"behavior_logp": rows.logps["behavior"], "sampler_logp": rows.logp_BT}
    else:
        found["behavior_logp"] = rows.logp_BT
    mini_batch = MiniBatch.of(
        trained, trainer.gradient.algorithm, index, trainer.seed, trainer.model
    )
    found["advantages"] = mini_batch.advantages.advantage_B
    found["mask"] = found["mask"] & mini_batch.advantages.mask_BT
    return found


def _unpadded(rows: Rollouts) -> list[list[int]]:
    width = rows.prompt_BP.shape[1]
    lengths = rows.prompt_length_B.tolist()
    return [row[width - n :] for row, n in zip(rows.prompt_BP.tolist(), lengths, strict=True)]
