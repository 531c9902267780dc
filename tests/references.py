"""Reference losses and gradients of off-policy policy-gradient objectives, in NumPy float64.

Written from the papers' formulas, one plain loop per objective, with gradients derived by hand.
Nothing here is fast; it is meant to be read and to be compared with.

Notation
--------
B rows (responses), T token positions, N the number of tokens with `mask` true in the mini-batch.

========== ======= ==========================================================================
logp       B x T   log π_θ(y_t), the policy being trained; gradients are with respect to it
behavior   B x T   log-probabilities under the policy that drew the tokens
proximal   B x T   under the policy that the clipping is centred on (decoupled PPO)
reference  B x T   under the policy that a KL penalty pulls towards
sampler    B x T   as the inference engine reported them
advantages B       one number per row
mask       B x T   bool; where false, every B x T array may hold anything, NaN and inf included
weights    B x T   optional constants that multiply each token's contribution (see the
                   `*_weights` functions); the denominators do not change with them
at         B x T   the policy at which every `sg` is taken; `logp` unless it is given. With it
                   fixed, J is a function of `logp` whose derivative can be checked
========== ======= ==========================================================================

r = exp(logp - behavior) is the token's ratio. `sg` is the stop-gradient. Every objective J is
stated as something to maximise; the functions return `(loss, gradient)` of the loss -J. The
gradient is B x T and exactly zero outside the mask. The token mean divides by N, tokens that are
clipped or dropped included. An empty mask gives loss 0 and a zero gradient.

At a clipping bound itself the token counts as inside (it keeps its gradient): M = 1(A>0, r <= 1+ε)
+ 1(A<0, r >= 1-ε). Whatever is off by ROUNDING of the bound counts as at it.
"""

import itertools
import math

import numpy as np

ROUNDING = 1e-12

# --- helpers --------------------------------------------------------------------------------


def _at_most(value, bound):
    return value <= bound + ROUNDING * abs(bound)


def _at_least(value, bound):
    return value >= bound - ROUNDING * abs(bound)


def _count(mask):
    """N, the number of tokens with `mask` true."""
    return int(np.asarray(mask, dtype=bool).sum())


def _positions(mask):
    """(row, position) of every token with `mask` true, in row-major order."""
    mask = np.asarray(mask, dtype=bool)
    for i in range(mask.shape[0]):
        for t in range(mask.shape[1]):
            if mask[i, t]:
                yield i, t


def _row_positions(mask, i):
    """The positions of row i with `mask` true."""
    return [t for t in range(np.shape(mask)[1]) if mask[i][t]]


def _weight(weights, i, t):
    """The token's constant factor; 1 if there are no weights."""
    return 1.0 if weights is None else float(weights[i][t])


def _minimised(total, slopes, denominator):
    """Loss and gradient of -total/denominator; zeros if there is nothing to average."""
    if denominator == 0:
        return 0.0, np.zeros_like(slopes)
    return -total / denominator, -slopes / denominator


def _clipped_surrogate(log_ratio, advantage, lower, upper):
    """min(rA, clip(r, lower, upper)A) and its derivative with respect to log r.

    For A > 0 the minimum is min(r, upper)·A, for A < 0 it is max(r, lower)·A; dr/d(log r) = r.
    """
    ratio = math.exp(log_ratio)
    if advantage > 0:
        inside = _at_most(ratio, upper)
        value = (ratio if inside else upper) * advantage
    elif advantage < 0:
        inside = _at_least(ratio, lower)
        value = (ratio if inside else lower) * advantage
    else:
        return 0.0, 0.0
    return value, ratio * advantage if inside else 0.0


def _clipped_token_mean(logp, behavior, advantages, mask, lower, upper, weights):
    """PPO-clip as a token mean, with the ratio bounds themselves."""
    total, slopes = 0.0, np.zeros(np.shape(mask))
    for i, t in _positions(mask):
        log_ratio = logp[i][t] - behavior[i][t]
        value, slope = _clipped_surrogate(log_ratio, advantages[i], lower, upper)
        total += _weight(weights, i, t) * value
        slopes[i, t] = _weight(weights, i, t) * slope
    return _minimised(total, slopes, _count(mask))


# --- advantages -----------------------------------------------------------------------------


def group_mean_advantage(rewards, groups):
    """A_i = r_i - r̄ over the rows of the same group; exactly 0 if the group's rewards are equal."""
    rewards = np.asarray(rewards, dtype=np.float64)
    advantages = np.zeros(len(rewards))
    for i in range(len(rewards)):
        members = [float(rewards[j]) for j in range(len(rewards)) if groups[j] == groups[i]]
        if min(members) != max(members):
            advantages[i] = rewards[i] - math.fsum(members) / len(members)
    return advantages


def group_std_advantage(rewards, groups, ddof=1, eps=1e-6):
    """A_i = (r_i - r̄)/(σ + eps) over the rows of the same group (GRPO, arXiv 2402.03300).

    σ² = Σ (r - r̄)²/(K - ddof). Exactly 0 if the group's rewards are equal (a group of one too).
    Frameworks differ: ddof 1 or 0, eps 1e-6, 1e-4 or 0.
    """
    rewards = np.asarray(rewards, dtype=np.float64)
    advantages = np.zeros(len(rewards))
    for i in range(len(rewards)):
        members = [float(rewards[j]) for j in range(len(rewards)) if groups[j] == groups[i]]
        if min(members) == max(members):
            continue
        mean = math.fsum(members) / len(members)
        variance = math.fsum((r - mean) ** 2 for r in members) / (len(members) - ddof)
        advantages[i] = (rewards[i] - mean) / (math.sqrt(variance) + eps)
    return advantages


