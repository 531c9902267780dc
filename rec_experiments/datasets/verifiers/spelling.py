r"""One spelling for answers: Unicode, LaTeX and Markdown variants of one meaning are unified."""

import re
from fractions import Fraction

from rec_experiments.datasets.verifiers.marks import last_boxed

_SPELLINGS = {
    "\u2212": "-", "\u2013": "-", "\ufe63": "-", "\uff0d": "-", "\\$": "$", "\\%": "%", "{,}": ",",
    "\\varnothing": "\\emptyset", "\u2205": "\\emptyset", "\\left": "", "\\right": "",
    "\\limits": "", "\\displaystyle": "", "\u2044": "/",
    **{f"\\{big}{side}": "" for big in ("big", "Big", "bigg", "Bigg") for side in ("", "l", "r")},
    "\\dots": "\\ldots", "\\cdots": "\\ldots", "\u2026": "\\ldots", "\\langle": "\u27e8",
    "\\rangle": "\u27e9", "\\lbrace": "\\{", "\\rbrace": "\\}", "\\{\\}": "\\emptyset",
    "\\{ \\}": "\\emptyset",
    "\u00b7": "\\cdot ", "\u221e": "\\infty ", "\u00b1": "\\pm ",
    "\u00b0": "^\\circ ",
    "\u2264": "\\le ", "\u2265": "\\ge ", "\u2260": "\\ne ",
    "\u00bd": "\\frac{1}{2}", "\u00bc": "\\frac{1}{4}", "\u00be": "\\frac{3}{4}",
    "\u2153": "\\frac{1}{3}", "\u2154": "\\frac{2}{3}",
}  # fmt: skip
_SPELLING = re.compile(
    "|".join(
        re.escape(old) + ("(?![a-zA-Z])" if old[-1].isalpha() else "")
        for old in sorted(_SPELLINGS, key=len, reverse=True)
    )
)
_SMALL = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻ⁿ₀₁₂₃₄₅₆₇₈₉₋ₙ", "0123456789-n" * 2)
_POWER = re.compile(r"(?<=[\da-zA-Z)}])[⁰¹²³⁴⁵⁶⁷⁸⁹⁻ⁿ]+")
_INDEX = re.compile(r"(?<=[\da-zA-Z)}])[₀₁₂₃₄₅₆₇₈₉₋ₙ]+")
_ROOT = re.compile(r"([√∛])\s*(?:(\d+|\w)|\(([^()]*)\))?")  # √15, √x, √(x+1)
_IN_DEGREES = re.compile(r"(\d+(?:\.\d+)?)\s*\^(?:\\circ(?![a-zA-Z])|\{\s*\\circ\s*\})")
_TRIGONOMETRIC = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-zA-Z])")
_REPEATING = re.compile(r"(?<!\d)(\d*)\.(\d*)\\overline\s*\{(\d+)\}")  # 0.1\overline{6}
_STYLE = (
    r"\\(?:text(?:bf|it|rm)?|math(?:rm|bf|it|sf)|boldsymbol|bm|mbox|operatorname)\s*\{([^{}]*)\}"
)
STYLED = re.compile(_STYLE)
_BOLD = re.compile(r"\*\*([^*]+)\*\*")
_WRAPPINGS = [_BOLD, STYLED, re.compile(r"\(([^(),;]*)\)"), re.compile(r"\{([^{}]*)\}")]
_DOLLARS = re.compile(r"\$([^$]+)\$|\\\((.+)\\\)|\\\[(.+)\\\]", re.DOTALL)
_FULL_STOP = re.compile(r"(?<=[\w)}\]!%$])\s*\.\s*$")
# LaTeX and Markdown that may stand around a number.
_TO_PROSE = [
    (re.compile(pattern), plain)
    for pattern, plain in (
        (r"\\[dt]?frac\s*(?:\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}|(\d)\s*(\d))", r" \1\3/\2\4 "),
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
    text = _unified(text if boxed is None else boxed).strip()
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


def _unified(text: str) -> str:
    text = _SPELLING.sub(lambda found: _SPELLINGS[found[0]], text)
    text = _REPEATING.sub(_fraction, text)
    text = _ROOT.sub(_root, text)
    if _TRIGONOMETRIC.search(text):
        text = _IN_DEGREES.sub(r"{\\frac{\1\\pi}{180}}", text)
    text = _INDEX.sub(lambda index: f"_{{{index[0].translate(_SMALL)}}}", text)
    return _POWER.sub(lambda power: f"^{{{power[0].translate(_SMALL)}}}", text)


def _fraction(repeating: re.Match[str]) -> str:
    """The value of a repeating decimal, as LaTeX."""
    whole, fixed, period = repeating.groups()
    once = int(f"0{whole}{fixed}")
    value = Fraction(int(f"{once}{period}") - once, 10 ** len(fixed) * (10 ** len(period) - 1))
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


def _root(found: re.Match[str]) -> str:
    degree = "" if found[1] == "√" else "[3]"
    inside = found[2] or found[3]
    return rf"\sqrt{degree}{{{inside}}}" if inside else rf"\sqrt{degree} "
