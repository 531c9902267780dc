"""Rule-based reward for questions with a mathematical answer: a number or a LaTeX expression.

A response is judged on its final answer only, never on numbers along the way. The same text as the
gold answer is right, and a plain quantity is compared exactly, here; anything else (LaTeX,
fractions, sentences) is left to math-verify, which takes the last expression it finds. Units are
not checked: "18", "$18" and "18%" are all 18.
"""

import logging
import re
from decimal import Decimal

import math_verify

from rec_experiments.rewards.boxed import last_boxed
from rec_experiments.types import Verdict

# It warns in every process that its own time-outs are off. They need signal.alarm, which works in
# a main thread only; the deadline here is the verifier pool's.
logging.getLogger("math_verify").setLevel(logging.ERROR)

_TAG = re.compile(r"</?(?:think|answer)>")
_FORMAT = ["<think>", "</think>", "<answer>", "</answer>"]
_QUANTITY = re.compile(
    r"(?P<head>[-+=≈~$€£¥*\s]*)"
    r"(?P<number>(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+)"
    r"(?P<power>[eE][-+]?\d{1,4})?"
    r"(?!\s*(?:[abciknpqrtuvwxyz]|[abcxyz]{2,3})(?![^\W\d_]))"  # 2x and 3ab have no units
    r"[\s%$€£¥*.(]*(?:[^\W\d_](?:[^\W\d_]|[\s/,().*'-])*)?"  # units
)
_SPELLINGS = {"\u2212": "-", "\\$": "$", "\\%": "%", "{,}": ","}
_STYLED = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\s*\{([^{}]*)\}")
_PARENTHESES = re.compile(r"\(([^(),]*)\)")
_TERM = re.compile(r"-?\d+[a-zA-Z]")
_LETTER = re.compile(r"[^\W\d_]")
_WORD_OR_MARK = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{2,}|\$|\\[(\[]|\\boxed")


def verify(response: str, answer: str, format_bonus: float) -> Verdict:
    """Judge a response against a gold answer: a number, or LaTeX without its dollars.

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
    """With its braces, so that math-verify sees LaTeX."""
    inside = last_boxed(text)
    return f"\\boxed{{{inside}}}" if inside else inside


def _hashed(text: str) -> str | None:
    _, mark, after = text.rpartition("####")
    return after if mark else None


def equal(text: str, answer: str) -> bool:
    """Whether a final answer is the gold answer. False for anything that cannot be read."""
    text, answer = _plain(text), _plain(answer)
    boxed = last_boxed(text)
    inside, answer = _bare(text if boxed is None else boxed), _bare(answer)
    if inside == answer:
        return True
    if _TERM.fullmatch(answer) and answer[-1] not in inside:
        return False  # math-verify would take the m of 3m for metres
    number, gold = quantity(inside), None if _LETTER.search(answer) else quantity(answer)
    if number is not None and gold is not None:
        return number == gold
    if "\\" in text and not _WORD_OR_MARK.search(text):  # a formula without its dollars
        text = f"${text}$"
    expected, found = (
        math_verify.parse(side, fallback_mode="no_fallback", parsing_timeout=None)
        for side in (f"\\boxed{{{answer}}}", text)
    )
    return math_verify.verify(expected, found, timeout_seconds=None)


def _plain(text: str) -> str:
    """One spelling for what has several."""
    for spelling, plain in _SPELLINGS.items():
        text = text.replace(spelling, plain)
    return text


def _bare(text: str) -> str:
    r"""Without a style or parentheses around the whole: \textbf{(073)} is 073."""
    for wrapping in (_STYLED, _PARENTHESES):
        match = wrapping.fullmatch(text.strip())
        text = match[1] if match else text
    return text.strip()


def quantity(text: str) -> Decimal | None:
    """The number in a text that is one number with sign, currency, separators and unit, if it is.

    A word such as "million" counts as a unit: answers to "how many million" carry it too.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None:
        return None
    sign = "-" if "-" in match["head"] else ""
    return Decimal(sign + match["number"].replace(",", "") + (match["power"] or ""))