def whitened_advantage(rewards, groups, eps=1e-4):
    """A_i = (r_i - r̄)/√(σ² + eps), σ² of the population (arXiv 2505.22257, Eq. 2)."""
    centred = group_mean_advantage(rewards, groups)
    found = np.zeros(len(centred))
    for i in range(len(centred)):
        members = [centred[j] for j in range(len(centred)) if groups[j] == groups[i]]
        variance = math.fsum(c**2 for c in members) / len(members)
        if centred[i] != 0:
            found[i] = centred[i] / math.sqrt(variance + eps)
    return found


def leave_one_out_advantage(rewards, groups):
    """r_i minus the mean of the other rewards of the group (RLOO, arXiv 2402.14740)."""
    found = np.zeros(len(rewards))
    for i in range(len(rewards)):
        others = [rewards[j] for j in range(len(rewards)) if groups[j] == groups[i] and j != i]
        if others and not all(r == rewards[i] for r in others):
            found[i] = rewards[i] - math.fsum(others) / len(others)
    return found


def maxrl_advantage(rewards, groups, eps=1e-6):
    """(r_i - r̄)/(r̄ + eps) (MaxRL, arXiv 2602.02710; eps as in its authors' code)."""
    centred = group_mean_advantage(rewards, groups)
    found = np.zeros(len(rewards))
    for i in range(len(rewards)):
        members = [float(rewards[j]) for j in range(len(rewards)) if groups[j] == groups[i]]
        found[i] = centred[i] / (math.fsum(members) / len(members) + eps)
    return found


def optimal_advantage(rewards, groups, beta=0.5):
    """r_i - β log((1/K) Σ exp(r_j/β)) (arXiv 2505.20686, 2602.19362)."""
    found = np.zeros(len(rewards))
    for i in range(len(rewards)):
        members = [float(rewards[j]) for j in range(len(rewards)) if groups[j] == groups[i]]
        mean = math.fsum(math.exp(r / beta) for r in members) / len(members)
        found[i] = rewards[i] - beta * math.log(mean)
    return found


def exponential_advantage(rewards, groups, temperature=1.0):
    """a_i exp(a_i/τ), a_i = r_i - r̄ (RED-Weight, arXiv 2509.24203, Section 4.3)."""
    centred = group_mean_advantage(rewards, groups)
    return np.array([a * math.exp(a / temperature) for a in centred])


def pairwise_advantage(rewards, groups, temperature=1.0):
    """Σ_j w_ij (r_i - r_j), w_ij = exp((a_i + a_j)/τ)/K, a = r - r̄ (arXiv 2509.24203, Eq. 9)."""
    centred = group_mean_advantage(rewards, groups)
    found = np.zeros(len(rewards))
    for i in range(len(rewards)):
        members = [j for j in range(len(rewards)) if groups[j] == groups[i]]
        found[i] = math.fsum(
            math.exp((centred[i] + centred[j]) / temperature) * (rewards[i] - rewards[j])
            for j in members
        ) / len(members)
    return found


def max_at_k_advantage(rewards, groups, k=4, without_own=True):
    """K/C(K, k) Σ over sets I of k responses with i in I of (max_I r - max over I without i of r).

    The sets are listed one by one (arXiv 2510.23393, Eq. 7; without the second maximum its Eq. 9).
    A group of fewer than k responses is one set; one of a single response is worth 0.
    """
    found = np.zeros(len(rewards))
    for i in range(len(rewards)):
        members = [j for j in range(len(rewards)) if groups[j] == groups[i]]
        size = min(k, len(members))
        for chosen in itertools.combinations(members, size):
            if i not in chosen:
                continue
            found[i] += max(rewards[j] for j in chosen)
            if without_own and k > 1:
                others = [rewards[j] for j in chosen if j != i]
                found[i] -= max(others, default=rewards[i])
        found[i] *= len(members) / math.comb(len(members), size)
    return found


# --- objectives -----------------------------------------------------------------------------


def reinforce(logp, advantages, mask, weights=None):
    """J = (1/N) Σ A log π; dJ/dlog π = A/N. No ratio and no clipping."""
    total, slopes = 0.0, np.zeros(np.shape(mask))
    for i, t in _positions(mask):
        factor = _weight(weights, i, t) * advantages[i]
        total += factor * logp[i][t]
        slopes[i, t] = factor
    return _minimised(total, slopes, _count(mask))


def ppo_clip(logp, behavior, advantages, mask, low=0.2, high=0.2, weights=None):
    """J = (1/N) Σ min(rA, clip(r, 1-low, 1+high)A) (PPO, arXiv 1707.06347).

    dJ/dlog π = rA/N where the token is inside its one-sided bound, else 0. With low 0.2 and
    high 0.28 and a token mean this is the loss of DAPO (arXiv 2503.14476).
    """
    return _clipped_token_mean(logp, behavior, advantages, mask, 1.0 - low, 1.0 + high, weights)


def grpo(logp, behavior, rewards, groups, mask, low=0.2, high=0.2, ddof=1, eps=1e-6, weights=None):
    """`ppo_clip` with `group_std_advantage` (GRPO, arXiv 2402.03300), as a token mean.

    The paper averages over tokens within a response and then over responses; the token mean is
    the form of DAPO and of most frameworks today.
    """
    advantages = group_std_advantage(rewards, groups, ddof, eps)
    return ppo_clip(logp, behavior, advantages, mask, low, high, weights)


