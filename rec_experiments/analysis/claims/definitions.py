"""The claims of arXiv 2509.24203 and of arXiv 2505.22257, *paper 2*.

Each was tried on the paper's own curves (published/curves.yaml) before any run. Two kinds of claims
are left out: identities (the clipped share is a sawtooth because ρ is 1 after a synchronisation;
on-policy every REC arm equals REINFORCE), and claims that no run can contradict (that a swapped
reference helps, without an arm that keeps its reference).

Where the text names no schedule, the claim is judged under `sync.interval=20`, which every figure
of the first paper has. `second half − initial` detects every collapse, even that of a run which
falls from its start and so has no peak to fall from.
"""

from functools import partial

from rec_experiments.analysis.claims.decision import Direction
from rec_experiments.analysis.claims.verdict import Claim, Endpoint
from rec_experiments.analysis.results.statistics import (
    AREA_UNDER_CURVE,
    BEST,
    FINAL,
    FINAL_MINUS_BEST,
    FINAL_MINUS_INITIAL,
    FINAL_MINUS_MIDDLE_THIRD,
    MAXIMUM_DRAWDOWN,
    SECOND_HALF,
    SECOND_HALF_MINUS_INITIAL,
)

HIGHER, LOWER, ALIKE, NOT_LOWER = Direction

# Columns and arms, as in the figures' titles and legends
ON_POLICY, INTERVAL, OFFSET = "on-policy", "sync_interval = 20", "sync_offset = 10"
OFFLINE, PENALTY = "offline", "β = 0.1"
REINFORCE, GRPO, RED_WEIGHT, RED_DROP = "REINFORCE", "GRPO", "RED-Weight", "RED-Drop"
NARROW, NARROW_IS = "REC-OneSide-NoIS (0.2)", "REC-OneSide-IS (0.2)"
WIDE = "REC-OneSide-NoIS (0.6, 2.0)"
TWO_SIDE, TWO_SIDE_IS, RING = "REC-TwoSide-NoIS (0.2)", "REC-TwoSide-IS (0.2)", "REC-Ring-*"
RAISED = "GRPO (0.2), lr 1.5e-4|GRPO (0.2), lr 3e-5|GRPO (0.2), lr 5e-6"  # five times the usual
FRESH, MASKED = "GRPO with KL (v=1, i=1)", "GRPO with KL (v=1, i=1), zero-variance masking"
OLD_MODEL, OLD_DATA = "GRPO with KL (v=10, i=1)", "GRPO with KL (v=1, i=10)"

KL_FACTOR = 1.25  # in words, "a quarter more"

ON_POLICY_GAIN = Endpoint("fig5", ON_POLICY, REINFORCE, FINAL_MINUS_INITIAL, HIGHER)
PaperClaim = partial(Claim, yardstick=ON_POLICY_GAIN)

# Endpoints that several claims share


def stale(figure: str, arm: str, against: str, column: str = INTERVAL) -> Endpoint:
    """The arm ends, on average over the second half, above the other one."""
    return Endpoint(figure, column, arm, SECOND_HALF, HIGHER, against)


def own(figure: str, arm: str, direction: Direction, column: str = INTERVAL) -> Endpoint:
    """The arm's second half lies above, or below, its start."""
    return Endpoint(figure, column, arm, SECOND_HALF_MINUS_INITIAL, direction)


# The paper ----------------------------------------------------------------------------------------

RED_QUOTE = (
    "“Figure 5 presents GSM8k results […], which confirm the efficacy of RED-Drop and RED-Weight "
    "in on/off-policy settings, comparable to REC-OneSide-NoIS with enlarged (ε_low, ε_high).” "
    "(Section 4.3)"
)


def on_policy_parity(suffix: str, arm: str) -> Claim:
    return PaperClaim(
        id=f"on-policy-parity-{suffix}",
        statement=f"On-policy, {arm} learns as much as REINFORCE",
        quote=RED_QUOTE,
        primary=Endpoint("fig5", ON_POLICY, arm, SECOND_HALF, ALIKE, REINFORCE),
        note="On fresh data REC-OneSide-NoIS (0.6, 2.0) is REINFORCE, so REINFORCE stands for it.",
    )


def collapse(suffix: str, column: str) -> Claim:
    return PaperClaim(
        id=f"reinforce-collapses{suffix}",
        statement=f"REINFORCE collapses on stale data ({column}), and clipping alone prevents it: "
        f"{NARROW} stays above it",
        quote="“the collapse of REINFORCE highlights the critical role of clipping” (Section 4.1)",
        primary=stale("fig3", NARROW, REINFORCE, column),
        control=own("fig3", REINFORCE, LOWER, column),
        note="Under sync_offset = 10 the paper's figures disagree: REINFORCE recovers in Figure 3 "
        "and ends near 0 in Figure 11.",
    )


