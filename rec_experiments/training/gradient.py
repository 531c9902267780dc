"""A mini-batch as tensors, and the gradient of its loss, accumulated over forward passes."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rec_experiments.algo.inputs import Advantages, LossInput, LossOutput, Outcomes
from rec_experiments.algo.loss import Algorithm
from rec_experiments.common import rng
from rec_experiments.common.batch import Rollouts, Sequences, StepIndex
from rec_experiments.common.distributed import ALONE, World, memory_of
from rec_experiments.policy.batching import (
    Limits,
    Pass,
    TokenSequence,
    distinct,
    first_rows,
    passes,
    rows_and_places,
)
from rec_experiments.policy.logprobs import ForwardPass, Logprobs, Models, Wanted, is_large
from rec_experiments.training.metrics import TokenLog
from rec_experiments.training.policies import Proximal


@dataclass(frozen=True, slots=True)
class MiniBatch:
    """The B rows of an update before any forward pass. All tensors but those of `sequences` are on
    the model's device.

    distinct: the sequences, without repetition. written_BT: tokens sampled by the policy, dropped
    or not. logps: log-probabilities that came with the rows, by role. version_BX: as in `Rollouts`.
    """

    sequences: Sequences
    distinct: list[TokenSequence]
    written_BT: Tensor
    logps: Mapping[str, Tensor]
    advantages: Advantages
    groups_B: Tensor
    version_BX: Tensor
    index: StepIndex

    @classmethod
    def of(
        cls,
        rollouts: Rollouts,
        algorithm: Algorithm,
        index: StepIndex,
        seed: int,
        model: PreTrainedModel,
    ) -> "MiniBatch":
        """Chooses the dropped rows, computes advantages, and counts the denominators."""
        parameter = next(model.parameters())
        dtype = torch.promote_types(parameter.dtype, torch.float32)
        logps = {"behavior": rollouts.logp_BT, **rollouts.logps}
        if "behavior" in rollouts.logps:
            logps["sampler"] = rollouts.logp_BT
        outcomes = Outcomes(  # on the CPU, where every rank computes the same bits
            rewards_B=rollouts.reward_B,
            groups_B=rollouts.group_B,
            mask_BT=rollouts.mask_BT,
            finished_B=rollouts.finished_B,
            judged_B=rollouts.judged_B,
        )
        dropping = rng.generator(seed, rng.DROP, index.batch, index.epoch, index.mini_batch)
        sequences = rollouts.sequences
        return cls(
            sequences=sequences,
            distinct=distinct(sequences),
            written_BT=rollouts.mask_BT.to(parameter.device),
            logps={role: logp.to(parameter.device, dtype) for role, logp in logps.items()},
            advantages=algorithm.advantages(outcomes, dropping).to(parameter.device),
            groups_B=rollouts.group_B.to(parameter.device),
            version_BX=rollouts.version_BX.to(parameter.device),
            index=index,
        )

    def input(
        self,
        index_B: Tensor,
        scored: Logprobs,
        proximal: Proximal | None,
        dense: frozenset[str],
    ) -> LossInput:
        """The loss's input for some rows and their scores. dense: names as in `Needs.dense`."""
        width = scored.logp_BT.shape[1]
        logps = {role: logp_BT[index_B, :width] for role, logp_BT in self.logps.items()}
        batch = LossInput(
            logp_BT=scored.logp_BT,
            logps={**logps, **scored.others},
            advantages=self.advantages.rows(index_B, width),
            groups_B=self.groups_B[index_B],
            version_BX=self.version_BX[index_B, :width],
            index=self.index,
            dense={name: getattr(scored, f"{name}_BT") for name in dense},
        )
        if proximal is None or "proximal" in batch.logps:
            return batch
        return replace(batch, logps={**batch.logps, "proximal": proximal.logp(batch)})


