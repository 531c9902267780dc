"""GSM8K: grade-school word problems whose answer is a number (arXiv 2110.14168).

`python -m rec_experiments.check_data dataset=gsm8k` runs the verifier over every gold solution.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from rec_experiments.tasks import jsonl
from rec_experiments.types import Piece, Problem, UserError, Verdict

FIELDS = ("question", "answer")
FILES = ("train.jsonl", "test.jsonl")


@dataclass(kw_only=True, slots=True)
class Gsm8k(Piece):
    """Raises ValueError for a number out of range.

    path: a local folder with train.jsonl and test.jsonl, or a name on the Hugging Face hub, and
    then `subset` is its configuration there. system_prompt: opens every prompt. format_bonus: see
    `rewards.math_answer.verify`. verifier_workers, verifier_timeout: processes that judge, and
    seconds that one response may take there.
    """

    path: str
    subset: str
    system_prompt: str
    format_bonus: float
    max_prompt_tokens: int
    max_response_tokens: int
    verifier_workers: int
    verifier_timeout: float

    def __post_init__(self) -> None:
        for name in ("max_prompt_tokens", "max_response_tokens", "verifier_workers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")
        if not self.verifier_timeout > 0:
            raise ValueError(f"verifier_timeout={self.verifier_timeout}: must be above 0 seconds")
        if not self.format_bonus >= 0:
            raise ValueError(f"format_bonus={self.format_bonus}: must be at least 0")

    def load(self) -> tuple[list[Problem], list[Problem]]:
        """The 7,473 training and 1,319 test problems, in file order."""
        folder = Path(self.path).expanduser()
        if folder.is_dir():
            for file in FILES:
                if not (folder / file).is_file():
                    raise UserError(f"dataset.path={self.path}: the folder has no {file}")
            names = [str(folder / file) for file in FILES]
            splits = [jsonl.read(folder / file, FIELDS) for file in FILES]
        else:
            names = [f"{self.path} {split}" for split in ("train", "test")]
            splits = _from_hub(self.path, self.subset)
        train, test = (
            [self._problem(row, name) for row in rows]
            for name, rows in zip(names, splits, strict=True)
        )
        return train, test

    def verify(self, response: str, answer: str) -> Verdict:
        from rec_experiments.rewards import math_answer  # noqa: PLC0415 (sympy is slow to import)

        return math_answer.verify(response, answer, self.format_bonus)

    def _problem(self, row: jsonl.Row, source: str) -> Problem:
        reasoning, number = split_solution(row["answer"], source)
        return Problem(
            messages=(
                {"role": "system", "content": self.system_prompt},
                {"role": "user", "content": row["question"]},
            ),
            answer=number,
            solution=f"<think>\n{reasoning}\n</think>\n<answer>\n{number}\n</answer>",
        )


def split_solution(solution: str, source: str) -> tuple[str, str]:
    """Reasoning and answer of a gold solution, which ends in `#### 1,080`, here read as 1080.

    The calculator notes <<48/2=24>> are left out of the reasoning: they are no part of the text.
    Raises UserError that names the source if there is no number at the end.
    """
    reasoning, mark, end = solution.rpartition("####")
    number = re.sub(r"[,$\s]", "", end)
    if not (mark and re.fullmatch(r"-?\d+(\.\d+)?", number)):
        raise UserError(
            f"{source}: field 'answer' must end in '#### NUMBER', but one ends in {end[-40:]!r}"
        )
    return re.sub(r"<<.*?>>", "", reasoning).strip(), number


def _from_hub(path: str, subset: str) -> list[list[jsonl.Row]]:
    advice = "give a local folder with train.jsonl and test.jsonl: dataset.path=FOLDER"
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", path):
        raise UserError(f"dataset.path={path}: no such folder; {advice}, or OWNER/NAME on the hub")
    import datasets  # noqa: PLC0415 (slow to import, and a local folder does without it)

    try:
        loaded = datasets.load_dataset(path, subset)
        splits = [loaded["train"], loaded["test"]]
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(
            f"dataset.path={path}: no such folder, and not to be had from the Hugging Face hub "
            f"({reason}); {advice}"
        ) from error
    return [
        [jsonl.check(row, FIELDS, f"{path} row {i}") for i, row in enumerate(rows)]
        for rows in splits
    ]
