"""What data sets share: the split by a hash, gold demonstrations, classes of text data sets."""

import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import PositiveInt

from rec_experiments.common import rng
from rec_experiments.common.errors import UserError
from rec_experiments.common.pieces import Piece
from rec_experiments.common.problems import Message, Problem
from rec_experiments.datasets.loading import Located, Source

T = TypeVar("T")
EVALUATION_SHARE = 8  # one generated problem in 8, chosen by a hash of its text, is held out


def split(
    found: Iterable[tuple[str, T]], wanted: tuple[int, int], share: int = EVALUATION_SHARE
) -> tuple[list[T], list[T]]:
    """Training and evaluation items, at most `wanted` of each; one in `share` is held out.

    found: each item with the text whose hash chooses its split, read until both are full.
    """
    splits: tuple[list[T], list[T]] = ([], [])
    for text, item in found:
        held_out = zlib.crc32(text.encode()) % share == 0
        if len(splits[held_out]) < wanted[held_out]:
            splits[held_out].append(item)
            if (len(splits[0]), len(splits[1])) == wanted:
                break
    return splits


class Solved:
    """A data set whose gold responses are its demonstrations."""

    def demonstrations(
        self, problems: list[Problem], count: int, seed: int
    ) -> list[tuple[int, list[str]]]:
        """`count` random problem numbers, each with its gold response as the model's only turn."""
        picks = rng.generator(seed, rng.TASK, 2).integers(len(problems), size=count)
        return [(int(i), [problems[i].solution]) for i in picks]


class TextDataset(Piece):
    """Raises ValueError for a number out of range.

    system_prompt: first message of every prompt; "" for none. long_prompts: what to do about
    prompts longer than max_prompt_tokens: refuse the data set, with an error that shows the prompt,
    or drop the problems, and print their number.
    """

    system_prompt: str
    max_prompt_tokens: PositiveInt
    long_prompts: Literal["refuse", "drop"]
    max_response_tokens: PositiveInt
    verifier_workers: PositiveInt
    verifier_timeout: float


class GeneratedDataset(TextDataset):
    """Problems that a package makes, as many as are wanted; no text is in both splits.

    train_problems, eval_problems: numbers of problems to take.
    """

    train_problems: PositiveInt
    eval_problems: PositiveInt

    @property
    def most(self) -> int:
        """Items to look at, enough for both splits unless many share a text."""
        return 2 * (self.train_problems + EVALUATION_SHARE * self.eval_problems)

    def split(
        self, found: Iterable[tuple[str, Problem]], name: str
    ) -> tuple[list[Problem], list[Problem]]:
        """Training and evaluation problems. found: each with the text whose hash chooses its split.
        Raises UserError if they are too few. name: of the items, in that error."""
        wanted = (self.train_problems, self.eval_problems)
        splits = split(found, wanted)
        for key, needed, number in zip(("train", "eval"), wanted, map(len, splits), strict=True):
            if number < needed:
                raise UserError(
                    f"dataset.{key}_problems={needed}: {name} has only {number} of {needed} in its "
                    f"first {self.most} items"
                )
        return splits


class ProblemSource(Source):
    """A split whose rows are problems."""

    def problem(self, located: Located, system_prompt: str) -> Problem:
        """The problem of a row. Raises UserError that names the place of a malformed row."""
        raise NotImplementedError


class SplitDataset(TextDataset):
    """A data set of two splits. Raises ValueError also for a wrong hub name.

    path: a local folder with the files that `train` and `evaluation` name, or null for the hub. If
    both name the same file, it may be that file itself.
    """

    path: str | None
    train: ProblemSource
    evaluation: ProblemSource

    def __post_init__(self) -> None:
        self.train.check("train", self.path)
        self.evaluation.check("evaluation", self.path)

    def load(self) -> tuple[list[Problem], list[Problem]]:
        """Training and evaluation problems, in the order of their files."""
        files = list(dict.fromkeys([self.train.file, self.evaluation.file]))
        if self.path and len(files) > 1 and Path(self.path).expanduser().is_file():
            raise UserError(
                f"dataset.path={self.path}: must be a folder with {' and '.join(files)}, not a file"
            )
        train = self.train.read("train", self.path)
        evaluation = self.evaluation.read("evaluation", self.path)
        return (
            [self.train.problem(row, self.system_prompt) for row in train],
            [self.evaluation.problem(row, self.system_prompt) for row in evaluation],
        )


def prompt(system: str, user: str) -> tuple[Message, ...]:
    """A system message, unless it is empty, and a user message."""
    message = {"role": "user", "content": user}
    return ({"role": "system", "content": system}, message) if system else (message,)
