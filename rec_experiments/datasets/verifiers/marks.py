r"""The final answer of a response: after its reasoning, in <answer>, in \boxed{} or after ####.

Reasoning is never judged. Models open it with <think>, or their chat template has opened it in the
prompt, so that only </think> is in the response.
"""

import re
from collections.abc import Sequence

_THINK = re.compile(
    r"<\s*(?P<close>/)?\s*(?:seed:)?(?:think(?:ing)?|thoughts?|reason(?:ing)?|analysis|scratchpad)\s*>"
    r"|(?-i:\[(?P<end>/)?THINK\])|◁(?P<stop>/)?think▷|<\|(?:begin|(?P<leave>end))_of_thought\|>"
    r"|<\|channel\|>(?:analysis|(?P<final>final))<\|message\|>",
    re.IGNORECASE,
)
_BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?:\s*\{|\s+(?P<bare>[^\s$.,{}\\]+))")  # or \boxed 3
_BRACE = re.compile(r"(?<!\\)[{}]")
# What may stand between two boxes that give one answer together: "\boxed{1} or x = \boxed{-2}".
_JOINS = re.compile(
    r"(?=.*(?:[,;]|\b(?:or|and)\b|\\lor|\\vee))"
    r"(?:[\s$.,;:()\[\]{}\\]|\\text|\\q?quad|\\lor|\\vee|\b(?:or|and|also)\b)*"
    r"(?:[a-zA-Z](?:_\w{1,3})?\s*=\s*)?",
    re.DOTALL,
)
LONGEST_JOIN = 60  # characters
_STEP = re.compile(  # "#### Step 1" is no answer
    r"####[^\S\n]*[*_]*(?:step|part|case|section|solution|stage|phase)\b[^\n]*", re.IGNORECASE
)
# "#### Answer" and "#### 1. Add", with 42 below it
_TITLE = re.compile(r"\s*####(?:\s*\d+[.)]\s)?[^\d\\$]*[^\W\d_]{3}[^\d\\$]*")
_SENTENCE_END = re.compile(r"(?<=[^\W\d_]{2})[.!?]\s|(?<=\d)[.!]\s+(?=[A-Z])")
_HASHES = re.compile(r"####[^\S\n]*([^\n]*)")
_COURTESY = re.compile(r"\s*(?:I hope|hope|let me know|thanks?|feel free)\b", re.IGNORECASE)
_CLAUSE_END = re.compile(r"(?<=[.?])\s+|,\s+(?:and|so)\s|</?(?:think|answer)>")


def after_reasoning(response: str, quoted: Sequence[tuple[int, int]] = ()) -> str | None:
    """What follows the last </think>. None if reasoning was opened and not closed: there is no
    answer then, whatever the reasoning says. quoted: where such a mark means nothing, from start to
    end."""
    tags = [
        tag
        for tag in _THINK.finditer(response)
        if not any(start <= tag.start() < end for start, end in quoted)
    ]
    if not tags:
        return response
    return response[tags[-1].end() :] if any(tags[-1].groups()) else None


def final_answer(response: str) -> str:
    r"""What a response commits to, "" if it never leaves its reasoning.

    Each mark narrows the text if it is present: the last <answer>, in it the last \boxed{}, or else
    the last ####. Without any mark it is the last clause.
    """
    answer = after_reasoning(response)
    if answer is None:
        return ""
    tagged = _tagged(answer)
    text = _without_titles(_STEP.sub("", answer if tagged is None else tagged))
    marked = tagged is not None
    for narrow in (_boxed, _hashed):  # each mark in what the one before it has left
        if (found := narrow(text)) is not None:
            text, marked = found, True
    return text if marked else _last_clause(text)


def last_boxed(text: str) -> str | None:
    r"""What the last \boxed{} holds; "" if it is cut off, None if there is none.

    Boxes that are joined by a comma, "or" or "and" give one answer: their contents with commas.
    """
    boxes = list(_BOX.finditer(text))
    if not boxes:
        return None
    contents, start = [_content(text, boxes[-1], len(text))[0]], boxes[-1].start()
    for box in reversed(boxes[:-1]):
        content, end = _content(text, box, start)
        if not content or start - end > LONGEST_JOIN or not _JOINS.fullmatch(text, end, start):
            break
        contents.insert(0, content)
        start = box.start()
    return ", ".join(contents)


def _without_titles(text: str) -> str:
    """Without the lines after #### that hold words alone and have a digit below them."""
    lines = text.split("\n")
    last = max((i for i, line in enumerate(lines) if any(map(str.isdigit, line))), default=0)
    titles = (i < last and _TITLE.fullmatch(line) for i, line in enumerate(lines))
    return "\n".join("" if title else line for title, line in zip(titles, lines, strict=True))


def _content(text: str, box: re.Match[str], limit: int) -> tuple[str, int]:
    """What a box holds and where it ends; "" if it does not end before `limit`."""
    if box["bare"]:
        return box["bare"], box.end()
    depth = 1
    for brace in _BRACE.finditer(text, box.end(), limit):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            return text[box.end() : brace.start()], brace.end()
    return "", limit


def _tagged(text: str) -> str | None:
    before, closing, _ = text.rpartition("</answer>")
    _, opening, inside = before.rpartition("<answer>")
    return inside if closing and opening else None


def _boxed(text: str) -> str | None:
    """With its braces, so that it is still recognised as marked."""
    inside = last_boxed(text)
    return f"\\boxed{{{inside}}}" if inside else inside


def _hashed(text: str) -> str | None:
    """The line after the last ####, up to the end of its first sentence."""
    lines = _HASHES.findall(text)
    return _SENTENCE_END.split(lines[-1], maxsplit=1)[0] if lines else None


def _last_clause(text: str) -> str:
    clauses = [clause for clause in _CLAUSE_END.split(text) if _is_said(clause)]
    return clauses[-1] if clauses else ""


def _is_said(clause: str) -> bool:
    return bool(clause.strip()) and not _COURTESY.match(clause)
