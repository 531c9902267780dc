"""References of methods from 2026, in NumPy float64; the notation is that of references.py.

Each states its objective J, to be maximised, and returns `(loss, gradient)` of -J. Masks, and
weights under a stop-gradient, are taken at the policy `at`.
"""

import math

import numpy as np
from references import (
    _at_least,
    _at_most,
    _clipped_surrogate,
    _count,
    _minimised,
    _per_token,
    _positions,
    _row_positions,
    _shares,
    group_mean_advantage,
)


def _kept_mean(logp, behavior, advantages, mask, kept):
    """J = (1/N) Σ kept · r A with a constant mask `kept`."""
    total, slopes = 0.0, np.zeros(np.shape(mask))
    for i, t in _positions(kept):
        value = math.exp(logp[i][t] - behavior[i][t]) * advantages[i]
        total += value
        slopes[i, t] = value
    return _minimised(total, slopes, _count(mask))


def opsm(logp, behavior, advantages, mask, low=0.2, high=0.2, drift=1e-4, at=None):
    """GRPO without rows with A < 0 and (1/|y|) Σ_t log(π_old/π) > drift (arXiv 2512.02556)."""
    at = logp if at is None else at
    total, slopes = 0.0, np.zeros(np.shape(mask))
    for i in range(len(advantages)):
        positions = _row_positions(mask, i)
        gaps = [behavior[i][t] - at[i][t] for t in positions]
        if advantages[i] < 0 and gaps and math.fsum(gaps) / len(gaps) > drift:
            continue
        for t in positions:
            value, slopes[i, t] = _clipped_surrogate(
                logp[i][t] - behavior[i][t], advantages[i], 1.0 - low, 1.0 + high
            )
            total += value
    return _minimised(total, slopes, _count(mask))


def ipo(logp, behavior, advantages, mask, threshold=0.1, tau=1e-3, outward=False, at=None):
    """(1/N) Σ 1(|π - π_old| <= threshold) r A - tau (log r)² (prime-rl, ipo_loss_fn); `outward`
    drops only where π - π_old has the sign of A (its default_loss_fn)."""
    at = logp if at is None else at
    kept = np.zeros(np.shape(mask), dtype=bool)
    total, slopes = 0.0, np.zeros(np.shape(mask))
    for i, t in _positions(mask):
        moved = math.exp(at[i][t]) - math.exp(behavior[i][t])
        kept[i, t] = abs(moved) <= threshold or (outward and moved * advantages[i] < 0)
        log_ratio = logp[i][t] - behavior[i][t]
        total -= tau * log_ratio**2
        slopes[i, t] = -2 * tau * log_ratio
    squares = _minimised(total, slopes, _count(mask))
    return tuple(
        one + other
        for one, other in zip(
            _kept_mean(logp, behavior, advantages, mask, kept), squares, strict=True
        )
    )


def two_side(logp, behavior, advantages, mask, low=0.2, high=0.2, at=None):
    """(1/N) Σ sg(r 1(1-low <= r <= 1+high)) A log π (DIS, arXiv 2602.15763; SkyRL, rollout_is)."""
    at = logp if at is None else at
    total, slopes = 0.0, np.zeros(np.shape(mask))
    for i, t in _positions(mask):
        ratio = math.exp(at[i][t] - behavior[i][t])
        if _at_least(ratio, 1.0 - low) and _at_most(ratio, 1.0 + high):
            total += ratio * advantages[i] * logp[i][t]
            slopes[i, t] = ratio * advantages[i]
    return _minimised(total, slopes, _count(mask))


def minirl(logp, behavior, advantages, mask, groups, sampler, low=0.2, high=0.27, cap=5.0):
    """Mean over responses of Σ_t min(κ, cap) min(rA, clip(r)A), κ = π_old/π_sampler."""

    def value(i, t):
        kappa = min(math.exp(behavior[i][t] - sampler[i][t]), cap)
        found = _clipped_surrogate(
            logp[i][t] - behavior[i][t], advantages[i], 1.0 - low, 1.0 + high
        )
        return kappa * found[0], kappa * found[1]

    return _per_token(mask, _shares(mask, groups, by_length=False), value)


