r"""Rule-based reward for questions with a mathematical answer: a number or a LaTeX expression.

A response is judged on its final answer only, never on numbers along the way. The same text as the
gold answer is right. Beyond that there are two meanings of right, and a data set chooses one:

`same_number`: the answer is one number as people write it, with sign, separators, currency, unit,
LaTeX or a phrase such as "x =" or "The answer is" around it. Arithmetic, a second number, negation
and doubt make it wrong.

`same_expression`: any expression of the same value, so \frac{36}{2} is 18. What is no plain number
is left to math-verify, unless it denies the value, doubts it or offers another one beside it.

Units are not checked: "18", "$18" and "18%" are all 18.
"""

import logging
import re
import unicodedata
from collections.abc import Callable
from fractions import Fraction

import math_verify

from rec_experiments.datasets.verifiers.boxed import last_boxed
from rec_experiments.types import VerifierResult

# It warns in every process that its own time-outs are off. They need signal.alarm, which works in
# a main thread only; the deadline here is the verifier pool's.
logging.getLogger("math_verify").setLevel(logging.ERROR)

Same = Callable[[str, str], bool]  # of a final answer and the gold answer

LONGEST = 1000  # characters of a final answer; a longer text is none

_TAG = re.compile(r"</?(?:think|answer)>")
_FORMAT = ["<think>", "</think>", "<answer>", "</answer>"]
_CLAUSE_END = re.compile(rf"(?<=[.?])\s+|,\s+(?:and|so)\s|{_TAG.pattern}")

# Spellings.
_SPELLINGS = {"\u2212": "-", "\\$": "$", "\\%": "%", "{,}": ","}
_STYLED = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf)\s*\{([^{}]*)\}")
_WRAPPINGS = [_STYLED, re.compile(r"\(([^(),]*)\)"), re.compile(r"\{([^{}]*)\}")]
_TO_PROSE = [  # LaTeX and Markdown that may stand around a number
    (r"\\[dt]?frac\s*(?:\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}|(\d)\s*(\d))", r" \1\3/\2\4 "),
    (r"\^\s*(?:\\circ|\{\s*\\circ\s*\})(?![a-zA-Z])", "°"),
    (r"\\!", ""),
    (r"\\[,;: ()\[\]]|\\q?quad(?![a-zA-Z])|(?<=\d)~(?=[\\a-zA-Z])|[\u00a0\u2009\u202f]", " "),
    (r"(?<![\w*`])(\*{1,3}|_{1,2}|`)(?=\S)([^*_`]*)(?<=\S)\1(?![\w*`])", r"\2"),
    (r"(?:\b[A-Z]{1,3})?(?<!\d)[$€£¥]|[$€£¥](?!\d)", ""),
    (r"(\d\s*[a-zA-Z]{1,5}(?:/[a-zA-Z]{1,5})?)\s*(?:\^\s*(?:[23]|\{[23]\})|[²³])", r"\1"),  # m^2
    (r"(^|[=:])\s*([-+])\s+", r"\1 \2"),  # - 18
]

# A plain number, and the words and marks that may and may not stand around it.
_NUMBER = re.compile(
    r"(?P<sign>[-+])?"
    r"(?P<digits>\d+/\d+|(?:\d{1,3}(?:(?:,\d{3})+|(?: \d{3})+)(?!\d)|\d+)(?:\.\d*)?|\.\d+)"
    r"(?P<power>[eE][-+]?\d{1,4}(?!\d))?"
    r"(?:\s*(?P<suffix>[kKMB]|bn)(?![^\W_])"
    r"|[\s-]*(?P<word>hundred|thousand|million|billion|trillion)s?\b)?",
)
_SUFFIXES = {"k": 3, "K": 3, "M": 6, "B": 9, "bn": 9}
_WORDS = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_BEFORE = re.compile(r"(?:[^\W\d_]|[\s.,:;=+'’\"“”()|-])*")
_AFTER = re.compile(r"(?:[^\W\d_]|[\s.,:;'’\"“”()/%°¢-])*")
_NOT_BEFORE = re.compile(
    r"(?<![^\W\d_])-|-(?![^\W\d_])|\.\s*\."
    r"|\+(?!.*=)|(?:^|[=(])\s*\+"  # a sum of names is fine left of "=": m + n = 18
    r"|[a-z\u0370-\u03ff][(\"“'’]*$|[)|]\s*$|(?<![^\W\d_])[b-hj-z]\s*$"  # x18, f(18), |18|, x 18
    r"|\b(?:than|over|under|above|below|about|around|exceeds?|half|third|quarter|twice|double"
    r"|triple|square|cube|negative|root|sqrt|log|ln|exp|sin|cos|tan|abs|floor|ceil|hundred"
    r"|thousand|million|billion|trillion|dozen)\b",
    re.IGNORECASE | re.DOTALL,
)
_NOT_AFTER = re.compile(
    r"(?<!^)(?<![^\W\d_])-|-(?![^\W\d_])|\.\s*\.|/(?!\s*[^\W\d_])|[\u0370-\u03ff]"
    r"|^a\b|^\s*a\s*$|^\W*and\s+(?:an?|one)\b|^\W*(?:[abcxyz]{2,3}|pi|ln|exp|mod|choose)\b"
    r"|(?<![^\W_'’])(?![adghlmsACFLVW])[a-zA-Z](?![^\W_])"  # a letter that is no unit: 18 x
)
_UNCOMMITTED = re.compile(
    r"\b(?:not|no|nor|never|neither|none|cannot|\w+n['’]t|false|wrong|incorrect|unknown|undefined"
    r"|impossible|except|without|unless|if|or|either|between|versus|vs|but|instead|rather|maybe"
    r"|perhaps|probably|possibly|likely|unlikely|might|could be|may be|think|guess|believe|suppose"
    r"|assume|assuming|unsure|uncertain|wait|hmm|approximately|approx|roughly|nearly|almost"
    r"|hardly|doubt|isnt|wasnt|cant|at least|at most|up to|than(?=[\s$]*\d)|plus|minus|multiplied"
    r"|divided|squared|cubed|power|factorial|opposite|reciprocal|ish"
    r"|tenths?|hundredths?|thousandths?|zero|two|three|four|five|six|seven|eight|nine|ten|eleven"
    r"|twelve|thirteen|fourteen|fifteen|sixteen|seventeen|eighteen|nineteen|twenty|thirty|forty"
    r"|fifty|sixty|seventy|eighty|ninety)\b|\?",
    re.IGNORECASE,
)

