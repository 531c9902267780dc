"""The objective of every method as its paper states it, in float64; autograd takes the gradient.

Written from the papers' formulas, to be read and to be compared with. Each function states what is
to be maximised, J, and returns the loss −J of a mini-batch (`Rows`), a scalar. r is the ratio
π_θ/π_behavior of a token, A the advantage of its row, sg the stop-gradient, and
min(rA, clip(r)A) the `surrogate`. At a bound itself a token counts as inside: it keeps its
gradient. Whatever is off by ROUNDING of a bound counts as at it.
"""

import dataclasses
import itertools
import math

import numpy as np
import torch
from conftest import by_row
from torch.nn.utils.rnn import pad_sequence

ROUNDING = 1e-12
where = torch.where


@dataclasses.dataclass
class Rows:
    """A mini-batch. logp, behavior, proximal, reference and sampler are log-probabilities, B x T,
    and 0 outside the mask; rewards, groups and versions are one number for each row."""

    logp: torch.Tensor
    behavior: torch.Tensor
    rewards: torch.Tensor
    groups: torch.Tensor
    mask: torch.Tensor
    proximal: torch.Tensor | None = None
    reference: torch.Tensor | None = None
    sampler: torch.Tensor | None = None
    versions: torch.Tensor | None = None

    @property
    def log_r(self):
        return self.logp - self.behavior

    @property
    def r(self):
        return self.log_r.exp()

    @property
    def moved(self):
        """log r under a stop-gradient, for masks and weights."""
        return sg(self.log_r)

    @property
    def kappa(self):
        """π_behavior/π_sampler."""
        return (self.behavior - self.sampler).exp()

    @property
    def tokens(self):
        return self.mask.sum(1)

    @property
    def mean(self):
        """r_i − r̄ over the group."""
        return self.by_group(centred)

    @property
    def standard(self):
        """(r_i − r̄)/(σ + 1e-6), σ with K − 1 (GRPO, arXiv 2402.03300)."""
        return self.by_group(lambda r: centred(r) / (deviation(r, ddof=1) + 1e-6))

    @property
    def whitened(self):
        """(r_i − r̄)/√(σ² + 1e-4), σ of the population (arXiv 2505.22257, Eq. 2)."""
        return self.by_group(lambda r: centred(r) / (deviation(r, ddof=0) ** 2 + 1e-4).sqrt())

    @property
    def varied(self):
        """Which rows are of a group whose rewards differ."""
        return self.by_group(lambda r: r.min() < r.max()) > 0

    def by_group(self, function, *more):
        """One number for each row, from the rewards (and `more`) of its group."""
        found = torch.zeros_like(self.rewards)
        for group in self.groups.unique():
            rows = self.groups == group
            found[rows] = function(self.rewards[rows], *(each[rows] for each in more))
        return found

    def row_sum(self, value):
        return (value * self.mask).sum(1)

    def row_mean(self, value):
        return self.row_sum(value) / self.tokens.clamp(min=1)


def rows_of(rollouts, logp: list[torch.Tensor]) -> Rows:
    """A batch of the trainer, with these log-probabilities of the policy, row by row."""
    rows = by_row(rollouts)

    def padded(values):
        return pad_sequence([torch.tensor(row).double() for row in values], batch_first=True)

    return Rows(
        logp=pad_sequence(logp, batch_first=True),
        behavior=padded(row.logps.get("behavior", row.logp) for row in rows),
        proximal=padded(row.logps.get("proximal", row.logp) for row in rows),
        sampler=padded(row.logp for row in rows),
        rewards=torch.tensor([row.reward for row in rows], dtype=torch.float64),
        groups=torch.tensor([row.group for row in rows]),
        mask=padded(row.mask for row in rows).bool(),
    )


# Means, as losses.


def token_mean(x, value):
    return -x.row_sum(value).sum() / x.mask.sum()


