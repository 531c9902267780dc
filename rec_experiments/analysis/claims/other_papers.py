"""Claims of other papers. Those on large models have no sweep here and need a GPU."""

from rec_experiments.analysis.claims.definitions import HIGHER, LOWER, NOT_LOWER, UNSTABLE, stable
from rec_experiments.analysis.claims.verdict import Check, Claim
from rec_experiments.analysis.results.statistics import (
    AREA_UNDER_CURVE,
    BEST,
    FINAL,
    FINAL_MINUS_FIRST_QUARTER,
    MAXIMUM_DRAWDOWN,
)

# Paper 2 (arXiv 2505.22257), its Figure 2 and Tables 2 and 3 --------------------------------------

FIG2, TABLE2, TABLE3 = ("paper2_fig2",), ("paper2_table2",), ("paper2_table3",)
STRONG, WEAK = "β = 0.1", "β = 0.001"  # columns: the weight of the penalty
FRESH, MASKED = "GRPO with KL (v=1, i=1)", "GRPO with KL (v=1, i=1), zero-variance masking"
OLD_MODEL, OLD_DATA = "GRPO with KL (v=10, i=1)", "GRPO with KL (v=1, i=10)"

ERRATIC = Claim(
    id="on-policy-grpo-unstable",
    statement="On-policy GRPO with a KL term, without masking, is unstable",
    quote="“while the on-policy GRPO converges to a maximum Pass@1 of 45% it is unstable” "
    "(arXiv 2505.22257, Section 5.1)",
    checks=(Check("falls", FIG2, STRONG, FRESH, MAXIMUM_DRAWDOWN, UNSTABLE),),
)

MASKING = Claim(
    id="zero-variance-masking-stabilises",
    statement="Masking groups with equal rewards stabilises on-policy GRPO with a KL term",
    quote="“masking samples with zero variance stabilizes the training for on-policy training and "
    "leads to better performance” (arXiv 2505.22257, Figure 2)",
    checks=(
        Check("falls less deeply", FIG2, STRONG, MASKED, MAXIMUM_DRAWDOWN, LOWER, FRESH),
        Check("gets higher", FIG2, STRONG, MASKED, BEST, HIGHER, FRESH),
    ),
)

ON_PAR = Claim(
    id="v10-on-par",
    statement="Off-policy GRPO (v=10, i=1) is stable and on par or better; (v=1, i=10) is slower "
    "per step",
    quote="“off-policy GRPO stabilizes training and leads to either on par or improved "
    "performance as the on-policy one” (arXiv 2505.22257, Section 6); “the off-policy variant in "
    "Shao et al. (2024) […] shows a slower convergence over an epoch” (Section 5.1)",
    checks=(
        stable(FIG2, STRONG, OLD_MODEL),
        Check("on par or better", FIG2, STRONG, OLD_MODEL, AREA_UNDER_CURVE, NOT_LOWER, FRESH),
        Check("slower", FIG2, STRONG, OLD_DATA, AREA_UNDER_CURVE, LOWER, FRESH),
        *(
            Check("on par or better", table, WEAK, OLD_MODEL, AREA_UNDER_CURVE, NOT_LOWER, FRESH)
            for table in (TABLE2, TABLE3)
        ),
    ),
    note="At the paper's scale (v=1, i=10) takes 2,670 gradient steps, the others 1,068. If its "
    "curve rises, an area that is lower over more steps is also lower over equal steps.",
)

BETTER = Claim(
    id="v10-better",
    statement="Off-policy GRPO (v=10, i=1) has a smaller drawdown than on-policy GRPO and a higher "
    "maximum",
    quote="“For off-policy training we see that using v=10,i=1 stabilizes also the training and "
    "leads also to better performance.” (arXiv 2505.22257, Figure 2); “leads to an improved Pass@1 "
    "of 50% on the test set” (Section 5.1)",
    checks=(
        Check("falls less deeply", FIG2, STRONG, OLD_MODEL, MAXIMUM_DRAWDOWN, LOWER, FRESH),
        Check("gets higher", FIG2, STRONG, OLD_MODEL, BEST, HIGHER, FRESH),
    ),
    note="The paper compares 50 % with the 45 % of on-policy GRPO, which are maxima.",
)

AMPLIFIED = Claim(
    id="swapped-reference-amplifies",
    statement="After the reference is reset to the policy, GRPO raises the success rate above "
    "that of the reference: on-policy, with masking, and with (v=10, i=1)",
    quote="“In all three cases, we see that by resetting the π_ref to the latest model, GRPO "
    "amplifies the success rate above the current π_ref” (arXiv 2505.22257, Section 5.1)",
    checks=tuple(
        Check("amplifies", FIG2, STRONG, arm, FINAL_MINUS_FIRST_QUARTER, HIGHER)
        for arm in (FRESH, MASKED, OLD_MODEL)
    ),
    note="Each stage begins at its reference, so the final value minus that at the end of the "
    "first stage is the total gain of the three stages after a swap; a loss in one of them is not "
    "seen. Without an arm that keeps its reference, this does not show that swaps are the cause.",
)

# Staleness, in papers that report a large effect --------------------------------------------------

GPU = "a GPU"
M2PO, AREAL = ("m2po",), ("areal",)
GRPO_FRESH, GRPO_STALE = "GRPO, lag 0", "GRPO, lag 256"
DECOUPLED_FRESH, DECOUPLED_STALE = "decoupled PPO, lag 0", "decoupled PPO, lag 8"

STALE_GRPO = Claim(
    id="grpo-falls-behind-at-lag-256",
    statement="GRPO on data that are 256 updates old does worse than GRPO on fresh data",
    quote="“Standard GRPO suffers from degradation with stale rollouts” (arXiv 2510.01161, "
    "Figure 1)",
    checks=(Check("falls behind", M2PO, "", GRPO_STALE, AREA_UNDER_CURVE, LOWER, GRPO_FRESH),),
    needs=GPU,
)

DECOUPLED = Claim(
    id="decoupled-ppo-on-par-at-lag-8",
    statement="PPO with a decoupled objective on data up to 8 updates old is on par with the same "
    "method on fresh data",
    quote="“matched or even improved final performance” (arXiv 2505.24298, abstract)",
    checks=(Check("on par", AREAL, "", DECOUPLED_STALE, FINAL, NOT_LOWER, DECOUPLED_FRESH),),
    needs=GPU,
)

OTHERS = (ERRATIC, MASKING, ON_PAR, BETTER, AMPLIFIED, STALE_GRPO, DECOUPLED)
