"""The claims of the paper (arXiv 2509.24203), each a conjunction of checks on its figures."""

from rec_experiments.analysis.claims.decision import Range
from rec_experiments.analysis.claims.thresholds import (
    ALIKE,
    COLLAPSES,
    DECLINES,
    DIPS,
    HIGHER,
    LEARNS,
    LESS,
    LEVEL,
    NOT_LOWER,
    RECOVERS,
    RISES,
    SIMILAR,
    STABLE,
    TEETH,
)
from rec_experiments.analysis.claims.verdict import Check, Claim, Compare
from rec_experiments.analysis.results.statistics import (
    AREA_UNDER_CURVE,
    AREA_UNDER_FIRST_THIRD,
    BEST,
    DROP_AT_SYNCHRONISATION,
    FINAL,
    FINAL_MINUS_INITIAL,
    FINAL_MINUS_MIDDLE_THIRD,
    FINAL_OVER_BEST,
    HIGHEST_MINUS_INITIAL,
    MAXIMUM_DRAWDOWN,
    RECOVERY,
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

FIG3, FIG4, FIG5 = ("fig3",), ("fig4",), ("fig5",)
FIG6, FIG7, FIG9, FIG10, FIG11 = ("fig6",), ("fig7",), ("fig9",), ("fig10",), ("fig11",)
# Figures that hold the same arm under the same schedule, so the same runs.
SHARED = {INTERVAL: FIG3 + FIG5 + FIG9 + FIG11} | dict.fromkeys(
    (OFFSET, OFFLINE), FIG3 + FIG9 + FIG11
)

# Parts that several claims have, each with one statistic and one threshold ----------------------


def learns(figures: tuple[str, ...], column: str, arm: str) -> Check:
    return Check("learns", figures, column, arm, FINAL_MINUS_INITIAL, LEARNS)


def stable(figures: tuple[str, ...], column: str, arm: str, metric: str = ACCURACY) -> Check:
    return Check("stable", figures, column, arm, FINAL_OVER_BEST, STABLE, metric=metric)


def alike(
    figures: tuple[str, ...], column: str, arm: str, against: str, metric: str = ACCURACY
) -> Check:
    """The whole curves: the same height on average, whatever wiggles."""
    return Check("alike", figures, column, arm, AREA_UNDER_CURVE, ALIKE, against, metric)


def faster(
    figures: tuple[str, ...], column: str, arm: str, against: str, metric: str = ACCURACY
) -> Check:
    """The higher curve on average: who is early at any height is, also where both end alike."""
    return Check("learns faster", figures, column, arm, AREA_UNDER_CURVE, HIGHER, against, metric)


def reinforce(says: str, column: str, statistic: Statistic, range_: Range) -> Check:
    """REINFORCE under a schedule, in every figure that shows it."""
    return Check(says, SHARED[column], column, REINFORCE, statistic, range_)


# The claims -------------------------------------------------------------------------------------

PARITY = Claim(
    id="on-policy-parity",
    says="On-policy, REINFORCE, RED-Drop, RED-Weight and REC-OneSide-NoIS (0.6, 2.0) learn about "
    "equally",
    quote="“Figure 5 presents GSM8k results […], which confirm the efficacy of RED-Drop and "
    "RED-Weight in on/off-policy settings, comparable to REC-OneSide-NoIS with enlarged (ε_low, "
    "ε_high).” (Section 4.3)",
    figures=FIG5,
    checks=(
        learns(FIG5, ON_POLICY, REINFORCE),
        *(alike(FIG5, ON_POLICY, arm, REINFORCE) for arm in ("RED-Drop", RED_WEIGHT, WIDE)),
    ),
    note="The sentence does not name REINFORCE; Figure 5 draws it over the others.",
)

COLLAPSE = Claim(
    id="reinforce-collapses",
    says="Under interval 20 and offline REINFORCE rises, then collapses towards 0; under offset 10 "
    "it dips and recovers",
    quote="“the collapse of REINFORCE highlights the critical role of clipping” (Section 4.1)",
    figures=SHARED[INTERVAL],
    checks=(
        *(
            check
            for column in (INTERVAL, OFFLINE)
            for check in (
                reinforce("rises", column, HIGHEST_MINUS_INITIAL, RISES),
                reinforce("then collapses", column, FINAL_OVER_BEST, COLLAPSES),
            )
        ),
        reinforce("dips", OFFSET, MAXIMUM_DRAWDOWN, DIPS),
        reinforce("and recovers", OFFSET, RECOVERY, RECOVERS),
    ),
    note="The rise and the dip are read off Figure 3.",
)

IMPORTANCE = Claim(
    id="is-not-essential",
    says="With equal clipping, IS and NoIS variants perform alike, one-side (GRPO too) and "
    "two-side, in all settings",
    quote="“REC-OneSide-IS / NoIS and GRPO (with the same ε_low = ε_high = 0.2) have nearly "
    "identical performance, indicating that importance sampling is non-essential […] Similar "
    "patterns also appear in Figure 4” (Section 4.1); “for REC-TwoSide, importance sampling is "
    "non-essential in all three settings” (Appendix B.3)",
    figures=FIG3 + FIG4 + FIG9,
    checks=(
        *(alike(FIG3, column, arm, NARROW) for column in STALE for arm in (NARROW_IS, GRPO)),
        *(alike(FIG9, column, TWO_SIDE_IS, TWO_SIDE) for column in STALE),
        alike(FIG4, INTERVAL, NARROW_IS_4, NARROW_4, REWARD),
    ),
)

WIDE_FASTER = Claim(
    id="wide-clip-faster",
    says="REC-OneSide-NoIS (0.6, 2.0) learns faster than (0.2) under interval 20 and offset 10, "
    "and stays stable",
    quote="“Radically enlarging (ε_low, ε_high) to (0.6, 2.0) accelerates REC-OneSide-NoIS without "
    "compromising stability in both sync_interval = 20 and sync_offset = 10 settings. Similar "
    "patterns also appear in Figure 4 […] and other results in Appendix B.” (Section 4.1)",
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
    quote="“As for the stress-test (‘offline’) setting, Figure 3 reveals an intrinsic trade-off "
    "between the speed and stability of policy improvement” (Section 4.1)",
    figures=FIG3,
    checks=(
        learns(FIG3, OFFLINE, NARROW),
        Check("plateaus early and stays", FIG3, OFFLINE, NARROW, FINAL_MINUS_MIDDLE_THIRD, LEVEL),
        Check("rises higher", FIG3, OFFLINE, WIDE, BEST, HIGHER, NARROW),
        Check("then declines", FIG3, OFFLINE, WIDE, FINAL_OVER_BEST, DECLINES),
    ),
)

FRAGILE = Claim(
    id="two-side-fast-then-fragile",
    says="REC-TwoSide improves fast at first and tends to collapse later; REC-Ring balances speed "
    "and stability",
    quote="“REC-TwoSide methods demonstrate fast policy improvement at the beginning but tend to "
    "collapse later on, whereas REC-Ring achieves a better balance of convergence speed and "
    "stability.” (Appendix B.3)",
    figures=FIG9,
    checks=tuple(
        check
        for column in STALE
        for check in (
            Check("fast at first", FIG9, column, TWO_SIDES, AREA_UNDER_FIRST_THIRD, HIGHER, GRPO),
            Check("declines later", FIG9, column, TWO_SIDES, FINAL_OVER_BEST, DECLINES),
            Check("not slow", FIG9, column, RINGS, AREA_UNDER_FIRST_THIRD, NOT_LOWER, GRPO),
            Check("steadier", FIG9, column, RINGS, FINAL_OVER_BEST, HIGHER, TWO_SIDES),
        )
    ),
    note="The paper says that REC-TwoSide tends to collapse, so a decline is enough here. A better "
    "balance is read as at least GRPO's speed at first and more of the best kept than REC-TwoSide: "
    "where neither declines there is nothing to balance, and `steadier` is contradicted.",
)

LEARNING_RATE = Claim(
    id="lr-is-no-substitute",
    says="Raising the learning rate of GRPO (0.2) or REC-OneSide-NoIS (0.2) does not close the gap "
    "to (0.6, 2.0) at the usual rate",
    quote="“simply increasing the learning rate cannot bridge the performance gap between GRPO "
    "with ε_low = ε_high = 0.2 and REC-OneSide-NoIS with ε_low = 0.6, ε_high = 2.0” (Appendix B.4)",
    figures=FIG10,
    checks=tuple(
        Check("stays ahead", FIG10, INTERVAL, f"{WIDE}, lr *", FINAL, HIGHER, f"{arm}, lr *")
        for arm in ("GRPO (0.2)", NARROW)
    ),
)

REGULARISED = Claim(
    id="regularised-baselines-hold",
    says="OPMD and AsymRE are stable under interval 20 and offset 10",
    quote="“our analysis and experiments have also validated their efficacy in sync_offset > 1 "
    "scenarios” (Appendix B.5)",
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
    quote=PARITY.quote,
    figures=FIG5,
    checks=(
        learns(FIG5, INTERVAL, REDS),
        stable(FIG5, INTERVAL, REDS),
        Check("comparable", FIG5, INTERVAL, REDS, AREA_UNDER_CURVE, NOT_LOWER, WIDE),
    ),
)

LESS_DRIFT = Claim(
    id="red-weight-less-drift",
    says="RED-Weight reaches higher reward than GRPO at similar KL (Figure 6), and than GRPO and "
    "REC (0.2) at lower KL, with stabler entropy and length (Figure 7)",
    quote="“RED-Weight achieves higher rewards than GRPO, with similar KL distance to the initial "
    "policy. […] compared to GRPO and REC-OneSide-NoIS, RED-Weight achieves higher rewards with "
    "lower KL divergence, while maintaining more stable entropy and response lengths.” "
    "(Section 4.3)",
    figures=FIG6 + FIG7,
    checks=tuple(
        Check(says, figures, INTERVAL, RED_WEIGHT, statistic, range_, arm, metric, compare)
        for says, figures, arms, statistic, range_, metric, compare in (
            ("higher reward", FIG6, (GRPO,), AREA_UNDER_CURVE, HIGHER, REWARD, DIFFERENCE),
            ("similar KL", FIG6, (GRPO,), AREA_UNDER_CURVE, SIMILAR, KL, RATIO),
            ("higher reward on MATH", FIG7, (GRPO, NARROW), AREA_UNDER_CURVE, HIGHER, REWARD,
             DIFFERENCE),
            ("lower KL", FIG7, (GRPO, NARROW), AREA_UNDER_CURVE, LESS, KL, RATIO),
            ("stabler entropy", FIG7, (GRPO, NARROW), STANDARD_DEVIATION, LESS, ENTROPY, RATIO),
            ("stabler length", FIG7, (GRPO, NARROW), STANDARD_DEVIATION, LESS, LENGTH, RATIO),
        )
        for arm in arms
    ),
)  # fmt: skip

SAW = Claim(
    id="clip-sawtooth",
    says="The clipping fraction is a sawtooth with the period of the synchronisation interval; "
    "wider ranges clip less",
    quote="",
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
                "clips less", FIG4, INTERVAL, wide, AREA_UNDER_CURVE, LESS, narrow, CLIPPED, RATIO
            )
            for wide, narrow in (
                (WIDE, NARROW_4),
                ("REC-TwoSide-NoIS (0.6, 2.0)", "REC-TwoSide-NoIS (0.2, 0.25)"),
            )
        ),
    ),
    note="The text says nothing of it; it is read off Figures 4 and 9.",
)

PAPER = (
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
)
