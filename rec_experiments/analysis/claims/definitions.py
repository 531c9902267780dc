"""The claims of arXiv 2509.24203, each a conjunction of checks on its figures, and the thresholds.

The thresholds were set from the papers' text and the size of noise, before the runs that they
judge. They are the same for every task and scale. None is moved after a run, even where its reason
turned out to be wrong; the reason then says so (`claims simulate` measures them).

"Higher", "faster" and "lower" require the whole interval on that side of zero, however small the
difference; the interval says how large it is. "Alike" requires it within a margin. So a small
difference can be significant and still too small to matter, and a pair of arms can be both.

An evaluation of 256 problems has a standard error of at most 0.03. The interval over seeds includes
that, and everything else that varies between seeds, but not the bias that a statistic has in every
run: the highest of several points is a lucky one, and the first point is a single evaluation, which
runs with the same start may share. The thresholds of such statistics allow for it.
"""

from rec_experiments.analysis.claims.decision import Range
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

# Thresholds: one arm against another, as a difference in accuracy or reward, or as a ratio -----

HIGHER = Range(name="higher", low=0, reason="any difference counts as higher")
LOWER = Range(name="lower", high=0, reason="any difference counts as lower")
LESS = Range(name="less", high=1, reason="any ratio below 1 counts as less")
MARGIN = 0.05
ALIKE = Range(
    name="alike",
    low=-MARGIN,
    high=MARGIN,
    reason=f"{MARGIN} is a twentieth of the axis from 0 to 1, and about the size of the "
    "fluctuations of one curve in the paper's figures: a reader calls such curves the same",
)
NOT_LOWER = Range(
    name="not lower",
    low=-MARGIN,
    reason="the margin of `alike`; `comparable` and `on par` allow an arm to be better",
)
FACTOR = 1.5
SIMILAR = Range(
    name="similar",
    low=1 / FACTOR,
    high=FACTOR,
    reason=f"a factor of {FACTOR} is a twentieth of a logarithmic axis of four decades, as the "
    "margin of `alike` is of a linear axis",
)

# Thresholds: the shape of one arm's curve, in accuracy or reward ---------------------------------

LEARNS = Range(
    name="learns",
    low=0.06,
    reason="two standard errors of the first evaluation, which is a single point and may be the "
    "same in all runs",
)
RISES = Range(
    name="rises",
    low=0.1,
    reason="twice the bias: with a policy that never changes, the highest of eleven evaluations "
    "exceeds the first by 0.05 on average. A curve that falls from the start has 0",
)
DIPS = Range(
    name="dips",
    low=0.2,
    reason="twice the bias: with a policy that never changes, the maximum drawdown is 0.085 over "
    "eleven evaluations, and 0.1 over sixteen, for which this was set. A smaller dip can be real "
    "and does not count",
)
UNSTABLE = Range(
    name="unstable",
    low=0.1,
    reason="the drop in Figure 2(a) of arXiv 2505.22257 at its first swap, as far as it can be "
    "read. This is not the opposite of `stable`: that curve drops and recovers. With a policy that "
    "never changes, the maximum drawdown over twelve evaluations is 0.09, so little more than luck "
    "is enough",
)
RECOVERS = Range(
    name="recovers",
    low=0.1,
    reason="twice the bias: the lowest point is about as unlucky as the highest is lucky, 0.05. A "
    "curve that ends at its lowest point has about 0",
)
LEVEL = Range(
    name="level",
    low=-MARGIN,
    high=MARGIN,
    reason="the margin of `alike`, for a curve against its own middle third",
)
STABLE = Range(
    name="stable",
    low=0.8,
    reason="a fifth below the best is a loss: the best of eleven evaluations of a level curve is "
    "too high by a seventeenth. For single training batches it is higher than was assumed when "
    "this was set: rewards of a policy that never changes keep 0.7, so `stable` means little for "
    "train/reward",
)
DECLINES = Range(name="declines", high=STABLE.low, reason="the opposite of `stable`")
COLLAPSES = Range(
    name="collapses",
    high=1 / 3,
    reason="in the paper's figures the best value is about twice that of the untrained policy, so "
    "a third of the best is well below the start of training, on the way to 0",
)
TEETH = Range(
    name="teeth",
    low=0.5,
    reason="the curve at least halves at a synchronisation; teeth that start at 0 have 1; noise, a "
    "slope, or teeth with another period have about 0 or less",
)

