r"""Whether two LaTeX answers have the same value.

A parser loses words, times of day, bases and the brackets of tuples and intervals, so they are
compared as they are written; sets and lists of roots count in any order. math-verify reads and
judges everything else, with each decimal as the fraction that it is: 0.5 is \frac12, but 0.333 is
not \frac13 and 3.14 not \pi.
"""

import functools
import itertools
import logging
import re
from typing import Any

import math_verify
import sympy
from latex2sympy2_extended import latex2sympy
from latex2sympy2_extended.logic import And
from sympy.core.relational import Relational

from rec_experiments.datasets.verifiers.numbers import UNCOMMITTED, is_alone, readings
from rec_experiments.datasets.verifiers.spelling import STYLED, bare, formula, prose, unstyled

# It warns in every process that its own time-outs are off. They need signal.alarm, which works in
# a main thread only; the deadline here is the verifier pool's.
logging.getLogger("math_verify").setLevel(logging.ERROR)

# What surrounds an answer in a sentence.
_PHRASE = re.compile(
    r"((?:[^\W\d_]|[\s,’'])*(?:\b(?:is|are|equals)(?: at)?\b|:)\s*)(.+)()", re.DOTALL
)
_IN_DOLLARS = re.compile(r"([^\\$\d]*)\$([^$]+)\$([^\\$\d]*)")
_IN_WORDS = re.compile(
    r"((?:[^\W\d_]+[\s,]+){2,})([\d\\(\[].*?)((?:\s+[^\W\d_]{2,})*\.?)", re.DOTALL
)

# Words, times and bases.
_WORD = re.compile(r"[A-Z]{2,}|[^\W\d_]{4,}")
_LABEL = re.compile(r"\s*\(([A-Z])\)[\s\\]")  # (B) 12
_FIGURE = re.compile(r"\\(?:angle|triangle)(?![a-zA-Z])")
_HALF_OF_DAY = re.compile(r"(?<![\\a-zA-Z])([ap])\s*\.?\s*m\b\.?", re.IGNORECASE)
_TIME = re.compile(r"\d{1,2}(?::[0-5]\d)?\s*[ap]m|\d{1,2}:[0-5]\d")
_QUANTITIES = re.compile(
    r"(?:\d+(?:\.\d+)?\s*[^\W\d_]+\.?(?:[\s,;×]|\\times\b|\b(?:and|by|x)\b)*){2,}"
)
_TOKEN = re.compile(r"\d+(?:\.\d+)?|[^\W\d_]+")
_BETWEEN = {"and", "by", "x", "times"}
_IN_BASE = re.compile(r"(?:[a-z]=)?(?=[\dA-Z]*\d)([\dA-Z]+)(?:_(\w+))?")  # without brackets
_BASES = {"two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7"}
_BASES |= {"eight": "8", "nine": "9", "ten": "10", "twelve": "12", "sixteen": "16"}
_RATIO = re.compile(r"\d+(?:\.\d+)?(?:\s*:\s*\d+(?:\.\d+)?)+")