def rec(
    logp, behavior, advantages, mask, side, importance, low=0.2, high=0.2,
    outer_low=0.6, outer_high=2.0, at=None,
):  # fmt: skip
    """J = (1/N) Σ sg(M) r A with `importance` (REC-*-IS), (1/N) Σ sg(M) A log π without (NoIS).

    M of arXiv 2509.24203, Section 4.1, by `side`:
    - "one":  1(A>0, r <= 1+high) + 1(A<0, r >= 1-low)
    - "two":  1(1-low <= r <= 1+high)
    - "ring": "two" + 1(A>0, r <= 1-outer_low) + 1(A<0, r >= 1+outer_high)
    """
    total, slopes, at = 0.0, np.zeros(np.shape(mask)), logp if at is None else at
    for i, t in _positions(mask):
        ratio, positive = math.exp(at[i][t] - behavior[i][t]), advantages[i] > 0
        below, above = _at_most(ratio, 1.0 + high), _at_least(ratio, 1.0 - low)
        kept = (below if positive else above) if side == "one" else below and above
        if side == "ring" and not kept:
            beyond = _at_most(ratio, 1.0 - outer_low), _at_least(ratio, 1.0 + outer_high)
            kept = beyond[0] if positive else beyond[1]
        if not kept:
            continue
        slopes[i, t] = advantages[i]
        if importance:
            slopes[i, t] *= math.exp(logp[i][t] - behavior[i][t])
        total += slopes[i, t] if importance else advantages[i] * logp[i][t]
    return _minimised(total, slopes, _count(mask))


def opmd(logp, behavior, advantages, mask, tau=0.1):
    """J = (1/N) Σ_y {A log π(y) - τ/2 (log π(y)/π_b(y))²} (arXiv 2509.24203, Section 4.2)."""
    total, slopes = 0.0, np.zeros(np.shape(mask))
    for i in range(np.shape(mask)[0]):
        positions = _row_positions(mask, i)
        drift = math.fsum(logp[i][t] - behavior[i][t] for t in positions)
        total += advantages[i] * math.fsum(logp[i][t] for t in positions) - tau / 2 * drift**2
        for t in positions:
            slopes[i, t] = advantages[i] - tau * drift
    return _minimised(total, slopes, _count(mask))


def cispo(logp, behavior, advantages, mask, cap=5.0, cap_low=None, weights=None, at=None):
    """J = (1/N) Σ sg(clip(r, 1-cap_low, cap)) A log π (CISPO, arXiv 2506.13585).

    `cap` is the largest ratio itself, not a distance from 1; without `cap_low` there is no lower
    bound. No token loses its gradient: dJ/dlog π = clip(r)A/N. The paper writes the upper bound
    as 1+ε_high and leaves the lower one inactive; ScaleRL (arXiv 2510.13786) writes min(r, cap).
    """
    total, slopes, at = 0.0, np.zeros(np.shape(mask)), logp if at is None else at
    for i, t in _positions(mask):
        ratio = min(math.exp(at[i][t] - behavior[i][t]), cap)
        if cap_low is not None:
            ratio = max(ratio, 1.0 - cap_low)
        factor = _weight(weights, i, t) * ratio * advantages[i]
        total += factor * logp[i][t]
        slopes[i, t] = factor
    return _minimised(total, slopes, _count(mask))


def gspo(logp, behavior, advantages, mask, low=3e-4, high=4e-4):
    """J = mean over sequences of min(sA, clip(s, 1-low, 1+high)A) (GSPO, arXiv 2507.18071).

    s = exp((1/|y|) Σ_t log r_t), so ds/dlog π_t = s/|y| for every token of the sequence, and
    dJ/dlog π_t = sA/(|y|·S) where the sequence is inside its bound, with S the number of
    sequences that have at least one token; sequences without tokens are left out.
    """
    total, slopes, sequences = 0.0, np.zeros(np.shape(mask)), 0
    for i in range(np.shape(mask)[0]):
        positions = _row_positions(mask, i)
        if not positions:
            continue
        sequences += 1
        log_s = math.fsum(logp[i][t] - behavior[i][t] for t in positions) / len(positions)
        value, slope = _clipped_surrogate(log_s, advantages[i], 1.0 - low, 1.0 + high)
        total += value
        for t in positions:
            slopes[i, t] = slope / len(positions)
    return _minimised(total, slopes, sequences)


def topr(logp, behavior, advantages, mask, weights=None):
    """Tapered off-policy REINFORCE (TOPR, arXiv 2503.14286, its canonical form), as a token mean.

    J = (1/N) Σ_i Σ_t α_i R_i log π, with α_i = 1 for R_i >= 0 and
    α_i = sg(clip(∏_t r_t, 0, 1)) for R_i < 0: one ratio for the whole trajectory.

    `advantages` is R: the paper's reward in {-1, 1}, or a reward minus a baseline. The paper sums
    the tokens of a trajectory and averages over trajectories; some frameworks clip each token's
    own ratio instead of the product, which is another objective.
    """
    total, slopes = 0.0, np.zeros(np.shape(mask))
    for i in range(np.shape(mask)[0]):
        positions = _row_positions(mask, i)
        taper = 1.0
        if advantages[i] < 0:
            log_ratio = math.fsum(logp[i][t] - behavior[i][t] for t in positions)
            taper = math.exp(min(log_ratio, 0.0))
        for t in positions:
            factor = _weight(weights, i, t) * taper * advantages[i]
            total += factor * logp[i][t]
            slopes[i, t] = factor
    return _minimised(total, slopes, _count(mask))