# Columns and arms, as in the figures' titles and legends -----------------------------------------
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
# Figures that show the same arm under the same schedule, and so the same runs.
SHARED = {INTERVAL: FIG3 + FIG5 + FIG9 + FIG11} | dict.fromkeys(
    (OFFSET, OFFLINE), FIG3 + FIG9 + FIG11
)

# Checks that several claims share -----------------------------------------------------------------


def learns(figures: tuple[str, ...], column: str, arm: str) -> Check:
    return Check("learns", figures, column, arm, FINAL_MINUS_INITIAL, LEARNS)


def stable(figures: tuple[str, ...], column: str, arm: str, metric: str = ACCURACY) -> Check:
    return Check("stable", figures, column, arm, FINAL_OVER_BEST, STABLE, metric=metric)


def alike(
    figures: tuple[str, ...], column: str, arm: str, against: str, metric: str = ACCURACY
) -> Check:
    """Whether two curves have the same mean height."""
    return Check("alike", figures, column, arm, AREA_UNDER_CURVE, ALIKE, against, metric)


def faster(
    figures: tuple[str, ...], column: str, arm: str, against: str, metric: str = ACCURACY
) -> Check:
    """Whether a curve is higher on average, as one that rises earlier is, even to the same end."""
    return Check("learns faster", figures, column, arm, AREA_UNDER_CURVE, HIGHER, against, metric)


def reinforce(name: str, column: str, statistic: Statistic, range_: Range) -> Check:
    """A check on REINFORCE under a schedule, in every figure that shows it."""
    return Check(name, SHARED[column], column, REINFORCE, statistic, range_)


# The claims -------------------------------------------------------------------------------------

PARITY = Claim(
    id="on-policy-parity",
    statement="On-policy, REINFORCE, RED-Drop, RED-Weight and REC-OneSide-NoIS (0.6, 2.0) learn "
    "about equally well",
    quote="“Figure 5 presents GSM8k results […], which confirm the efficacy of RED-Drop and "
    "RED-Weight in on/off-policy settings, comparable to REC-OneSide-NoIS with enlarged (ε_low, "
    "ε_high).” (Section 4.3)",
    checks=(
        learns(FIG5, ON_POLICY, REINFORCE),
        *(alike(FIG5, ON_POLICY, arm, REINFORCE) for arm in ("RED-Drop", RED_WEIGHT, WIDE)),
    ),
    note="The sentence does not name REINFORCE; Figure 5 draws it over the others.",
)

COLLAPSE = Claim(
    id="reinforce-collapses",
    statement="Under interval 20 and offline, REINFORCE rises, then collapses towards 0; under "
    "offset 10 it dips and recovers",
    quote="“the collapse of REINFORCE highlights the critical role of clipping” (Section 4.1)",
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
    statement="With equal clipping, the IS and NoIS variants of REC-OneSide (and GRPO) and of "
    "REC-TwoSide perform alike in all settings",
    quote="“REC-OneSide-IS / NoIS and GRPO (with the same ε_low = ε_high = 0.2) have nearly "
    "identical performance, indicating that importance sampling is non-essential […] Similar "
    "patterns also appear in Figure 4” (Section 4.1); “for REC-TwoSide, importance sampling is "
    "non-essential in all three settings” (Appendix B.3)",
    checks=(
        *(alike(FIG3, column, arm, NARROW) for column in STALE for arm in (NARROW_IS, GRPO)),
        *(alike(FIG9, column, TWO_SIDE_IS, TWO_SIDE) for column in STALE),
        alike(FIG4, INTERVAL, NARROW_IS_4, NARROW_4, REWARD),
    ),
)