def group_mean(x, value):
    """Mean over groups of the mean over their rows; rows without tokens are left out."""
    live = x.tokens > 0
    means = [value[live & (x.groups == group)].mean() for group in x.groups[live].unique()]
    return -torch.stack(means).mean()


def sum_mean(x, value):
    """`group_mean` of the sums over a row's tokens."""
    return group_mean(x, x.row_sum(value))


def sg(value):
    return value.detach()


def either(condition, *values):
    """`where` of numbers or tensors, in float64."""
    return where(condition, *(torch.as_tensor(value, dtype=torch.float64) for value in values))


def at_most(value, bound):
    return value <= bound + ROUNDING * abs(bound)


def at_least(value, bound):
    return value >= bound - ROUNDING * abs(bound)


def inside(ratio, A, lower, upper):
    """r ≤ upper where A > 0, r ≥ lower elsewhere."""
    return where(A > 0, at_most(ratio, upper), at_least(ratio, lower))


def surrogate(log_ratio, A, lower, upper):
    """min(rA, clip(r, lower, upper)A) of advantages of rows."""
    ratio, A = log_ratio.exp(), A.reshape(len(A), *[1] * (log_ratio.ndim - 1))
    return where(inside(ratio, A, lower, upper), ratio, either(A > 0, upper, lower)) * A


# Advantages.


def centred(r):
    return (r - r.mean()) * (r.min() < r.max())


def deviation(r, ddof):
    return (centred(r) ** 2).sum().div(max(1, len(r) - ddof)).sqrt()


def leave_one_out(r):
    """r_i minus the mean of the others (RLOO, arXiv 2402.14740)."""
    return r - (r.sum() - r) / (len(r) - 1) if len(r) > 1 else 0 * r


def relative_to_mean(r):
    """(r_i − r̄)/(r̄ + 1e-6) (MaxRL, arXiv 2602.02710)."""
    return centred(r) / (r.mean() + 1e-6)


def optimal(r, beta=0.5):
    """r_i − β log mean exp(r/β) (arXiv 2505.20686, 2602.19362)."""
    return r - beta * (r / beta).exp().mean().log()


def exponential(r, temperature=1.0):
    """a exp(a/τ) with a = r_i − r̄ (RED-Weight, arXiv 2509.24203, Section 4.3)."""
    return centred(r) * (centred(r) / temperature).exp()


def pairwise(r):
    """Mean over j of exp(a_i + a_j)(r_i − r_j) (arXiv 2509.24203, Eq. 9)."""
    a = centred(r)
    return ((a[:, None] + a).exp() * (r[:, None] - r)).mean(1)


def best_of(r, k=4, without_own=True):
    """K/C(K, k) Σ over the sets I of k with i in I of max_I r − max over I without i of r (arXiv
    2510.23393, Eq. 7; without the second maximum Eq. 9). All sets are listed."""
    size, found = min(k, len(r)), torch.zeros_like(r)
    for chosen in itertools.combinations(range(len(r)), size):
        for i in chosen:
            others = [float(r[j]) for j in chosen if j != i]
            own = max(others, default=float(r[i])) if without_own and k > 1 else 0.0
            found[i] += float(r[list(chosen)].max()) - own
    return found * len(r) / math.comb(len(r), size)


def weighted_by_length(r, length):
    """r_i − Σ l r/Σ l, l the number of tokens (OPO, arXiv 2505.23585)."""
    return (r - (length * r).sum() / length.sum()) * (r.min() < r.max())


# Objectives.


def reinforce(x, A):
    """A log π."""
    return token_mean(x, A[:, None] * x.logp)


def ppo(x, A, low=0.2, high=0.2, weights=1.0):
    """(PPO, arXiv 1707.06347; with high = 0.28 DAPO, arXiv 2503.14476)."""
    return token_mean(x, weights * surrogate(x.log_r, A, 1 - low, 1 + high))


