"""Tasks of a taskset of the package verifiers, with the rewards that it defines.

A problem is a task with a single prompt, which one response answers; tasks with tools, a container
or a conversation are refused. The answer of a Problem here identifies the task: a verifier process
loads the taskset again, because its rewards read the whole task.
"""

from __future__ import annotations

import asyncio
import functools
import json
from itertools import islice
from typing import TYPE_CHECKING, Any

from pydantic import PositiveFloat

from rec_experiments.common.errors import UserError, first_line
from rec_experiments.common.problems import Problem, VerifierResult
from rec_experiments.datasets.text import GeneratedDataset

if TYPE_CHECKING:
    import verifiers.v1 as vf


class VerifiersTaskset(GeneratedDataset):
    """Raises ValueError for a number out of range.

    id: of an installed package that exports a taskset. parameters: of its configuration. correct:
    the total reward from which an answer counts as right.
    """

    id: str
    parameters: dict[str, Any]
    correct: PositiveFloat

    def load(self) -> tuple[list[Problem], list[Problem]]:
        """Training and evaluation problems; no task is in both. Raises UserError for an unknown
        taskset or parameter, a task that one response cannot answer, and too few tasks."""
        tasks = enumerate(self._tasks())
        return self.split(
            ((task.hash, self._problem(place, task)) for place, task in tasks), self.id
        )

    def verify(self, response: str, answer: str) -> VerifierResult:
        """The sum of the task's weighted rewards for this response."""
        place = json.loads(answer)
        task = self._tasks()[place["task"]]
        if task.hash != place["of"]:
            raise ValueError("not the task of the prompt: its taskset is not deterministic")
        trace = _trace(task, response)
        asyncio.run(task.score(trace))
        return VerifierResult(reward=trace.reward, accuracy=float(trace.reward >= self.correct))

    def slow_imports(self) -> list[str]:
        return ["verifiers.v1"]

    def describe(self) -> str:
        return f"{self.id} of verifiers"

    def _problem(self, place: int, task: vf.Task) -> Problem:
        data = task.data
        if task.NEEDS_CONTAINER or type(task).toolsets(task.config) or data.prompt is None:
            raise UserError(
                f"dataset.id={self.id}: its tasks need a container, tools or a user that begins; "
                "only tasks with a prompt that one response answers can be trained on"
            )
        system = data.system_prompt or self.system_prompt
        asked = [{"role": "system", "content": system}] if system else []
        if isinstance(data.prompt, str):
            asked.append({"role": "user", "content": data.prompt})
        else:
            asked += [{"role": each.role, "content": str(each.content)} for each in data.prompt]
        return Problem(
            messages=tuple(asked),
            answer=json.dumps({"task": place, "of": task.hash}),
            shown_answer=str(getattr(data, "answer", "")),
        )

    def _tasks(self) -> list[vf.Task]:
        return _loaded(self.id, json.dumps(self.parameters), self.most)


def _trace(task: vf.Task, response: str) -> vf.Trace:
    """The trace of a rollout whose only turn is this response."""
    import verifiers.v1 as vf
    from verifiers.v1.graph import MessageNode
    from verifiers.v1.types import AssistantMessage, UserMessage

    asked = MessageNode(message=UserMessage(content=task.data.prompt_text))
    said = MessageNode(parent=0, message=AssistantMessage(content=response), sampled=True)
    return vf.Trace(
        task=vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
        agent=vf.AgentInfo(config=vf.AgentConfig()),
        nodes=[asked, said],
        is_completed=True,
        ok=True,
    )


@functools.lru_cache(maxsize=8)
def _loaded(name: str, parameters: str, most: int) -> list[vf.Task]:
    """The first tasks of a taskset. Raises UserError for an unknown name or parameter."""
    from verifiers.v1.utils.loaders import load_taskset, taskset_config_type

    try:
        config = taskset_config_type(name)
        return list(islice(load_taskset(config(id=name, **json.loads(parameters))), most))
    except Exception as error:  # each taskset has its own checks
        raise UserError(
            f"dataset.id={name}: verifiers cannot load it with the parameters {parameters} "
            f"({type(error).__name__}: {first_line(error)})"
        ) from error