@dataclass(frozen=True, kw_only=True, slots=True)
class GradientPass:
    """How the gradient of a mini-batch is computed.

    limits: of one forward pass; they only affect memory and rounding. others: frozen models by
    role. proximal: computes log π_prox if neither a model nor the batch provides it. kl: measure
    the divergence from the reference model in `others`.
    """

    algorithm: Algorithm
    forward: ForwardPass
    limits: Limits
    others: Models = field(default_factory=dict)
    proximal: Proximal | None = None
    kl: bool = False
    world: World = ALONE

    def without_kl(self) -> "GradientPass":
        """For updates that do not measure KL: the reference model is left out unless the loss needs
        it."""
        others = dict(self.others)
        if not self.algorithm.needs_reference:
            others.pop("reference", None)
        return replace(self, others=others, kl=False)

    def accumulate(self, model: PreTrainedModel, batch: MiniBatch) -> TokenLog:
        """Add the gradient of the whole mini-batch to the model's, pass by pass.

        Denominators are those of the whole mini-batch, so the split into passes and ranks only
        affects rounding. So does computing identical rows once. Returns this rank's tokens.
        """
        begin_gradient(model)
        device = batch.written_BT.device
        with contextlib.ExitStack() as stack:
            for other in self.others.values():
                stack.enter_context(on_device(other, device))
            if self.algorithm.needs.whole_batch:
                return self._from_all_rows(model, batch)
            return self._pass_by_pass(model, batch)

    def _pass_by_pass(self, model: PreTrainedModel, batch: MiniBatch) -> TokenLog:
        """For losses whose rows are independent: forward and backward in one pass each."""
        log = TokenLog()
        has_gradient_B = self.algorithm.has_gradient(batch.advantages).tolist()
        for part in self._plan(model, batch, has_gradient_B):
            index_B, scored, loss_input, out = self.compute(model, part, batch)
            if not part.blank:
                written_BT = batch.written_BT[index_B, : scored.logp_BT.shape[1]]
                _log(log, written_BT, scored, loss_input, out)
        return log

    def compute(
        self, model: PreTrainedModel, part: Pass, batch: MiniBatch
    ) -> tuple[Tensor, Logprobs, LossInput, LossOutput]:
        """One forward pass, and backward if it has a gradient; memory peaks here.

        Returns its rows, their scores, and the loss's input and output. No shape depends on values.
        """
        dense = self.algorithm.needs.dense
        index_B, place_B = _on(batch.written_BT.device, part)
        with torch.set_grad_enabled(part.needs_gradient):
            scored = self._score(model, part, batch, self.others, dense).rows(place_B)
            loss_input = batch.input(index_B, scored, self.proximal, dense)
            if part.blank:
                none_BT = torch.zeros_like(loss_input.mask_BT)
                advantages = replace(loss_input.advantages, mask_BT=none_BT)
                loss_input = replace(loss_input, advantages=advantages)
            out = self.algorithm.loss(loss_input)
        if part.needs_gradient:
            out.loss.backward()
        return index_B, scored, loss_input, out

    def _from_all_rows(self, model: PreTrainedModel, batch: MiniBatch) -> TokenLog:
        """For losses that read all rows at once: score all rows without gradient, differentiate the
        loss by the scores, and backpropagate these coefficients pass by pass."""
        device, dense = batch.written_BT.device, self.algorithm.needs.dense
        scored = self.score_all(model, batch)
        names = ["logp_BT", *(f"{name}_BT" for name in sorted(dense))]
        leaves: dict[str, Any] = {
            name: getattr(scored, name).detach().requires_grad_() for name in names
        }
        others = self.others if "kl" in dense else {}  # needed again in the backward passes
        every_B = torch.arange(len(batch.groups_B), device=device)
        loss_input = batch.input(every_B, scored._replace(**leaves), self.proximal, dense)
        out = self.algorithm.loss(loss_input)
        found = torch.autograd.grad(
            out.loss, list(leaves.values()), allow_unused=True, materialize_grads=True
        )
        # All ranks use the first one's, so that they plan the same passes despite rounding.
        coefficients = [c.to(device) for c in self.world.gather([c.cpu() for c in found])[0]]
        has_gradient_B = torch.stack([(c != 0).any(1) for c in coefficients]).any(0).tolist()
        for part in self._plan(model, batch, has_gradient_B):
            if not part.needs_gradient:
                continue
            index_B, place_B = _on(device, part)
            again = self._score(model, part, batch, others, dense).rows(place_B)
            width = again.logp_BT.shape[1]
            torch.autograd.backward(
                [getattr(again, name) for name in names],
                [c[index_B, :width] * (not part.blank) for c in coefficients],
            )
        log = TokenLog()
        if self.world.leads:  # every rank has scored all rows
            _log(log, batch.written_BT, scored, loss_input, out)
        return log

    @torch.no_grad()
    def score_all(self, model: PreTrainedModel, batch: MiniBatch) -> Logprobs:
        """Scores of all rows of the mini-batch, on every rank, without dropout."""
        mine, training = [], model.training
        model.eval()
        for part in self._plan(model, batch, [False] * len(batch.groups_B)):
            scored = self._score(model, part, batch, self.others, frozenset())
            if not part.blank:
                mine.append((part, scored.each(lambda x_UT: x_UT.cpu())))
        model.train(training)
        device = batch.written_BT.device
        rows, width = batch.written_BT.shape
        parts = [part for share in self.world.gather(mine) for part in share]
        whole = parts[0][1].each(lambda x_UT: x_UT.new_zeros(rows, width))
        for part, scored in parts:
            index_B, place_B = rows_and_places(part.sequences)
            whole.put(index_B, scored.rows(place_B))
        return whole.each(lambda x_BT: x_BT.to(device))

    def _plan(
        self, model: PreTrainedModel, batch: MiniBatch, has_gradient_B: list[bool]
    ) -> list[Pass]:
        vocabulary = model.config.vocab_size

        def large(part: list[TokenSequence]) -> bool:
            return is_large(len(part), max(s.response for s in part), vocabulary)

        return passes(batch.distinct, has_gradient_B, self.limits, self.world, large)

    def _score(
        self,
        model: PreTrainedModel,
        part: Pass,
        batch: MiniBatch,
        others: Models,
        differentiable: frozenset[str],
    ) -> Logprobs:
        measured = self.kl or "kl" in self.algorithm.needs.dense
        wanted = Wanted(
            others=others, kl=measured and "reference" in others, differentiable=differentiable
        )
        rows = batch.sequences.rows(first_rows(part.sequences))
        return self.forward(model, rows, wanted, part.chunked)