def rec(x, side, importance, low=0.2, high=0.2, outer_low=0.6, outer_high=2.0):
    """sg(M) r A, or sg(M) A log π without importance (arXiv 2509.24203, Section 4.1)."""
    A, r = x.mean[:, None], sg(x.r)
    kept = inside(r, A, 1 - low, 1 + high)
    if side != "one":
        kept = at_most(r, 1 + high) & at_least(r, 1 - low)
    if side == "ring":
        kept |= where(A > 0, at_most(r, 1 - outer_low), at_least(r, 1 + outer_high))
    return token_mean(x, kept * A * (x.r if importance else x.logp))


def opmd(x, tau=0.1):
    """A log π(y) − τ/2 (log π(y)/π_b(y))², over all tokens (arXiv 2509.24203, Section 4.2)."""
    value = x.mean * x.row_sum(x.logp) - tau / 2 * x.row_sum(x.log_r) ** 2
    return -value.sum() / x.mask.sum()


def cispo(x, A, cap=5.0, floor=0.0):
    """sg(clip(r, floor, cap)) A log π (CISPO, arXiv 2506.13585)."""
    return token_mean(x, sg(x.r).clamp(floor, cap) * A[:, None] * x.logp)


def masked_cispo(x, A, floor, cap):
    """`cispo` without the tokens that PPO drops at the same bounds (ROLL, Trinity-RFT)."""
    kept = inside(sg(x.r), A[:, None], floor, cap)
    return token_mean(x, kept * sg(x.r).clamp(floor, cap) * A[:, None] * x.logp)


def gspo(x, A, low=3e-4, high=4e-4):
    """The surrogate of s = exp(mean log r) (GSPO, arXiv 2507.18071)."""
    return group_mean(x, surrogate(x.row_mean(x.log_r), A, 1 - low, 1 + high))


def luspo(x, A, low=2e-3, high=2.5e-3):
    """|y| times GSPO's (arXiv 2602.05261)."""
    return group_mean(x, x.tokens * surrogate(x.row_mean(x.log_r), A, 1 - low, 1 + high))


def gmpo(x, A, low=0.4, high=0.4):
    """A {Π min(r^s, clip(r^s))^s}^(1/|y|), s = sgn A, bounds e^−low and e^high (GMPO, arXiv
    2507.20673, Eq. 4)."""
    bound = either(A > 0, high, -low)[:, None]
    cut = where(inside(x.log_r, A[:, None], -low, high), x.log_r, bound)
    return group_mean(x, A * x.row_mean(cut).exp())


def taper(x, mean, A):
    """A log π, times sg(min(Π r, 1)) where A < 0 (TOPR, arXiv 2503.14286)."""
    factor = where(A < 0, x.row_sum(x.moved).clamp(max=0).exp(), 1.0)
    return mean(x, (factor * A)[:, None] * x.logp)


def token_topr(x, A):
    """The same with each token's own ratio."""
    factor = where(A[:, None] < 0, sg(x.r).clamp(max=1), 1.0)
    return sum_mean(x, factor * A[:, None] * x.logp)


def squares_left(squares, threshold):
    """How many of these stay when the largest go until their mean is at most the threshold."""
    left = sorted(squares)
    while left and math.fsum(left) / len(left) > threshold:
        left.pop()
    return len(left)


def m2po(x, A, threshold=0.04, of_all=False, within=True):
    """r A without the largest (log r)² among tokens that move outwards, or among all, until their
    mean is at most the threshold (M2PO, arXiv 2510.01161, Algorithm 1); and `within` a clip."""
    among = x.mask & (of_all | (x.moved * A[:, None] > 0))
    squares = where(among, x.moved**2, -1.0).flatten()
    dropped = int(among.sum()) - squares_left(squares[squares >= 0].tolist(), threshold)
    kept = torch.ones_like(squares, dtype=torch.bool)
    kept[squares.argsort(descending=True, stable=True)[:dropped]] = False
    return token_mean(x, kept.reshape(x.mask.shape) * within * x.r * A[:, None])


