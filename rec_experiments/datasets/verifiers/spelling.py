r"""One spelling for answers: Unicode, LaTeX and Markdown variants of one meaning are unified."""

import re
import unicodedata
from fractions import Fraction
from typing import Any

from rec_experiments.datasets.verifiers.marks import last_boxed

# Single characters, then LaTeX in this order.
_CHARACTERS = str.maketrans({
    **dict.fromkeys("\u2212\u2011\u2013\ufe63", "-"), **dict.fromkeys("°º", "^\\circ "),
    "\u2044": "/", "·": "\\cdot ", "∞": "\\infty ", "±": "\\pm ", "∅": "\\emptyset", "…": "\\ldots",
    "≤": "\\le ", "≥": "\\ge ", "≠": "\\ne ",
    **{chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)},  # full width
})  # fmt: skip
_SMALL = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻ⁿ₀₁₂₃₄₅₆₇₈₉₋ₙ", "0123456789-n" * 2)
_LATEX: list[tuple[re.Pattern[str], Any]] = [
    (re.compile(pattern), plain)
    for pattern, plain in (
        (
            r"\\(?:left|right|limits|(?:display|text)style|[bB]igg?[lr]?|[lL]arge|LARGE|[hH]uge)(?![a-zA-Z])",
            "",
        ),
        (r"\\(?:[dtc]|nice)frac(?![a-zA-Z])", r"\\frac"),
        (r"\\frac\s*(\w)", r"\\frac{\1}"),
        (r"\\frac\s*(\{[^{}]*\})\s*(\w)", r"\\frac\1{\2}"),
        (r"\\sqrt\s*(\[\w+\])?\s*(\w)", r"\\sqrt\1{\2}"),
        (r"(\w+)\s*\\choose\s*(\w+)", r"\\binom{\1}{\2}"),
        (r"\\([lg]e)(?:q|qslant)(?![a-zA-Z])", r"\\\1 "),
        (r"\\degree(?![a-zA-Z])", r"^\\circ "),
        (r"\\(?:\$|pounds(?![a-zA-Z]))", "$"),
        (r"\\%", "%"),
        (r"\{,\}", ","),
        (r"\\varnothing(?![a-zA-Z])|\\\{\s?\\\}", r"\\emptyset"),
        (r"\\c?dots(?![a-zA-Z])", r"\\ldots"),
        (r"√\s*(\d+|\w|\([^()]*\))", r"\\sqrt{\1}"),
        (r"∛\s*(\d+|\w|\([^()]*\))", r"\\sqrt[3]{\1}"),
        (
            r"[\u00bc-\u00be\u2150-\u215e]",
            lambda half: _fraction(Fraction(unicodedata.numeric(half[0])).limit_denominator(10)),
        ),
        (
            r"(?<!\d)(\d*)\.(\d*)\\overline\s*\{(\d+)\}",
            lambda decimal: _repeating(*decimal.groups()),
        ),
        (r"(?<=[\da-zA-Z)}])[⁰¹²³⁴⁵⁶⁷⁸⁹⁻ⁿ]+", lambda power: f"^{{{power[0].translate(_SMALL)}}}"),
        (r"(?<=[\da-zA-Z)}])[₀₁₂₃₄₅₆₇₈₉₋ₙ]+", lambda index: f"_{{{index[0].translate(_SMALL)}}}"),
    )
]
STYLED = re.compile(
    r"\\(?:text(?:bf|it|rm|tt|sf|color\s*\{\w+\})?|math(?:rm|bf|it|sf|tt)|boldsymbol|bm|mbox"
    r"|underline|operatorname)\s*\{([^{}]*)\}"
)
_BOLD = re.compile(r"\*\*([^*]+)\*\*")
_WRAPPINGS = [_BOLD, STYLED, re.compile(r"\(([^(),;]*)\)"), re.compile(r"\{([^{}]*)\}")]
_DOLLARS = re.compile(r"\$([^$]+)\$|\\\((.+)\\\)|\\\[(.+)\\\]", re.DOTALL)
_FULL_STOP = re.compile(r"(?<=[\w)}\]!%$])\s*\.\s*$")
# LaTeX and Markdown that may stand around a number.
_TO_PROSE = [
    (re.compile(pattern), plain)
    for pattern, plain in (
        (r"\\frac\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}", r" \1/\2 "),
        (r"(?<=\d)\s*(?:\\times|\\cdot|[×·])\s*10\^(?:\{(-?\d{1,4})\}|(\d)(?!\d))", r"e\1\2"),
        (r"\^\s*(?:\\circ|\{\s*\\circ\s*\})(?![a-zA-Z])", "°"),
        (r"\\!", ""),
        (r"\\[,;: ()\[\]]|\\q?quad(?![a-zA-Z])|[\u00a0\u2009\u202f]", " "),
        (r"(?<=\d)~(?=\s*(?:[\\a-zA-Z]|$))", " "),
        (r"(?<![\w*`])(\*{1,3}|_{1,2}|`)(?=\S)([^*_`]*)(?<=\S)\1(?![\w*`])", r"\2"),
        (r"(?:\b[A-Z]{1,3})?(?<!\d)[$€£¥]|[$€£¥](?!\d)", ""),
        (r"(\d\s*[a-zA-Z]{1,5}(?:/[a-zA-Z]{1,5})?)\s*(?:\^\s*(?:[23]|\{[23]\})|[²³])", r"\1"),
        (r"(^|[=:])\s*([-+])\s+", r"\1 \2"),  # - 18
    )
]


def bare(text: str) -> str:
    r"""An answer without \boxed{}, a style or brackets around it: \textbf{(073)} is 073."""
    boxed = last_boxed(text)
    text = (text if boxed is None else boxed).translate(_CHARACTERS)
    for pattern, plain in _LATEX:
        text = pattern.sub(plain, text)
    text = text.strip(" \t\n\r\u200b\u2060\ufeff")
    for wrapping in _WRAPPINGS:
        match = wrapping.fullmatch(text)
        text = match[1].strip() if match else text
    return text


def formula(text: str) -> str:
    """A bare answer without its dollars and without the full stop of its sentence."""
    text = _FULL_STOP.sub("", text)
    match = _DOLLARS.fullmatch(text.strip())
    return _FULL_STOP.sub("", next(filter(None, match.groups()))).strip() if match else text


def prose(text: str) -> str:
    """A bare answer without the LaTeX and Markdown that may stand around a number."""
    text = unstyled(text)
    for pattern, plain in _TO_PROSE:
        text = pattern.sub(plain, text)
    return text.strip()


def unstyled(text: str) -> str:
    r"""Without \text{} and its like, whose content stays."""
    styled = 1
    while styled:  # inner styles first
        text, styled = STYLED.subn(r" \1 ", text)
    return text


def _fraction(value: Fraction) -> str:
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


def _repeating(whole: str, fixed: str, period: str) -> str:
    r"""The value of 0.1\overline{6}."""
    once = int(f"0{whole}{fixed}")
    nines = 10 ** len(fixed) * (10 ** len(period) - 1)
    return _fraction(Fraction(int(f"{once}{period}") - once, nines))