def _coin_kl(p, q):
    if p == 1.0:
        return math.log(p / q)
    if q == 1.0:
        return math.inf
    return p * math.log(p / q) + (1.0 - p) * math.log((1.0 - p) / (1.0 - q))


def kpop_weights(behavior, sampler, mask, high=2.0):
    """κ where both KL(π_old‖π_sampler) and KL(π_sampler‖π_old) of the coin are <= high, else 0."""
    weights = np.zeros(np.shape(mask))
    for i, t in _positions(mask):
        p, q = math.exp(behavior[i][t]), math.exp(sampler[i][t])
        if max(_coin_kl(p, q), _coin_kl(q, p)) <= high:
            weights[i, t] = p / q
    return weights


def drpo(logp, behavior, advantages, mask, groups, epsilon=12.5):
    """Mean of Σ_t rA - |A| π_old (r-1)²/(2 epsilon) (DRPO, arXiv 2606.09821, Eq. 8)."""

    def value(i, t):
        ratio = math.exp(logp[i][t] - behavior[i][t])
        size = abs(advantages[i]) * math.exp(behavior[i][t]) / epsilon
        return (
            ratio * advantages[i] - size / 2 * (ratio - 1.0) ** 2,
            ratio * advantages[i] - size * (ratio - 1.0) * ratio,
        )

    return _per_token(mask, _shares(mask, groups, by_length=False), value)


def cppo_kept(logp, behavior, advantages, mask, delta=0.15, budget=0.02, last=0.8):
    """The tokens that CPPO keeps, one by one along each response (arXiv 2606.10968)."""
    kept = np.zeros(np.shape(mask), dtype=bool)
    for i in range(np.shape(mask)[0]):
        positions = _row_positions(mask, i)
        moved = [abs(math.exp(logp[i][t]) - math.exp(behavior[i][t])) for t in positions]
        if not positions:
            continue
        rate = min(max(float(np.quantile(moved, 0.9)), budget), 2 * budget)
        used = allowed = 0.0
        for n, t in enumerate(positions):
            weight = 1.0 - (1.0 - last) * n / max(len(positions) - 1, 1)
            bound = min(delta, delta + rate * allowed - used)
            outward = advantages[i] * (logp[i][t] - behavior[i][t]) > 0
            kept[i, t] = not outward or weight * moved[n] <= bound
            allowed += weight
            used += weight * moved[n]
    return kept


def cppo(logp, behavior, advantages, mask, groups, cap=20.0, at=None, **bounds):
    """Mean of Σ_t kept · sg(min(r, cap)) A log π."""
    at = logp if at is None else at
    kept = cppo_kept(at, behavior, advantages, mask, **bounds)

    def value(i, t):
        factor = kept[i, t] * min(math.exp(at[i][t] - behavior[i][t]), cap) * advantages[i]
        return factor * logp[i][t], factor

    return _per_token(mask, _shares(mask, groups, by_length=False), value)


def vaco(logp, behavior, advantages, mask, bound=0.2, at=None):
    """(1/N) Σ r A without tokens with log r · A > 0 in rows whose mean |r - 1| exceeds bound."""
    at = logp if at is None else at
    kept = np.array(mask, dtype=bool)
    for i in range(len(advantages)):
        positions = _row_positions(mask, i)
        moved = [abs(math.exp(at[i][t] - behavior[i][t]) - 1.0) for t in positions]
        if positions and math.fsum(moved) / len(moved) > bound:
            for t in positions:
                kept[i, t] = not (at[i][t] - behavior[i][t]) * advantages[i] > 0
    return _kept_mean(logp, behavior, advantages, mask, kept)


def by_sign(logp, behavior, advantages, mask, low, high, power, cap=math.inf, at=None):
    """(1/N) Σ M sg(w) A log π with the one-side mask M; w = min(r^power, cap) where A > 0,
    min(r, cap) where A < 0. ASPO (arXiv 2510.06062): power -1. UP (arXiv 2607.06987): power 0."""
    at = logp if at is None else at
    total, slopes = 0.0, np.zeros(np.shape(mask))
    for i, t in _positions(mask):
        ratio = math.exp(at[i][t] - behavior[i][t])
        if advantages[i] > 0 and _at_most(ratio, 1.0 + high):
            factor = min(ratio**power, cap)
        elif advantages[i] < 0 and _at_least(ratio, 1.0 - low):
            factor = min(ratio, cap)
        else:
            continue
        total += factor * advantages[i] * logp[i][t]
        slopes[i, t] = factor * advantages[i]
    return _minimised(total, slopes, _count(mask))