# Expressions.
_TERM = re.compile(r"-?\d+[a-zA-Z]")
_LETTER = re.compile(r"[^\W\d_]")
_PROSE = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{2,}")
_MARK = re.compile(r"\$|\\[(\[]|\\boxed")
_PROSE_FACTORIAL = re.compile(r"[\w)]\s*!")
_FACTORIAL_TWICE = re.compile(r"![\s)}]*!")  # sympy would compute 18!! and never end
_RELATION = re.compile(
    r"[<>≤≥≠±]|\\(?:[lg]eq?|[lg]t|neq?|not|lnot|neg|pm|mp|to|rightarrow|equiv|[bp]?mod)(?![a-zA-Z])"
)
_TWO_NUMBERS = re.compile(r"(?<![_^{\d])(?<!frac )\d+[\s$]*(?:[,;]\s|and\b|to\b|&|\s)[\s$]*-?\d")
_SEVERAL = re.compile(
    rf",(?!\d{{3}}(?!\d))|;|\b(?:or|and)\b|\\(?:cup|in|begin)\b|{_RELATION.pattern}"
    rf"|{_TWO_NUMBERS.pattern}"
)
_SUBSCRIPT_OR_ARGUMENT = re.compile(r"_(?:\w|\{\w+\})|\([^()]*\)")
_NO_NAME = re.compile(r"\d|^\s*-|\\sqrt|[!^]")


def same_number(text: str, answer: str) -> bool:
    """Whether a final answer is the gold number, and nothing but one number."""
    inside, gold = _bare(text), _bare(answer)
    return inside == gold or not readings(inside).isdisjoint(readings(gold))


def same_expression(text: str, answer: str) -> bool:
    """Whether a final answer has the gold answer's value. False for what cannot be read.

    It calls sympy, which can take for ever: 9^9^9^9^9 needs a judge with a deadline.
    """
    inside, gold = _bare(text), _bare(answer)
    if inside == gold:
        return True
    if len(inside) > LONGEST or (_TERM.fullmatch(gold) and gold[-1] not in inside):
        return False  # math-verify would take the m of 3m for metres
    found, expected = readings(inside), set() if _LETTER.search(_prose(gold)) else readings(gold)
    if found and expected:
        return not found.isdisjoint(expected)
    if _evades(inside, gold):
        return False
    prose = _PROSE.search(inside) or _MARK.search(inside)
    wrap = str if prose and last_boxed(text) is None else "\\boxed{{{}}}".format
    if "=" in inside and "=" not in gold and not _SEVERAL.search(gold):
        sides = inside.replace("$", " ").split("=")
        return _all_sides_equal([wrap(side) for side in sides], gold)
    return _equivalent(wrap(inside), gold)