def importance(suffix: str, figure: str, arm: str, against: str, quote: str) -> Claim:
    return PaperClaim(
        id=f"is-not-essential-{suffix}",
        statement=f"With equal clipping, importance weights change nothing that matters: {arm} and "
        f"{against} learn alike",
        quote=quote,
        primary=Endpoint(figure, INTERVAL, arm, AREA_UNDER_CURVE, ALIKE, against),
        premises=(stale(figure, against, REINFORCE),),
        note="The second premise says that the data are stale enough to hurt without clipping. "
        "Where they are not, ρ is near 1 and weights cannot matter.",
    )


WIDE_FASTER = PaperClaim(
    id="wide-clip-faster",
    statement=f"{WIDE} gets further than (0.2) in the same number of steps, and stays stable",
    quote="“Radically enlarging (ε_low, ε_high) to (0.6, 2.0) accelerates REC-OneSide-NoIS without "
    "compromising stability in both sync_interval = 20 and sync_offset = 10 settings.” "
    "(Section 4.1)",
    primary=Endpoint("fig3", INTERVAL, WIDE, FINAL, HIGHER, NARROW),
    control=own("fig3", WIDE, HIGHER),
    note="In the paper's Figure 3 the areas under the curves differ by less than δ; the ends do "
    "not.",
)

TRADE_OFF = PaperClaim(
    id="offline-trade-off",
    statement=f"Offline, {WIDE} rises higher than (0.2) and then loses more of its best accuracy",
    quote="“As for the stress-test (‘offline’) setting, Figure 3 reveals an intrinsic trade-off "
    "between the speed and stability of policy improvement” (Section 4.1)",
    primary=Endpoint("fig3", OFFLINE, WIDE, FINAL_MINUS_BEST, LOWER, NARROW),
    control=Endpoint("fig3", OFFLINE, WIDE, BEST, HIGHER, NARROW),
)

FRAGILE = PaperClaim(
    id="two-side-fragile",
    statement=f"{TWO_SIDE} loses what it learned and ends below REC-Ring",
    quote="“REC-TwoSide methods demonstrate fast policy improvement at the beginning but tend to "
    "collapse later on, whereas REC-Ring achieves a better balance of convergence speed and "
    "stability.” (Appendix B.3)",
    primary=Endpoint("fig9", INTERVAL, RING, FINAL, HIGHER, TWO_SIDE),
    control=Endpoint("fig9", INTERVAL, TWO_SIDE, FINAL_MINUS_MIDDLE_THIRD, LOWER),
    note="The fast start is not judged: the text gives no curve for it.",
)

LEARNING_RATE = PaperClaim(
    id="lr-is-no-substitute",
    statement=f"Five times the learning rate does not bring GRPO (0.2) up to {WIDE} at the usual "
    "rate",
    quote="“simply increasing the learning rate cannot bridge the performance gap between GRPO "
    "with ε_low = ε_high = 0.2 and REC-OneSide-NoIS with ε_low = 0.6, ε_high = 2.0” (Appendix B.4)",
    primary=Endpoint("fig10", INTERVAL, f"{WIDE}, lr *", FINAL, HIGHER, RAISED),
    premises=(Endpoint("fig3", INTERVAL, WIDE, FINAL, HIGHER, GRPO),),
    own_rate_only=True,
    note="The second premise is the gap itself, at the usual rate. Of the paper's three raised "
    "rates, five times the usual one is the best.",
)


def regularised(suffix: str, arm: str) -> Claim:
    return PaperClaim(
        id=f"regularised-baselines-hold-{suffix}",
        statement=f"{arm.removesuffix(' *')} learns on stale data and ends above REINFORCE, which "
        "is the same method without the regularisation",
        quote="“our analysis and experiments have also validated their efficacy in sync_offset > 1 "
        "scenarios” (Appendix B.5)",
        primary=stale("fig11", arm, REINFORCE, OFFSET),
        control=own("fig11", arm, HIGHER, OFFSET),
    )


def data_weighting(suffix: str, arm: str) -> Claim:
    return PaperClaim(
        id=f"data-weighting-holds-{suffix}",
        statement=f"On stale data {arm} learns at least as much as {WIDE}, without clipping",
        quote=RED_QUOTE,
        primary=Endpoint("fig5", INTERVAL, arm, SECOND_HALF, NOT_LOWER, WIDE),
        control=stale("fig5", arm, REINFORCE),
        note="The control says that the weighting helps: plain REINFORCE ends below.",
    )


