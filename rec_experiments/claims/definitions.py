"""The claims of the papers. Every threshold stands here, with its reason.

The thresholds were set from the paper's text and the size of sampling noise, before the runs. Where
a run departs from the paper, the verdict is to say so; no threshold is to be moved for it. One
statistic was replaced after the first runs: the correlation of the clipping fraction with staleness
missed teeth that saturate or change their height. The claim's verdict is the same with both.
"""

from rec_experiments.claims.engine import Check, Claim, Compare, Range
from rec_experiments.results.statistics import (
    AREA_UNDER_CURVE,
    AREA_UNDER_FIRST_THIRD,
    BEST,
    BEST_MINUS_INITIAL,
    DROP_AT_SYNCHRONISATION,
    FINAL,
    FINAL_MINUS_INITIAL,
    FINAL_MINUS_MIDDLE_THIRD,
    FINAL_OVER_BEST,
    FINAL_OVER_INITIAL,
    MAXIMUM_DRAWDOWN,
    STANDARD_DEVIATION,
    Statistic,
)

# Columns and arms, as the figures' titles and legends write them.
ON_POLICY, INTERVAL, OFFSET = "on-policy", "sync_interval = 20", "sync_offset = 10"
OFFLINE = "offline"
STALE = (INTERVAL, OFFSET, OFFLINE)
REINFORCE, GRPO, RED_WEIGHT = "REINFORCE", "GRPO", "RED-Weight"
NARROW, NARROW_IS = "REC-OneSide-NoIS (0.2)", "REC-OneSide-IS (0.2)"
NARROW_4, NARROW_IS_4 = "REC-OneSide-NoIS (0.2, 0.25)", "REC-OneSide-IS (0.2, 0.25)"  # of Figure 4
WIDE = "REC-OneSide-NoIS (0.6, 2.0)"
TWO_SIDE, TWO_SIDE_IS = "REC-TwoSide-NoIS (0.2)", "REC-TwoSide-IS (0.2)"
TWO_SIDES, RINGS, REDS = "REC-TwoSide-*", "REC-Ring-*", "RED-*"

REWARD, KL, CLIPPED = "train/reward", "train/kl", "train/clip_fraction"
ENTROPY, LENGTH = "train/entropy", "train/response_length"
ACCURACY = "eval/accuracy"
DIFFERENCE, RATIO = Compare.difference, Compare.ratio

# Thresholds on accuracies and rewards, both between 0 and 1 -------------------------------------

MARGIN = 0.05
_NOISE = (
    f"{MARGIN} is two standard errors of one evaluation (0.026 at worst with 384 problems), "
    "and about the width of the wiggles in the paper's curves"
)
HIGHER = Range(name="higher", low=MARGIN, reason=f"{_NOISE}: less is not a difference")
ALIKE = Range(
    name="alike",
    low=-MARGIN,
    high=MARGIN,
    reason=f"{_NOISE}. The same number as for `higher`, so no pair can be alike and apart",
)
NOT_LOWER = Range(
    name="not lower",
    low=-MARGIN,
    reason=f"{_NOISE}. `Comparable` and `on par` do not exclude being better",
)
LOWER = Range(name="lower", high=-MARGIN, reason=f"{_NOISE}: less is not a difference")
LEARNS = Range(
    name="learns",
    low=2 * MARGIN,
    reason="four standard errors of one evaluation, which even the highest of ten evaluations of "
    "an untrained policy hardly reaches",
)
FALLS = Range(
    name="falls",
    low=2 * MARGIN,
    reason="four standard errors of one evaluation, so that noise around a level curve is no fall",
)
STABLE = Range(
    name="stable",
    low=0.8,
    reason="the highest evaluation is lucky, and a curve that still grows ends above the mean of "
    "its last points; together that is less than a fifth",
)
DECLINES = Range(name="declines", high=STABLE.low, reason="the opposite of `stable`")
COLLAPSES = Range(
    name="collapses",
    high=0.5,
    reason="below half of the untrained policy's value all that was learned is lost, and half of "
    "what was there before: the way to 0",
)
NO_COLLAPSE = Range(name="no collapse", low=COLLAPSES.high, reason="the opposite of `collapses`")