def m2po_kept(logp, behavior, advantages, mask, threshold=0.04):
    """The tokens that M2PO keeps, B x T bool (false outside the mask).

    Algorithm 1 of arXiv 2510.01161: among the trust-region tokens (A>0 and r>1, or A<0 and r<1),
    while the mean of (log r)² over those left exceeds `threshold`, drop the one with the largest
    (log r)². All other tokens are kept. If several are exactly equal, the first in row-major
    order goes first. If even the last one is over the threshold, none of them is left.
    """
    kept = np.array(mask, dtype=bool)
    region = []
    for i, t in _positions(mask):
        log_ratio = float(logp[i][t] - behavior[i][t])
        if (advantages[i] > 0 and log_ratio > 0) or (advantages[i] < 0 and log_ratio < 0):
            region.append((log_ratio**2, i, t))
    region.sort(key=lambda token: -token[0])
    start = 0
    while start < len(region):
        left = [square for square, _, _ in region[start:]]
        if math.fsum(left) / len(left) <= threshold:
            break
        _, i, t = region[start]
        kept[i, t] = False
        start += 1
    return kept


def m2po(logp, behavior, advantages, mask, threshold=0.04, weights=None, at=None):
    """J = (1/N) Σ M r A, M = sg(`m2po_kept`) (M2PO, arXiv 2510.01161).

    dJ/dlog π = rA/N on kept tokens, 0 on dropped ones; N counts both. There is no clipping
    besides M. The decision is over the whole mini-batch.

    The authors' code (Infini-AI-Lab/M2PO) differs from their Algorithm 1 in four ways: it decides
    per micro-batch; it turns the decision into one pair of ratio bounds exp(±τ) and clips with
    them; τ is the largest |log r| such that the mean over *all* trust-region tokens, with the
    larger ones capped at τ rather than removed, stays under the threshold, and a hair less, so
    that the token which sets τ goes too: it drops more tokens; and an optional minimal range
    keeps the bounds from closing further. Another public version takes
    the mean over all masked tokens, without regard to the sign of A.
    """
    kept = m2po_kept(logp if at is None else at, behavior, advantages, mask, threshold)
    total, slopes = 0.0, np.zeros(np.shape(mask))
    for i, t in _positions(kept):
        ratio = math.exp(logp[i][t] - behavior[i][t])
        value = _weight(weights, i, t) * ratio * advantages[i]
        total += value
        slopes[i, t] = value
    return _minimised(total, slopes, _count(mask))


def bapo_contribution(
    logp, behavior, advantages, mask, low, high, measure="share", weight_by_behavior=False
):
    """How much of the surrogate the tokens with A > 0 make, at ratio bounds `low` and `high`.

    With c = min(rA, clip(r, low, high)A), P = Σ_{A>0} c and Q = Σ_{A<0} |c| over the mini-batch:
    - "share": P/(P+Q), the fraction of the loss that is positive
    - "net":   P/|P-Q|, Eq. 8 of arXiv 2510.18927 as printed (absolute value of the signed sum)
    - "ratio": P/Q, the authors' code (WooooDyy/BAPO)
    A denominator of 0 gives inf: nothing to balance. `weight_by_behavior` multiplies each c by
    π_behavior(y_t), as Eq. 8 has it; there it is the weight of an expectation written as a sum,
    which the draw of the tokens already provides, and the authors' code leaves it out.
    """
    positive, negative = 0.0, 0.0
    for i, t in _positions(mask):
        value, _ = _clipped_surrogate(logp[i][t] - behavior[i][t], advantages[i], low, high)
        if weight_by_behavior:
            value *= math.exp(behavior[i][t])
        if advantages[i] > 0:
            positive += value
        elif advantages[i] < 0:
            negative -= value
    denominator = {
        "share": positive + negative,
        "net": abs(positive - negative),
        "ratio": negative,
    }[measure]
    return positive / denominator if denominator > 0 else math.inf


def bapo_bounds(
    logp,
    behavior,
    advantages,
    mask,
    low_start=0.6,
    low_end=0.8,
    high_start=1.2,
    high_end=2.0,
    step_low=0.05,
    step_high=0.05,
    target=0.4,
    order="high_first",
    measure="share",
    weight_by_behavior=False,
):
    """The pair of ratio bounds (low, high) that BAPO settles on. All bounds are ratios, not ε.

    "high_first" is Algorithm 1 of arXiv 2510.18927, to the letter:

        low, high = low_start, high_start
        while contribution(low, high) < target and low + step_low <= low_end:
            if high + step_high <= high_end:
                high += step_high
            else:
                low += step_low

    so the upper bound rises to its end before the lower one moves, only whole steps are taken,
    and nothing is searched at all if the lower bound has no whole step to go. Raising `low`
    narrows the interval: it clips more of the tokens with A < 0.

    "low_first" is the authors' code: `low` rises by steps to `low_end` (the last step cut short
    to end there), then `high` likewise, stopping as soon as the target is reached.

    The contribution is `bapo_contribution(..., measure, weight_by_behavior)` over the whole
    mini-batch. If the target cannot be reached the bounds are the last ones tried. A tolerance of
    1e-9 absorbs the rounding of repeated steps, and a bound never passes its end.

    Parameters elsewhere: the paper's text has target 0.4, low 0.6..0.9 by 0.02, high 1.2..3.0 by
    0.05; its code's README target 0.5 with the same ranges; its code's configuration 0.6..0.8 and
    1.2..2.0 by 0.05 with target 1 for P/Q, which is a share of 0.5.
    """

    def short(low, high):
        found = bapo_contribution(
            logp, behavior, advantages, mask, low, high, measure, weight_by_behavior
        )
        return found < target

    tiny = 1e-9
    low, high = low_start, high_start
    if order == "high_first":
        while short(low, high) and low + step_low <= low_end + tiny:
            if high + step_high <= high_end + tiny:
                high = min(high + step_high, high_end)
            else:
                low = min(low + step_low, low_end)
    elif order == "low_first":
        while short(low, high) and low < low_end - tiny:
            low = min(low + step_low, low_end)
        while short(low, high) and high < high_end - tiny:
            high = min(high + step_high, high_end)
    else:
        raise ValueError(f"unknown order {order!r}")
    return low, high