def ripo(logp, behavior, advantages, mask, delta=0.05, floor=0.5, ceiling=10.0):
    """(1/N) Σ min(rA, clip(r, 1-ε, 1+ε)A), ε = √(delta/π_old), within [floor, ceiling]."""
    total, slopes = 0.0, np.zeros(np.shape(mask))
    for i, t in _positions(mask):
        room = math.sqrt(delta / math.exp(behavior[i][t]))
        value, slopes[i, t] = _clipped_surrogate(
            logp[i][t] - behavior[i][t],
            advantages[i],
            max(1.0 - room, floor),
            min(1.0 + room, ceiling),
        )
        total += value
    return _minimised(total, slopes, _count(mask))


def mu_grpo(logp, behavior, advantages, mask, low=1.0, high=4.0, trigger=1e-4, at=None):
    """GRPO with ratio bounds 1-low to 1+high; where A < 0 nothing after the first r < trigger."""
    at = logp if at is None else at
    total, slopes = 0.0, np.zeros(np.shape(mask))
    for i in range(len(advantages)):
        for t in _row_positions(mask, i):
            value, slopes[i, t] = _clipped_surrogate(
                logp[i][t] - behavior[i][t], advantages[i], 1.0 - low, 1.0 + high
            )
            total += value
            if advantages[i] < 0 and math.exp(at[i][t] - behavior[i][t]) < trigger:
                break
    return _minimised(total, slopes, _count(mask))


def unbiased_kl(logp, behavior, reference, mask, beta=1.0):
    """-beta (1/N) Σ r (q - 1 - log q), q = π_ref/π (arXiv 2512.02556); dr/dlog π = r."""
    total, slopes = 0.0, np.zeros(np.shape(mask))
    for i, t in _positions(mask):
        ratio, log_q = math.exp(logp[i][t] - behavior[i][t]), reference[i][t] - logp[i][t]
        total -= beta * ratio * (math.expm1(log_q) - log_q)
        slopes[i, t] = beta * ratio * log_q
    return _minimised(total, slopes, _count(mask))


def covariance(logp, advantages, mask):
    """(A - mean A)(log π - mean log π) of each token, means over the tokens; -inf elsewhere."""
    tokens = list(_positions(mask))
    mean_a = math.fsum(advantages[i] for i, _ in tokens) / max(len(tokens), 1)
    mean_p = math.fsum(logp[i][t] for i, t in tokens) / max(len(tokens), 1)
    found = np.full(np.shape(mask), -np.inf)
    for i, t in tokens:
        found[i, t] = (advantages[i] - mean_a) * (logp[i][t] - mean_p)
    return found


def clip_cov(
    logp, behavior, advantages, mask, order, fraction=2e-4, above=1.0, below=5.0, low=1.0,
    high=1.0, at=None,
):  # fmt: skip
    """GRPO without max(1, ⌊fraction N⌋) tokens of above < covariance < below inside the clip
    (arXiv 2505.22617); order(n) is the random order of n candidates, which are in row order."""
    at = logp if at is None else at
    share, kept = covariance(at, advantages, mask), np.zeros(np.shape(mask), dtype=bool)
    for i, t in _positions(mask):
        ratio = math.exp(at[i][t] - behavior[i][t])
        kept[i, t] = _at_most(ratio, 1 + high) if advantages[i] > 0 else True
        kept[i, t] &= _at_least(ratio, 1 - low) if advantages[i] < 0 else True
    among = [p for p in _positions(kept) if above < share[p] < below]
    count = max(1, int(fraction * _count(mask)))
    for place in list(order(len(among)))[:count]:
        kept[among[place]] = False
    return _kept_mean(logp, behavior, advantages, mask, kept)


