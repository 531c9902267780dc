r"""Inequalities of one variable as the intervals that they describe: x \le 2 is (-\infty,2]."""

import re

_RELATIONS = {
    r"\\(?:leqslant|leq?)(?![a-zA-Z])": "≤",
    r"\\(?:geqslant|geq?)(?![a-zA-Z])": "≥",
    r"\\lt(?![a-zA-Z])": "<",
    r"\\gt(?![a-zA-Z])": ">",
}
_OR = re.compile(r"\\text\s*\{\s*or\s*\}|\bor\b|\\(?:lor|vee)(?![a-zA-Z])")
_VARIABLE = re.compile(r"[a-zA-Z]|\\(?!pi\b|infty\b)[a-z]+")
_MEMBER = re.compile(r"([a-zA-Z])\s*\\in(?![a-zA-Z])\s*(.+)", re.DOTALL)
_MIRRORED = str.maketrans("<>≤≥", "><≥≤")


def as_intervals(text: str) -> tuple[str, str] | None:
    r"""The variable of inequalities, or of x \in [0,1], and its intervals, joined by \cup.

    None for any other text, such as inequalities of two variables or of x^2.
    """
    for latex, sign in _RELATIONS.items():
        text = re.sub(latex, sign, text)
    found = [_as_interval(part.strip(" $")) for part in _OR.split(text)]
    names = {each[0] for each in found if each}
    if not all(found) or len(names) != 1:
        return None
    return names.pop(), "\\cup".join(each[1] for each in found if each)


def _as_interval(text: str) -> tuple[str, str] | None:
    if member := _MEMBER.fullmatch(text):
        return member[1], member[2]
    sides = [side.strip() for side in re.split("([<>≤≥])", text)]
    if ">" in sides or "≥" in sides:  # read from the smaller value on
        sides = [side.translate(_MIRRORED) for side in reversed(sides)]
    variables = [_VARIABLE.fullmatch(side) is not None for side in sides[::2]]
    match sides, variables:
        case [name, sign, high], [True, False]:
            low, signs = "-\\infty", ["<", sign]
        case [low, sign, name], [False, True]:
            high, signs = "\\infty", [sign, "<"]
        case [low, first, name, second, high], [False, True, False]:
            signs = [first, second]
        case _:
            return None
    if not {"<", "≤"} >= set(signs):  # 1 < x > 4
        return None
    return name, f"{'(['[signs[0] == '≤']}{low},{high}{')]'[signs[1] == '≤']}"
