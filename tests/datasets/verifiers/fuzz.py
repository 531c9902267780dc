r"""Random pairs of answers for `same_expression` and for math-verify alone.

    python tests/datasets/verifiers/fuzz.py [CASES]    a table of error rates, 6000 by default

Each case has a gold answer of some kind, and an answer that is equal to it, written in another way,
or a near miss. All are made by a program that knows which, so no judge decides what is right.
"""

import logging
import random
import sys
from collections.abc import Iterator
from fractions import Fraction

import math_verify
import pandas

from rec_experiments.datasets.verifiers.expressions import same_expression

Kind = tuple[str, list[str], list[str]]  # gold answer, equal answers, near misses


def fraction(rng: random.Random) -> Kind:
    value = Fraction(rng.choice([-1, 1]) * rng.randint(1, 60), rng.randint(2, 40))
    sign, p, q = "-" if value < 0 else "", abs(value.numerator), value.denominator
    k, part = rng.randint(2, 9), rng.randint(1, 50)
    equal = [
        rf"{sign}\frac{{{k * p}}}{{{k * q}}}",
        rf"{sign}\dfrac{{{p}}}{{{q}}}",
        rf"\frac{{{value.numerator - part}}}{{{q}}}+\frac{{{part}}}{{{q}}}",
        f"{value.numerator}/{q}",
    ]
    if 10**6 % q == 0:
        equal.append(str(float(value)))
        misses = [str(float(value) + 10**-7)]
    else:
        misses = [f"{float(value):.6f}"]
    misses += [rf"\frac{{{value.numerator + 1}}}{{{q}}}", f"{-value}", str(float(value * 10))]
    return rf"{sign}\frac{{{p}}}{{{q}}}", equal, misses


def tiny(rng: random.Random) -> Kind:
    n, k = rng.randint(2, 9), rng.randint(12, 40)
    equal = [rf"{n}^{{-{k}}}", rf"\frac{{1}}{{{n**k}}}", rf"\frac{{{n}}}{{{n}^{{{k + 1}}}}}"]
    return rf"\frac{{1}}{{{n}^{{{k}}}}}", equal, ["0", "0.0", rf"{n}^{{-{k + 1}}}", "10^{-30}"]


def surd(rng: random.Random) -> Kind:
    a, b = rng.randint(2, 12), rng.choice([2, 3, 5, 6, 7, 10, 11, 13])
    value = a * b**0.5
    equal = [
        rf"\sqrt{{{a * a * b}}}",
        rf"\frac{{{a * b}}}{{\sqrt{{{b}}}}}",
        rf"\sqrt{{{b}}}\cdot {a}",
    ]
    misses = [rf"{a}\sqrt{{{b + 1}}}", f"{value:.6f}", f"{value:.12f}", rf"{a + 1}\sqrt{{{b}}}"]
    return rf"{a}\sqrt{{{b}}}", equal, misses


def polynomial(rng: random.Random) -> Kind:
    a, b = rng.randint(1, 9), rng.randint(1, 9)
    gold = f"x^2+{a + b}x+{a * b}"
    equal = [f"(x+{a})(x+{b})", f"(x+{b})(x+{a})", f"{a * b}+{a + b}x+x^2", f"x(x+{a + b})+{a * b}"]
    return gold, equal, [f"x^2+{a + b + 1}x+{a * b}", f"(x-{a})(x-{b})", f"x^3+{a + b}x+{a * b}"]


def pair(rng: random.Random) -> Kind:
    a, b = rng.sample(range(1, 999), 2)
    equal = [f"({a}, {b})", rf"\left({a},{b}\right)", rf"\left( {a} , {b} \right)", f"({a},{b}.0)"]
    misses = [f"({b},{a})", f"{a}{b:03}", f"({a},{b + 1})", rf"\{{{a},{b}\}}", f"[{a},{b}]", f"{b}"]
    return f"({a},{b})", equal, misses


def interval(rng: random.Random) -> Kind:
    a = rng.randint(-99, 99)
    b = a + rng.randint(1, 200)
    opening, closing = rng.choice("(["), rng.choice(")]")
    if opening + closing == "()":
        closing = "]"
    gold = f"{opening}{a},{b}{closing}"
    other = "[" if opening == "(" else "("
    equal = [f"{opening}{a}, {b}{closing}", rf"\left{opening}{a},{b}\right{closing}"]
    misses = [f"{other}{a},{b}{closing}", f"{opening}{a},{b + 1}{closing}", f"{a}", f"{b}"]
    return gold, equal, misses