def m2po_bounds(x, A, threshold, low=0.0, high=0.0):
    """The authors' code: over the tokens that move outwards, the largest (log r)² at which
    Σ min((log r)², it) stays below the budget is the bound, and goes too. PPO-clip at e^±bound, or
    at 1 − low and 1 + high where they are wider."""
    outward = x.mask & (x.moved * A[:, None] > 0)
    squares, bound = (x.moved**2)[outward], math.inf
    if len(squares) and squares.mean() > threshold:
        fitting = [v for v in squares if squares.clamp(max=v).sum() < threshold * len(squares)]
        bound = max(fitting, default=0.0)
    wide = (x.moved <= math.log1p(high)) & (x.moved >= math.log1p(-low))
    return token_mean(x, (~outward | (x.moved**2 < bound) | wide) * x.r * A[:, None])


def bapo(
    x, A, low_end=0.8, high_end=2.0, step_low=0.05, step_high=0.05, target=0.4, low=0.6, high=1.2
):
    """PPO-clip between `low` and `high`, which widen until tokens with A > 0 make `target` of the
    surrogate: `high` by whole steps to its end, then `low` (BAPO, arXiv 2510.18927, Algorithm 1).
    A tolerance absorbs the rounding of repeated steps."""
    tiny = 1e-9

    def short():
        value = sg(surrogate(x.log_r, A, low, high)) * x.mask
        return value.abs().sum() > 0 and value.clamp(min=0).sum() / value.abs().sum() < target

    while short() and low + step_low <= low_end + tiny:
        if high + step_high <= high_end + tiny:
            high = min(high + step_high, high_end)
        else:
            low = min(low + step_low, low_end)
    return token_mean(x, surrogate(x.log_r, A, low, high))


def decoupled_ppo(x, A, proximal, low=0.2, high=0.2):
    """(π_prox/π_b) min(uA, clip(u)A), u = π_θ/π_prox (arXiv 2110.00641)."""
    proximal = sg(proximal)
    value = surrogate(x.logp - proximal, A, 1 - low, 1 + high)
    return token_mean(x, (proximal - x.behavior).exp() * value)


def capped_decoupled(x, A, low=0.2, high=0.2, cap=100.0):
    """The loss of openai/ppo-ewma: π_θ/π_b at most `cap`, with a constant π_θ in the truncation."""
    base = torch.maximum(x.behavior, sg(x.logp) - math.log(cap))
    u = x.logp - x.proximal
    cut = u.clamp(math.log(1 - low), math.log(1 + high))
    ratios = (x.logp - base).exp(), (cut + x.proximal - base).exp()
    return token_mean(x, torch.minimum(*(A[:, None] * ratio for ratio in ratios)))


def interpolated(x, step):
    """log π_prox = (1/d) log π_b + (1 − 1/d) log π_θ, d = step − version, π_b where d = 0 (A-3PO,
    arXiv 2512.06547)."""
    share = 1 / (step - x.versions).clamp(min=1)[:, None]
    return share * x.behavior + (1 - share) * x.logp


def around_proximal(x, A, low=0.2, high=0.2):
    """Bounds max(r' − low, 0) and r' + high, r' = π_prox/π_b (arXiv 2505.22257, Eq. 6)."""
    centre = (x.proximal - x.behavior).exp()
    return token_mean(x, surrogate(x.log_r, A, (centre - low).clamp(min=0), centre + high))


def dual_clip(x, A, ceiling=3.0):
    """PPO-clip, at least ceiling · A where A < 0 (arXiv 1912.09729)."""
    value, least = surrogate(x.log_r, A, 0.8, 1.2), ceiling * A[:, None]
    return token_mean(x, where((A[:, None] < 0) & ~at_least(value, least), least, value))