def kl_cov(logp, behavior, advantages, mask, fraction=2e-3, beta=1.0, at=None):
    """(1/N) Σ rA - beta |log r| on the max(1, ⌊fraction N⌋) tokens of the largest covariance."""
    total, slopes = 0.0, np.zeros(np.shape(mask))
    share = covariance(logp if at is None else at, advantages, mask)
    tokens = sorted(_positions(mask), key=lambda p: -share[p])
    for n, (i, t) in enumerate(tokens):
        log_ratio = logp[i][t] - behavior[i][t]
        value = math.exp(log_ratio) * advantages[i]
        chosen = beta * (n < max(1, int(fraction * len(tokens))))
        total += value - chosen * abs(log_ratio)
        slopes[i, t] = value - chosen * np.sign(log_ratio)
    return _minimised(total, slopes, _count(mask))


def length_weighted_advantage(rewards, groups, mask):
    """r_i - Σ_j l_j r_j/Σ_j l_j over the group, l the number of tokens (OPO, arXiv 2505.23585)."""
    found = np.zeros(len(rewards))
    for i in range(len(rewards)):
        rows = [j for j in range(len(rewards)) if groups[j] == groups[i]]
        lengths = [len(_row_positions(mask, j)) for j in rows]
        if len({float(rewards[j]) for j in rows}) > 1:
            weighted = math.fsum(n * rewards[j] for n, j in zip(lengths, rows, strict=True))
            found[i] = rewards[i] - weighted / sum(lengths)
    return found


def scalerl(logp, behavior, rewards, mask, groups, cap=5.0, eps=1e-6, at=None):
    """Mean over the groups of unequal rewards of (1/N_g) Σ_i Σ_t sg(min(r, cap)) A log π with
    A = (r_i - r̄)/(σ + eps), σ² the mean of (r_i - r̄)² over the batch (arXiv 2510.13786)."""
    at = logp if at is None else at
    centred = group_mean_advantage(rewards, groups)
    sigma = math.sqrt(math.fsum(c**2 for c in centred) / len(centred))
    rows = {}
    for i in range(len(rewards)):
        if len({float(rewards[j]) for j in range(len(rewards)) if groups[j] == groups[i]}) > 1:
            rows.setdefault(int(groups[i]), []).append(i)
    tokens = {g: [(i, t) for i in rows[g] for t in _row_positions(mask, i)] for g in rows}
    live = [g for g in tokens if tokens[g]]
    total, slopes = 0.0, np.zeros(np.shape(mask))
    for g in live:
        for i, t in tokens[g]:
            factor = min(math.exp(at[i][t] - behavior[i][t]), cap) * centred[i] / (sigma + eps)
            slopes[i, t] = factor / len(tokens[g]) / len(live)
            total += slopes[i, t] * logp[i][t]
    return -total, -slopes


def trm(logp, behavior, advantages, mask, low=0.2, high=0.2, delta=2.5, at=None):
    """GRPO without rows with max_t (log r)²/2 > delta (TRM, arXiv 2512.23075)."""
    at = logp if at is None else at
    total, slopes = 0.0, np.zeros(np.shape(mask))
    for i in range(len(advantages)):
        positions = _row_positions(mask, i)
        if any((at[i][t] - behavior[i][t]) ** 2 / 2 > delta for t in positions):
            continue
        for t in positions:
            value, slopes[i, t] = _clipped_surrogate(
                logp[i][t] - behavior[i][t], advantages[i], 1.0 - low, 1.0 + high
            )
            total += value
    return _minimised(total, slopes, _count(mask))


def luspo(logp, behavior, advantages, mask, groups, low=2e-3, high=2.5e-3):
    """Mean of |y| min(sA, clip(s, 1-low, 1+high)A), d log s/d log π = 1/|y| (arXiv 2602.05261)."""
    total, slopes = 0.0, np.zeros(np.shape(mask))
    for i, share in _shares(mask, groups, by_length=False).items():
        positions = _row_positions(mask, i)
        log_s = math.fsum(logp[i][t] - behavior[i][t] for t in positions) / len(positions)
        value, slope = _clipped_surrogate(log_s, advantages[i], 1.0 - low, 1.0 + high)
        total += share * len(positions) * value
        slopes[i, positions] = share * slope
    return -total, -slopes