# Thresholds on ratios and on shape --------------------------------------------------------------

LESS = Range(
    name="less", high=0.9, reason="a tenth less, a twentieth of a decade on a logarithmic axis"
)
NOT_MORE = Range(
    name="not more",
    high=1.1,
    reason="a tenth more counts as similar: of Figure 6 the text says `similar KL distance`",
)
HALF = Range(
    name="half",
    high=0.5,
    reason="the wide range is three (ε_low) to ten (ε_high) times as wide as the narrow one, so "
    "its share of clipped tokens should be less by a factor that a logarithmic axis shows",
)
TEETH = Range(
    name="teeth",
    low=0.5,
    reason="the curve at least halves at a synchronisation; teeth that start at 0 have 1, noise, a "
    "slope and teeth of another period about 0 or less",
)

# Parts that several claims have, each with one statistic and one threshold ----------------------


def learns(figures: tuple[str, ...], column: str, arm: str) -> Check:
    return Check("learns", figures, column, arm, FINAL_MINUS_INITIAL, LEARNS)


def stable(figures: tuple[str, ...], column: str, arm: str, metric: str = ACCURACY) -> Check:
    return Check("stable", figures, column, arm, FINAL_OVER_BEST, STABLE, metric=metric)


def alike(
    figures: tuple[str, ...], column: str, arm: str, against: str, metric: str = ACCURACY
) -> Check:
    return Check("alike", figures, column, arm, AREA_UNDER_CURVE, ALIKE, against, metric)


def faster(
    figures: tuple[str, ...], column: str, arm: str, against: str, metric: str = ACCURACY
) -> Check:
    return Check("learns faster", figures, column, arm, AREA_UNDER_CURVE, HIGHER, against, metric)


# The paper's claims -----------------------------------------------------------------------------

FIG3, FIG4, FIG5 = ("fig3",), ("fig4",), ("fig5",)
FIG6, FIG7, FIG9, FIG10, FIG11 = ("fig6",), ("fig7",), ("fig9",), ("fig10",), ("fig11",)
# Figures that hold the same arm under the same schedule, so the same runs.
SHARED = {INTERVAL: FIG3 + FIG5 + FIG9 + FIG11} | dict.fromkeys(
    (OFFSET, OFFLINE), FIG3 + FIG9 + FIG11
)

PARITY = Claim(
    id="on-policy-parity",
    says="On-policy, REINFORCE, RED-Drop, RED-Weight and REC-OneSide-NoIS (0.6, 2.0) learn about "
    "equally",
    figures=FIG5,
    checks=(
        learns(FIG5, ON_POLICY, REINFORCE),
        *(alike(FIG5, ON_POLICY, arm, REINFORCE) for arm in ("RED-Drop", RED_WEIGHT, WIDE)),
    ),
)


def reinforce(says: str, column: str, statistic: Statistic, range_: Range) -> Check:
    """REINFORCE under a schedule, in every figure that shows it."""
    return Check(says, SHARED[column], column, REINFORCE, statistic, range_)


COLLAPSE = Claim(
    id="reinforce-collapses",
    says="Under interval 20 and offline REINFORCE rises, then collapses towards 0; it dips under "
    "offset 10",
    figures=SHARED[INTERVAL],
    checks=(
        *(
            check
            for column in (INTERVAL, OFFLINE)
            for check in (
                reinforce("rises", column, BEST_MINUS_INITIAL, LEARNS),
                reinforce("then collapses", column, FINAL_OVER_INITIAL, COLLAPSES),
            )
        ),
        reinforce("dips", OFFSET, MAXIMUM_DRAWDOWN, FALLS),
        reinforce("and does not collapse", OFFSET, FINAL_OVER_INITIAL, NO_COLLAPSE),
    ),
)

