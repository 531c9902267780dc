"""Weights that are swapped in while responses are being written.

1. Which version draws which token, against tables and rollouts written by hand.
2. Log-probabilities are those of each token's own version, also where the sampler's cache is stale.
3. What is dropped and masked, and the metrics.

tests/rollout/test_overlap.py holds that overlapped and resumed runs are the same bits.
"""

import copy

import pytest
import torch
from conftest import SMALL, assert_equal, by_row, experiment, resolve

from rec_experiments.algo.inputs import LossInput
from rec_experiments.common.batch import Responses, Rollouts, StepIndex
from rec_experiments.common.problems import VerifierResult
from rec_experiments.config import schema
from rec_experiments.config.experiment import Experiment
from rec_experiments.config.labels import schedule_name
from rec_experiments.rollout.schedule import InFlight
from rec_experiments.runs.prepare import prepare
from rec_experiments.training.gradient import MiniBatch

FLIGHT = (
    *SMALL,
    "steps=6",
    "algo=asymre",
    "sync=in_flight",
    "kl_every=0",
    "optimizer.learning_rate=3.0e-3",
)


def schedule(**values) -> InFlight:
    usual = {"offset": 0, "versions": 3, "tokens": 4, "late": "wait", "max_age": None}
    return InFlight(**{"interval": 1, "phase": "paper", "cache": "kept", **usual, **values})


@pytest.mark.parametrize(
    ("values", "batch", "segments"),
    [
        ({}, 0, [(0, 0)]),
        ({}, 1, [(0, 0), (8, 1)]),  # nothing is swapped in before the first gradient step
        ({}, 2, [(0, 0), (4, 1), (8, 2)]),
        ({}, 7, [(0, 5), (4, 6), (8, 7)]),
        ({"offset": 2}, 2, [(0, 0)]),
        ({"offset": 2}, 4, [(0, 0), (4, 1), (8, 2)]),
        ({"offset": 2, "versions": 2, "tokens": 1}, 9, [(0, 6), (1, 7)]),
        ({"versions": 10**12, "tokens": 1}, 1, [(0, 0), (10**12 - 1, 1)]),
    ],
)
def test_segments_by_hand(values, batch, segments):
    assert schedule(**values).segments(batch) == segments
    assert schedule(**values).version(batch) == segments[-1][1]


def flown(*overrides, batches=4):
    """The rollouts of some batches, the weights of each version, and the trainer."""
    trainer = prepare(experiment(*FLIGHT, "sync.versions=3", "sync.tokens=5", *overrides))
    feed, versions, drawn = trainer.rollouts, [], []
    for number in range(batches):
        versions.append(copy.deepcopy(trainer.model.state_dict()))
        feed.update_weights(number, number, trainer.model)
        drawn.append(feed.get_batch(number))
        index = trainer.updates.index_of(number)
        trainer.update(trainer.begin_batch(drawn[-1], index), index)
    return drawn, versions, trainer


def scores(trainer, weights, batch, row):
    """By the library's forward pass of one sequence."""
    model = copy.deepcopy(trainer.model).eval()
    model.load_state_dict(weights)
    prompt, tokens = by_row(batch)[row].prompt, by_row(batch)[row].tokens
    with torch.no_grad():
        logits_TV = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    return logits_TV.log_softmax(-1)[range(len(tokens)), tokens].tolist()


def test_each_token_is_drawn_by_its_version():
    drawn, versions, trainer = flown()
    batch = drawn[3]
    by_hand = [1] * 5 + [2] * 5 + [3] * 22
    assert max(batch.length_B) > 10
    assert all(row.versions == by_hand[: len(row.tokens)] for row in by_row(batch))
    furthest = 0.0
    for row in range(0, 16, 3):
        of_version = [scores(trainer, weights, batch, row) for weights in versions]
        own = by_row(batch)[row].versions
        expected = [of_version[version][t] for t, version in enumerate(own)]
        assert by_row(batch)[row].logp == pytest.approx(expected, abs=2e-5)
        furthest = max(
            furthest, *(abs(a - b) for a, b in zip(expected, of_version[0], strict=True))
        )
    assert furthest > 0.01, "the versions do not differ: the test shows nothing"


def test_a_kept_cache_is_another_sampler_and_can_be_corrected():
    kept, versions, trainer = flown("sync.cache=kept", "correction=recomputed")
    batch = kept[3]
    gap = 0.0
    for row in range(0, 16, 3):
        of_version = [scores(trainer, weights, batch, row) for weights in versions]
        expected = [of_version[version][t] for t, version in enumerate(by_row(batch)[row].versions)]
        assert by_row(batch)[row].logps["behavior"] == pytest.approx(expected, abs=2e-5)
        sampled = by_row(batch)[row].logp
        assert sampled[:5] == pytest.approx(expected[:5], abs=2e-5)  # before the first swap
        gap = max(gap, *(abs(a - b) for a, b in zip(sampled, expected, strict=True)))
    assert gap > 1e-3


