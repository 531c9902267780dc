r"""Whether two LaTeX answers have the same value.

The structure is compared here, since a general parser loses it: words letter by letter, tuples and
intervals with their brackets and in order, sets and lists of roots in any order. math-verify judges
each scalar, and its result is checked once more with exact arithmetic: a decimal means exactly its
value, so 0.5 is \frac12 but 0.333 is not \frac13, 0.0 not 2^{-30} and 3.14 not \pi.
"""

import logging
import re
from typing import Any

import math_verify
import sympy

from rec_experiments.datasets.verifiers.intervals import as_intervals
from rec_experiments.datasets.verifiers.marks import last_boxed
from rec_experiments.datasets.verifiers.numbers import LONGEST, UNCOMMITTED, readings
from rec_experiments.datasets.verifiers.spelling import STYLED, bare, formula, prose, unstyled

# It warns in every process that its own time-outs are off. They need signal.alarm, which works in
# a main thread only; the deadline here is the verifier pool's.
logging.getLogger("math_verify").setLevel(logging.ERROR)

DIGITS = 50  # of a numerical comparison
TOLERANCE = sympy.Rational(1, 10**40)  # relative; of irrational values

_OPENING, _CLOSING = "([{⟨", ")]}⟩"
_TERM = re.compile(r"-?\d+[a-zA-Z]")
_LETTER = re.compile(r"[^\W\d_]")
_WORD = re.compile(r"[^\W\d_]+")
_PROSE = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{2,}")
_STYLED_WORD = re.compile(STYLED.pattern.replace("[^{}]*", r"[^\W\d_]{2,}"))
_UPPER_CASE = re.compile(r"[A-Z]{2,}")
_TIME = re.compile(r"(?<![\\a-zA-Z])([ap])\s*\.?\s*m\b\.?", re.IGNORECASE)
_FIGURE = re.compile(r"\\(?:angle|triangle)(?![a-zA-Z])")
_QUANTITY = re.compile(r"\d+(?:\.\d+)?|[^\W\d_]+")
_QUANTITIES = re.compile(
    r"(?:\d+(?:\.\d+)?\s*[^\W\d_]+\.?(?:[\s,;×]|\\times\b|\b(?:and|by|x)\b)*){2,}"
)
_BETWEEN = ("and", "by", "x", "times")  # quantities
_LONG_WORD = re.compile(r"[^\W\d_]{3}")
_IN_BASE = re.compile(r"(?:[a-z]=)?(?=[\dA-Z]*\d)([\dA-Z]+)_(\w+)")  # without its brackets
_BASES = {"two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7"}
_BASES |= {"eight": "8", "nine": "9", "ten": "10", "twelve": "12", "sixteen": "16"}
_RATIO = re.compile(r"\d+(?:\.\d+)?(?:\s*:\s*\d+(?:\.\d+)?)+")
_PHRASE = re.compile(r"(?:[^\W\d_]|[\s,’'])*(?:\b(?:is|are|equals)(?: at)?\b|:)\s*(.+)", re.DOTALL)
_DECIMAL_POWER = re.compile(r"\^\{(-?)(\d*)\.(\d+)\}")
_MARK = re.compile(r"\$|\\[(\[]|\\boxed")
_PROSE_FACTORIAL = re.compile(r"[\w)]\s*!")
_FACTORIAL_TWICE = re.compile(r"![\s)}]*!")  # sympy would compute 18!! and never end
_RELATION = re.compile(
    r"[<>≤≥≠±]|\\(?:[lg]eq?|[lg]t|neq?|not|lnot|neg|pm|mp|to|rightarrow|equiv|[bp]?mod)(?![a-zA-Z])"
)
_TWO_NUMBERS = re.compile(r"(?<![_^{\d])(?<!frac )\d+[\s$]*(?:[,;]\s|and\b|to\b|&|\s)[\s$]*-?\d")
_SEVERAL = re.compile(
    rf",(?!\d{{3}}(?!\d))|;|\b(?:or|and)\b|\\(?:cup|in|begin|lor|vee)\b|{_RELATION.pattern}"
    rf"|{_TWO_NUMBERS.pattern}"
)
_NO_LIST = re.compile(r"\\(?:cup|cap|begin|in|setminus|mid|mathbb)\b|:|\\?\|")
_AND = re.compile(
    r"(?:[\s$]|\\(?:[,;: ]|q?quad\b))*(?:\\text\s*\{)?[,\s]*"
    r"(?:\b(?:or|and)\b|\\(?:lor|vee)(?![a-zA-Z]))\s*\}?[\s$]*"
)
_GROUPED = re.compile(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?")  # 1,080
_SUBSCRIPT_OR_ARGUMENT = re.compile(r"_(?:\w|\{\w+\})|\([^()]*\)")
_IN_INDEX = re.compile(r"_\{[^{}]*\}")  # x \to 0 is no second value there
_NO_NAME = re.compile(r"\d|^\s*-|\\sqrt|[!^]")
_ASSIGNED = re.compile(
    r"(?:[\s$]|\\[,;: ]|\\q?quad\b)*([a-zA-Z](?:_(?:\w|\{\w+\}))?)\s*=(.*)", re.DOTALL
)
_NAMED = re.compile(r"\s*\((?:\s*[a-zA-Z]\s*,)+\s*[a-zA-Z]\s*\)\s*=(.*)", re.DOTALL)  # (x,y) =


def same_expression(text: str, answer: str) -> bool:
    """Whether a final answer has the gold answer's value. False for what cannot be read.

    It calls sympy, which can take for ever: 9^9^9^9^9 needs a judge with a deadline.
    """
    marked = last_boxed(text) is not None
    inside, gold = bare(text), bare(answer)
    styled = _STYLED_WORD.fullmatch(answer)  # \text{no} is no product
    if not marked:
        inside = _said(inside)
    return _words(inside) == _words(gold) if styled else _same(inside, gold, marked)


def _same(inside: str, gold: str, marked: bool) -> bool:
    """marked: whether the answer is known to be a formula, rather than a sentence with one."""
    if inside == gold or _squeezed(formula(inside)) == _squeezed(formula(gold)):
        return True
    if len(inside) > LONGEST or (_TERM.fullmatch(gold) and gold[-1] not in inside):
        return False  # math-verify would take the m of 3m for metres
    inside, gold = _as_intervals(inside, gold)
    for judge in (
        _same_words, _same_quantities, _same_in_base, _same_ratio, _same_number, _same_structure,
    ):  # fmt: skip
        if (same := judge(inside, gold)) is not None:
            return same
    return _same_scalar(inside, gold, marked)


def _said(text: str) -> str:
    """What follows "The answer is" or another phrase without doubt in it."""
    phrase = _PHRASE.fullmatch(text)
    if phrase is None or UNCOMMITTED.search(text[: phrase.start(1)]):
        return text
    return bare(formula(phrase[1]))


def _as_intervals(inside: str, gold: str) -> tuple[str, str]:
    """Both as they are, or as intervals if one is an inequality and the other is no other one."""
    found, expected = as_intervals(formula(inside)), as_intervals(formula(gold))
    if found and expected and found[0] != expected[0]:
        return inside, gold
    return found[1] if found else inside, expected[1] if expected else gold


def _squeezed(text: str) -> str:
    """Without spaces, which mean nothing between signs."""
    return re.sub(r"\\[,;: !]|\s+", "", text)


# Words, times and bases


def _same_words(inside: str, gold: str) -> bool | None:
    """Compare labels, words and halves of a day. None where the gold answer is none of these."""
    if _half_of_day(inside) != _half_of_day(gold):
        return False
    if _half_of_day(gold):
        inside, gold = (bare(_TIME.sub("", unstyled(time))) for time in (inside, gold))
        return _same(inside, gold, marked=True)
    return _words(inside) == _words(gold) if _is_words(gold) else None


def _is_words(gold: str) -> bool:
    r"""Whether it is a label or a word, as \text{ABC}, \text{even} and ABC; not xy or 18 cm."""
    text = _FIGURE.sub("", unstyled(gold)).strip()
    if "\\" in text or any(character.isdigit() for character in text):
        return False
    if STYLED.search(gold) or _UPPER_CASE.fullmatch(text):
        return True
    return len(text) > 3 and _WORD.fullmatch(text) is not None


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", prose(_FIGURE.sub("", formula(text))).casefold())


def _half_of_day(text: str) -> str | None:
    """a or p of a.m. and p.m.; None for any other text."""
    found = _TIME.search(unstyled(text)) if any(c.isdigit() for c in text) else None
    return found[1].lower() if found else None


def _same_quantities(inside: str, gold: str) -> bool | None:
    """Compare 3 hours 20 minutes or 10 ft x 18 ft, number by number and unit by unit, which may be
    cut short or all left out. None where the gold answer is no such sequence."""
    text = unstyled(formula(gold)).strip()
    if not _QUANTITIES.fullmatch(text) or not (STYLED.search(gold) or _LONG_WORD.search(text)):
        return None
    found, expected = (
        [part for part in _QUANTITY.findall(prose(side).casefold()) if part not in _BETWEEN]
        for side in (inside, gold)
    )
    if not any(map(str.isalpha, found)):
        expected = [part for part in expected if not part.isalpha()]
    return len(found) == len(expected) and all(
        a == b or (a.isalpha() and b.isalpha() and (a.startswith(b) or b.startswith(a)))
        for a, b in zip(found, expected, strict=True)
    )


def _same_in_base(inside: str, gold: str) -> bool | None:
    """2516_8: the digits are compared as text; the base may be left out, not changed."""
    found, expected = _in_base(inside), _in_base(gold)
    if expected is None:
        return False if found and found[1] != "10" and gold.isdigit() else None
    digits, base = found or (_unbracketed(inside), None)
    return digits == expected[0] and base in (None, expected[1])


def _in_base(text: str) -> tuple[str, str] | None:
    """The digits and the base of 2516_8, (2516)_8 or 2516_{\\text{eight}}."""
    found = _IN_BASE.fullmatch(_unbracketed(text))
    return (found[1], _BASES.get(found[2], found[2])) if found else None


def _unbracketed(text: str) -> str:
    return re.sub(r"[(){}\s]|\\text", "", formula(text))


def _same_ratio(inside: str, gold: str) -> bool | None:
    """None unless both are ratios or times of day: 2:3 is 4:6, 1:2:3 is not 1:3:2."""
    if not (_RATIO.fullmatch(inside) and _RATIO.fullmatch(gold)):
        return None
    return _proportions(inside) == _proportions(gold)


def _proportions(ratio: str) -> list[sympy.Rational]:
    """The terms of a ratio, divided by the first that is not 0."""
    terms = [sympy.Rational(term.strip()) for term in ratio.split(":")]
    unit = next((term for term in terms if term), 1)
    return [term / unit for term in terms]


def _same_number(inside: str, gold: str) -> bool | None:
    """None unless both are plain numbers. A gold answer with letters, as 3m, may be a product."""
    found, expected = readings(inside), set() if _LETTER.search(prose(gold)) else readings(gold)
    return not found.isdisjoint(expected) if found and expected else None


# Structure


def _same_structure(inside: str, gold: str) -> bool | None:
    """Compare tuples, intervals, sets and lists. None where neither answer is one of these."""
    inside, gold = formula(inside), formula(gold)
    found, expected = _parts(inside), _parts(gold)
    if expected is None:
        one_value = not _SEVERAL.search(gold)
        return False if found is not None and one_value and not _GROUPED.fullmatch(inside) else None
    if found is None:
        return None if _RELATION.search(inside) or _NO_LIST.search(inside) else False
    (brackets, elements), (wanted, values) = found, expected
    as_set = ({"\\{\\}", ""} >= {brackets, wanted}) and not any("\\ldots" in v for v in values)
    as_tuple = False
    if {brackets, wanted} == {"", "()"}:
        named, also_named = _by_name(elements), _by_name(values)
        as_tuple = bool(named or also_named)
        elements, values = named or elements, also_named or values
    if brackets != wanted and not (as_set or as_tuple):
        return False
    if as_set:
        elements, values = _both_signs(elements), _both_signs(values)
    if len(elements) != len(values):
        return False
    if not as_set:
        return all(_same_element(a, b) for a, b in zip(elements, values, strict=True))
    return _match(elements, values)


def _both_signs(elements: list[str]) -> list[str]:
    r"""With 1 + a and 1 - a in the place of 1 \pm a."""
    return [
        element.replace("\\pm", plus).replace("\\mp", minus)
        for element in elements
        for plus, minus in (("+", "-"), ("-", "+"))[: 1 + ("\\pm" in element)]
    ]


def _by_name(elements: list[str]) -> list[str] | None:
    """Elements that give a value to a name each, as y = 2, x = 1, in the order of the names."""
    names = [match[1] for match in map(_ASSIGNED.fullmatch, elements) if match]
    if len(set(names)) < len(elements):
        return None
    return [element for _, element in sorted(zip(names, elements, strict=True))]


def _match(elements: list[str], values: list[str]) -> bool:
    """Whether each element has a value of its own, in any order."""
    left = list(values)
    for element in elements:
        equal = next((value for value in left if _same_element(element, value)), None)
        if equal is None:
            return False
        left.remove(equal)
    return True


def _same_element(element: str, value: str) -> bool:
    one, other = (_ASSIGNED.fullmatch(side) for side in (element, value))
    if one and not other:
        element = one[2]
    if other and not one:
        value = other[2]
    return _same(bare(element), bare(value), marked=True)


def _parts(text: str) -> tuple[str, list[str]] | None:
    r"""The brackets and elements of a tuple, interval, set or list; "" for a list without brackets.

    None for one value, which 1,080 is, and for a union or a set with a condition.
    """
    named = _NAMED.fullmatch(text)
    text = _AND.sub(",", named[1] if named else text).strip().strip("$").strip()
    if _NO_LIST.search(text):
        return None
    opening = "\\{" if text.startswith("\\{") else text[:1]
    closing = "\\}" if text.endswith("\\}") else text[-1:]
    if _encloses(text, opening, closing):
        elements = _split(text[len(opening) : -len(closing)])
        if len(elements) > 1 or opening in ("\\{", "⟨"):
            return opening + closing, elements
        return None
    elements = _split(text)
    several = len(elements) > 1 or "\\pm" in text
    return ("", elements) if several and not _GROUPED.fullmatch(text) else None


def _encloses(text: str, opening: str, closing: str) -> bool:
    """Whether the first bracket of a text is closed by its last one."""
    if not opening or opening[-1] not in _OPENING or closing[-1:] not in _CLOSING or opening == "{":
        return False
    depth = 0
    for place, character in enumerate(text):
        depth += (character in _OPENING) - (character in _CLOSING)
        if depth == 0 and place >= len(opening) - 1:
            return place == len(text) - 1
    return False


def _split(text: str) -> list[str]:
    """At commas and semicolons outside of all brackets."""
    depth, parts = 0, [""]
    for character in text:
        depth += (character in _OPENING) - (character in _CLOSING)
        if character in ",;" and depth == 0 and not parts[-1].endswith("\\"):
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


# Scalars


def _same_scalar(inside: str, gold: str, marked: bool) -> bool:
    if _is_evasive(inside, gold):
        return False
    inside = formula(inside) if marked else inside
    is_prose = _PROSE.search(inside) or _MARK.search(inside)
    wrap = str if is_prose and not marked else "\\boxed{{{}}}".format
    sides = _sides(inside)
    if len(sides) > 1 and "=" not in gold and not _SEVERAL.search(gold):
        return _all_sides_equal([wrap(side) for side in sides], gold)
    return _equivalent(wrap(inside), formula(gold))


def _is_evasive(text: str, gold: str) -> bool:
    """Whether a text denies or doubts what it says, or names two values where one is asked for."""
    doubts, allowed = (
        {word.lower() for word in UNCOMMITTED.findall(STYLED.sub(r" \1 ", side))}
        for side in (text, gold)
    )
    shouts = _FACTORIAL_TWICE.search(text) or (
        _PROSE.search(text) and _PROSE_FACTORIAL.search(text)
    )
    if doubts - allowed or shouts or "\\ldots" in text:
        return True
    text, one_value = _IN_INDEX.sub("", text), not _SEVERAL.search(gold)
    return one_value and bool(_RELATION.search(text) or _TWO_NUMBERS.search(text))


def _sides(text: str) -> list[str]:
    r"""Of an equation. An = in braces is none: \sum_{k=1}^{100} k."""
    depth, sides = 0, [""]
    for character in text.replace("$", " "):
        depth += (character == "{") - (character == "}")
        if character == "=" and depth == 0:
            sides.append("")
        else:
            sides[-1] += character
    return sides


def _all_sides_equal(sides: list[str], gold: str) -> bool:
    """Whether the last side of an equation is the gold answer, the others that or a name."""
    *others, last = sides
    return same_expression(last, gold) and all(
        _is_name(bare(side)) or same_expression(side, gold) for side in others
    )


def _is_name(side: str) -> bool:
    """Whether it can stand for the answer: x, m + n, f(2), a_{10}; not 20, 2x, -x, x^2."""
    return not _NO_NAME.search(_SUBSCRIPT_OR_ARGUMENT.sub("", side))


def _equivalent(text: str, gold: str) -> bool:
    """What math-verify says of the last expression in a text, unless exact arithmetic denies it."""
    try:
        expected, found = (
            math_verify.parse(
                _exact_powers(side), fallback_mode="no_fallback", parsing_timeout=None
            )
            for side in (f"\\boxed{{{gold}}}", text)
        )
        return bool(math_verify.verify(expected, found, timeout_seconds=None)) and not _differ(
            expected, found
        )
    except Exception:  # sympy raises whatever an odd text leads it to
        return False


def _exact_powers(text: str) -> str:
    """3^{0.5} as 3^{\\frac{5}{10}}, a root; sympy would compute the former."""
    return _DECIMAL_POWER.sub(
        lambda power: rf"^{{{power[1]}\frac{{{power[2]}{power[3]}}}{{{10 ** len(power[3])}}}}}",
        text,
    )


def _differ(expected: list[Any], found: list[Any]) -> bool:
    """Whether two parsed answers are numbers of different values."""
    one, other = _exact(expected), _exact(found)
    if one is None or other is None:
        return False
    if isinstance(one, sympy.Rational) and isinstance(other, sympy.Rational):
        return bool(one != other)
    larger = max(abs(sympy.N(one, DIGITS)), abs(sympy.N(other, DIGITS)))
    return bool(abs(sympy.N(one - other, DIGITS)) > TOLERANCE * larger)


def _exact(parsed: list[Any]) -> Any:
    """The number that was parsed, its decimals as fractions; None for anything else."""
    value = next((each for each in parsed if isinstance(each, sympy.Expr)), None)
    if value is None or value.free_symbols or not value.is_number:
        return None
    return sympy.nsimplify(value.doit(), rational=True)