# Structure.
_SPACE = re.compile(r"(?<!\\)\\[,;: !]|\\q?quad(?![a-zA-Z])|[\s$~]+")
_WORD_BETWEEN = r"\s*(?:\\text\s*\{{\s*)?,?\s*(?:\b(?:{})\b{})\s*\}}?\s*"
_OR = re.compile(_WORD_BETWEEN.format("or", r"|\\(?:lor|vee|cup)(?![a-zA-Z])"))
_ALSO = re.compile(_WORD_BETWEEN.format("and", r"|\\land(?![a-zA-Z])"))
_LIST = re.compile(_WORD_BETWEEN.format("or|and", r"|\\(?:lor|vee)(?![a-zA-Z])"))
_REVERSED = [(re.compile(r"^\]"), "("), (re.compile(r"\[$"), ")")]  # ]2,5[ is (2,5)
_BRACKETS = re.compile(r"(\(|\[|\\\{)(.*)(\)|\]|\\\})", re.DOTALL)
_GROUPED = re.compile(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?")  # 1,080
_INDEXED = re.compile(r"_(?:\w|\{\w+\})|\([^()]*\)")
_NO_NAME = re.compile(r"\d|^\s*-|\\sqrt|[!^]")
_SYMBOL = re.compile(r"\s*([a-zA-Z](?:_(?:\w|\{\w+\}))?)\s*")
_POINT = re.compile(r"[A-Z](?=\()")  # P(2,3)
_MEMBER = re.compile(r"\\in(?![a-zA-Z])")
_INEQUALITY = re.compile(r"[<>]|\\(?:[lg]e|[lg]t|cup|mathbb)(?![a-zA-Z])")
_NO_PARTS = re.compile(r"\\(?:cup|cap|begin|in|setminus|mid|mathbb)\b|:|\\?\|")
_CLOSED_INFINITY = re.compile(r"\[\s*-?\\infty|\\infty\s*\]")

# One LaTeX for the parser.
_TRIGONOMETRIC = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-zA-Z])")
_NOT_READ = re.compile(
    r"![\s)}]*!|\\l?not|(?<![_^{\d])\d+\s+(?:-?\d|[a-z]{2})"
)  # or read as something else
_LATEX: list[tuple[str, Any]] = [
    (r"(\d+(?:\.\d+)?)e([-+]?\d+)(?![.\d])", r"\1\\cdot10^{\2}"),
    (
        r"(\d*)\.(\d+)",
        lambda decimal: rf"{{\frac{{{decimal[1]}{decimal[2]}}}{{{10 ** len(decimal[2])}}}}}",
    ),
    (r"\\(?:text|mathrm|mbox)\s*\{[^{}]*\}(?:\^\{?\d\}?)?$|\\approx.*|[%.]$", ""),  # a unit
]


def same_expression(text: str, answer: str) -> bool:
    """Whether a final answer has the gold answer's value. False for what cannot be read.

    It calls sympy, which can take for ever: 9^9^9^9^9 needs a judge with a deadline.
    """
    inside, gold = bare(text), bare(answer)
    if _squeezed(inside) == _squeezed(gold):
        return True
    if _doubts(inside) - _doubts(gold):
        return False
    inside = _stated(inside)
    if STYLED.fullmatch(answer) and re.fullmatch(r"[^\W\d_]{2,}", gold):  # \text{no} is no product
        return _tokens(inside) == _tokens(gold)
    return _same(inside, gold)


def _squeezed(text: str) -> str:
    """Without spaces, which mean nothing between signs."""
    return _SPACE.sub("", formula(text))


def _doubts(text: str) -> set[str]:
    return {word.lower() for word in UNCOMMITTED.findall(unstyled(text))} - {"or", *_BASES}


def _stated(text: str) -> str:
    """The formula in a sentence whose words leave it unchanged, as in "The answer is $2$."."""
    for pattern in (_PHRASE, _PHRASE, _IN_DOLLARS, _IN_WORDS):
        found = pattern.fullmatch(text)
        if found and is_alone(found[1], found[3]):
            text = bare(formula(found[2]))
    return text


def _same(inside: str, gold: str) -> bool:
    if _squeezed(inside) == _squeezed(gold):
        return True
    for judge in (_same_words, _same_in_base, _same_ratio, _same_number):
        if (same := judge(inside, gold)) is not None:
            return same
    return _same_structure(inside, gold)


# Words, times and bases. Each judge returns None where the gold answer is none of its kind.


def _same_words(inside: str, gold: str) -> bool | None:
    """Compare words, labels, times of day and several quantities, as 3 hours 20 minutes. Their
    units may be cut short or all left out."""
    text, said = _spoken(gold), _spoken(inside)
    is_word = _WORD.fullmatch(text) or (STYLED.search(gold) and not re.search(r"[\d\\]", text))
    if is_word or _TIME.fullmatch(text) or _TIME.fullmatch(said):
        return _tokens(said) == _tokens(text)
    if re.fullmatch("[A-Z]", gold) and (label := _LABEL.match(unstyled(inside))):
        return label[1] == gold
    is_worded = STYLED.search(gold) or re.search(r"[^\W\d_]{3}", text)
    if not (is_worded and _QUANTITIES.fullmatch(text)):
        return None
    found, expected = (
        [token for token in _tokens(side) if token not in _BETWEEN] for side in (said, text)
    )
    if not any(map(str.isalpha, found)):
        expected = [token for token in expected if not token.isalpha()]
    return len(found) == len(expected) and all(
        a == b or (a.isalpha() and b.isalpha() and (a.startswith(b) or b.startswith(a)))
        for a, b in zip(found, expected, strict=True)
    )