def bapo(logp, behavior, advantages, mask, weights=None, at=None, **search):
    """J = (1/N) Σ min(rA, clip(r, low, high)A), (low, high) = sg(`bapo_bounds(..., **search)`).

    BAPO, arXiv 2510.18927. dJ/dlog π is that of PPO-clip at the bounds found. The authors' code
    adds the dual clip of verl (for A < 0 the surrogate is at least 3A); it is not here.
    """
    at = logp if at is None else at
    low, high = bapo_bounds(at, behavior, advantages, mask, **search)
    return _clipped_token_mean(logp, behavior, advantages, mask, low, high, weights)


def decoupled_ppo(logp, behavior, proximal, advantages, mask, low=0.2, high=0.2, weights=None):
    """J = (1/N) Σ (π_prox/π_beh) min(uA, clip(u, 1-low, 1+high)A), u = π_θ/π_prox.

    Batch size-invariance (arXiv 2110.00641), used by AReaL (arXiv 2505.24298). The factor in
    front is a constant: dJ/dlog π = (π_prox/π_beh) u A/N = (π_θ/π_beh) A/N where u is inside its
    bound. The paper's code truncates π_θ/π_beh at 100 (with the current policy held constant in
    the truncation) and AReaL masks tokens whose factor exceeds a cap; neither is here.
    """
    total, slopes = 0.0, np.zeros(np.shape(mask))
    for i, t in _positions(mask):
        factor = _weight(weights, i, t) * math.exp(proximal[i][t] - behavior[i][t])
        log_u = logp[i][t] - proximal[i][t]
        value, slope = _clipped_surrogate(log_u, advantages[i], 1.0 - low, 1.0 + high)
        total += factor * value
        slopes[i, t] = factor * slope
    return _minimised(total, slopes, _count(mask))


def ppo_ewma(logp, behavior, proximal, advantages, mask, low=0.2, high=0.2, weights=None):
    """`decoupled_ppo` whose proximal policy has the averaged weights of `ewma_update`."""
    return decoupled_ppo(logp, behavior, proximal, advantages, mask, low, high, weights)


def interpolated_logp(logp, behavior, mask, versions, step):
    """log π_prox = (1/d) log π_behavior + (1 - 1/d) log π_θ, d = step - version gradient steps
    behind; π_behavior where d = 0 (A-3PO, arXiv 2512.06547). 0 outside the mask."""
    found = np.zeros(np.shape(mask))
    for i, t in _positions(mask):
        part = 1.0 / max(1, step - int(versions[i]))
        found[i, t] = part * behavior[i][t] + (1.0 - part) * logp[i][t]
    return found


def ewma_update(average, weights, decay):
    """decay·average + (1 - decay)·weights for every array of the two dicts, as a new dict."""
    return {
        name: decay * np.asarray(average[name], dtype=np.float64)
        + (1.0 - decay) * np.asarray(weights[name], dtype=np.float64)
        for name in average
    }


def _shares(mask, groups, by_length):
    """What each row's token sum counts: 1/G of the groups with a live row, 1/K of such rows in its
    group, and 1/|y| of its tokens if `by_length`. Rows without tokens are left out."""
    live = [i for i in range(np.shape(mask)[0]) if _row_positions(mask, i)]
    count = len({int(groups[i]) for i in live})
    shares = {}
    for i in live:
        members = sum(1 for j in live if groups[j] == groups[i])
        length = len(_row_positions(mask, i)) if by_length else 1
        shares[i] = 1.0 / count / members / length
    return shares


def _per_token(mask, shares, value_and_slope):
    """Σ of share·value over the rows' tokens, as a loss; value_and_slope(i, t) gives both."""
    total, slopes = 0.0, np.zeros(np.shape(mask))
    for i, share in shares.items():
        for t in _row_positions(mask, i):
            value, slope = value_and_slope(i, t)
            total += share * value
            slopes[i, t] = share * slope
    return -total, -slopes


def dr_grpo(logp, behavior, advantages, mask, groups, low=0.2, high=0.2):
    """J = mean over groups of (1/K) Σ_i Σ_t min(rA, clip(r)A), A = r - r̄ (arXiv 2503.20783).

    The authors' code divides by a constant length as well.
    """
    return _per_token(
        mask,
        _shares(mask, groups, by_length=False),
        lambda i, t: _clipped_surrogate(
            logp[i][t] - behavior[i][t], advantages[i], 1.0 - low, 1.0 + high
        ),
    )


def grouped_gspo(logp, behavior, advantages, mask, groups, low=3e-4, high=4e-4):
    """`gspo`, as a mean over the groups of the mean over each one's sequences."""
    total, slopes = 0.0, np.zeros(np.shape(mask))
    for i, share in _shares(mask, groups, by_length=False).items():
        positions = _row_positions(mask, i)
        log_s = math.fsum(logp[i][t] - behavior[i][t] for t in positions) / len(positions)
        value, slope = _clipped_surrogate(log_s, advantages[i], 1.0 - low, 1.0 + high)
        total += share * value
        for t in positions:
            slopes[i, t] = share * slope / len(positions)
    return -total, -slopes


