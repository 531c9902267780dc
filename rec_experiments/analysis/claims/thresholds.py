"""Where the numbers of a claim must lie. Every threshold of a claim stands here, with its reason.

Set from the papers' text and the size of noise, before the runs that they judge; none is moved for
a run, also where its reason turned out to be off, which then stands there (`claims simulate`).
They are the same for every task and scale. Where an arm is said to be higher, faster or lower than
another, the interval has to lie on that side of no difference, however small the difference is: the
interval says how large. Where arms are said to be alike, it has to lie within a margin. So a small
difference can be both sure and too small to matter, and a pair of arms both.

Noise. An evaluation of 256 problems has a standard error of at most 0.03. An interval over seeds
sees it, with all else that differs between seeds, but not what one statistic has in every run: the
highest of several points is a lucky one, and the first point is a single evaluation, which runs
that start alike may share. Thresholds of such statistics lie beyond that.
"""

from rec_experiments.analysis.claims.decision import Range

# One arm against another, in accuracy or reward (differences) or by a factor (ratios).

HIGHER = Range(name="higher", low=0, reason="no difference is where `higher` begins")
LOWER = Range(name="lower", high=0, reason="no difference is where `lower` begins")
LESS = Range(name="less", high=1, reason="equal is where `less` begins")
MARGIN = 0.05
ALIKE = Range(
    name="alike",
    low=-MARGIN,
    high=MARGIN,
    reason=f"{MARGIN} is a twentieth of the axis from 0 to 1 and about the wiggles of one curve in "
    "the paper's figures: a reader calls such curves the same",
)
NOT_LOWER = Range(
    name="not lower",
    low=-MARGIN,
    reason="the margin of `alike`; `comparable` and `on par` do not exclude being better",
)
FACTOR = 1.5
SIMILAR = Range(
    name="similar",
    low=1 / FACTOR,
    high=FACTOR,
    reason=f"a factor of {FACTOR} is a twentieth of a logarithmic axis of four decades, as the "
    "margin of `alike` is of a linear one",
)

# The shape of one arm's curve, in accuracy or reward.

LEARNS = Range(
    name="learns",
    low=0.06,
    reason="two standard errors of the first evaluation, which is one point and may be the same in "
    "all runs",
)
RISES = Range(
    name="rises",
    low=0.1,
    reason="the highest of eleven evaluations of a policy that stays as it is lies 0.05 above the "
    "first, since it is the luckiest; twice that. A curve that falls from the start has 0",
)
DIPS = Range(
    name="dips",
    low=0.2,
    reason="eleven evaluations of a policy that stays as it is draw down by 0.085 somewhere, and "
    "sixteen, for which it was set, by 0.1; twice that. A smaller dip can be real and is none here",
)
UNSTABLE = Range(
    name="unstable",
    low=0.1,
    reason="the fall of Figure 2(a) of arXiv 2505.22257 at its first swap, as far as it can be "
    "read. Not the opposite of `stable`: that curve falls and comes back. Twelve evaluations of a "
    "policy that stays as it is draw down by 0.09 somewhere, so little more than luck is enough",
)
RECOVERS = Range(
    name="recovers",
    low=0.1,
    reason="the trough is about as unlucky as the highest point is lucky, 0.05; twice that. A "
    "curve that ends in its trough has about 0",
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
    reason="the best part of a level curve is a lucky one, by a seventeenth of eleven evaluations; "
    "a fifth is a loss. Of single training batches it is luckier than was thought when this was "
    "set: reward that one policy drew throughout keeps 0.7, so a `stable` of train/reward "
    "says little",
)
DECLINES = Range(name="declines", high=STABLE.low, reason="the opposite of `stable`")
COLLAPSES = Range(
    name="collapses",
    high=1 / 3,
    reason="in the paper's figures the best is about twice the untrained policy's value, so a "
    "third of it is well below where training began, on the way to 0",
)

# Teeth of a saw, as a share of their height.

TEETH = Range(
    name="teeth",
    low=0.5,
    reason="the curve at least halves at a synchronisation; teeth that start at 0 have 1, noise, a "
    "slope and teeth of another period about 0 or less",
)
