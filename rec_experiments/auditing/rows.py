"""What is wrong with tokens, groups and advantages of a batch."""

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from rec_experiments.auditing.batch import Batch, Missing, column
from rec_experiments.auditing.report import Finding
from rec_experiments.auditing.statistics import drawn_by

PREFIX_LEVEL = 1e-9  # of all groups together; half of them must be below
FIRST_TOKENS = 3  # groups that begin alike, with log-probabilities that differ
CENTRED = 0.05  # how far the mean of a group may be from 0, relative to the mean advantage's size
STANDARD_ERRORS = 5  # of the mean of all advantages
LOST = 3.5  # standard errors of the trend of lost responses with length: P < 3e-4
PERMUTATIONS = 10_000  # of groups; P < .01 is asked for, too, since whole groups may be lost


# Tokens ------------------------------------------------------------------------------------------


def prompt_in_mask(batch: Batch) -> list[Finding]:
    """All responses of a group begin with the same tokens, which samples would not do.

    If the others repeat the first response for m tokens of joint probability p, K − 1 times, the
    probability of this or less is at most p^(K − 1), whatever m is.
    """
    role = drawn_by(batch) or "current"
    (logp_BT,) = batch.need(column(role))
    code_BT = (logp_BT * 1e4).round() if batch.tokens_BT is None else batch.tokens_BT
    groups = [rows for rows in batch.members() if len(rows) > 1]
    common, copies = [], 0
    for members in groups:
        rows = [code_BT[row][batch.mask_BT[row]].tolist() for row in members]
        shortest = min(map(len, rows))
        same = next((t for t in range(shortest) if len({row[t] for row in rows}) > 1), shortest)
        log_p = float(logp_BT[members[0]][batch.mask_BT[members[0]]][:same].sum())
        if (len(rows) - 1) * log_p < math.log(PREFIX_LEVEL / len(groups)):
            common.append(same)
            copies += same == max(map(len, rows))
    copied = copies > len(common) / 2
    if not copied and len(common) <= len(groups) / 2:
        return []
    chance = f"(P < {PREFIX_LEVEL:g})"
    if copied:
        evidence = f"in {copies} of {len(groups)} groups all responses are one {chance}"
        return [Finding("copied responses", evidence, "advantages are 0 or noise")]
    share = sum(common) / len(common) / float(batch.lengths_B[batch.used_B].double().mean())
    return [
        Finding(
            "prompt tokens",
            f"in {len(common)} of {len(groups)} groups all responses begin with the same "
            f"{min(common)} to {max(common)} tokens, which samples do not do {chance}",
            f"{share:.0%} of the tokens in the loss were not drawn by the policy",
        )
    ]


def end_token(batch: Batch) -> list[Finding]:
    """Each response that ended has an end token, and nothing in the turn follows it."""
    (tokens_BT,) = batch.need("tokens")
    ended_B = batch.lengths_B < batch.lengths_B.max()  # where `finished` is unknown
    ended_B = batch.used_B & (ended_B if batch.finished_B is None else batch.finished_B)
    ends = batch.eos or _usual_end(batch, ended_B)
    if not ends:
        raise Missing("eos")
    is_end_BT = torch.isin(tokens_BT, torch.tensor(ends)) & batch.mask_BT
    followed_BT = is_end_BT[:, :-1] & batch.mask_BT[:, 1:]
    found = []
    if followed_BT.any():
        after_BT = is_end_BT.int().cumsum(1) - is_end_BT.int() > 0
        share = float(after_BT[batch.mask_BT].double().mean())
        evidence = f"tokens after an end token count in {int(followed_BT.any(1).sum())} responses"
        effect = f"{share:.1%} of the tokens in the loss follow an end"
        found.append(Finding("end token", f"{evidence} (exact)", effect))
    without = int((ended_B & ~is_end_BT.any(1)).sum())
    if without > int(ended_B.sum()) / 2:
        evidence = f"{without} of {int(ended_B.sum())} finished responses lack an end token"
        effect = "the policy is never taught when to stop"
        found.append(Finding("end token", f"{evidence} in the mask (exact)", effect))
    return found


def _usual_end(batch: Batch, ended_B: Tensor) -> tuple[int, ...]:
    """The last token that counts, if it is the same in nine of ten finished responses."""
    (tokens_BT,) = batch.need("tokens")
    last_B1 = (torch.arange(batch.mask_BT.shape[1]) * batch.mask_BT).argmax(1, keepdim=True)
    values, counts = tokens_BT.gather(1, last_B1)[ended_B].unique(return_counts=True)
    if int(ended_B.sum()) < 8 or int(counts.max()) < 0.9 * int(ended_B.sum()):
        return ()
    return (int(values[counts.argmax()]),)


