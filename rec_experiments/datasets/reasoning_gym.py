"""Problems of reasoning-gym, made on the spot, with its own verifiers (arXiv 2505.24760).

A problem is an item of one of its data sets, and its answer here is where that item is found: what
judges a response makes the item anew, so that a verifier reads all that it wants to know of it.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import zlib
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any

from rec_experiments.datasets.text import TextDataset, question, solutions
from rec_experiments.errors import UserError, first_line
from rec_experiments.types import Problem, VerifierResult

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reasoning_gym.dataset import ProceduralDataset

EVALUATION_SHARE = 8  # one question in 8, by a hash of its text, is held out
OURS = ("seed", "size")  # parameters that follow from other keys here
# Their items follow from the order of a set of texts, which is another one in each process.
UNSTEADY = (
    "isomorphic_strings", "knight_swap", "list_functions", "polynomial_multiplication",
    "ransom_note", "word_ladder",
)  # fmt: skip


@dataclass(kw_only=True)
class Stage:
    """name: of a data set of the package. parameters: of that data set; the others are its own."""

    name: str
    parameters: dict[str, Any]


@dataclass(kw_only=True)
class ReasoningGym(TextDataset):
    """Raises ValueError for a number out of range, and unless name or stages is given.

    name, parameters: one data set. stages: several, in the order of training where shuffle=false;
    problems of all are evaluated on. data_seed: of the problems, not of a run. train_problems,
    eval_problems: how many to make, equally many of each stage. answer_tag: what is judged is the
    text in the last pair of such tags; null for the whole response.
    """

    name: str | None
    parameters: dict[str, Any]
    stages: list[Stage] | None
    data_seed: int
    train_problems: int
    eval_problems: int
    answer_tag: str | None

    def __post_init__(self) -> None:
        TextDataset.__post_init__(self)
        if (self.name is None) == (self.stages is None):
            raise ValueError(
                f"name={self.name or 'null'}: must be a data set of reasoning-gym, as lcm, or "
                "null with stages in its place"
            )
        if self.stages is not None and (self.parameters or not self.stages):
            raise ValueError("stages: must be at least one, each with parameters of its own")
        if not 0 <= self.data_seed < 1 << 31:
            raise ValueError(f"data_seed={self.data_seed}: must be at least 0 and below 2^31")
        for key in ("train_problems", "eval_problems"):
            if getattr(self, key) < len(self._stages()):
                raise ValueError(f"{key}={getattr(self, key)}: must be at least one of each stage")

    def load(self) -> tuple[list[Problem], list[Problem]]:
        """Training problems stage by stage, evaluation problems of all stages in turn. No question
        is on both sides. Raises UserError for a data set or a parameter that there is not."""
        sides = [self._sides(number) for number in range(len(self._stages()))]
        train = [problem for side, _ in sides for problem in side]
        in_turn = chain.from_iterable(zip_longest(*(held_out for _, held_out in sides)))
        return train, [problem for problem in in_turn if problem is not None]

    def verify(self, response: str, answer: str) -> VerifierResult:
        """The score of the package's verifier; right is a score of 1."""
        place = json.loads(answer)
        entry = self._dataset(place["stage"])[place["item"]]
        if _fingerprint(entry) != place["of"]:
            raise ValueError("another item than the prompt's: its data set is not deterministic")
        given = self._judged(response)
        score = float(self._dataset(place["stage"]).score_answer(given, entry))
        return VerifierResult(reward=score, accuracy=float(score >= 1))

    def slow_imports(self) -> list[str]:
        return ["reasoning_gym"]

    def describe(self) -> str:
        names = dict.fromkeys(stage.name for stage in self._stages())
        return f"{', '.join(names)} of reasoning-gym"

    def demonstrations(
        self, problems: list[Problem], count: int, seed: int
    ) -> list[tuple[int, list[str]]]:
        return solutions(problems, count, seed)

    def _stages(self) -> list[Stage]:
        if self.stages is not None:
            return self.stages
        assert self.name is not None  # see __post_init__
        return [Stage(name=self.name, parameters=self.parameters)]

    def _sides(self, number: int) -> tuple[list[Problem], list[Problem]]:
        """Training and evaluation problems of a stage."""
        dataset = self._dataset(number)
        wanted = {
            False: share(self.train_problems, number, len(self._stages())),
            True: share(self.eval_problems, number, len(self._stages())),
        }
        sides: dict[bool, list[Problem]] = {False: [], True: []}
        for item in range(self._items()):
            entry = dataset[item]
            side = zlib.crc32(entry["question"].encode()) % EVALUATION_SHARE == 0
            if len(sides[side]) < wanted[side]:
                sides[side].append(self._problem(number, item, entry))
            elif all(len(sides[each]) == wanted[each] for each in sides):
                break
        for side, key in ((False, "train_problems"), (True, "eval_problems")):
            if len(sides[side]) < wanted[side]:
                raise UserError(
                    f"dataset.{key}={getattr(self, key)}: {self._stages()[number].name} gave only "
                    f"{len(sides[side])} of {wanted[side]} in {self._items()} items: it has too "
                    "few different questions"
                )
        return sides[False], sides[True]

    def _items(self) -> int:
        """How many items of a stage are looked at, at most."""
        return 2 * (self.train_problems + EVALUATION_SHARE * self.eval_problems)

    def _problem(self, number: int, item: int, entry: Mapping[str, Any]) -> Problem:
        gold = str(entry["answer"] or "")
        place = {"answer": gold, "stage": number, "item": item, "of": _fingerprint(entry)}
        tag = self.answer_tag
        return Problem(
            messages=question(self.system_prompt, entry["question"]),
            answer=json.dumps(place, ensure_ascii=False),
            solution=f"<{tag}>{gold}</{tag}>" if tag else gold,
        )

    def _judged(self, response: str) -> str | None:
        """The part of a response that answers; None if there is none."""
        if self.answer_tag is None:
            return response
        before, closed, _ = response.rpartition(f"</{self.answer_tag}>")
        _, opened, given = before.rpartition(f"<{self.answer_tag}>")
        return given.strip() if opened and closed else None

    def _dataset(self, number: int) -> ProceduralDataset:
        stage = self._stages()[number]
        return _made(stage.name, json.dumps(stage.parameters), self.data_seed, self._items())