WIDE_FASTER = Claim(
    id="wide-clip-faster",
    statement="REC-OneSide-NoIS (0.6, 2.0) learns faster than (0.2) under interval 20 and offset "
    "10, and stays stable",
    quote="“Radically enlarging (ε_low, ε_high) to (0.6, 2.0) accelerates REC-OneSide-NoIS without "
    "compromising stability in both sync_interval = 20 and sync_offset = 10 settings. Similar "
    "patterns also appear in Figure 4 […] and other results in Appendix B.” (Section 4.1)",
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
    statement="Offline, REC-OneSide-NoIS (0.2) plateaus early and stays there; (0.6, 2.0) rises "
    "higher, then declines",
    quote="“As for the stress-test (‘offline’) setting, Figure 3 reveals an intrinsic trade-off "
    "between the speed and stability of policy improvement” (Section 4.1)",
    checks=(
        learns(FIG3, OFFLINE, NARROW),
        Check("plateaus early and stays", FIG3, OFFLINE, NARROW, FINAL_MINUS_MIDDLE_THIRD, LEVEL),
        Check("rises higher", FIG3, OFFLINE, WIDE, BEST, HIGHER, NARROW),
        Check("then declines", FIG3, OFFLINE, WIDE, FINAL_OVER_BEST, DECLINES),
    ),
)

FRAGILE = Claim(
    id="two-side-fast-then-fragile",
    statement="REC-TwoSide improves quickly at first and tends to collapse later; REC-Ring "
    "balances speed and stability",
    quote="“REC-TwoSide methods demonstrate fast policy improvement at the beginning but tend to "
    "collapse later on, whereas REC-Ring achieves a better balance of convergence speed and "
    "stability.” (Appendix B.3)",
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
    "balance means at least GRPO's initial speed, and a smaller decline than REC-TwoSide: where "
    "neither declines there is nothing to balance, and `steadier` is contradicted.",
)

LEARNING_RATE = Claim(
    id="lr-is-no-substitute",
    statement="Raising the learning rate of GRPO (0.2) or REC-OneSide-NoIS (0.2) does not close "
    "the gap to (0.6, 2.0) at the usual rate",
    quote="“simply increasing the learning rate cannot bridge the performance gap between GRPO "
    "with ε_low = ε_high = 0.2 and REC-OneSide-NoIS with ε_low = 0.6, ε_high = 2.0” (Appendix B.4)",
    checks=tuple(
        Check("stays ahead", FIG10, INTERVAL, f"{WIDE}, lr *", FINAL, HIGHER, f"{arm}, lr *")
        for arm in ("GRPO (0.2)", NARROW)
    ),
)

REGULARISED = Claim(
    id="regularised-baselines-hold",
    statement="OPMD and AsymRE are stable under interval 20 and offset 10",
    quote="“our analysis and experiments have also validated their efficacy in sync_offset > 1 "
    "scenarios” (Appendix B.5)",
    checks=tuple(
        check
        for column in (INTERVAL, OFFSET)
        for arm in ("OPMD *", "AsymRE *")
        for check in (learns(FIG11, column, arm), stable(FIG11, column, arm))
    ),
)

DATA_WEIGHTING = Claim(
    id="data-weighting-holds",
    statement="RED-Drop and RED-Weight are robust under interval 20, comparable to "
    "REC-OneSide-NoIS (0.6, 2.0)",
    quote=PARITY.quote,
    checks=(
        learns(FIG5, INTERVAL, REDS),
        stable(FIG5, INTERVAL, REDS),
        Check("comparable", FIG5, INTERVAL, REDS, AREA_UNDER_CURVE, NOT_LOWER, WIDE),
    ),
)

LESS_DRIFT = Claim(
    id="red-weight-less-drift",
    statement="RED-Weight reaches higher reward than GRPO at similar KL (Figure 6), and higher "
    "reward than GRPO and REC-OneSide-NoIS (0.2) at lower KL, with more stable entropy and length "
    "(Figure 7)",
    quote="“RED-Weight achieves higher rewards than GRPO, with similar KL distance to the initial "
    "policy. […] compared to GRPO and REC-OneSide-NoIS, RED-Weight achieves higher rewards with "
    "lower KL divergence, while maintaining more stable entropy and response lengths.” "
    "(Section 4.3)",
    checks=tuple(
        Check(name, figures, INTERVAL, RED_WEIGHT, statistic, range_, arm, metric, compare)
        for name, figures, arms, statistic, range_, metric, compare in (
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
    statement="The clipping fraction is a sawtooth with the period of the synchronisation "
    "interval; wider ranges clip less",
    quote="",
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
    note="The text does not mention it; it is read off Figures 4 and 9.",
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
