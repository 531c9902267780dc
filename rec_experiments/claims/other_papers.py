"""Claims of other papers. Those on large models have no sweep here, and need a GPU."""

from rec_experiments.claims.definitions import stable
from rec_experiments.claims.engine import Check, Claim
from rec_experiments.claims.thresholds import HIGHER, LOWER, NOT_LOWER
from rec_experiments.results.statistics import AREA_UNDER_CURVE, BEST, FINAL, MAXIMUM_DRAWDOWN

# Paper 2 (arXiv 2505.22257), its Figure 2 and Tables 2 and 3 --------------------------------------

FIG2, TABLE2, TABLE3 = ("paper2_fig2",), ("paper2_table2",), ("paper2_table3",)
STRONG, WEAK = "β = 0.1", "β = 0.001"  # columns: the weight of the penalty
FRESH, MASKED = "GRPO with KL (v=1, i=1)", "GRPO with KL (v=1, i=1), zero-variance masking"
OLD_MODEL, OLD_DATA = "GRPO with KL (v=10, i=1)", "GRPO with KL (v=1, i=10)"

MASKING = Claim(
    id="zero-variance-masking-stabilises",
    says="Masking groups whose rewards are all equal stabilises on-policy GRPO with a KL term",
    quote="“masking samples with zero variance stabilizes the training for on-policy training and "
    "leads to better performance” (arXiv 2505.22257, Figure 2)",
    figures=FIG2,
    checks=(
        Check("falls less deeply", FIG2, STRONG, MASKED, MAXIMUM_DRAWDOWN, LOWER, FRESH),
        Check("gets higher", FIG2, STRONG, MASKED, BEST, HIGHER, FRESH),
    ),
)

ON_PAR = Claim(
    id="v10-on-par",
    says="Off-policy GRPO (v=10, i=1) is stable and on par or better; (v=1, i=10) is slower per "
    "step",
    quote="“off-policy GRPO stabilizes training and leads to either on par or improved "
    "performance as the on-policy one” (arXiv 2505.22257, Section 6); “the off-policy variant in "
    "Shao et al. (2024) […] shows a slower convergence over an epoch” (Section 5.1)",
    figures=FIG2 + TABLE2 + TABLE3,
    checks=(
        stable(FIG2, STRONG, OLD_MODEL),
        Check("on par or better", FIG2, STRONG, OLD_MODEL, AREA_UNDER_CURVE, NOT_LOWER, FRESH),
        Check("slower", FIG2, STRONG, OLD_DATA, AREA_UNDER_CURVE, LOWER, FRESH),
        *(
            Check("on par or better", table, WEAK, OLD_MODEL, AREA_UNDER_CURVE, NOT_LOWER, FRESH)
            for table in (TABLE2, TABLE3)
        ),
    ),
    note="At the paper's scale (v=1, i=10) takes 2,670 gradient steps, the others 1,068: an area "
    "that is lower over the longer curve is lower over equal steps as well, if the curve rises.",
)

# Staleness, in papers whose effect is large and known ---------------------------------------------

GPU = "a GPU"
M2PO, AREAL = ("m2po",), ("areal",)
GRPO_FRESH, GRPO_STALE = "GRPO, lag 0", "GRPO, lag 256"
DECOUPLED_FRESH, DECOUPLED_STALE = "decoupled PPO, lag 0", "decoupled PPO, lag 8"

STALE_GRPO = Claim(
    id="grpo-falls-behind-at-lag-256",
    says="GRPO on data that are 256 updates old falls behind GRPO on fresh data",
    quote="“Standard GRPO suffers from degradation with stale rollouts” (arXiv 2510.01161, "
    "Figure 1)",
    figures=M2PO,
    checks=(Check("falls behind", M2PO, "", GRPO_STALE, AREA_UNDER_CURVE, LOWER, GRPO_FRESH),),
    needs=GPU,
)

DECOUPLED = Claim(
    id="decoupled-ppo-on-par-at-lag-8",
    says="PPO with a decoupled objective, on data that are up to 8 updates old, is on par with the "
    "same on fresh data",
    quote="“matched or even improved final performance” (arXiv 2505.24298, abstract)",
    figures=AREAL,
    checks=(Check("on par", AREAL, "", DECOUPLED_STALE, FINAL, NOT_LOWER, DECOUPLED_FRESH),),
    needs=GPU,
)

OTHERS = (MASKING, ON_PAR, STALE_GRPO, DECOUPLED)