def _spoken(text: str) -> str:
    return _HALF_OF_DAY.sub(r" \1m", prose(_FIGURE.sub("", formula(text)))).strip()


def _tokens(text: str) -> list[str]:
    return _TOKEN.findall(text.casefold())


def _same_in_base(inside: str, gold: str) -> bool | None:
    """Compare the digits of 2516_8 as text; the base may be left out, not changed."""
    found, expected = (
        _IN_BASE.fullmatch(re.sub(r"[(){}\s]|\\text", "", formula(side))) for side in (inside, gold)
    )
    if not expected or not (expected[2] or (found and found[2])):
        return None
    if not found:
        return False
    said, base = (_BASES.get(number[2], number[2]) for number in (found, expected))
    return found[1] == expected[1] and said in (None, base or "10")


def _same_ratio(inside: str, gold: str) -> bool | None:
    """Compare ratios by their proportions: 2:3 is 4:6, 1:2:3 is not 1:3:2."""
    if not (_RATIO.fullmatch(inside) and _RATIO.fullmatch(gold)):
        return None
    found, expected = (list(map(sympy.Rational, side.split(":"))) for side in (inside, gold))
    if len(found) != len(expected) or not any(found):
        return False
    return sympy.Matrix([found, expected]).rank() == 1


def _same_number(inside: str, gold: str) -> bool | None:
    """Compare plain numbers. A gold answer with letters, as 3m, may be a product."""
    found, expected = readings(inside), readings(gold)
    if not (found and expected) or re.search(r"[^\W\d_]", prose(gold)):
        return None
    return not found.isdisjoint(expected)


# Structure


def _same_structure(inside: str, gold: str) -> bool:
    """Compare equations, regions, tuples, sets and lists by their parts, and values as they are."""
    inside, gold = (
        _MEMBER.sub("=", _SPACE.sub(" ", formula(side))).strip() for side in (inside, gold)
    )
    found, expected = _parts(inside), _parts(gold)
    sides, values = (
        [side] if parts else _split(side, "=")
        for side, parts in ((inside, found), (gold, expected))
    )
    if len(values) > 1 and len(sides) == 1:
        named = all(map(_SYMBOL.fullmatch, values[:-1]))
        return named and _same(inside, bare(values[-1]))
    if len(sides) > 1 and len(values) == 1:
        return _sides_equal(sides, gold)
    if _INEQUALITY.search(inside) or _INEQUALITY.search(gold):
        region, wanted = _region(inside), _region(gold)
        if region and wanted:
            return region[1] == wanted[1] and len(region[0] | wanted[0]) < 2
    if found and expected:
        return _same_parts(*found, *expected)
    return not (found or expected) and _same_value(inside, gold)


def _depth(character: str) -> int:
    return (character in "([{") - (character in ")]}")


def _split(text: str, separators: str) -> list[str]:
    """The pieces of a text between separators that stand outside of all brackets."""
    depth, pieces = 0, [""]
    for character in text:
        depth += _depth(character)
        if character in separators and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += character
    return [piece.strip() for piece in pieces]


def _sides_equal(sides: list[str], gold: str) -> bool:
    """Whether one outer side of an equation is the gold answer, the others that or a name."""
    if _SYMBOL.fullmatch(sides[-1]) and not _SYMBOL.fullmatch(gold):
        sides = sides[::-1]
    *others, last = map(bare, sides)
    return _same(last, gold) and all(_is_name(side) or _same(side, gold) for side in others)


def _is_name(side: str) -> bool:
    """Whether it can stand for the answer: x, m + n, f(2), a_{10}; not 20, 2x, -x, x^2."""
    return bool(side) and not _NO_NAME.search(_INDEXED.sub("", side))