on_fig7 = partial(Endpoint, "fig7", INTERVAL, RED_WEIGHT)
LESS_DRIFT = PaperClaim(
    id="red-weight-less-drift",
    statement="RED-Weight stays closer to the initial model than GRPO, at no lower reward",
    quote="“compared to GRPO and REC-OneSide-NoIS, RED-Weight achieves higher rewards with lower "
    "KL divergence” (Section 4.3)",
    primary=on_fig7(AREA_UNDER_CURVE, LOWER, GRPO, metric="train/kl", factor=KL_FACTOR),
    premises=(on_fig7(SECOND_HALF, NOT_LOWER, GRPO, metric="train/reward"),),
    note="The premise keeps a method that learns less, and so drifts less, from passing. In the "
    "paper's Figure 7 the reward is higher by less than δ. In its Figure 6 the KL is higher; the "
    "text calls it similar. Figure 7 has a data set of its own and half the usual learning rate; "
    "the gain and δ of the premise are those of Figure 5.",
)

# Paper 2, its Figure 2 ----------------------------------------------------------------------------

on_fig2 = partial(Endpoint, "paper2_fig2", PENALTY)
Paper2Claim = partial(Claim, yardstick=on_fig2(FRESH, FINAL_MINUS_INITIAL, HIGHER))


def stabilises(id: str, statement: str, quote: str, arm: str) -> Claim:
    return Paper2Claim(
        id=id,
        statement=f"{statement} makes GRPO with a KL term fall less deeply below its best, and it "
        "ends no lower",
        quote=quote,
        primary=on_fig2(arm, MAXIMUM_DRAWDOWN, LOWER, FRESH),
        control=on_fig2(arm, FINAL, NOT_LOWER, FRESH),
    )


V10_ON_PAR = Paper2Claim(
    id="v10-on-par",
    statement="Off-policy GRPO (v=10, i=1) learns at least as much as on-policy GRPO",
    quote="“off-policy GRPO stabilizes training and leads to either on par or improved "
    "performance as the on-policy one” (arXiv 2505.22257, Section 6)",
    primary=on_fig2(OLD_MODEL, AREA_UNDER_CURVE, NOT_LOWER, FRESH),
)

SLOWER = Paper2Claim(
    id="v1-i10-slower",
    statement="GRPO with ten gradient steps on each batch (v=1, i=10) learns less per step",
    quote="“the off-policy variant in Shao et al. (2024) […] shows a slower convergence over an "
    "epoch” (arXiv 2505.22257, Section 5.1)",
    primary=on_fig2(OLD_DATA, AREA_UNDER_CURVE, LOWER, FRESH),
    note="At the paper's scale this arm takes 2,670 gradient steps, the others 1,068. If its curve "
    "rises, an area that is lower over more steps is also lower over equal steps.",
)

CLAIMS = (
    on_policy_parity("red-drop", RED_DROP),
    on_policy_parity("red-weight", RED_WEIGHT),
    collapse("", INTERVAL),
    collapse("-offline", OFFLINE),
    importance(
        "one-side",
        "fig3",
        NARROW_IS,
        NARROW,
        "“REC-OneSide-IS / NoIS and GRPO (with the same ε_low = ε_high = 0.2) have nearly "
        "identical performance, indicating that importance sampling is non-essential” "
        "(Section 4.1)",
    ),
    importance(
        "two-side",
        "fig9",
        TWO_SIDE_IS,
        TWO_SIDE,
        "“for REC-TwoSide, importance sampling is non-essential in all three settings” "
        "(Appendix B.3)",
    ),
    WIDE_FASTER,
    TRADE_OFF,
    FRAGILE,
    LEARNING_RATE,
    regularised("opmd", "OPMD *"),
    regularised("asymre", "AsymRE *"),
    data_weighting("red-drop", RED_DROP),
    data_weighting("red-weight", RED_WEIGHT),
    LESS_DRIFT,
    stabilises(
        "zero-variance-masking-stabilises",
        "Masking groups whose rewards are all equal",
        "“masking samples with zero variance stabilizes the training for on-policy training and "
        "leads to better performance” (arXiv 2505.22257, Figure 2)",
        MASKED,
    ),
    stabilises(
        "v10-stabilises",
        "Data from a policy that is up to ten steps old (v=10, i=1)",
        "“For off-policy training we see that using v=10,i=1 stabilizes also the training and "
        "leads also to better performance.” (arXiv 2505.22257, Figure 2)",
        OLD_MODEL,
    ),
    V10_ON_PAR,
    SLOWER,
)