def test_drawn_groups_of_equal_rewards_have_versions_too():
    drawn, _, _ = flown("buffer=refill", batches=3)
    assert drawn[2].redrawn > 0
    by_hand = [0] * 5 + [1] * 5 + [2] * 22
    assert all(row.versions == by_hand[: len(row.tokens)] for row in by_row(drawn[2]))


def test_a_version_that_does_not_change_changes_nothing():
    """With a rate of 0, responses in flight are those of whole responses."""
    still = ("optimizer.learning_rate=1e-30", "sync.offset=1")
    for cache in ("kept", "recomputed"):
        swapped, _, _ = flown(*still, f"sync.cache={cache}")
        trainer = prepare(experiment(*FLIGHT, "sync=on_policy", *still))
        trainer.rollouts.update_weights(0, 0, trainer.model)
        for number in range(2):
            whole = trainer.rollouts.get_batch(number)
            assert torch.equal(whole.token_BT, swapped[number].token_BT)


# What is trained on.

ROLLOUTS = Rollouts.verified(
    Responses.of([[7] * n for n in (3, 12, 13)], [[-1.0] * n for n in (3, 12, 13)]),
    prompts=[[1]] * 3,
    groups=[0, 0, 0],
    results=[VerifierResult(1.0, 1.0), VerifierResult(0.0, 0.0), VerifierResult(1.0, 1.0)],
    version_BX=torch.tensor([[3] * 4 + [4] * 4 + [5] * 5] * 3),
    index=5,
)
INDEX = StepIndex(5, 0, 0, 5)


def test_late_responses_are_dropped():
    """3 versions of 4 tokens end a response of 12 tokens, and not one of 13."""
    assert_equal(schedule().trained(ROLLOUTS, 5).state(), ROLLOUTS.state())
    trained = schedule(late="drop").trained(ROLLOUTS, 5)
    assert trained.judged_B.tolist() == [True, True, False]
    row = schedule(late="drop").metrics(trained, 5)
    assert row == {
        "train/several_versions": pytest.approx(2 / 3),
        "train/late": pytest.approx(1 / 3),
        "train/late_accuracy": 1.0,
        "train/in_time_length": 7.5,
        "train/token_age": pytest.approx((3 * 2 + 4 * 2 + 4 * 1) / 15),
        "train/token_age_max": 2,
    }
    waiting = schedule().metrics(ROLLOUTS, 5)
    assert waiting["train/token_age"] == pytest.approx((3 * 2 + 8 * 2 + 8 * 1) / 28)
    assert waiting["train/late"] == pytest.approx(1 / 3)
    model, algorithm = torch.nn.Linear(1, 1), experiment("algo=reinforce").algorithm()
    batch = MiniBatch.of(trained, algorithm, INDEX, 0, model)
    assert batch.advantages.advantage_B.tolist() == [0.5, -0.5, 0.0]  # nor are they in the baseline
    assert batch.advantages.totals.tokens == 15


def test_old_tokens_are_masked():
    trained = schedule(max_age=1).trained(ROLLOUTS, 5)
    assert trained.written_B.tolist() == [0, 8, 9]
    assert by_row(trained)[1].mask == [False] * 4 + [True] * 8
    assert schedule(max_age=1).metrics(trained, 5)["train/token_age_max"] == 1
    model, algorithm = torch.nn.Linear(1, 1), experiment("algo=reinforce").algorithm()
    batch = MiniBatch.of(trained, algorithm, INDEX, 0, model)
    assert batch.advantages.totals.tokens == 17


def test_nothing_may_be_left():
    old = schedule(max_age=1)
    assert "train/token_age" not in old.metrics(old.trained(ROLLOUTS, 9), 9)


def test_interpolated_policy_by_the_age_of_each_token():
    """A-3PO's share is 0, 0, 1/2 at ages 0, 1, 2."""
    model, pieces = torch.nn.Linear(1, 1), experiment("algo=a3po", "proximal.lag=1")
    batch = MiniBatch.of(ROLLOUTS, pieces.algorithm(), INDEX, 0, model)
    logp_BT = torch.zeros(3, 13)
    rows = LossInput(
        logp_BT=logp_BT,
        logps=batch.logps,
        advantages=batch.advantages,
        groups_B=batch.groups_B,
        index=INDEX,
        version_BX=batch.version_BX,
    )
    found = pieces.proximal.logp(rows)[1, :12].tolist()
    assert found == [-0.5] * 4 + [-1.0] * 8


def test_names_of_a_schedule_in_flight():
    config = resolve("sync=in_flight", "sync.offset=1", "steps=100")
    assert schedule_name(config["sync"]) == "offset 1, in flight, 4 versions of 8 tokens"
    again = schema.build(schema.restore(config), Experiment).sync
    assert again == experiment("sync=in_flight", "sync.offset=1").sync
    assert "the oldest token up to 9 gradient steps old" in again.describe(2)
    assert again.describe(2).endswith("the last version ends late responses")
    masked = schedule(late="drop", max_age=5).describe(1)
    assert masked.endswith(
        "late responses are dropped; tokens older than 5 gradient steps are masked"
    )
