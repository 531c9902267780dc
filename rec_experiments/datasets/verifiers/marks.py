r"""Rule-based reward for questions with a mathematical answer.

A response is judged on its final answer only: after its reasoning, in <answer>, in \boxed{} or
after ####. Where a chat template opens the reasoning in the prompt, `policy/chat.py` puts that tag,
as <think>, in front of the response; the other tags here are those that models write unasked.
"""

import re
from collections.abc import Callable

from rec_experiments.common.problems import VerifierResult

LONGEST = 1000  # characters of a final answer; a longer text is none
_FORMAT = ["<think>", "</think>", "<answer>", "</answer>"]
_REASONING = re.compile(
    r"<\s*(?P<slash>/)?\s*(?:seed:)?(?:think(?:ing)?|thoughts?|reason(?:ing)?|analysis|scratchpad)\s*>"
    r"|(?-i:\[(?P<end>/)?THINK\])|◁(?P<stop>/)?think▷|<\|(?:begin|(?P<leave>end))_of_thought\|>"
    r"|<\|channel\|>(?:analysis|(?P<final>final))<\|message\|>",
    re.IGNORECASE,
)
_TAG = re.compile(r"</?answer>", re.IGNORECASE)
_BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?:\s*\{|\s+(?P<bare>[^\s$.,{}\\]+))")  # or \boxed 3
_BRACE = re.compile(r"(?<!\\)[{}]")
LONGEST_JOIN = 60  # characters
# What may stand between two boxes that give one answer together: "\boxed{1} or x = \boxed{-2}".
_JOIN = re.compile(
    r"(?=.*(?:[,;]|\b(?:or|and)\b|\\lor|\\vee))"
    r"(?:[\s$.,;:()\[\]{}\\]|\\text|\\q?quad|\\lor|\\vee|\b(?:or|and|also)\b)*"
    r"(?:[a-zA-Z](?:_\w{1,3})?\s*=\s*)?",
    re.DOTALL,
)
# A line after #### that is no answer if digits follow below: "Step 1", "Answer", "1. Add".
_HEADING = re.compile(
    r"[\s*_]*(?:step|part|case|section|solution|stage|phase)\b.*"
    r"|\s*(?:\d+[.)]\s)?(?=[^\d]*?[^\W\d_]{3})[^\d\\$]*",
    re.IGNORECASE,
)
_ANSWER = re.compile(r"^[ \t#*_>-]*(?:final )?answer[ \t*_]*[:\n]", re.IGNORECASE | re.MULTILINE)
_SENTENCE_END = re.compile(r"(?<=[^\W\d_]{2})[.!?]\s|(?<=\d)[.!]\s+(?=[A-Z])")
_COURTESY = re.compile(r"\s*(?:I hope|hope|let me know|thanks?|feel free)\b", re.IGNORECASE)
_CLAUSE_END = re.compile(r"(?<=[.?])\s+|,\s+(?:and|so)\s|</?(?:think|answer)>")


def verify(
    response: str, answer: str, format_bonus: float, same: Callable[[str, str], bool]
) -> VerifierResult:
    """Judge a response against a gold answer: a number, or LaTeX without its dollars.

    accuracy: 1 if the final answer is the `same` as `answer`, else 0. reward: accuracy, plus
    `format_bonus` if the response is well-formed, minus it if not. With 0 the reward is binary, as
    in the text of arXiv 2509.24203; its runs used 0.1.
    """
    final = final_answer(response)
    accuracy = float(len(final) <= LONGEST and same(final, answer))
    bonus = format_bonus if well_formed(response) else -format_bonus
    return VerifierResult(reward=accuracy + bonus, accuracy=accuracy)


def well_formed(response: str) -> bool:
    """Whether it is one <think>...</think> and one <answer>...</answer>, with nothing around."""
    text = response.strip()
    return (
        re.findall(r"</?(?:think|answer)>", text) == _FORMAT
        and text.startswith(_FORMAT[0])
        and text.endswith(_FORMAT[-1])
        and re.search(r"</think>\s*<answer>", text) is not None
    )


def after_reasoning(response: str, quoting: str | None = None) -> str | None:
    """What follows the end of the reasoning. None if the last reasoning that is opened is not
    closed: there is no answer then, whatever the reasoning says. quoting: a text, such as
    <tool_call>, after which the answer's own texts may hold such tags."""
    inside, end = False, 0
    for tag in _REASONING.finditer(response):
        if quoting and not inside and response.find(quoting, end, tag.start()) >= 0:
            break
        inside, end = not any(tag.groups()), tag.end()
    return None if inside else response[end:]


def final_answer(response: str) -> str:
    r"""What a response commits to, "" if it never leaves its reasoning.

    Each mark narrows the text if it is present: the last <answer>, in it the last \boxed{}, or else
    the last ####. Without any mark it is the last clause, behind the last "Answer:".
    """
    answer = after_reasoning(response)
    if answer is None:
        return ""
    before, closing, _ = _TAG.sub(lambda tag: tag[0].lower(), answer).rpartition("</answer>")
    _, opening, inside = before.rpartition("<answer>")
    tagged = bool(closing and opening)
    text = inside if tagged else answer
    if (boxed := last_boxed(text)) is not None:
        return f"\\boxed{{{boxed}}}"  # still recognised as marked
    _, hashes, below = text.rpartition("####")
    if hashes:
        line, _, rest = below.partition("\n")
        if not (_HEADING.fullmatch(line) and any(map(str.isdigit, rest))):
            return _SENTENCE_END.split(line, maxsplit=1)[0]
        text = rest
    text = _ANSWER.split(text)[-1]
    return text if tagged and not hashes else _last_clause(text)


def last_boxed(text: str) -> str | None:
    r"""What the last \boxed{} holds; "" if it is cut off, None if there is none.

    Boxes that are joined by a comma, "or" or "and" give one answer: their contents with commas.
    """
    contents: list[str] = []
    start = len(text)
    for box in reversed(list(_BOX.finditer(text))):
        content, end = _content(text, box, start)
        joined = content and start - end <= LONGEST_JOIN and _JOIN.fullmatch(text, end, start)
        if contents and not joined:
            break
        contents.insert(0, content)
        start = box.start()
    return ", ".join(contents) if contents else None


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


def _last_clause(text: str) -> str:
    clauses = _CLAUSE_END.split(text)
    said = [each for each in clauses if each.strip() and not _COURTESY.match(each)]
    return said[-1] if said else ""
