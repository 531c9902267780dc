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
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from rec_experiments.common.errors import UserError, first_line
from rec_experiments.common.pieces import Settings
from rec_experiments.common.problems import Problem, VerifierResult
from rec_experiments.datasets.text import TextDataset, prompt, solutions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reasoning_gym.dataset import ProceduralDataset

EVALUATION_SHARE = 8  # one question in 8, chosen by a hash of its text, is an evaluation problem


class Stage(Settings):
    """name: of a data set of reasoning-gym. parameters: those that differ from its defaults."""

    name: str
    parameters: dict[str, Any]


class ReasoningGym(TextDataset):
    """Raises ValueError for a number out of range, and unless name or stages is given.

    name, parameters: one data set. stages: several data sets. With shuffle=false, training follows
    the order of stages. Evaluation uses problems of all. data_seed: of the problems, independent of
    the run's seed. train_problems, eval_problems: numbers to generate, divided equally between the
    stages. answer_tag: the verifier gets the text within the last pair of these tags; null for the
    whole response.
    """

    name: str | None
    parameters: dict[str, Any]
    stages: list[Stage] | None
    data_seed: Annotated[int, Field(ge=0, lt=1 << 31)]
    train_problems: int
    eval_problems: int
    answer_tag: str | None

    def __post_init__(self) -> None:
        if (self.name is None) == (not self.stages) or (self.stages and self.parameters):
            raise ValueError(
                f"name={self.name or 'null'}: must be a data set of reasoning-gym, such as lcm, "
                "or null if there are stages, each with its own parameters"
            )
        for key in ("train_problems", "eval_problems"):
            if getattr(self, key) < len(self.all_stages):
                raise ValueError(f"{key}={getattr(self, key)}: must be at least one per stage")

    @property
    def all_stages(self) -> list[Stage]:
        """The stages, or the one data set as a stage."""
        return self.stages or [Stage(name=str(self.name), parameters=self.parameters)]

    def load(self) -> tuple[list[Problem], list[Problem]]:
        """Training problems stage after stage, and evaluation problems of the stages in turn.

        No question is in both. Raises UserError for an unknown data set or parameter.
        """
        splits = [self._splits(number) for number in range(len(self.all_stages))]
        train = [problem for split, _ in splits for problem in split]
        in_turn = chain.from_iterable(zip_longest(*(held_out for _, held_out in splits)))
        return train, [problem for problem in in_turn if problem is not None]

    def verify(self, response: str, answer: str) -> VerifierResult:
        """The score of the package's verifier; only a score of 1 is correct."""
        place = json.loads(answer)
        dataset = self._dataset(place["stage"])
        entry = dataset[place["item"]]
        if _fingerprint(entry) != place["of"]:
            raise ValueError("not the item of the prompt: its data set is not deterministic")
        score = float(dataset.score_answer(self._answer_in(response), entry))
        return VerifierResult(reward=score, accuracy=float(score >= 1))

    def slow_imports(self) -> list[str]:
        return ["reasoning_gym"]

    def describe(self) -> str:
        names = dict.fromkeys(stage.name for stage in self.all_stages)
        return f"{', '.join(names)} of reasoning-gym"

    def demonstrations(
        self, problems: list[Problem], count: int, seed: int
    ) -> list[tuple[int, list[str]]]:
        return solutions(problems, count, seed)

    def _splits(self, number: int) -> tuple[list[Problem], list[Problem]]:
        """Training and evaluation problems of a stage."""
        dataset, stages = self._dataset(number), len(self.all_stages)
        keys = ("train_problems", "eval_problems")
        wanted = [share(getattr(self, key), number, stages) for key in keys]
        splits: tuple[list[Problem], list[Problem]] = ([], [])
        for item in range(self._items()):
            entry = dataset[item]
            split = zlib.crc32(entry["question"].encode()) % EVALUATION_SHARE == 0
            if len(splits[split]) < wanted[split]:
                splits[split].append(self._problem(number, item, entry))
            elif [*map(len, splits)] == wanted:
                break
        for key, needed, found in zip(keys, wanted, map(len, splits), strict=True):
            if found < needed:
                raise UserError(
                    f"dataset.{key}={getattr(self, key)}: {self.all_stages[number].name} has only "
                    f"{found} of {needed} distinct questions in {self._items()} items"
                )
        return splits

    def _items(self) -> int:
        """How many items of a stage to generate at most."""
        return 2 * (self.train_problems + EVALUATION_SHARE * self.eval_problems)

    def _problem(self, number: int, item: int, entry: Mapping[str, Any]) -> Problem:
        gold = str(entry["answer"] or "")
        place = {"answer": gold, "stage": number, "item": item, "of": _fingerprint(entry)}
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

    def _dataset(self, number: int) -> ProceduralDataset:
        stage = self.all_stages[number]
        return _made(stage.name, json.dumps(stage.parameters), self.data_seed, self._items())


def share(total: int, number: int, parts: int) -> int:
    """The size of part `number` of `total` in nearly equal parts; the first ones are larger."""
    return total // parts + (number < total % parts)


def _fingerprint(entry: Mapping[str, Any]) -> int:
    return zlib.crc32(f"{entry['question']}\n{entry['answer']}".encode())


@functools.lru_cache(maxsize=64)
def _made(name: str, parameters: str, seed: int, size: int) -> ProceduralDataset:
    """A data set of reasoning-gym. Raises UserError for an unknown name or parameter."""
    import reasoning_gym  # optional, and slow to import

    try:
        return reasoning_gym.create_dataset(name, seed=seed, size=size, **json.loads(parameters))
    except Exception as error:  # each data set has its own checks
        raise UserError(
            f"dataset.name={name}: reasoning-gym refuses it with the parameters {parameters} "
            f"({first_line(error)})"
        ) from error