def sppo(x, A, epsilon=0.3):
    """A log clip(r, 1/(1 + ε), 1 + ε) (sPPO, arXiv 2108.05828)."""
    bound = math.log1p(epsilon)
    cut = where(at_most(x.moved.abs(), bound), x.log_r, bound * x.moved.sign())
    return token_mean(x, A[:, None] * cut)


def sapo(x, A, positive=1.0, negative=1.05):
    """(4/τ) σ(τ(r − 1)) A, τ by the sign of A (SAPO, arXiv 2511.20347)."""
    tau = either(A > 0, positive, negative)[:, None]
    return group_mean(x, x.row_mean(4 / tau * torch.sigmoid(tau * (x.r - 1)) * A[:, None]))


def coin_kl(p, q):
    """KL of a coin with chance p to one with chance q."""
    return p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()


def dppo(x, A, distance, low, high, cap=20.0):
    """M sg(min(r, cap)) A log π. M drops a token that moved outwards by a total variation, or a KL
    of the coin, of more than `high` where A > 0, `low` where A < 0 (DPPO, arXiv 2602.04879)."""
    new, old, A = sg(x.logp).exp(), x.behavior.exp(), A[:, None]
    gap = (new - old).abs() if distance == "tv" else coin_kl(old, new)
    dropped = ((A > 0) & (new > old) & (gap > high)) | ((A < 0) & (new < old) & (gap > low))
    return token_mean(x, ~dropped * sg(x.r).clamp(max=cap) * A * x.logp)


def vespo(x, A, positive=(2.0, 3.0), negative=(3.0, 2.0)):
    """sg(w^k exp(λ(1 − w))) A log π, w = Π r, (k, λ) by the sign of A (VESPO, arXiv 2602.10693)."""
    log_w, factors = x.row_sum(x.moved), []
    for k, decay in (positive, negative):
        factors.append((k * log_w + decay * (1 - log_w.exp())).exp())
    return sum_mean(x, (where(A >= 0, *factors) * A)[:, None] * x.logp)


def copg(x, beta=0.1):
    """Mean over ordered pairs of a group, then over groups, of ½ [(r_i − r_j)(d_i − d_j)
    − β/2 (d_i − d_j)²], d = log π(y)/π_ref(y) (CoPG, arXiv 2406.19185; from a secondary source).

    A row without a token is in the pairs, with d = 0 and its reward. The K(K − 1) pairs of a group
    count as K − 1 for each row that has a token. A group of one has no pair and counts as a group.
    """
    drift, total, live = x.row_sum(x.logp - x.reference), 0.0 * x.logp.sum(), x.tokens > 0
    for group in x.groups[live].unique():
        rows = x.groups == group
        d, r = drift[rows], x.rewards[rows]
        apart, better = d[:, None] - d, r[:, None] - r
        pairs = (better * apart - beta / 2 * apart**2).sum() / 2
        total = total + pairs / (live & rows).sum() / max(1, len(r) - 1)
    return -total / len(x.groups[live].unique())


def oapl(x, A, beta=1e-3):
    """−(β log π(y)/π_b(y) − A)²/(2β) (OAPL, arXiv 2602.19362, Eq. 3, over 2β)."""
    return group_mean(x, -((beta * x.row_sum(x.log_r) - A) ** 2) / (2 * beta))


def opsm(x, A, drift=1e-4):
    """GRPO without rows with A < 0 and mean log(π_b/π) > drift (arXiv 2512.02556)."""
    kept = ~((A < 0) & (x.row_mean(-x.moved) > drift))
    return ppo(x, A, weights=kept[:, None])


def ipo(x, A, threshold=0.1, tau=1e-3, outward=False):
    """1(|π − π_b| ≤ threshold) r A − τ (log r)² (prime-rl, ipo_loss_fn); `outward` drops only where
    π − π_b has the sign of A (its default_loss_fn)."""
    change = sg(x.logp).exp() - x.behavior.exp()
    kept = (change.abs() <= threshold) | (outward & (change * A[:, None] < 0))
    return token_mean(x, kept * x.r * A[:, None] - tau * x.log_r**2)


