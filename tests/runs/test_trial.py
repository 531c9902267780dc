"""Before any training: whether a model can earn a reward at all.

1. The trial draws what the run's first batch holds, bit for bit.
2. Where rewards give no gradient, it says why and what to try.
3. A language model gets a rate of its size.
4. A run warns once if its first batches give no gradient.
"""

import dataclasses

import pytest
import torch
from conftest import SMALL, experiment

from rec_experiments.runs.learning_signal import (
    Signal,
    in_one_line,
    rate_to_begin_with,
    too_high,
    try_first_batch,
    watch_first_batches,
    what_to_try,
)
from rec_experiments.runs.prepare import prepare


@pytest.fixture(scope="module")
def trial():
    return try_first_batch(experiment(*SMALL), print)


def test_the_trial_is_the_first_batch_of_the_run(trial):
    trainer = prepare(experiment(*SMALL))
    trainer.rollouts.update_weights(0, 0, trainer.model)
    first = trainer.rollouts.get_batch(0)
    assert torch.equal(trial.rollouts.token_BT, first.token_BT)
    assert torch.equal(trial.rollouts.reward_B, first.reward_B)


def judged(trial, reward_B, finished_B=None):
    """The same responses with these rewards."""
    finished_B = trial.rollouts.finished_B if finished_B is None else finished_B
    new = {"reward_B": reward_B, "accuracy_B": reward_B, "finished_B": finished_B}
    return dataclasses.replace(trial, rollouts=dataclasses.replace(trial.rollouts, **new))


def test_what_the_signal_counts(trial):
    reward_B = torch.zeros(16, dtype=torch.float64)
    reward_B[:6] = 1.0  # all of the first group, half of the second
    finished_B = torch.arange(16) < 12
    found = judged(trial, reward_B, finished_B)
    assert found.signal == Signal(right=6 / 16, cut=0.25, varied=0.25)
    lines = [*found.lines()]
    verdicts = [line for line in lines if line.startswith("  verdict")]
    assert [line.partition(";")[0].split(None, 1)[1] for line in verdicts] == [
        "right, reward 1", "wrong, reward 0", "wrong, cut off, reward 0",
    ]  # fmt: skip
    assert any("1 of 4 groups have rewards that differ" in line for line in lines)
    assert not any(line.startswith("try") for line in lines)


def test_no_reward_is_told_with_what_to_try(trial):
    found = judged(trial, torch.zeros(16, dtype=torch.float64), torch.ones(16, dtype=torch.bool))
    assert [*found.lines()][-1].startswith("try         no response was judged right: begin with a")


PRETRAINED = ("model=pretrained", "model.path=FOLDER")
OWN = ("dataset=own", "dataset.path=FOLDER", "dataset.verifier=operator.eq")


@pytest.mark.parametrize(
    ("signal", "choices", "told"),
    [
        (Signal(right=0.3, cut=0.0, varied=0.5), PRETRAINED, ""),
        (Signal(right=0.0, cut=0.0, varied=0.0), PRETRAINED, "short supervised phase, model=fine"),
        (Signal(right=0.0, cut=0.0, varied=0.0), ("model=smollm2_sft",), "warm_start.steps=24"),
        (Signal(right=0.02, cut=0.1, varied=0.06), OWN, "say in dataset.system_prompt how"),
        (Signal(right=0.0, cut=0.9, varied=0.0), OWN, "max_response_tokens=512 before the end"),
        (Signal(right=0.5, cut=1.0, varied=1.0), OWN, "every response was cut at dataset.max_"),
        (Signal(right=1.0, cut=0.0, varied=0.0), OWN, "choose harder problems"),
    ],
)
def test_advice(signal, choices, told):
    advice = what_to_try(signal, experiment(*choices))
    assert told in advice
    assert bool(told) == bool(advice)


def test_the_rate_is_that_of_the_nearest_size():
    assert [rate_to_begin_with(size)[0] for size in (1e8, 6e8, 1.5e9, 8e9)] == [
        1e-5, 5e-6, 1e-6, 1e-6,
    ]  # fmt: skip


def test_a_long_text_has_its_beginning_and_its_end():
    assert in_one_line(" a\n b ") == "a ⏎ b"
    text = in_one_line("a" * 1000 + "b" * 1000)
    assert len(text) < 310
    assert (text[0], text[-1]) == ("a", "b")


def test_a_rate_of_the_miniature_is_high_for_a_language_model():
    assert too_high(experiment(*PRETRAINED), 135e6).startswith("optimizer.learning_rate=3e-05: is ")
    assert too_high(experiment(*PRETRAINED, "optimizer.learning_rate=1e-5"), 135e6) == ""
    assert too_high(experiment(), 1e5) == ""


def rows(live, cut=0.0, steps=(0, 1, 2, 3, 4)):
    """Rows of metrics.jsonl without a right answer."""
    columns = {"train/live_groups": live, "train/truncated": cut, "train/accuracy": 0.0}
    return [{"step": step, **(columns if step else {})} for step in steps]


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        (rows(0.0), "warning     no gradient in the first batches: no response was judged right: "),
        (rows(0.5, cut=1.0), "warning     only responses that were cut in the first batches: "),
        (rows(0.5), None),
        (rows(0.0, steps=(3, 4)), None),  # resumed
    ],
)
def test_a_run_warns_once_with_an_example(seen, told):
    notes = []
    sample = {"prompt": "1+1=", "response": "3\n", "answer": "2", "reward": 0.0}
    watch = watch_first_batches(experiment(*PRETRAINED), lambda: sample, notes.append)
    for row in seen:
        watch(row)
    assert len(notes) == (4 if told else 0)
    assert told is None or notes[0].startswith(told)
    assert told is None or notes[2:] == ["  response  3", "  answer    2, reward 0"]