def gmpo(logp, behavior, advantages, mask, groups, low=-0.4, high=0.4):
    """J = mean of {Π_t min(r_t^sgn, clip(r_t^sgn, e^low, e^high))^sgn}^(1/|y|) A (GMPO, arXiv
    2507.20673, Eq. 4).

    With sgn = sgn A the inner minimum is min(r, e^high) for A > 0 and max(r, e^low) for A < 0, so
    log of the braces is the mean of c_t; dJ/dlog π_t = A e^(mean c)/|y| where c_t = log r_t.
    """
    total, slopes = 0.0, np.zeros(np.shape(mask))
    for i, share in _shares(mask, groups, by_length=False).items():
        positions = _row_positions(mask, i)
        log_ratio = {t: float(logp[i][t] - behavior[i][t]) for t in positions}
        cut = {
            t: min(x, high) if advantages[i] > 0 else max(x, low) if advantages[i] < 0 else x
            for t, x in log_ratio.items()
        }
        value = advantages[i] * math.exp(math.fsum(cut.values()) / len(positions))
        total += share * value
        for t in positions:
            slopes[i, t] = share * value / len(positions) * (abs(cut[t] - log_ratio[t]) < ROUNDING)
    return -total, -slopes


def sppo(logp, behavior, advantages, mask, eps=0.3):
    """J = (1/N) Σ A log clip(r, 1/(1+eps), 1+eps) (sPPO, arXiv 2108.05828).

    dJ/dlog π = A inside.
    """
    total, slopes = 0.0, np.zeros(np.shape(mask))
    for i, t in _positions(mask):
        log_ratio, bound = logp[i][t] - behavior[i][t], math.log1p(eps)
        total += advantages[i] * min(max(log_ratio, -bound), bound)
        slopes[i, t] = advantages[i] * _at_most(abs(log_ratio), bound)
    return _minimised(total, slopes, _count(mask))


def sapo(logp, behavior, advantages, mask, groups, tau_pos=1.0, tau_neg=1.05):
    """J = mean of (1/|y|) Σ_t (4/τ) σ(τ(r - 1)) A (SAPO, arXiv 2511.20347); τ by the sign of A.

    dJ/dlog π = 4 σ(x) σ(-x) r A with x = τ(r - 1).
    """

    def gate(i, t):
        tau = tau_pos if advantages[i] > 0 else tau_neg
        ratio = math.exp(logp[i][t] - behavior[i][t])
        x = tau * (ratio - 1.0)
        tail = math.exp(-abs(x))
        open_ = (1.0 if x >= 0 else tail) / (1.0 + tail)
        return 4.0 / tau * open_ * advantages[i], 4.0 * tail / (1.0 + tail) ** 2 * ratio * (
            advantages[i]
        )

    return _per_token(mask, _shares(mask, groups, by_length=True), gate)


def dppo(logp, behavior, advantages, mask, distance, low, high, cap=20.0, at=None):
    """J = (1/N) Σ M sg(min(r, cap)) A log π (DPPO, arXiv 2602.04879).

    M drops A > 0 with π > π_behavior and a distance over `high`, and A < 0 with π < π_behavior and
    one over `low`. distance: "tv", |π - π_behavior|, or "kl", that of the coin π_behavior to π.
    """
    total, slopes, at = 0.0, np.zeros(np.shape(mask)), logp if at is None else at
    for i, t in _positions(mask):
        new, old = math.exp(at[i][t]), math.exp(behavior[i][t])
        if distance == "tv":
            gap = abs(new - old)
        else:
            gap = old * math.log(old / new) + (1.0 - old) * math.log((1.0 - old) / (1.0 - new))
        if advantages[i] > 0 and new > old and gap > high:
            continue
        if advantages[i] < 0 and new < old and gap > low:
            continue
        factor = min(math.exp(at[i][t] - behavior[i][t]), cap) * advantages[i]
        total += factor * logp[i][t]
        slopes[i, t] = factor
    return _minimised(total, slopes, _count(mask))


def vespo(
    logp, behavior, advantages, mask, groups, positive=(2.0, 3.0), negative=(3.0, 2.0), at=None
):
    """J = mean of Σ_t sg(w^k exp(λ(1 - w))) A log π, w = Π_t r_t (VESPO, arXiv 2602.10693)."""
    total, slopes, at = 0.0, np.zeros(np.shape(mask)), logp if at is None else at
    for i, share in _shares(mask, groups, by_length=False).items():
        positions = _row_positions(mask, i)
        log_w = math.fsum(at[i][t] - behavior[i][t] for t in positions)
        k, decay = positive if advantages[i] >= 0 else negative
        factor = share * math.exp(k * log_w + decay * (1.0 - math.exp(log_w))) * advantages[i]
        for t in positions:
            total += factor * logp[i][t]
            slopes[i, t] = factor
    return -total, -slopes


def sequence_reinforce(logp, advantages, mask, groups):
    """J = mean over groups of (1/K) Σ_i A_i log π(y_i)."""
    shares = _shares(mask, groups, by_length=False)
    return _per_token(mask, shares, lambda i, t: (advantages[i] * logp[i][t], advantages[i]))


def tapered_reinforce(logp, behavior, advantages, mask, groups, at=None):
    """`topr` as the paper has it: token sums, averaged over the trajectories."""
    total, slopes, at = 0.0, np.zeros(np.shape(mask)), logp if at is None else at
    for i, share in _shares(mask, groups, by_length=False).items():
        positions = _row_positions(mask, i)
        taper = 1.0
        if advantages[i] < 0:
            log_ratio = math.fsum(at[i][t] - behavior[i][t] for t in positions)
            taper = math.exp(min(log_ratio, 0.0))
        for t in positions:
            total += share * taper * advantages[i] * logp[i][t]
            slopes[i, t] = share * taper * advantages[i]
    return -total, -slopes