def opd(x, fall=0.2, tau=1e-3):
    """1(π_b − π ≤ fall) sg(log π_T/π) r − τ (log r)² (prime-rl, ref_kl_loss_fn)."""
    kept = x.behavior.exp() - sg(x.logp).exp() <= fall
    return token_mean(x, kept * (x.reference - sg(x.logp)) * x.r - tau * x.log_r**2)


def two_side(x, A, low=0.2, high=0.2):
    """sg(r 1(1 − low ≤ r ≤ 1 + high)) A log π (DIS, arXiv 2602.15763; SkyRL)."""
    kept = at_least(sg(x.r), 1 - low) & at_most(sg(x.r), 1 + high)
    return token_mean(x, kept * sg(x.r) * A[:, None] * x.logp)


def minirl(x, A, low=0.2, high=0.27, cap=5.0):
    """min(κ, cap) times the surrogate."""
    return sum_mean(x, x.kappa.clamp(max=cap) * surrogate(x.log_r, A, 1 - low, 1 + high))


def drpo(x, A, epsilon=12.5):
    """rA − |A| π_b (r − 1)²/(2ε) (DRPO, arXiv 2606.09821, Eq. 8)."""
    A, size = A[:, None], A.abs()[:, None] * x.behavior.exp() / epsilon
    return sum_mean(x, x.r * A - size / 2 * (x.r - 1) ** 2)


def cfpo(x, A, epsilon=0.2):
    """rA − |A| (r − 1)²/(2ε) (CFPO, arXiv 2601.22801)."""
    return token_mean(x, x.r * A[:, None] - A.abs()[:, None] / epsilon / 2 * (x.r - 1) ** 2)


def cppo(x, A, delta=0.15, budget=0.02, last=0.8, cap=20.0):
    """sg(min(r, cap)) A log π of tokens that are kept one by one along each response (arXiv
    2606.10968)."""
    kept = torch.zeros_like(x.mask)
    change = (sg(x.logp).exp() - x.behavior.exp()).abs()
    for i, length in enumerate(x.tokens.tolist()):
        moved, used, allowed = change[i, :length].tolist(), 0.0, 0.0
        rate = min(max(float(np.quantile(moved or [0.0], 0.9)), budget), 2 * budget)
        for t, size in enumerate(moved):
            weight = 1.0 - (1.0 - last) * t / max(length - 1, 1)
            bound = min(delta, delta + rate * allowed - used)
            kept[i, t] = not A[i] * x.moved[i, t] > 0 or weight * size <= bound
            allowed, used = allowed + weight, used + weight * size
    return sum_mean(x, kept * sg(x.r).clamp(max=cap) * A[:, None] * x.logp)


def vaco(x, A, bound=0.2):
    """r A without tokens with log r · A > 0 in rows whose mean |r − 1| exceeds the bound."""
    far = x.row_mean((sg(x.r) - 1).abs()) > bound
    return token_mean(x, ~(far[:, None] & (x.moved * A[:, None] > 0)) * x.r * A[:, None])


def by_sign(x, A, low, high, power, cap=math.inf):
    """M sg(w) A log π with the one-side M; w = min(r^power, cap) where A > 0, min(r, cap) where
    A < 0. ASPO (arXiv 2510.06062) has the power −1, UP (arXiv 2607.06987) 0."""
    A, r = A[:, None], sg(x.r)
    factor = where(A > 0, r**power, r).clamp(max=cap) * inside(r, A, 1 - low, 1 + high)
    return token_mean(x, factor * A * x.logp)


def ripo(x, A, delta=0.05, floor=0.5, ceiling=10.0):
    """Bounds 1 ± √(δ/π_b), within [floor, ceiling]."""
    room = (delta / x.behavior.exp()).sqrt()
    bounds = (1 - room).clamp(min=floor), (1 + room).clamp(max=ceiling)
    return token_mean(x, surrogate(x.log_r, A, *bounds))