def doubled_bos(batch: Batch) -> list[Finding]:
    """Every prompt begins with one token twice. Without `bos`, two different prompts must."""
    (prompts,) = batch.need("prompts")
    heads = {tuple(prompt[:2]) for prompt in prompts}
    first = next(iter(heads))[:1]
    known = first[0] in batch.bos if batch.bos and first else len({*map(tuple, prompts)}) > 1
    if heads != {first * 2} or not (first and known):
        return []
    evidence = f"all {len(prompts)} prompts begin with token {first[0]} twice (exact)"
    effect = "the policy sees prompts that its model was never trained on"
    return [Finding("doubled BOS", evidence, effect)]


# Groups and advantages ---------------------------------------------------------------------------


def mixed_groups(batch: Batch) -> list[Finding]:
    """Rows of a group have different prompts, or advantages of another grouping."""
    if batch.prompts is None and batch.tokens_BT is None and batch.advantages_BT is None:
        raise Missing("prompts, or tokens, or advantages and rewards")
    evidence = _several_prompts(batch) or _first_tokens(batch) or _other_grouping(batch)
    if evidence is None:
        return []
    effect = "baselines mix prompts: advantages measure how easy a prompt is"
    if batch.prompts is not None and batch.rewards_B is not None and batch.groups_B is not None:
        names = {prompt: n for n, prompt in enumerate(dict.fromkeys(map(tuple, batch.prompts)))}
        by_prompt_B = torch.tensor([names[tuple(prompt)] for prompt in batch.prompts])
        now_B, right_B = (centred(batch.rewards_B, g) for g in (batch.groups_B, by_prompt_B))
        cosine = float(cosine_similarity(now_B, right_B, dim=0))
        effect = f"rewards centred by groups have cosine {cosine:.2f} with those centred by prompt"
    return [Finding("mixed groups", f"{evidence} (exact)", effect)]


def _several_prompts(batch: Batch) -> str | None:
    prompts, members = batch.prompts, batch.members()
    if prompts is None:
        return None
    mixed = sum(len({tuple(prompts[row]) for row in rows.tolist()}) > 1 for rows in members)
    return f"{mixed} of {len(members)} groups hold several prompts" if mixed else None


def _first_tokens(batch: Batch) -> str | None:
    """One prompt and one version give a first token one probability."""
    role = drawn_by(batch)
    if batch.tokens_BT is None or role is None or not batch.mask_BT[:, 0].any():
        return None
    (groups_B,) = batch.need("groups")
    versions_BT = batch.mask_BT.long() if batch.versions_BT is None else batch.versions_BT
    begun_B = batch.mask_BT[:, 0]
    heads_BX = torch.stack([groups_B, batch.tokens_BT[:, 0], versions_BT[:, 0]], 1)[begun_B]
    ids_B, logp_B = heads_BX.unique(dim=0, return_inverse=True)[1], batch.logps[role][begun_B, 0]
    alike = [logp_B[ids_B == n] for n in range(int(ids_B.max()) + 1)]
    alike = [logp_X for logp_X in alike if len(logp_X) > 1 and logp_X.min() < math.log(0.9)]
    apart = sum(float(logp_X.max() - logp_X.min()) > 0.5 for logp_X in alike)
    if apart < FIRST_TOKENS or apart < len(alike) / 5:
        return None
    return (
        f"in {apart} of {len(alike)} cases rows of one group begin with one token, with "
        "probabilities that differ by more than e^.5: their prompts differ"
    )


