"""What is wrong with tokens, groups and advantages of a batch."""

import math

import numpy as np
import torch
from torch import Tensor

from rec_experiments.auditing.batch import Batch, Missing
from rec_experiments.auditing.report import Finding

PREFIX_LEVEL = 1e-9  # of a group; half of all groups must be below
LOST = 4.5  # standard errors of the trend of lost responses with length
PERMUTATIONS = 10_000  # of groups; P < .01 is asked for, too, since groups may be lost as a whole
FIRST_TOKENS = 3  # pairs of rows that begin alike, with log-probabilities that differ
CENTRED = 0.05  # the sum of a group's advantages, relative to the sum of their sizes


def prompt_in_mask(batch: Batch) -> list[Finding]:
    """All responses of a group begin with the same tokens, which samples would not do.

    If the others repeat the first response for m tokens of joint probability p, K − 1 times, the
    probability of this or less is at most p^(K − 1), whatever m is.
    """
    role = next((role for role in ("behavior", "sampler", "current") if role in batch.logps), None)
    if role is None:
        raise Missing("behavior_logp")
    logp_BT = batch.logps[role]
    code_BT = batch.tokens_BT if batch.tokens_BT is not None else (logp_BT * 1e4).round()
    log_level = math.log(PREFIX_LEVEL / max(1, len(batch.members())))
    common, groups, copies = [], 0, 0
    for members in batch.members():
        live = [batch.mask_BT[row].nonzero().flatten() for row in members if batch.used_B[row]]
        if len(live) < 2:
            continue
        rows = [
            code_BT[row][place].tolist()
            for row, place in zip(members[batch.used_B[members]], live, strict=True)
        ]
        groups += 1
        same = _common_prefix(rows)
        first = int(members[batch.used_B[members]][0])
        if (len(rows) - 1) * float(logp_BT[first][live[0][:same]].sum()) < log_level:
            common.append(same)
            copies += same == max(map(len, rows))
    if not groups or len(common) <= groups / 2:
        return []
    places = sum(common)
    share = places * float(batch.used_B.sum()) / groups / float(batch.mask_BT.sum())
    if copies > len(common) / 2:
        return [
            Finding(
                "copied responses",
                f"in {copies} of {groups} groups all responses are one (P < {PREFIX_LEVEL:g} each)",
                "groups have no variance, so advantages are 0 or noise",
                "give every response a seed of its own",
            )
        ]
    return [
        Finding(
            "prompt tokens",
            f"in {len(common)} of {groups} groups all responses begin with the same "
            f"{min(common)} to {max(common)} tokens, which samples of these probabilities do with "
            f"P < {PREFIX_LEVEL:g}: tokens of the prompt count in the mask",
            f"{share:.0%} of the tokens in the loss were not drawn by the policy",
            "let the mask be true at tokens that the policy sampled, and nowhere else",
        )
    ]


def _common_prefix(rows: list[list[int]]) -> int:
    shortest = min(map(len, rows))
    return next((t for t in range(shortest) if len({row[t] for row in rows}) > 1), shortest)


def end_token(batch: Batch) -> list[Finding]:
    """Each response that ended has an end token, and nothing in the turn follows it."""
    (tokens_BT,) = batch.need("tokens")
    ends = batch.eos or _usual_end(batch)
    if not ends:
        raise Missing("eos")
    is_end_BT = torch.isin(tokens_BT, torch.tensor(ends)) & batch.mask_BT
    followed_BT = is_end_BT[:, :-1] & batch.mask_BT[:, 1:]
    found = []
    if followed_BT.any():
        after = int((is_end_BT.int().cumsum(1) - is_end_BT.int() > 0)[batch.mask_BT].sum())
        found.append(
            Finding(
                "end token",
                f"tokens after an end token count in {int(followed_BT.any(1).sum())} responses "
                "(exact)",
                f"{after / int(batch.mask_BT.sum()):.1%} of the tokens in the loss follow the end",
                "end the mask with the first end token",
            )
        )
    ended_B = _ended(batch) & batch.used_B
    without_B = ended_B & ~is_end_BT.any(1)
    if ended_B.any() and int(without_B.sum()) > int(ended_B.sum()) / 2:
        found.append(
            Finding(
                "end token",
                f"{int(without_B.sum())} of {int(ended_B.sum())} finished responses have no end "
                "token in the mask (exact)",
                "the policy is never taught when to stop",
                "extend the mask by one, over the end token",
            )
        )
    return found


def _ended(batch: Batch) -> Tensor:
    """Responses that finished; without that column, those shorter than the longest. Boolean, B."""
    if batch.finished_B is not None:
        return batch.finished_B
    return batch.lengths_B < batch.lengths_B.max()