IMPORTANCE = Claim(
    id="is-not-essential",
    says="With equal clipping, IS and NoIS variants perform alike, one-side and two-side, in all "
    "settings",
    figures=FIG3 + FIG4 + FIG9,
    checks=(
        *(alike(FIG3, column, NARROW_IS, NARROW) for column in STALE),
        *(alike(FIG9, column, TWO_SIDE_IS, TWO_SIDE) for column in STALE),
        alike(FIG4, INTERVAL, NARROW_IS_4, NARROW_4, REWARD),
    ),
)

WIDE_FASTER = Claim(
    id="wide-clip-faster",
    says="REC-OneSide-NoIS (0.6, 2.0) learns faster than (0.2) under interval 20 and offset 10, "
    "and stays stable",
    figures=FIG3 + FIG4 + FIG10 + FIG11,
    checks=(
        faster(FIG3, INTERVAL, WIDE, NARROW),
        faster(FIG3, OFFSET, WIDE, NARROW),
        faster(FIG4, INTERVAL, WIDE, NARROW_4, REWARD),
        stable(FIG3 + FIG11, INTERVAL, WIDE),
        stable(FIG3 + FIG11, OFFSET, WIDE),
        stable(FIG10, INTERVAL, f"{WIDE}, lr *"),
        stable(FIG4, INTERVAL, WIDE, REWARD),
    ),
)

TRADE_OFF = Claim(
    id="offline-trade-off",
    says="Offline, (0.2) plateaus early and stays; (0.6, 2.0) rises higher, then declines",
    figures=FIG3,
    checks=(
        Check("plateaus early and stays", FIG3, OFFLINE, NARROW, FINAL_MINUS_MIDDLE_THIRD, ALIKE),
        Check("rises higher", FIG3, OFFLINE, WIDE, BEST, HIGHER, NARROW),
        Check("then declines", FIG3, OFFLINE, WIDE, FINAL_OVER_BEST, DECLINES),
    ),
)

FRAGILE = Claim(
    id="two-side-fast-then-fragile",
    says="REC-TwoSide improves fast at first and tends to collapse later; REC-Ring balances speed "
    "and stability",
    figures=FIG9,
    checks=tuple(
        check
        for column in STALE
        for check in (
            Check("fast at first", FIG9, column, TWO_SIDES, AREA_UNDER_FIRST_THIRD, HIGHER, GRPO),
            Check("declines later", FIG9, column, TWO_SIDES, FINAL_OVER_BEST, DECLINES),
            Check("not slow", FIG9, column, RINGS, AREA_UNDER_FIRST_THIRD, NOT_LOWER, GRPO),
            stable(FIG9, column, RINGS),
        )
    ),
    note="The paper says that REC-TwoSide tends to collapse, so a decline is enough here.",
)

LEARNING_RATE = Claim(
    id="lr-is-no-substitute",
    says="Raising the learning rate of GRPO (0.2) or REC-OneSide-NoIS (0.2) does not close the gap "
    "to (0.6, 2.0) at the usual rate",
    figures=FIG10,
    checks=tuple(
        Check("stays ahead", FIG10, INTERVAL, f"{WIDE}, lr *", FINAL, HIGHER, f"{arm}, lr *")
        for arm in ("GRPO (0.2)", NARROW)
    ),
)

REGULARISED = Claim(
    id="regularised-baselines-hold",
    says="OPMD and AsymRE are stable under interval 20 and offset 10",
    figures=FIG11,
    checks=tuple(
        check
        for column in (INTERVAL, OFFSET)
        for arm in ("OPMD *", "AsymRE *")
        for check in (learns(FIG11, column, arm), stable(FIG11, column, arm))
    ),
)

DATA_WEIGHTING = Claim(
    id="data-weighting-holds",
    says="RED-Drop and RED-Weight are robust under interval 20, comparable to (0.6, 2.0)",
    figures=FIG5,
    checks=(
        learns(FIG5, INTERVAL, REDS),
        stable(FIG5, INTERVAL, REDS),
        Check("comparable", FIG5, INTERVAL, REDS, AREA_UNDER_CURVE, NOT_LOWER, WIDE),
    ),
)