def _region(text: str) -> tuple[set[sympy.Symbol], sympy.Set] | None:
    """The variable of inequalities, if any, and the real numbers that they or intervals allow.

    None for any other text, such as inequalities of two variables or of x^2.
    """
    names: set[sympy.Symbol] = set()
    region = sympy.S.EmptySet
    for alternative in _OR.split(text):
        allowed = sympy.S.UniversalSet
        for part in _ALSO.split(alternative):
            value = _parse(part)
            if isinstance(value, (Relational, And)):
                sides = [side for each in value.atoms(Relational) for side in each.args]
                if not all(side.is_Symbol or side.is_number for side in sides):
                    return None
                names |= value.free_symbols
                value = value.as_set()
            if not isinstance(value, sympy.Set):
                return None
            allowed = allowed.intersect(value)
        region = region.union(allowed)
    return None if len(names) > 1 or _CLOSED_INFINITY.search(text) else (names, region)


def _parts(text: str) -> tuple[str, list[str]] | None:
    r"""The brackets and elements of a tuple, interval, set or list; "" for a list without brackets.

    None for one value, which 1,080 is, and for a union or a set with a condition.
    """
    text = _POINT.sub("", _LIST.sub(",", text))
    for bracket, usual in _REVERSED:
        text = bracket.sub(usual, text)
    if _NO_PARTS.search(text):
        return None
    found = _BRACKETS.fullmatch(text)
    is_one_pair = 0 not in list(itertools.accumulate(map(_depth, text)))[1:-1]
    brackets, listed = (found[1] + found[3], found[2]) if found and is_one_pair else ("", text)
    elements = [
        element.replace("\\pm", plus).replace("\\mp", minus)
        for element in _split(listed, ",;")
        for plus, minus in (("+", "-"), ("-", "+"))[: 1 + ("\\pm" in element)]
        if element
    ]
    several = len(elements) > 1 or brackets == "\\{\\}"
    return (brackets, elements) if several and not _GROUPED.fullmatch(text) else None


def _same_parts(brackets: str, elements: list[str], wanted: str, values: list[str]) -> bool:
    as_set = {"\\{\\}", ""} >= {brackets, wanted} and "\\ldots" not in "".join(values)
    if {brackets, wanted} == {"", "()"}:  # x = 1, y = 2 for (1,2)
        named, also_named = _by_name(elements), _by_name(values)
        elements, values = named or elements, also_named or values
        as_set, brackets = False, wanted if named or also_named else brackets
    if len(elements) != len(values) or not (as_set or brackets == wanted):
        return False
    left = list(values)
    for element in elements:
        for value in left if as_set else left[:1]:
            if _same(bare(element), bare(value)):
                left.remove(value)
                break
        else:
            return False
    return True


def _by_name(elements: list[str]) -> list[str] | None:
    """The values of elements that name them, as y = 2, x = 1, in order of the names, or None."""
    pairs = [_split(element, "=") for element in elements]
    names = {name for name, *_ in pairs if _SYMBOL.fullmatch(name)}
    if len(names) < len(elements) or any(len(pair) != 2 for pair in pairs):
        return None
    return [value for _, value in sorted(pairs)]


# Values


def _same_value(inside: str, gold: str) -> bool:
    found, expected = _parse(inside), _parse(gold)
    if found is None or expected is None:
        return False
    return math_verify.verify(
        expected, found, float_rounding=40, numeric_precision=50, allow_set_relation_comp=True,
        timeout_seconds=None,
    )  # fmt: skip


@functools.lru_cache(maxsize=256)
def _parse(text: str) -> Any:
    """What math-verify's parser reads, i being the imaginary unit. None if it cannot."""
    for pattern, plain in _LATEX:
        text = re.sub(pattern, plain, text)
    if _NOT_READ.search(text):
        return None
    try:
        value = latex2sympy(
            text, is_real=True, convert_degrees=bool(_TRIGONOMETRIC.search(text)),
            normalization_config=None,
        )  # fmt: skip
        return value.subs({s: sympy.I for s in value.free_symbols if s.name == "i"})
    except Exception:  # sympy raises whatever an odd text leads it to
        return None
