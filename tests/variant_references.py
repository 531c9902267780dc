"""Reference gradients of the objectives that go by the name of another, in plain loops, float64.

As in references.py: B x T arrays, gradients of a loss to be minimised, per token; a token mean
divides by the tokens of the mask. Each was written from the named code or equation alone.
"""

import itertools
import math

import numpy as np


def _tokens(mask):
    return [tuple(map(int, where)) for where in np.argwhere(mask)]


def _row(mask, i):
    return [t for t in range(mask.shape[1]) if mask[i, t]]


def _mean_of(slopes, mask):
    """The gradient of minus the token mean."""
    return -slopes / max(1, int(mask.sum()))


def bounded_cispo(logp, behavior, advantages, mask, floor, cap):
    """sg(clip(r, floor, cap)) A log π (verl's loss_mode=cispo, ROLL's pg_variant=cispo)."""
    slopes = np.zeros(mask.shape)
    for i, t in _tokens(mask):
        ratio = math.exp(logp[i, t] - behavior[i, t])
        slopes[i, t] = advantages[i] * (floor if ratio < floor else min(ratio, cap))
    return _mean_of(slopes, mask)


def masked_cispo(logp, behavior, advantages, mask, floor, cap):
    """`bounded_cispo` without the tokens that PPO drops at the same bounds (ROLL's unified mask,
    Trinity-RFT)."""
    gradient = bounded_cispo(logp, behavior, advantages, mask, floor, cap)
    for i, t in _tokens(mask):
        ratio = math.exp(logp[i, t] - behavior[i, t])
        if (advantages[i] > 0 and ratio > cap) or (advantages[i] < 0 and ratio < floor):
            gradient[i, t] = 0.0
    return gradient


def token_topr(logp, behavior, rewards, mask, groups):
    """R log π where R ≥ 0, sg(min(r, 1)) R log π of each token where R < 0; token sums, mean over
    the responses of a group, then over groups."""
    slopes = np.zeros(mask.shape)
    live = [i for i in range(len(rewards)) if _row(mask, i)]
    for i in live:
        share = 1 / len({groups[j] for j in live}) / sum(groups[j] == groups[i] for j in live)
        for t in _row(mask, i):
            taper = min(1.0, math.exp(logp[i, t] - behavior[i, t])) if rewards[i] < 0 else 1.0
            slopes[i, t] = share * taper * rewards[i]
    return -slopes


def capped_decoupled(logp, behavior, proximal, advantages, mask, low, high, cap):
    """max(−A e^(log π − b), −A e^(log clip(u) + log π_prox − b)), b = max(log π_behavior,
    sg(log π) − log cap): the loss of openai/ppo-ewma, differentiated by hand."""
    slopes = np.zeros(mask.shape)
    for i, t in _tokens(mask):
        base = max(behavior[i, t], logp[i, t] - math.log(cap))
        log_u = logp[i, t] - proximal[i, t]
        cut = min(max(log_u, math.log(1 - low)), math.log(1 + high))
        plain = -advantages[i] * math.exp(logp[i, t] - base)
        clipped = -advantages[i] * math.exp(cut + proximal[i, t] - base)
        if plain >= clipped or cut == log_u:
            slopes[i, t] = -plain
    return _mean_of(slopes, mask)


def _ppo_tokens(logp, behavior, advantages, mask, kept):
    slopes = np.zeros(mask.shape)
    for i, t in kept:
        slopes[i, t] = advantages[i] * math.exp(logp[i, t] - behavior[i, t])
    return _mean_of(slopes, mask)


def m2po_of_all(logp, behavior, advantages, mask, threshold):
    """The largest (log r)² of all tokens go until the mean of those left is at most the threshold;
    r A on the others."""
    left = sorted(_tokens(mask), key=lambda at: (logp[at] - behavior[at]) ** 2)
    while left:
        squares = [(logp[at] - behavior[at]) ** 2 for at in left]
        if math.fsum(squares) / len(squares) <= threshold:
            break
        left.pop()
    return _ppo_tokens(logp, behavior, advantages, mask, left)


def m2po_bounds(logp, behavior, advantages, mask, threshold, low=None, high=None):
    """The authors' code: over the tokens with A > 0, r > 1 or A < 0, r < 1, the largest (log r)²
    at which Σ of min((log r)², it) stays below the budget is the bound, and goes too. PPO-clip at
    e^±bound, or at 1 − low and 1 + high where they are wider."""
    log_ratio = {at: logp[at] - behavior[at] for at in _tokens(mask)}
    outward = [at for at, x in log_ratio.items() if x * advantages[at[0]] > 0]
    squares = [log_ratio[at] ** 2 for at in outward]
    bound = math.inf
    if squares and math.fsum(squares) / len(squares) > threshold:
        budget = threshold * len(squares)
        fitting = [v for v in squares if math.fsum(min(x, v) for x in squares) < budget]
        bound = max(fitting, default=0.0)
    kept = []
    for at, x in log_ratio.items():
        wide = high is not None and 0 < x <= math.log(1 + high)
        wide = wide or (low is not None and 0 > x >= math.log(1 - low))
        if at not in outward or x**2 < bound or wide:
            kept.append(at)
    return _ppo_tokens(logp, behavior, advantages, mask, kept)


def rollout_correction(behavior, sampler, mask, weight, cap, measure, low, high):
    """verl's rollout correction, as a factor on each token; what is rejected gets 0.

    weight: one, token or product of κ = π_behavior/π_sampler, at most cap. measure: token, product,
    mean (geometric) or k3; it must be in [low, high].
    """
    factors = np.zeros(mask.shape)
    for i in range(mask.shape[0]):
        where = _row(mask, i)
        kappa = {t: math.exp(behavior[i, t] - sampler[i, t]) for t in where}
        product = math.exp(math.fsum(behavior[i, t] - sampler[i, t] for t in where))
        for t in where:
            size = {"one": 1.0, "token": kappa[t], "product": product}[weight]
            found = {
                "token": kappa[t],
                "product": product,
                "mean": product ** (1 / len(where)),
                "k3": math.fsum(k - 1 - math.log(k) for k in kappa.values()) / len(where),
            }[measure]
            if (low is None or found >= low) and (high is None or found <= high):
                factors[i, t] = size if cap is None else min(size, cap)
    return factors


def best_of_k(logp, behavior, rewards, mask, groups, k, bound):
    """K/C(K, k) Σ over the sets I of k of a group's live responses with i in I of (1 + Σ_I δ) max_I
    r, on every token of i; mean over responses, then groups (arXiv 2510.23393, Eq. 10 to first
    order). δ = Π r − 1, within ± bound. All sets are listed."""
    live = [i for i in range(len(rewards)) if _row(mask, i)]
    delta = {
        i: math.expm1(min(math.fsum(logp[i, t] - behavior[i, t] for t in _row(mask, i)), 20.0))
        for i in live
    }
    if bound is not None:
        delta = {i: min(max(d, -bound), bound) for i, d in delta.items()}
    slopes = np.zeros(mask.shape)
    for i in live:
        members = [j for j in live if groups[j] == groups[i]]
        sets = list(itertools.combinations(members, min(k, len(members))))
        worth = math.fsum(
            (1 + math.fsum(delta[j] for j in chosen)) * max(rewards[j] for j in chosen)
            for chosen in sets
            if i in chosen
        )
        share = 1 / len({groups[j] for j in live}) / len(members)
        for t in _row(mask, i):
            slopes[i, t] = share * worth * len(members) / len(sets)
    return -slopes