def _usual_end(batch: Batch) -> tuple[int, ...]:
    """The last token that counts, if it is the same in nine of ten finished responses."""
    ended_B = _ended(batch) & batch.used_B
    assert batch.tokens_BT is not None
    place_BT = torch.arange(batch.mask_BT.shape[1]) * batch.mask_BT
    last_B = batch.tokens_BT.gather(1, place_BT.argmax(1, keepdim=True)).squeeze(1)[ended_B]
    if len(last_B) < 8:
        return ()
    values, counts = last_B.unique(return_counts=True)
    return (int(values[counts.argmax()]),) if int(counts.max()) >= 0.9 * len(last_B) else ()


def doubled_bos(batch: Batch) -> list[Finding]:
    """Every prompt begins with one token twice."""
    (prompts,) = batch.need("prompts")
    heads = {tuple(prompt[:2]) for prompt in prompts}
    different = len({tuple(prompt) for prompt in prompts})
    first, *others = {head[0] for head in heads if len(head) == 2} or {-1}
    twice = all(len(head) == 2 and head[0] == head[1] for head in heads) and not others
    if not twice or (first not in batch.bos if batch.bos else different < 2):
        return []
    return [
        Finding(
            "doubled BOS",
            f"all {len(prompts)} prompts begin with token {first} twice (exact)",
            "policy and sampler see a prompt that the model was never trained on, or only one does",
            "tokenise the text of a chat template with add_special_tokens=False",
        )
    ]


# Groups and advantages ---------------------------------------------------------------------------