def copg(logp, reference, rewards, mask, groups, beta=0.1):
    """J = mean over ordered pairs of a group, then over groups, of

        ½ [(r_i - r_j)(d_i - d_j) - β/2 (d_i - d_j)²],  d = log π(y)/π_ref(y)

    whose gradient is half the mean of (R_i - R_j)(∇log π(y_i) - ∇log π(y_j)), R = r - β d (CoPG,
    arXiv 2406.19185; from a secondary source). A row without a token is in the pairs, with d = 0
    and its reward. The K(K - 1) pairs of a group count as K - 1 for each row that has a token, as
    in any mean over sequences here. A group of one has no pair and counts as a group.
    """
    rows = range(np.shape(mask)[0])
    live = [i for i in rows if _row_positions(mask, i)]
    count = len({int(groups[i]) for i in live})
    drift = [math.fsum(logp[i][t] - reference[i][t] for t in _row_positions(mask, i)) for i in rows]
    total, slopes = 0.0, np.zeros(np.shape(mask))
    for i, j in itertools.permutations(rows, 2):
        if groups[i] != groups[j]:
            continue
        size = sum(1 for n in rows if groups[n] == groups[i])
        with_token = sum(1 for n in live if groups[n] == groups[i])
        if not with_token:
            continue
        share = 1.0 / count / with_token / (size - 1)
        apart, better = drift[i] - drift[j], rewards[i] - rewards[j]
        total += share * 0.5 * (better * apart - beta / 2 * apart**2)
        for row, sign in ((i, 1.0), (j, -1.0)):
            for t in _row_positions(mask, row):
                slopes[row, t] += sign * share * 0.5 * (better - beta * apart)
    return -total, -slopes


def oapl(logp, behavior, advantages, mask, groups, beta=1e-3):
    """mean of (β log π(y)/π_behavior(y) - A)²/(2β) (OAPL, arXiv 2602.19362, Eq. 3, over 2β)."""
    total, slopes = 0.0, np.zeros(np.shape(mask))
    for i, share in _shares(mask, groups, by_length=False).items():
        positions = _row_positions(mask, i)
        drift = math.fsum(logp[i][t] - behavior[i][t] for t in positions)
        miss = beta * drift - advantages[i]
        total += share * miss**2 / (2 * beta)
        for t in positions:
            slopes[i, t] = share * miss
    return total, slopes


def around_proximal(logp, behavior, proximal, advantages, mask, low=0.2, high=0.2):
    """J = (1/N) Σ min(rA, clip(r, max(r' - low, 0), r' + high)A), r' = π_prox/π_behavior
    (arXiv 2505.22257, Eq. 6; Mix-PPG of arXiv 2507.06892)."""
    total, slopes = 0.0, np.zeros(np.shape(mask))
    for i, t in _positions(mask):
        centre = math.exp(proximal[i][t] - behavior[i][t])
        value, slope = _clipped_surrogate(
            logp[i][t] - behavior[i][t], advantages[i], max(centre - low, 0.0), centre + high
        )
        total += value
        slopes[i, t] = slope
    return _minimised(total, slopes, _count(mask))


def dual_clip(logp, behavior, advantages, mask, low=0.2, high=0.2, ceiling=3.0):
    """`ppo_clip` whose surrogate is max(·, ceiling·A) where A < 0 (arXiv 1912.09729)."""
    total, slopes = 0.0, np.zeros(np.shape(mask))
    for i, t in _positions(mask):
        log_ratio = logp[i][t] - behavior[i][t]
        value, slope = _clipped_surrogate(log_ratio, advantages[i], 1.0 - low, 1.0 + high)
        if advantages[i] < 0 and not _at_least(value, ceiling * advantages[i]):
            value, slope = ceiling * advantages[i], 0.0
        total += value
        slopes[i, t] = slope
    return _minimised(total, slopes, _count(mask))


# --- corrections for the gap between trainer and sampler --------------------------------------


def truncated_weights(behavior, sampler, mask, cap=2.0):
    """min(ρ, cap) per token, ρ = π_behavior/π_sampler (truncated importance sampling, TIS).

    `behavior` is the drawing policy's log-probabilities as the trainer recomputes them, `sampler`
    as the inference engine reported them. verl: `rollout_is: token`, threshold 2. TRL:
    `token_truncate`, cap 3, optional lower bound. 0 outside the mask.
    """
    weights = np.zeros(np.shape(mask))
    for i, t in _positions(mask):
        weights[i, t] = min(math.exp(behavior[i][t] - sampler[i][t]), cap)
    return weights


def masked_weights(behavior, sampler, mask, cap=3.0, floor=None, kept="sequence"):
    """Zero the whole row if ∏_t ρ_t > cap (or < floor, if given), ρ = π_behavior/π_sampler.

    Masked importance sampling, MIS. What a kept row weighs differs between frameworks:
    - "sequence": ∏_t ρ_t on each of its tokens. TRL's `sequence_mask` (cap 3, no floor unless
      set); the estimator of "When Speed Kills Stability" (richardli.xyz/rl-collapse).
    - "token": each token's own ρ_t.
    - "one": 1, rejection only. verl's `rollout_rs: sequence` without `rollout_is`. Its floor is
      1/cap unless set (later versions ask for both bounds), and a rejected row also leaves its
      token count, not only its sum.
    Both bounds are inclusive (a product equal to one of them is kept). 0 outside the mask.
    """
    weights = np.zeros(np.shape(mask))
    for i in range(np.shape(mask)[0]):
        positions = _row_positions(mask, i)
        log_rho = {t: float(behavior[i][t] - sampler[i][t]) for t in positions}
        log_product = math.fsum(log_rho.values())
        if not _at_most(log_product, math.log(cap)):
            continue
        if floor is not None and not _at_least(log_product, math.log(floor)):
            continue
        for t in positions:
            weight = {"sequence": log_product, "token": log_rho[t], "one": 0.0}[kept]
            weights[i, t] = math.exp(weight)
    return weights


