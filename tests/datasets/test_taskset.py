"""Tasksets of the package verifiers: a made-up one, as an installed package exports it."""

import sys
from types import ModuleType

import pytest

from rec_experiments.common.errors import UserError
from rec_experiments.datasets.taskset import VerifiersTaskset

vf = pytest.importorskip("verifiers.v1", reason="needs the extra `verifiers`")


class SumData(vf.TaskData):
    answer: str


class SumTask(vf.Task[SumData, vf.State, vf.TaskConfig]):
    @vf.reward(weight=0.9)
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply.split()[-1] == self.data.answer)

    @vf.reward(weight=0.1)
    async def short(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply) < 20)


class SumConfig(vf.TasksetConfig):
    largest: int = 40
    system: str | None = None


class SumTaskset(vf.Taskset[SumTask, SumConfig]):
    def load(self):
        for a in range(self.config.largest):
            for b in range(self.config.largest):
                asked = f"What is {a} + {b}?"
                yield SumTask(
                    SumData(prompt=asked, answer=str(a + b), system_prompt=self.config.system)
                )


@pytest.fixture(autouse=True)
def package(monkeypatch):
    """The taskset as the module `sums`."""
    module = ModuleType("sums")
    module.__all__, module.SumTaskset = ["SumTaskset"], SumTaskset
    module.__spec__ = sys.modules[__name__].__spec__
    monkeypatch.setitem(sys.modules, "sums", module)


def taskset(**changes):
    values = {
        "id": "sums", "parameters": {}, "train_problems": 64, "eval_problems": 16, "correct": 1.0,
        "system_prompt": "", "max_prompt_tokens": 64, "long_prompts": "refuse",
        "max_response_tokens": 64, "verifier_workers": 1, "verifier_timeout": 10.0,
    }  # fmt: skip
    return VerifiersTaskset(**values | changes)


def test_rewards_are_the_weighted_sum_of_the_tasks():
    data = taskset()
    train, held_out = data.load()
    assert (len(train), len(held_out)) == (64, 16)
    questions = [problem.messages[-1]["content"] for problem in [*train, *held_out]]
    assert len(set(questions)) == 80
    problem = train[5]
    right = f"It is {problem.shown_answer}"
    found = data.verify(right, problem.answer)
    assert found.reward == pytest.approx(1.0)
    assert found.accuracy == 1
    long = data.verify(f"Let me think about that: {right}", problem.answer)
    assert (long.reward, long.accuracy) == (pytest.approx(0.9), 0)
    assert data.verify("It is -1", problem.answer).reward == pytest.approx(0.1)


def test_a_system_prompt_of_the_task_comes_first():
    [first, *_], _ = taskset(parameters={"system": "Be brief."}, system_prompt="Own.").load()
    assert [each["role"] for each in first.messages] == ["system", "user"]
    assert first.messages[0]["content"] == "Be brief."
    [first, *_], _ = taskset(system_prompt="Own.").load()
    assert first.messages[0]["content"] == "Own."


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"id": "no_such_taskset"}, "dataset.id=no_such_taskset: verifiers cannot load it"),
        ({"parameters": {"larges": 3}}, "larges"),
        ({"parameters": {"largest": 3}}, "dataset.train_problems=64: sums has"),
    ],
)
def test_what_cannot_be_loaded_is_one_line(changes, said):
    with pytest.raises(UserError, match=said) as found:
        taskset(**changes).load()
    assert "\n" not in str(found.value)


def test_tasks_that_one_response_cannot_answer_are_refused(monkeypatch):
    monkeypatch.setattr(SumTask, "NEEDS_CONTAINER", True)
    with pytest.raises(UserError, match="one response answers"):
        taskset().load()
