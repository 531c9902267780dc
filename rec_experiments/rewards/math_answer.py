"""Rule-based reward for questions whose answer is a number, such as GSM8K's.

A response is judged on its final answer only, never on numbers along the way. A plain quantity is
compared exactly, here; anything else (LaTeX, fractions, sentences) is left to math-verify, which
takes the last expression it finds. Units are not checked: "18", "$18" and "18%" are all 18.
"""

import logging
import re
from decimal import Decimal

import math_verify

from rec_experiments.types import Verdict

# It warns in every process that its own time-outs are off. They need signal.alarm, which works in
# a main thread only; the deadline here is the judge's.
logging.getLogger("math_verify").setLevel(logging.ERROR)

_TAG = re.compile(r"</?(?:think|answer)>")
_FORMAT = ["<think>", "</think>", "<answer>", "</answer>"]
_QUANTITY = re.compile(
    r"(?P<head>[-+=≈~$€£¥*\s]*)"
    r"(?P<number>(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+)"
    r"(?P<power>[eE][-+]?\d{1,4})?"
    r"[\s%$€£¥*.(]*(?:[^\W\d_](?:[^\W\d_]|[\s/,().*'-])*)?"  # units
)
_SPELLINGS = {"\u2212": "-", "\\$": "$", "\\%": "%", "{,}": ","}


def verify(response: str, answer: str, format_bonus: float) -> Verdict:
    """Judge a response against a gold number.

    accuracy: 1 if the final answer equals `answer`, else 0. reward: accuracy, plus `format_bonus`
    if the response is well-formed, minus it if not. With 0 the reward is binary, as in the text of
    arXiv 2509.24203; its runs used 0.1.
    """
    accuracy = float(equal(final_answer(response), answer))
    bonus = format_bonus if well_formed(response) else -format_bonus
    return Verdict(reward=accuracy + bonus, accuracy=accuracy)


def well_formed(response: str) -> bool:
    """Whether it is one <think>...</think> and one <answer>...</answer>, with nothing around."""
    text = response.strip()
    return (
        _TAG.findall(text) == _FORMAT
        and text.startswith(_FORMAT[0])
        and text.endswith(_FORMAT[-1])
        and re.search(r"</think>\s*<answer>", text) is not None
    )


def final_answer(response: str) -> str:
    r"""What a response commits to: the last <answer>, in it the last \boxed{}, or else after ####.

    Each mark narrows the text if it is there; without any the whole response stays.
    """
    text = response
    for narrow in (_tagged, _boxed, _hashed):
        found = narrow(text)
        text = text if found is None else found
    return text


def _tagged(text: str) -> str | None:
    before, closing, _ = text.rpartition("</answer>")
    _, opening, inside = before.rpartition("<answer>")
    return inside if closing and opening else None


def _boxed(text: str) -> str | None:
    r"""The last \boxed{...}, with its braces so that math-verify sees LaTeX; empty if cut off."""
    _, mark, after = text.rpartition("\\boxed{")
    if not mark:
        return None
    depth = 1
    for brace in re.finditer(r"[{}]", after):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            return mark + after[: brace.end()]
    return ""


def _hashed(text: str) -> str | None:
    _, mark, after = text.rpartition("####")
    return after if mark else None


def equal(text: str, answer: str) -> bool:
    """Whether a final answer is the gold number. False for anything that cannot be read."""
    for spelling, plain in _SPELLINGS.items():
        text = text.replace(spelling, plain)
    number, gold = quantity(text.removeprefix("\\boxed{").removesuffix("}")), quantity(answer)
    if number is not None and gold is not None:
        return number == gold
    expected, found = (
        math_verify.parse(side, fallback_mode="no_fallback", parsing_timeout=None)
        for side in (answer, text)
    )
    return math_verify.verify(expected, found, timeout_seconds=None)


def quantity(text: str) -> Decimal | None:
    """The number in a text that is one number with sign, currency, separators and unit, if it is.

    A word such as "million" counts as a unit: answers to "how many million" carry it too.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None:
        return None
    sign = "-" if "-" in match["head"] else ""
    return Decimal(sign + match["number"].replace(",", "") + (match["power"] or ""))