def _other_grouping(batch: Batch) -> str | None:
    """Advantages follow from rewards by another simple grouping, and not by groups."""
    groups_B, rewards_B = batch.groups_B, batch.rewards_B
    if groups_B is None or rewards_B is None or batch.advantages_BT is None:
        return None
    advantage_B, rows = of_responses(batch), torch.arange(len(groups_B))
    size = int(groups_B.bincount().max())
    if size < 2 or _follow(advantage_B, rewards_B, groups_B):
        return None
    stride = max(1, len(rows) // size)
    for words, other_B in (
        (f"blocks of {size} consecutive rows", rows // size),
        (f"every {stride}th row", rows % stride),
    ):
        if _follow(advantage_B, rewards_B, other_B):
            return f"advantages follow from rewards by {words}, not by groups"
    return None


def _follow(advantage_B: Tensor, rewards_B: Tensor, groups_B: Tensor) -> bool:
    """Whether in every group advantages are b · (reward − mean) with b ≥ 0."""
    for group in groups_B.unique():
        a_X, r_X = advantage_B[groups_B == group], rewards_B[groups_B == group]
        r_X = r_X - r_X.mean()
        slope = max(0.0, float((r_X * a_X).sum() / r_X.square().sum().clamp(min=1e-12)))
        if float((a_X - slope * r_X).abs().max()) > 1e-2 * float(advantage_B.abs().max()):
            return False
    return True


def of_responses(batch: Batch) -> Tensor:
    """The advantage of each response: that of its first token that counts. B. Raises Missing."""
    (advantages_BT,) = batch.need("advantages")
    return advantages_BT.gather(1, batch.mask_BT.int().argmax(1, keepdim=True)).squeeze(1)


def centred(values_B: Tensor, groups_B: Tensor) -> Tensor:
    """The values minus the mean of their group, B."""
    ids_B = groups_B.unique(return_inverse=True)[1]
    sums_G = values_B.new_zeros(int(ids_B.max()) + 1).index_add(0, ids_B, values_B)
    return values_B - (sums_G / ids_B.bincount())[ids_B]


def advantages(batch: Batch) -> list[Finding]:
    """Advantages of one sign, against the rewards, or not centred."""
    (groups_B,) = batch.need("groups")
    advantage_B, groups_B = of_responses(batch)[batch.used_B], groups_B[batch.used_B]
    moving_J = advantage_B[advantage_B != 0]
    if len(moving_J) < 16:
        return []
    mean, size = float(moving_J.mean()), float(moving_J.abs().mean())
    side = "up" if mean > 0 else "down"
    effect = f"{abs(mean) / size:.0%} of the gradient pushes all responses {side}"
    if abs(mean) > (1 - 1e-9) * size:
        evidence = f"all {len(moving_J)} advantages other than 0 have one sign (exact)"
        return [Finding("advantages", evidence, effect)]
    if batch.rewards_B is not None:
        rewards_B = centred(batch.rewards_B[batch.used_B], groups_B)
        along = float(cosine_similarity(rewards_B, advantage_B, dim=0))
        if along < -0.5:
            evidence = f"advantages and rewards have cosine {along:.2f} within groups (exact)"
            return [Finding("advantages", evidence, "the gradient lowers the reward")]
    off_B = (advantage_B - centred(advantage_B, groups_B)).abs() > CENTRED * size
    deviation = abs(mean) * math.sqrt(len(moving_J)) / float(moving_J.std())
    if off_B.double().mean() < 0.5 or deviation < STANDARD_ERRORS:
        return []
    evidence = (
        f"their mean is {mean:.3g}, {deviation:.0f} standard errors from 0, and those of most "
        "groups are not 0 (P < 1e-6)"
    )
    return [Finding("advantages", evidence, effect)]


def short_answers(batch: Batch) -> list[Finding]:
    """Groups of longer answers lack more of their responses, as if slow ones were dropped."""
    members = [kept for rows in batch.members() if len(kept := rows[batch.used_B[rows]])]
    size = batch.group_size or max(map(len, members))
    missing_G = np.array([size - len(rows) for rows in members])
    mean_G = np.array([float(batch.lengths_B[rows].double().mean()) for rows in members])
    if (missing_G > 0).sum() < 3 or len({*missing_G.tolist()}) < 2:
        return []
    scores_G, rate = mean_G - mean_G.mean(), float(missing_G.mean()) / size
    variance = size * rate * (1 - rate) * float(scores_G @ scores_G)
    deviation = float(missing_G @ scores_G) / math.sqrt(max(variance, 1e-12))
    order_XG = np.random.default_rng(0).random((PERMUTATIONS, len(scores_G))).argsort(1)
    chance = float((missing_G[order_XG] @ scores_G >= missing_G @ scores_G - 1e-9).mean())
    if deviation < LOST or chance > 0.01:
        return []
    return [
        Finding(
            "short answers preferred",
            f"{int(missing_G.sum())} of {size * len(missing_G)} responses are missing, more of "
            f"them in groups of longer answers: {deviation:.1f} standard errors of a trend, and "
            f"P = {max(chance, 1 / PERMUTATIONS):.2g} among permuted groups",
            "long answers count for less than the policy draws them, so answers get shorter",
        )
    ]