LESS_DRIFT = Claim(
    id="red-weight-less-drift",
    says="RED-Weight reaches higher reward than GRPO and REC (0.2) at lower KL, with stabler "
    "entropy and length",
    figures=FIG6 + FIG7,
    checks=tuple(
        Check(says, figures, INTERVAL, RED_WEIGHT, statistic, range_, arm, metric, compare)
        for arm in (GRPO, NARROW)
        for says, figures, statistic, range_, metric, compare in (
            ("higher reward in fig6", FIG6, AREA_UNDER_CURVE, HIGHER, REWARD, DIFFERENCE),
            ("similar KL in fig6", FIG6, AREA_UNDER_CURVE, NOT_MORE, KL, RATIO),
            ("higher reward in fig7", FIG7, AREA_UNDER_CURVE, HIGHER, REWARD, DIFFERENCE),
            ("lower KL in fig7", FIG7, AREA_UNDER_CURVE, LESS, KL, RATIO),
            ("stabler entropy in fig7", FIG7, STANDARD_DEVIATION, LESS, ENTROPY, RATIO),
            ("stabler length in fig7", FIG7, STANDARD_DEVIATION, LESS, LENGTH, RATIO),
        )
    ),
    note="Of Figure 6 the text claims a similar KL, of Figure 7 a lower one.",
)

SAW = Claim(
    id="clip-sawtooth",
    says="The clipping fraction is a sawtooth with the period of the synchronisation interval; "
    "wider ranges clip less",
    figures=FIG4 + FIG9,
    checks=(
        *(
            Check(
                "a sawtooth", figures, INTERVAL, arm, DROP_AT_SYNCHRONISATION, TEETH, metric=CLIPPED
            )
            for figures, arm in ((FIG4, "REC-*"), (FIG9, "REC-*"), (FIG9, GRPO))
        ),
        *(
            Check(
                "clips less", FIG4, INTERVAL, wide, AREA_UNDER_CURVE, HALF, narrow, CLIPPED, RATIO
            )
            for wide, narrow in (
                (WIDE, NARROW_4),
                ("REC-TwoSide-NoIS (0.6, 2.0)", "REC-TwoSide-NoIS (0.2, 0.25)"),
            )
        ),
    ),
)

# The claims of paper 2 (arXiv 2505.22257), its Figure 2 -----------------------------------------

PAPER_2 = ("paper2",)
FRESH, MASKED = "GRPO with KL (v=1, i=1)", "GRPO with KL (v=1, i=1), zero-variance masking"
OLD_MODEL, OLD_DATA = "GRPO with KL (v=10, i=1)", "GRPO with KL (v=1, i=10)"
NO_SWEEP = "No sweep makes these runs yet."

MASKING = Claim(
    id="zero-variance-masking-stabilises",
    says="Masking groups whose rewards are all equal stabilises on-policy GRPO with a KL term",
    figures=PAPER_2,
    checks=(
        Check("falls less deeply", PAPER_2, "", MASKED, MAXIMUM_DRAWDOWN, LOWER, FRESH),
        Check("is not worse", PAPER_2, "", MASKED, AREA_UNDER_CURVE, NOT_LOWER, FRESH),
    ),
    note=NO_SWEEP,
)

ON_PAR = Claim(
    id="v10-on-par",
    says="Off-policy GRPO (v=10, i=1) is stable and on par or better; (v=1, i=10) is slower per "
    "step",
    figures=PAPER_2,
    checks=(
        stable(PAPER_2, "", OLD_MODEL),
        Check("on par or better", PAPER_2, "", OLD_MODEL, AREA_UNDER_CURVE, NOT_LOWER, FRESH),
        Check("slower", PAPER_2, "", OLD_DATA, AREA_UNDER_CURVE, LOWER, FRESH),
    ),
    note=NO_SWEEP,
)

CLAIMS = (
    PARITY,
    COLLAPSE,
    IMPORTANCE,
    WIDE_FASTER,
    TRADE_OFF,
    FRAGILE,
    LEARNING_RATE,
    REGULARISED,
    DATA_WEIGHTING,
    LESS_DRIFT,
    SAW,
    MASKING,
    ON_PAR,
)
