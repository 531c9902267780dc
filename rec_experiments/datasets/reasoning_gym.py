"""Problems that reasoning-gym generates, with its own verifiers (arXiv 2505.24760).

A problem is an item of one of its data sets. The answer of a Problem here identifies the item; a
verifier process generates the item again, because the package's verifiers read the whole item. An
item that comes out differently there is a crash: a few of its data sets depend on the order of a
set of strings.
"""

from __future__ import annotations

import functools
import json
import zlib
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from rec_experiments.common.errors import UserError, first_line
from rec_experiments.common.problems import Problem, VerifierResult
from rec_experiments.datasets.text import GeneratedDataset, Solved, prompt

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reasoning_gym.dataset import ProceduralDataset


class ReasoningGym(Solved, GeneratedDataset):
    """Raises ValueError for a number out of range.

    name: of a data set of the package. parameters: those that differ from its defaults; `composite`
    mixes the data sets of a list `datasets` of {name, weight, config}. data_seed: of the problems,
    independent of the run's seed. answer_tag: the verifier gets the text within the last pair of
    these tags; null for the whole response.
    """

    name: str
    parameters: dict[str, Any]
    data_seed: Annotated[int, Field(ge=0, lt=1 << 31)]
    answer_tag: str | None

    def load(self) -> tuple[list[Problem], list[Problem]]:
        """Training and evaluation problems; no question is in both. Raises UserError for an unknown
        data set or parameter, and for too few distinct questions."""
        dataset = self._dataset()
        entries = ((item, dataset[item]) for item in range(self.most))
        return self.split(
            ((entry["question"], self._problem(item, entry)) for item, entry in entries), self.name
        )

    def verify(self, response: str, answer: str) -> VerifierResult:
        """The score of the package's verifier; only a score of 1 is correct."""
        place, dataset = json.loads(answer), self._dataset()
        entry = dataset[place["item"]]
        if _fingerprint(entry) != place["of"]:
            raise ValueError("not the item of the prompt: its data set is not deterministic")
        score = float(dataset.score_answer(self._answer_in(response), entry))
        return VerifierResult(reward=score, accuracy=float(score >= 1))

    def slow_imports(self) -> list[str]:
        return ["reasoning_gym"]

    def describe(self) -> str:
        return f"{self.name} of reasoning-gym"

    def _problem(self, item: int, entry: Mapping[str, Any]) -> Problem:
        gold = str(entry["answer"] or "")
        place = {"answer": gold, "item": item, "of": _fingerprint(entry)}
        tag = self.answer_tag
        return Problem(
            messages=prompt(self.system_prompt, entry["question"]),
            answer=json.dumps(place, ensure_ascii=False),
            solution=f"<{tag}>{gold}</{tag}>" if tag else gold,
            shown_answer=gold,
        )

    def _answer_in(self, response: str) -> str | None:
        """The answer in a response, or None."""
        if self.answer_tag is None:
            return response
        before, closed, _ = response.rpartition(f"</{self.answer_tag}>")
        _, opened, given = before.rpartition(f"<{self.answer_tag}>")
        return given.strip() if opened and closed else None

    def _dataset(self) -> ProceduralDataset:
        return _made(self.name, json.dumps(self.parameters), self.data_seed, self.most)


def _fingerprint(entry: Mapping[str, Any]) -> int:
    return zlib.crc32(f"{entry['question']}\n{entry['answer']}".encode())


@functools.lru_cache(maxsize=64)
def _made(name: str, parameters: str, seed: int, size: int) -> ProceduralDataset:
    """A data set of reasoning-gym. Raises UserError for an unknown name or parameter."""
    import reasoning_gym  # optional, and slow to import

    given = json.loads(parameters)
    try:
        if name == "composite":
            specification = reasoning_gym.composite.DatasetSpec
            given["datasets"] = [specification(**each) for each in given["datasets"]]
        return reasoning_gym.create_dataset(name, seed=seed, size=size, **given)
    except Exception as error:  # each data set has its own checks
        raise UserError(
            f"dataset.name={name}: reasoning-gym refuses it with the parameters {parameters} "
            f"({first_line(error)})"
        ) from error