def mu_grpo(x, A, low=1.0, high=4.0, trigger=1e-4):
    """GRPO with wide bounds; where A < 0 nothing after the first r < trigger."""
    veto = (A[:, None] < 0) & (sg(x.r) < trigger) & x.mask
    return ppo(x, A, low, high, weights=veto.cumsum(1) - veto.long() == 0)


def covariance(x, A):
    """(A − mean A)(log π − mean log π) of each token, means over the tokens; −inf elsewhere."""
    A = A[:, None].expand(x.mask.shape)
    product = (A - A[x.mask].mean()) * (sg(x.logp) - sg(x.logp)[x.mask].mean())
    return where(x.mask, product, -math.inf)


def clip_cov(x, A, order, fraction=2e-4, above=1.0, below=5.0, low=1.0, high=1.0):
    """r A without max(1, ⌊fraction N⌋) tokens of above < covariance < below inside the clip (arXiv
    2505.22617); order(n) is the random order of n candidates, which are in row order."""
    share, kept = covariance(x, A), inside(sg(x.r), A[:, None], 1 - low, 1 + high)
    kept |= A[:, None] == 0
    among = (x.mask & kept & (share > above) & (share < below)).nonzero()
    chosen = among[list(order(len(among)))[: max(1, int(fraction * x.mask.sum()))]]
    kept[chosen[:, 0], chosen[:, 1]] = False
    return token_mean(x, kept * x.r * A[:, None])


def kl_cov(x, A, fraction=2e-3, beta=1.0):
    """rA − β |log r| on the max(1, ⌊fraction N⌋) tokens of the largest covariance."""
    chosen = torch.zeros(x.mask.numel(), dtype=torch.bool)
    order = covariance(x, A).flatten().argsort(descending=True, stable=True)
    chosen[order[: max(1, int(fraction * x.mask.sum()))]] = True
    chosen = chosen.reshape(x.mask.shape)
    return token_mean(x, x.r * A[:, None] - beta * x.log_r.abs() * chosen)


def trm(x, A, high=0.2, delta=2.5):
    """GRPO without rows with max (log r)²/2 > δ (TRM, arXiv 2512.23075)."""
    kept = ((x.moved * x.mask) ** 2 / 2).amax(1, keepdim=True) <= delta
    return ppo(x, A, high=high, weights=kept)


def real(x, A, tau=0.5):
    """−Σ_g log(1 + Σ₊ e^(−s/τ)) + log(1 + Σ₋ e^(s/τ)) over G, s = mean log r, over the rows with a
    token; groups of A > 0 alone, or of A ≤ 0 alone, count in G only (2602.05630)."""
    s, live, total = x.row_mean(x.log_r), x.tokens > 0, 0.0 * x.logp.sum()
    for group in x.groups[live].unique():
        rows = live & (x.groups == group)
        good, bad = s[rows & (A > 0)], s[rows & (A <= 0)]
        if len(good) and len(bad):
            total = total + (1 + (-good / tau).exp().sum()).log()
            total = total + (1 + (bad / tau).exp().sum()).log()
    return total / len(x.groups[live].unique())


def fipo(x, A, high=0.28, half_life=32.0, floor=1.0, cap=1.2, safe=4.0):
    """sg(f) times the surrogate, f_t = clip(exp Σ_{k≥t} 2^(−(k−t)/half_life) log r_k, floor, cap),
    at most 1 where A < 0 and r_t > safe (FIPO, arXiv 2603.19835)."""
    t = torch.arange(x.mask.shape[1])
    decay = (2.0 ** (-(t - t[:, None]) / half_life).double()).triu()  # from t to k
    factor = ((x.moved * x.mask) @ decay.T).exp().clamp(floor, cap)
    risky = (A[:, None] < 0) & (sg(x.r) > safe)
    return ppo(x, A, high=high, weights=where(risky, factor.clamp(max=1), factor))