def begin_gradient(model: PreTrainedModel) -> None:
    """Put the model in training mode, and start from zero gradients where there are none."""
    model.train()
    for parameter in model.parameters():  # AdamW steps even if the batch has no gradient
        if parameter.requires_grad and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)


def _on(device: torch.device, part: Pass) -> tuple[Tensor, Tensor]:
    """The rows that a pass computes, and the place of each one's sequence in the pass."""
    index_B, place_B = rows_and_places(part.sequences)
    return index_B.to(device), place_B.to(device)


def _log(
    log: TokenLog,
    written_BT: Tensor,
    scored: Logprobs,
    loss_input: LossInput,
    out: LossOutput,
) -> None:
    live_BT, logps = loss_input.mask_BT, loss_input.logps
    log.add(out, loss_input)
    if "sampler" in logps:
        log.add_mismatch(logps["behavior"] - logps["sampler"], live_BT)
    else:  # only fresh tokens are scored by the version that drew them
        log.add_mismatch(out.log_ratio_BT, live_BT & (loss_input.age_BX == 0))
    measured = scored.each(Tensor.detach)
    log.add_policy(measured.entropy_BT, measured.kl_BT, written_BT)


@contextlib.contextmanager
def on_device(model: PreTrainedModel, device: torch.device) -> Iterator[None]:
    """Inside, this frozen model computes on `device`. One kept on the host gets a copy of its
    weights there, which is dropped at the end."""
    on_host = model.state_dict()
    if next(iter(on_host.values())).device.type == device.type:
        yield
        return
    distinct = {memory_of(weight): weight for weight in on_host.values()}  # tied ones are one
    copies = {memory: weight.to(device) for memory, weight in distinct.items()}
    there = {name: copies[memory_of(weight)] for name, weight in on_host.items()}
    model.load_state_dict(there, assign=True)
    try:
        yield
    finally:
        model.load_state_dict(on_host, assign=True)