def band_weights(behavior, sampler, mask, low=0.5, high=5.0):
    """ρ·1[low <= ρ <= high] per token, ρ = π_behavior/π_sampler (IcePop). 0 outside the mask."""
    weights = np.zeros(np.shape(mask))
    for i, t in _positions(mask):
        rho = math.exp(behavior[i][t] - sampler[i][t])
        weights[i, t] = rho if _at_least(rho, low) and _at_most(rho, high) else 0.0
    return weights


# --- penalties ------------------------------------------------------------------------------


def k1_kl(logp, reference, mask, beta=1.0):
    """beta·(1/N) Σ (log π - log π_ref); gradient beta/N.

    Schulman's k1 (joschu.net/blog/kl-approx.html). Unbiased as a value, but its gradient through
    fixed samples has mean zero on-policy and says nothing about the reference.
    """
    total, slopes = 0.0, np.zeros(np.shape(mask))
    for i, t in _positions(mask):
        total -= beta * (logp[i][t] - reference[i][t])
        slopes[i, t] = -beta
    return _minimised(total, slopes, _count(mask))


def k2_kl(logp, reference, mask, beta=1.0):
    """beta·(1/N) Σ ½(log π - log π_ref)²; gradient beta·(log π - log π_ref)/N.

    Schulman's k2. Its gradient through on-policy samples is that of KL(π‖π_ref).
    """
    total, slopes = 0.0, np.zeros(np.shape(mask))
    for i, t in _positions(mask):
        gap = logp[i][t] - reference[i][t]
        total -= beta * 0.5 * gap**2
        slopes[i, t] = -beta * gap
    return _minimised(total, slopes, _count(mask))


def k3_kl(logp, reference, mask, beta=1.0):
    """beta·(1/N) Σ (q - 1 - log q), q = π_ref/π; gradient beta·(1 - q)/N.

    Schulman's k3, the penalty of GRPO (arXiv 2402.03300). Unbiased and never negative as a value;
    its gradient through on-policy samples is that of KL(π_ref‖π).
    """
    total, slopes = 0.0, np.zeros(np.shape(mask))
    for i, t in _positions(mask):
        log_q = reference[i][t] - logp[i][t]
        total -= beta * (math.expm1(log_q) - log_q)
        slopes[i, t] = beta * math.expm1(log_q)
    return _minimised(total, slopes, _count(mask))


# --- a plain training loop ------------------------------------------------------------------


def clip_by_norm(grads, max_norm):
    """Scale a dict of gradients to a joint 2-norm of at most `max_norm`; (grads, norm before).

    torch.nn.utils.clip_grad_norm_: the factor is min(1, max_norm/(norm + 1e-6)).
    """
    norm = math.sqrt(math.fsum(float(np.sum(np.square(g))) for g in grads.values()))
    factor = min(1.0, max_norm / (norm + 1e-6))
    return {name: np.asarray(g, dtype=np.float64) * factor for name, g in grads.items()}, norm


def adamw_step(params, grads, state, lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
    """One AdamW step (arXiv 1711.05101, as torch.optim.AdamW); (new params, new state).

        p <- p·(1 - lr·weight_decay)
        m <- β1·m + (1 - β1)·g,  v <- β2·v + (1 - β2)·g²
        p <- p - lr·m̂/(√v̂ + eps),  m̂ = m/(1 - β1^k),  v̂ = v/(1 - β2^k) at step k = 1, 2, …

    Arguments are dicts of arrays by name; the first state is {} or None. Nothing is changed in
    place.
    """
    state = state or {"step": 0, "m": {}, "v": {}}
    step = state["step"] + 1
    new_params, new_m, new_v = {}, {}, {}
    for name, value in params.items():
        p = np.asarray(value, dtype=np.float64) * (1.0 - lr * weight_decay)
        g = np.asarray(grads[name], dtype=np.float64)
        m = betas[0] * state["m"].get(name, np.zeros_like(p)) + (1.0 - betas[0]) * g
        v = betas[1] * state["v"].get(name, np.zeros_like(p)) + (1.0 - betas[1]) * g**2
        m_hat = m / (1.0 - betas[0] ** step)
        v_hat = v / (1.0 - betas[1] ** step)
        new_params[name] = p - lr * m_hat / (np.sqrt(v_hat) + eps)
        new_m[name], new_v[name] = m, v
    return new_params, {"step": step, "m": new_m, "v": new_v}


def train(
    params,
    gradient_of,
    steps,
    lr,
    betas=(0.9, 0.999),
    eps=1e-8,
    weight_decay=0.01,
    max_norm=None,
):
    """`steps` times: loss, grads = gradient_of(params, step); clip; AdamW. (params, records).

    `step` counts from 0. Each record has the step, the loss before the update and, if `max_norm`
    is given, the gradient norm before clipping.
    """
    state, records = {}, []
    for step in range(steps):
        loss, grads = gradient_of(params, step)
        record = {"step": step, "loss": loss}
        if max_norm is not None:
            grads, record["grad_norm"] = clip_by_norm(grads, max_norm)
        params, state = adamw_step(params, grads, state, lr, betas, eps, weight_decay)
        records.append(record)
    return params, records