def inequality(rng: random.Random) -> Kind:
    a, b = sorted(rng.sample(range(-99, 99), 2))
    equal = [rf"{a} < x \le {b}", rf"{b} \ge x > {a}", rf"x \in ({a}, {b}]"]
    misses = [rf"{a} \le x \le {b}", f"{a} < x < {b}", rf"{a} < x \le {b + 1}", rf"x \le {b}"]
    return f"({a},{b}]", equal, misses


def roots(rng: random.Random) -> Kind:
    a, b, c = rng.sample(range(-40, 40), 3)
    equal = [
        f"{b}, {a}",
        rf"x = {a} \text{{ or }} x = {b}",
        rf"{b} \text{{ and }} {a}",
        rf"\{{{b},{a}\}}",
    ]
    return f"{a}, {b}", equal, [f"{a}", f"{a}, {c}", f"{a}, {b}, {c}", f"x = {a} or x = {c}"]


def thousands(rng: random.Random) -> Kind:
    value = rng.randint(1000, 10**9)
    written = f"{value:,}"
    equal = [str(value), written.replace(",", "{,}"), rf"\${written}", f"{written}.00"]
    return (
        written,
        equal,
        [f"{value + 1:,}", f"{value * 10}", f"({written})" if value > 10**6 else "0"],
    )


def angle(rng: random.Random) -> Kind:
    n, k = rng.randint(2, 12), rng.randint(2, 9)
    equal = [rf"\frac{{{k}\pi}}{{{k * n}}}", rf"\pi/{n}", rf"\frac{{1}}{{{n}}}\pi"]
    return (
        rf"\frac{{\pi}}{{{n}}}",
        equal,
        [rf"\frac{{\pi}}{{{n + 1}}}", f"{3.14159265358979 / n:.9f}"],
    )


def degrees(rng: random.Random) -> Kind:
    a, k = rng.randint(1, 89), rng.randint(2, 9)
    equal = [rf"{k}\cos {90 - a}^\circ", rf"{k}\sin({a}°)", rf"{k}\sin\frac{{{a}\pi}}{{180}}"]
    misses = [rf"{k}\sin {a}", rf"{k}\sin {a + 1}^\circ", rf"{k + 1}\sin {a}^\circ"]
    return rf"{k}\sin {a}^\circ", equal, misses


def label(rng: random.Random) -> Kind:
    word = rng.sample("ABCDEFGH", 3)
    gold, other = "".join(word), "".join([word[1], word[0], word[2]])
    return (
        rf"\text{{{gold}}}",
        [gold, rf"\mathrm{{{gold}}}"],
        [other, rf"\text{{{other}}}", gold[:2]],
    )


def base(rng: random.Random) -> Kind:
    b = rng.randint(5, 9)
    digits = "".join(str(rng.randint(1, b - 1)) for _ in range(4))
    equal = [f"{digits}_{{{b}}}", digits]
    return (
        f"{digits}_{b}",
        equal,
        [f"{digits}_{b + 1}", f"{digits[::-1]}1_{b}", str(int(digits, b))],
    )


KINDS = (
    *(fraction, tiny, surd, polynomial, pair, interval, inequality),
    *(roots, thousands, angle, degrees, label, base),
)


def cases(count: int, seed: int = 0) -> Iterator[tuple[str, str, str, bool]]:
    """Kind, gold answer, answer, and whether they are equal."""
    rng = random.Random(seed)
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        gold, equal, misses = kind(rng)
        is_equal = rng.random() < 0.5
        yield kind.__name__, gold, rng.choice(equal if is_equal else misses), is_equal


def by_library(answer: str, gold: str) -> bool:
    """math-verify as its README calls it."""
    expected, found = (
        math_verify.parse(f"\\boxed{{{side}}}", parsing_timeout=None) for side in (gold, answer)
    )
    return bool(math_verify.verify(expected, found, timeout_seconds=None))


def main(count: int) -> None:
    errors = pandas.DataFrame(
        {
            "kind": kind,
            "pair": "equal" if is_equal else "near miss",
            "here": same_expression(f"\\boxed{{{answer}}}", gold) is not is_equal,
            "math-verify": by_library(answer, gold) is not is_equal,
        }
        for kind, gold, answer, is_equal in cases(count)
    )
    print("share of errors\n", errors.groupby(["kind", "pair"]).mean().round(3))
    print(
        "\nerrors in all\n", errors.groupby("pair")[["here", "math-verify"]].agg(["sum", "count"])
    )


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 6000)
