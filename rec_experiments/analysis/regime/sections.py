"""The regime of arms: a block of numbers for each quantity, with published values beside it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rec_experiments.analysis.regime.arms import Arm
from rec_experiments.analysis.regime.quantities import (
    LEAST_LAGS,
    PARTS,
    Lags,
    between,
    exponents,
    factor,
    interval,
    spread,
    windows,
)
from rec_experiments.analysis.regime.ranges import Published, published_values
from rec_experiments.analysis.results.aggregate import interval_of_mean

Cell = float | tuple[float, float] | None
Column = Callable[[Arm], Cell]
Number = Callable[[Arm], float | None]

# Titles of the quantities that are shown by lag.
BY_LAG = {
    "clip_fraction": "clipped share of live tokens, %",
    "log_ratio_second_moment": "mean of (log ρ)²",
    "ess": "effective sample size, share of the responses",
}
# Quantities for which the exponent of this growth is shown, too.
GROWING = ("clip_fraction", "log_ratio_second_moment")
SIDES = {"ρ > 1": "high", "ρ < 1": "low", "A > 0": "positive", "A < 0": "negative"}
BY_PART = {
    "KL to the reference, nats": {"token": "kl", "response": "kl_response"},
    "entropy in nats per token, and gradient norm": {"entropy": "entropy", "norm": "grad_norm"},
    "response length in tokens, and share cut at the limit, %": {
        "length": "response_length",
        "cut": "truncated",
    },
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """A published value, and name, value and place (below, inside, above) of each arm."""

    published: Published
    arms: list[tuple[str, float, str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """A table of one quantity. rows: name and cells of each arm; a pair of numbers is a range."""

    title: str
    head: list[str]
    rows: list[tuple[str, list[Cell]]]
    comparisons: list[Comparison]

    @property
    def empty(self) -> bool:
        """Whether no arm has a number."""
        return all(cell is None for _, cells in self.rows for cell in cells)


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """Arms that are compared. unmeasured: titles of the blocks without a number."""

    title: str
    blocks: list[Block]
    unmeasured: list[str]


def sections(arms: list[Arm]) -> list[Section]:
    """A section for each schedule, or column of a figure, in order."""
    found = []
    for title in dict.fromkeys(arm.section for arm in arms):
        blocks = list(_blocks([arm for arm in arms if arm.section == title]))
        found.append(
            Section(
                title=title,
                blocks=[block for block in blocks if not block.empty],
                unmeasured=[block.title for block in blocks if block.empty],
            )
        )
    return found


def _blocks(arms: list[Arm]) -> Iterator[Block]:
    def block(title: str, columns: Sequence[tuple[str, Column]], *quantities: str) -> Block:
        return Block(
            title=title,
            head=[head for head, _ in columns],
            rows=[(arm.name, [column(arm) for _, column in columns]) for arm in arms],
            comparisons=[
                compared
                for each in published_values()
                if each.quantity in quantities and (compared := _compared(each, arms)).arms
            ],
        )

    found = {lag for arm in arms for of_run in arm.lags for lag in of_run}
    lags = spread({lag for lag in found if lag is not None})
    at_lags: list[tuple[str, Lags | None]] = [("all", None)]
    at_lags += [(f"lag {each}", (each, each)) for each in lags]
    yield block("runs and batches", RUNS)
    for quantity, title in BY_LAG.items():
        columns: list[tuple[str, Column]] = [(h, _mean(quantity, lags=a)) for h, a in at_lags]
        columns += _growth(quantity) if quantity in GROWING and len(lags) > LEAST_LAGS else []
        yield block(title, columns, quantity)
        if quantity == "clip_fraction":
            yield block("clipped share by side and by sign of the advantage, %", CLIPPED)
    low, high = "ratio_p01", "ratio_p99"
    yield block(
        "ratio ρ of a token, 1st to 99th percentile",
        [(h, _range(_mean(low, lags=each), _mean(high, lags=each))) for h, each in at_lags],
    )
    for title, quantities in BY_PART.items():
        parts = [
            (part if n else f"{name}: {part}", _mean(quantity, part=part))
            for name, quantity in quantities.items()
            for n, part in enumerate(PARTS)
        ]
        yield block(title, parts, *quantities.values())
    since_rollout = [
        (f"lag {a}" if a == b else f"lag {a}–{b}", _mean("weight_lag", lags=(a, b)))
        for a, b in between(lags)
    ]
    yield block(
        "distance of the weights ÷ their norm: in a step, and since the rollout",
        [("a step", _mean("weight_step")), *since_rollout],
    )


def _mean(quantity: str, *, lags: Lags | None = None, part: str | None = None) -> Number:
    """The column of an arm's mean of a metric, in the units shown."""

    def column(arm: Arm) -> float | None:
        value = arm.mean_of(quantity, lags, part)
        return None if value is None else factor(quantity) * value

    return column


def _range(low: Number, high: Number) -> Column:
    """The column of a range, from one number of an arm to another."""

    def column(arm: Arm) -> tuple[float, float] | None:
        first, last = low(arm), high(arm)
        return None if first is None or last is None else (first, last)

    return column


def _growth(quantity: str) -> list[tuple[str, Column]]:
    """The columns of a quantity's exponent over the lag: mean and 95 % t interval over the windows
    of all runs."""

    def of(arm: Arm) -> list[float]:
        return [each for run in arm.runs for each in exponents(run.rows, quantity)]

    return [
        ("exponent", lambda arm: sum(found) / len(found) if (found := of(arm)) else None),
        ("95 %", lambda arm: interval_of_mean(of(arm))),
    ]


def _compared(published: Published, arms: list[Arm]) -> Comparison:
    values = [(arm.name, published.value(arm)) for arm in arms if published.is_for(arm.config)]
    found = [(name, value, published.place(value)) for name, value in values if value is not None]
    return Comparison(published=published, arms=found)


RUNS: list[tuple[str, Column]] = [
    ("seeds", lambda arm: len(arm.runs)),
    ("steps", lambda arm: arm.mean(lambda rows: rows[-1]["step"])),
    ("interval", lambda arm: arm.mean(interval)),
    ("windows", lambda arm: arm.mean(windows)),
    ("live groups, %", _mean("live_groups")),
    ("distinct responses, %", _mean("distinct_responses")),
]
CLIPPED = [(head, _mean(f"clip_fraction_{name}")) for head, name in SIDES.items()]