def mixed_groups(batch: Batch) -> list[Finding]:
    """Rows of a group have different prompts, or advantages of another grouping."""
    (groups_B,) = batch.need("groups")
    members = batch.members()
    evidence = _prompts_of_groups(batch, members) or _first_tokens(batch, members)
    change = "number the rows by their prompt, after every shuffle and every gather"
    if evidence is None and batch.advantages_BT is not None and batch.rewards_B is not None:
        advantage_B, usual = of_responses(batch), int(groups_B.bincount().max())
        rows = torch.arange(len(groups_B))
        others = {
            f"blocks of {usual} consecutive rows": rows // usual,
            f"every {len(rows) // usual}th row": rows % max(1, len(rows) // usual),
        }
        if usual > 1 and not fits(advantage_B, batch.rewards_B, groups_B):
            for words, other_B in others.items():
                if fits(advantage_B, batch.rewards_B, other_B):
                    evidence = f"advantages follow from rewards by {words}, not by groups (exact)"
                    change = "repeat prompts and rewards in one order (repeat_interleave)"
    if evidence is None:
        if batch.prompts is None and batch.tokens_BT is None and batch.advantages_BT is None:
            raise Missing("prompts, or tokens, or advantages and rewards")
        return []
    return [Finding("mixed groups", evidence, _effect_of_groups(batch), change)]


def _prompts_of_groups(batch: Batch, members: list[Tensor]) -> str | None:
    if batch.prompts is None:
        return None
    prompts = batch.prompts
    mixed = sum(len({tuple(prompts[row]) for row in rows.tolist()}) > 1 for rows in members)
    return f"{mixed} of {len(members)} groups hold several prompts (exact)" if mixed else None


def _first_tokens(batch: Batch, members: list[Tensor]) -> str | None:
    """One prompt gives a first token one probability."""
    logp_BT = batch.logps.get("behavior", batch.logps.get("sampler"))
    if batch.tokens_BT is None or logp_BT is None or not batch.mask_BT[:, 0].any():
        return None
    apart, alike = 0, 0
    for rows in members:
        begun = rows[batch.mask_BT[rows, 0]]
        token_B = batch.tokens_BT[begun, 0]
        version_B = begun * 0 if batch.versions_BT is None else batch.versions_BT[begun, 0]
        for token, version in {*zip(token_B.tolist(), version_B.tolist(), strict=True)}:
            logp_X = logp_BT[begun[(token_B == token) & (version_B == version)], 0]
            if len(logp_X) > 1 and float(logp_X.min()) < math.log(0.9):
                alike += 1
                apart += bool(logp_X.max() - logp_X.min() > 0.5)
    if apart < FIRST_TOKENS or apart < alike / 5:
        return None
    return (
        f"in {apart} of {alike} cases rows of one group begin with one token, with probabilities "
        "that differ by more than e^.5: their prompts differ (exact)"
    )


def of_responses(batch: Batch) -> Tensor:
    """The advantage of each response: that of its first token that counts. B, float64. Raises
    Missing."""
    (advantages_BT,) = batch.need("advantages")
    return advantages_BT.gather(1, batch.mask_BT.int().argmax(1, keepdim=True)).squeeze(1)


def fits(advantage_B: Tensor, rewards_B: Tensor, groups_B: Tensor) -> bool:
    """Whether in every group advantages are a + b · reward with b ≥ 0, centred at 0."""
    for group in groups_B.unique():
        a_X, r_X = advantage_B[groups_B == group], rewards_B[groups_B == group]
        size = float(a_X.abs().max())
        if abs(float(a_X.mean())) > 1e-3 * max(size, 1e-6):
            return False
        centred_X = r_X - r_X.mean()
        slope = float((centred_X * a_X).sum() / centred_X.square().sum().clamp(min=1e-12))
        if slope < 0 or float((a_X - slope * centred_X).abs().max()) > 1e-2 * max(size, 1e-6):
            return False
    return True


def _effect_of_groups(batch: Batch) -> str:
    if batch.rewards_B is None or batch.groups_B is None:
        return "each baseline mixes prompts: advantages measure how easy a prompt is"
    right_B = batch.rewards_B
    if batch.prompts is not None:
        names = {prompt: n for n, prompt in enumerate(dict.fromkeys(map(tuple, batch.prompts)))}
        groups_B = torch.tensor([names[tuple(prompt)] for prompt in batch.prompts])
    else:
        groups_B = batch.groups_B
    right_B = centred(batch.rewards_B, groups_B)
    if batch.advantages_BT is None:
        now_B = centred(batch.rewards_B, batch.groups_B)
    else:
        now_B = of_responses(batch)
    cosine = float(torch.nn.functional.cosine_similarity(now_B, right_B, dim=0))
    return f"advantages have cosine {cosine:.2f} with those of rewards in right groups"


def centred(values_B: Tensor, groups_B: Tensor) -> Tensor:
    """The values minus the mean of their group, B."""
    ids_B = groups_B.unique(return_inverse=True)[1]
    counts_G = ids_B.bincount()
    sums_G = values_B.new_zeros(len(counts_G)).index_add(0, ids_B, values_B)
    return values_B - (sums_G / counts_G)[ids_B]


def advantages(batch: Batch) -> list[Finding]:
    """Advantages of one sign, not centred, or against the rewards."""
    (groups_B,) = batch.need("groups")
    advantage_B = of_responses(batch)[batch.used_B]
    groups_B = groups_B[batch.used_B]
    moving_B = advantage_B[advantage_B != 0]
    if len(moving_B) < 16:
        return []
    mean = float(moving_B.mean())
    effect = f"{abs(mean) / float(moving_B.abs().mean()):.0%} of the gradient's weight has no " + (
        "counterpart: it pushes all responses up" if mean > 0 else "counterpart: all go down"
    )
    change = "subtract the mean reward of a group before anything is dropped or weighed"
    if bool((moving_B > 0).all() or (moving_B < 0).all()):
        evidence = f"all {len(moving_B)} advantages other than 0 have one sign (exact)"
        return [Finding("advantages", evidence, effect, change)]
    if batch.rewards_B is not None:
        rewards_B = centred(batch.rewards_B[batch.used_B], groups_B)
        along = float(torch.nn.functional.cosine_similarity(rewards_B, advantage_B, dim=0))
        if along < -0.5:
            evidence = f"advantages run against rewards within groups: cosine {along:.2f} (exact)"
            return [
                Finding("advantages", evidence, "the gradient points down", "change their sign")
            ]
    off_B = (advantage_B - centred(advantage_B, groups_B)).abs()
    uncentred = float((off_B > CENTRED * moving_B.abs().mean()).double().mean())
    deviation = abs(mean) * math.sqrt(len(moving_B)) / float(moving_B.std().clamp(min=1e-12))
    if uncentred > 0.5 and deviation > 5:
        evidence = (
            f"their mean is {mean:.3g}, {deviation:.0f} standard errors from 0, and groups are not "
            "centred either (P < 1e-6)"
        )
        return [Finding("advantages", evidence, effect, change)]
    return []


def short_answers(batch: Batch) -> list[Finding]:
    """Groups of longer answers lack more of their responses, as if slow ones were dropped."""
    length_B = batch.lengths_B.double()
    members = [rows[batch.used_B[rows]] for rows in batch.members()]
    size = batch.group_size or max(map(len, members))
    missing_G = np.array([size - len(rows) for rows in members if len(rows)])
    mean_G = np.array([float(length_B[rows].mean()) for rows in members if len(rows)])
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
            "wait for slow responses, or drop whole groups, drawn at random and not by age",
        )
    ]