def scalerl(x, cap=5.0, epsilon=1e-6):
    """Mean over the groups of unequal rewards, and over their tokens, of sg(min(r, cap)) A log π;
    A = (r_i − r̄)/(σ + ε), σ² the mean of (r_i − r̄)² over the batch (arXiv 2510.13786)."""
    A = x.mean / ((x.mean**2).mean().sqrt() + epsilon)
    value, means = x.row_sum(sg(x.r).clamp(max=cap) * A[:, None] * x.logp), [0.0 * x.logp.sum()]
    for group in x.groups[x.varied & (x.tokens > 0)].unique():
        rows = x.groups == group
        means.append(value[rows].sum() / x.tokens[rows].sum())
    return -sum(means) / max(1, len(means) - 1)


def best_of_off_policy(x, k, bound):
    """K/C(K, k) Σ over the sets I of k of a group's rows with i in I of (1 + Σ_I δ) max_I r, on log
    π of i; δ = Π r − 1, within ± bound (arXiv 2510.23393, Eq. 10 to first order)."""
    live, worth = x.tokens > 0, torch.zeros_like(x.rewards)
    delta = torch.expm1(x.row_sum(x.moved).clamp(max=20))
    delta = delta if bound is None else delta.clamp(-bound, bound)
    for group in x.groups[live].unique():
        rows = (live & (x.groups == group)).nonzero()[:, 0].tolist()
        sets = [*itertools.combinations(rows, min(k, len(rows)))]
        for chosen in map(list, sets):
            value = (1 + delta[chosen].sum()) * x.rewards[chosen].max()
            worth[chosen] += value * len(rows) / len(sets)
    return sum_mean(x, worth[:, None] * x.logp)


# Weights of tokens for the gap between trainer and sampler: κ = π_behavior/π_sampler.


def coin_banded(x, high=2.0):
    """κ where the KL of the coins is at most `high` both ways (KPop)."""
    p, q = x.behavior.exp(), x.sampler.exp()
    return x.kappa * (torch.maximum(coin_kl(p, q), coin_kl(q, p)) <= high)


def corrected(x, weight, cap, measure, low, high):
    """verl's rollout correction, of which TIS (tokens, cap 2) and IcePop (tokens in [½, 5]) are
    cases. weight: one, token or product of κ, at most cap. measure: token, product, mean
    (geometric) or k3, which must be in [low, high]; otherwise the weight is 0."""
    log_kappa = x.behavior - x.sampler
    product = x.row_sum(log_kappa).exp()[:, None].expand(x.mask.shape)
    size = {"one": torch.ones_like(product), "token": x.kappa, "product": product}[weight]
    found = {
        "token": x.kappa,
        "product": product,
        "mean": x.row_mean(log_kappa).exp()[:, None],
        "k3": x.row_mean(x.kappa - 1 - log_kappa)[:, None],
    }[measure]
    kept = at_least(found, 0.0 if low is None else low)
    kept = kept & at_most(found, 1e300 if high is None else high)
    return kept * size.clamp(max=math.inf if cap is None else cap)


# Penalties, as losses.


def k1(x, other, beta=0.1):
    return -token_mean(x, beta * (x.logp - other))


def k2(x, other, beta=0.1):
    return -token_mean(x, beta / 2 * (x.logp - other) ** 2)


def unbiased_kl(x, beta=0.1):
    """r (q − 1 − log q) (arXiv 2512.02556), by its derivative: autograd's would cancel."""
    return -token_mean(x, beta * sg(x.r * (x.logp - x.reference)) * x.logp)


def k3(x, beta=0.1, weight=1.0):
    """q − 1 − log q, q = π_ref/π, the penalty of GRPO (arXiv 2402.03300)."""
    log_q = x.reference - x.logp
    return -token_mean(x, beta * (torch.expm1(log_q) - log_q) * weight)