def verify(
    response: str, answer: str, format_bonus: float, same: Same = same_expression
) -> VerifierResult:
    """Judge a response against a gold answer: a number, or LaTeX without its dollars.

    accuracy: 1 if the final answer is the `same` as `answer`, else 0. reward: accuracy, plus
    `format_bonus` if the response is well-formed, minus it if not. With 0 the reward is binary, as
    in the text of arXiv 2509.24203; its runs used 0.1.
    """
    accuracy = float(same(final_answer(response), answer))
    bonus = format_bonus if well_formed(response) else -format_bonus
    return VerifierResult(reward=accuracy + bonus, accuracy=accuracy)


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

    Each mark narrows the text if it is there; without any it is the last clause.
    """
    text = response
    for narrow in (_tagged, _boxed, _hashed):
        found = narrow(text)
        text = text if found is None else found
    return _last_clause(text) if text == response else text


def _tagged(text: str) -> str | None:
    before, closing, _ = text.rpartition("</answer>")
    _, opening, inside = before.rpartition("<answer>")
    return inside if closing and opening else None


def _boxed(text: str) -> str | None:
    """With its braces, so that it stays a mark."""
    inside = last_boxed(text)
    return f"\\boxed{{{inside}}}" if inside else inside


def _hashed(text: str) -> str | None:
    _, mark, after = text.rpartition("####")
    return after if mark else None


def _last_clause(text: str) -> str:
    clauses = [clause for clause in _CLAUSE_END.split(text) if clause.strip()]
    return clauses[-1] if clauses else ""


def _bare(text: str) -> str:
    r"""In one spelling, without \boxed{}, a style or brackets around it: \textbf{(073)} is 073."""
    for spelling, plain in _SPELLINGS.items():
        text = text.replace(spelling, plain)
    boxed = last_boxed(text)
    text = (text if boxed is None else boxed).strip()
    for wrapping in _WRAPPINGS:
        match = wrapping.fullmatch(text)
        text = match[1].strip() if match else text
    return text


def _prose(text: str) -> str:
    """Without the LaTeX and Markdown that may stand around a number."""
    styled = 1
    while styled:  # inner styles first
        text, styled = _STYLED.subn(r" \1 ", text)
    for pattern, plain in _TO_PROSE:
        text = re.sub(pattern, plain, text)
    return text.strip()


# Numbers


def readings(text: str) -> set[Fraction]:
    """The values of a text that is one number and words around it; empty for any other text.

    "18 million" has two, 18000000 and 18, because the question may be how many million. "18k" is
    18000 only. A fraction in lowest terms, 1/2, is a number; 36/2 is a division.
    """
    if len(text) > LONGEST:
        return set()
    text = _prose(text)
    number = _NUMBER.search(text)
    if number is None or not _frames(text[: number.start()], text[number.end() :]):
        return set()
    value = _value(number)
    if value is None:
        return set()
    if number["suffix"]:
        return {value * 10 ** _SUFFIXES[number["suffix"]]}
    return {value, value * 10 ** _WORDS[number["word"]]} if number["word"] else {value}


def _frames(before: str, after: str) -> bool:
    """Whether the texts before and after a number leave it the only one, as it stands."""
    around = f"{before} {after}"
    return (
        _BEFORE.fullmatch(before) is not None
        and _AFTER.fullmatch(after) is not None
        and not _NOT_BEFORE.search(before)
        and not _NOT_AFTER.search(after)
        and not _UNCOMMITTED.search(around)
        and not any(character.isnumeric() for character in around)  # 18²
        and unicodedata.is_normalized("NFKC", around)  # 18ⁿ
    )


def _value(number: re.Match[str]) -> Fraction | None:
    """Of a match of _NUMBER; None for a fraction that is not in lowest terms."""
    digits = (number["sign"] or "") + re.sub("[, ]", "", number["digits"])
    over, _, under = digits.partition("/")
    if not under:
        return Fraction(digits + (number["power"] or ""))
    if int(under) < 2 or number["power"]:
        return None
    value = Fraction(int(over), int(under))
    return value if value.denominator == int(under) else None


# Expressions


def _evades(text: str, gold: str) -> bool:
    """Whether a text denies or doubts what it says, or names two values where one is asked for."""
    doubts, allowed = (
        {word.lower() for word in _UNCOMMITTED.findall(_STYLED.sub(r" \1 ", side))}
        for side in (text, gold)
    )
    shouts = _FACTORIAL_TWICE.search(text) or (
        _PROSE.search(text) and _PROSE_FACTORIAL.search(text)
    )
    if doubts - allowed or shouts:
        return True
    one_value = not _SEVERAL.search(gold)
    return one_value and bool(_RELATION.search(text) or _TWO_NUMBERS.search(text))


def _all_sides_equal(sides: list[str], gold: str) -> bool:
    """Whether the last side of an equation is the gold answer, the others that or a name."""
    *others, last = sides
    return same_expression(last, gold) and all(
        _is_name(_bare(side)) or same_expression(side, gold) for side in others
    )


def _is_name(side: str) -> bool:
    """Whether it can stand for the answer: x, m + n, f(2), a_{10}; not 20, 2x, -x, x^2."""
    return not _NO_NAME.search(_SUBSCRIPT_OR_ARGUMENT.sub("", side))


def _equivalent(text: str, gold: str) -> bool:
    """What math-verify says of the last expression in a text."""
    try:
        expected, found = (
            math_verify.parse(side, fallback_mode="no_fallback", parsing_timeout=None)
            for side in (f"\\boxed{{{gold}}}", text)
        )
        return math_verify.verify(expected, found, timeout_seconds=None)
    except Exception:  # sympy raises whatever an odd text leads it to
        return False
