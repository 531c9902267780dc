"""Plain numbers as people write them, with the words, units and currencies around them.

Arithmetic, a second number, negation and doubt make an answer wrong. Units are not checked: "18",
"$18" and "18%" are all 18.
"""

import math
import re
import unicodedata
from fractions import Fraction

from rec_experiments.datasets.verifiers.spelling import bare, prose, unstyled

_NUMBER = re.compile(
    r"(?P<sign>[-+])?"
    r"(?:(?:(?P<whole>\d+) +)?(?P<over>\d+)/(?P<under>\d+)"
    r"|(?P<digits>(?:\d{1,3}(?:(?:,\d{3})+|(?: \d{3})+)(?!\d)|\d+)(?:\.\d*)?|\.\d+))"
    r"(?P<power>[eE][-+]?\d{1,4}(?!\d))?"
    r"(?:\s*(?P<suffix>[kKMB]|bn)(?![^\W_])"
    r"|[\s-]*(?P<word>hundred|thousand|million|billion|trillion)s?\b)?",
)
_SUFFIXES = {"k": 3, "K": 3, "M": 6, "B": 9, "bn": 9}
_WORDS = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
# (2,125) is a pair; \(2,125\) is a number as a formula
_TUPLE = re.compile(r"(?:(?<!\\)[(\[]|[{⟨])\s*-?\d+(?:,\s*-?\d+)+\s*\\?[)\]}⟩]")
_INDEXED_NAME = re.compile(r"^\s*[a-zA-Z](?:_(?:\w|\{\w+\})|\(\w+\))\s*=")  # f(5) =
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
# Words of a text that denies or doubts what it says, or names a number in letters.
UNCOMMITTED = re.compile(
    r"(?<!\\)\b(?:not|no|nor|never|neither|none|cannot|\w+n['’]t|false|wrong|incorrect|unknown|undefined"
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


def same_number(text: str, answer: str) -> bool:
    """Whether a final answer is the gold answer's text, or its number and nothing but one number
    with sign, separators, currency, unit, LaTeX or a phrase such as "x =" around it."""
    inside, gold = bare(text), bare(answer)
    return inside == gold or not readings(inside).isdisjoint(readings(gold))


def readings(text: str) -> set[Fraction]:
    """The values of a bare text that is one number with words around it; empty for any other text.

    "18 million" has two, 18000000 and 18, because the question may be how many million. "18k" is
    18000 only. A fraction in lowest terms, 1/2, is a number; 36/2 is a division, (2,125) a pair.
    """
    text = _INDEXED_NAME.sub("", unstyled(text))  # \text{2,125} is a number
    if _TUPLE.search(text):
        return set()
    text = prose(text)
    number = _NUMBER.search(text)
    if number is None or not is_alone(text[: number.start()], text[number.end() :]):
        return set()
    value = _value(number)
    if value is None:
        return set()
    if number["suffix"]:
        return {value * 10 ** _SUFFIXES[number["suffix"]]}
    return {value, value * 10 ** _WORDS[number["word"]]} if number["word"] else {value}


def is_alone(before: str, after: str) -> bool:
    """Whether the texts before and after a number leave it as the only one, unchanged."""
    around = f"{before} {after}"
    return (
        _BEFORE.fullmatch(before) is not None
        and _AFTER.fullmatch(after) is not None
        and not _NOT_BEFORE.search(before)
        and not _NOT_AFTER.search(after)
        and not UNCOMMITTED.search(around)
        and not any(character.isnumeric() for character in around)  # 18²
        and unicodedata.is_normalized("NFKC", around)  # 18ⁿ
    )


def _value(number: re.Match[str]) -> Fraction | None:
    """The value of a match of _NUMBER; None for a fraction that is not in lowest terms."""
    sign = -1 if number["sign"] == "-" else 1
    if number["digits"]:
        return sign * Fraction(re.sub("[, ]", "", number["digits"]) + (number["power"] or ""))
    whole, over, under = (int(number[part] or 0) for part in ("whole", "over", "under"))
    if under < 2 or math.gcd(over, under) > 1 or number["power"] or (whole and over > under):
        return None
    return sign * (whole + Fraction(over, under))