def share(total: int, number: int, parts: int) -> int:
    """The size of one of some parts that differ by 1 at most, the first ones being larger."""
    return total // parts + (number < total % parts)


def _fingerprint(entry: Mapping[str, Any]) -> int:
    return zlib.crc32(f"{entry['question']}\n{entry['answer']}".encode())


@functools.lru_cache(maxsize=64)
def _made(name: str, parameters: str, seed: int, size: int) -> ProceduralDataset:
    """A data set of the package. Raises UserError for a name or a parameter that there is not."""
    import reasoning_gym  # an extra, and slow to import
    from reasoning_gym.factory import DATASETS

    allowed = sorted(DATASETS.keys() - {*UNSTEADY})
    if name not in allowed:
        unsteady = "; its problems are other ones in each process" if name in UNSTEADY else ""
        raise UserError(
            f"dataset.name={name}: must be a data set of reasoning-gym{unsteady}; allowed: "
            f"{', '.join(allowed)}"
        )
    given = json.loads(parameters)
    keys = sorted({field.name for field in dataclasses.fields(DATASETS[name][1])} - {*OURS})
    for key in given:
        if key not in keys:
            raise UserError(
                f"dataset.parameters.{key}: no parameter of {name}; allowed: {', '.join(keys)}"
            )
    try:
        return reasoning_gym.create_dataset(name, seed=seed, size=size, **given)
    except Exception as error:  # AssertionError, ValueError, …: each data set has its own checks
        raise UserError(
            f"dataset.parameters={given}: {name} refuses them ({first_line(error)})"
        ) from error