def real(logp, behavior, advantages, mask, groups, tau=0.5):
    """-(1/G) Σ_g log(1 + Σ₊ e^(-s/tau)) + log(1 + Σ₋ e^(s/tau)), s = (1/|y|) Σ_t log r_t, over the
    rows with a token; groups of A > 0 alone, or of A <= 0 alone, count in G only (2602.05630)."""
    live = [i for i in range(len(advantages)) if _row_positions(mask, i)]
    total, slopes = 0.0, np.zeros(np.shape(mask))
    for g in {int(groups[i]) for i in live}:
        rows = [i for i in live if groups[i] == g]
        good = [i for i in rows if advantages[i] > 0]
        bad = [i for i in rows if advantages[i] <= 0]
        for members, sign in ((good, -1.0), (bad, 1.0)) if good and bad else ():
            logits = {}
            for i in members:
                positions = _row_positions(mask, i)
                log_ratios = [logp[i][t] - behavior[i][t] for t in positions]
                logits[i] = sign / tau * math.fsum(log_ratios) / len(positions)
            whole = 1.0 + math.fsum(math.exp(x) for x in logits.values())
            total -= math.log(whole)
            for i, x in logits.items():
                positions = _row_positions(mask, i)
                slopes[i, positions] = -sign / tau * math.exp(x) / whole / len(positions)
    count = max(1, len({int(groups[i]) for i in live}))
    return -total / count, -slopes / count


def fipo(
    logp, behavior, advantages, mask, low=0.2, high=0.28, half_life=32.0, floor=1.0, cap=1.2,
    safe=4.0, at=None,
):  # fmt: skip
    """(1/N) Σ sg(f) min(rA, clip(r)A), f_t = clip(exp Σ_{k>=t} 2^(-(k-t)/half_life) log r_k, floor,
    cap), at most 1 where A < 0 and r_t > safe (FIPO, arXiv 2603.19835)."""
    at = logp if at is None else at
    total, slopes = 0.0, np.zeros(np.shape(mask))
    for i in range(len(advantages)):
        positions = _row_positions(mask, i)
        for t in positions:
            later = math.fsum(
                2.0 ** (-(k - t) / half_life) * (at[i][k] - behavior[i][k])
                for k in positions
                if k >= t
            )
            factor = min(max(math.exp(later), floor), cap)
            if advantages[i] < 0 and math.exp(at[i][t] - behavior[i][t]) > safe:
                factor = min(factor, 1.0)
            value, slope = _clipped_surrogate(
                logp[i][t] - behavior[i][t], advantages[i], 1.0 - low, 1.0 + high
            )
            total += factor * value
            slopes[i, t] = factor * slope
    return _minimised(total, slopes, _count(mask))


def cfpo(logp, behavior, advantages, mask, epsilon=0.2):
    """(1/N) Σ rA - |A| (r-1)²/(2 epsilon) (CFPO, arXiv 2601.22801)."""
    total, slopes = 0.0, np.zeros(np.shape(mask))
    for i, t in _positions(mask):
        ratio, size = math.exp(logp[i][t] - behavior[i][t]), abs(advantages[i]) / epsilon
        total += ratio * advantages[i] - size / 2 * (ratio - 1.0) ** 2
        slopes[i, t] = ratio * advantages[i] - size * (ratio - 1.0) * ratio
    return _minimised(total, slopes, _count(mask))


def opd(logp, behavior, teacher, mask, fall=0.2, tau=1e-3, at=None):
    """(1/N) Σ 1(π_old - π <= fall) sg(log π_T/π) r - tau (log r)² (prime-rl, ref_kl_loss_fn)."""
    at = logp if at is None else at
    total, slopes = 0.0, np.zeros(np.shape(mask))
    for i, t in _positions(mask):
        kept = math.exp(behavior[i][t]) - math.exp(at[i][t]) <= fall
        log_ratio = logp[i][t] - behavior[i][t]
        value = kept * (teacher[i][t] - at[i][t]) * math.exp(log_ratio)
        total += value - tau * log_ratio**2
        slopes[i, t] = value - 2 * tau * log_ratio
    return _minimised(total, slopes, _count(mask))
