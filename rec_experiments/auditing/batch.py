"""The batch that is audited: its columns by name, read from a file or given as tensors."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rec_experiments.common.batch import padded
from rec_experiments.common.errors import UserError, first_line, meant

ROLES = ("current", "behavior", "sampler", "proximal", "reference")
LOGPS = {"logp" if role == "current" else f"{role}_logp": role for role in ROLES}
ROWS = ("rewards", "groups", "finished")
NUMBERS = ("step", "loss", "learning_rate", "group_size")
WORDS = ("aggregation", "dtype")
OTHERS = ("tokens", "mask", "prompts", "prompt_mask", "advantages", "versions", "eos", "bos")
COLUMNS = (*OTHERS[:2], *LOGPS, *OTHERS[2:6], *ROWS, *NUMBERS, *WORDS, *OTHERS[6:])
# What other trainers call a column: TRL, verl, SkyRL, prime-rl.
ALIASES = {
    "completion_ids": "tokens",
    "completion_mask": "mask",
    "prompt_ids": "prompts",
    "per_token_logps": "logp",
    "old_per_token_logps": "behavior_logp",
    "sampling_per_token_logps": "sampler_logp",
    "ref_per_token_logps": "reference_logp",
    "responses": "tokens",
    "response_mask": "mask",
    "old_log_probs": "behavior_logp",
    "rollout_log_probs": "sampler_logp",
    "token_level_scores": "rewards",
    "uid": "groups",
    "ref_log_prob": "reference_logp",
    "loss_mask": "mask",
    "action_log_probs": "behavior_logp",
    "base_action_log_probs": "reference_logp",
    "rollout_logprobs": "sampler_logp",
    "trainer_logprobs": "logp",
    "inference_logprobs": "sampler_logp",
}
READABLE = (".pt", ".safetensors", ".parquet", ".jsonl")


class Missing(Exception):
    """A test needs columns that the batch lacks. Its text says which of them would do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """B responses of up to T tokens; whatever is unknown is None, or absent from a mapping.

    mask_BT: the tokens that count in the loss. logps: log-probabilities by role, B x T, float64:
    `current`, the policy that is trained; `behavior`, the policy that drew the tokens, in the
    trainer's computation; `sampler`, the same policy as the sampler reports it; `proximal`;
    `reference`. tokens_BT: ids. prompts: ids of each row's prompt. advantages_BT: 0 outside the
    mask. versions_BT: gradient steps that the policy had taken that drew a token. step: those that
    the current policy has taken. finished_B: the response ended before the length limit.
    group_size: responses that were drawn for each prompt. eos, bos: token ids. aggregation: the
    declared one, by its name in conf/aggregation. dtype: in which both sides compute. unread:
    columns that no test knows.
    """

    mask_BT: Tensor
    logps: Mapping[str, Tensor] = field(default_factory=dict)
    tokens_BT: Tensor | None = None
    prompts: list[list[int]] | None = None
    advantages_BT: Tensor | None = None
    rewards_B: Tensor | None = None
    groups_B: Tensor | None = None
    versions_BT: Tensor | None = None
    finished_B: Tensor | None = None
    step: int | None = None
    loss: float | None = None
    learning_rate: float | None = None
    group_size: int | None = None
    eos: tuple[int, ...] = ()
    bos: tuple[int, ...] = ()
    aggregation: str | None = None
    dtype: str | None = None
    unread: tuple[str, ...] = ()

    def need(self, *names: str) -> tuple[Any, ...]:
        """The values of these columns. Raises Missing if one of them is unknown."""
        found = {name: self.column(name) for name in names}
        lacking = [name for name, value in found.items() if value is None or value == ()]
        if lacking:
            raise Missing(" and ".join(lacking))
        return tuple(found.values())

    def column(self, name: str) -> Any:
        """A column by its public name, or None."""
        if name in LOGPS:
            return self.logps.get(LOGPS[name])
        return next(
            (getattr(self, name + end) for end in ("", "_B", "_BT") if hasattr(self, name + end)),
            None,
        )

    @property
    def lengths_B(self) -> Tensor:
        """Tokens of each response that count."""
        return self.mask_BT.sum(1)

    @property
    def age_BT(self) -> Tensor:
        """Gradient steps since the policy that drew a token. Raises Missing."""
        versions_BT, step = self.need("versions", "step")
        return step - versions_BT

    @property
    def used_B(self) -> Tensor:
        """Rows with a token that counts."""
        return self.mask_BT.any(1)

    def members(self) -> list[Tensor]:
        """The rows of each group. Raises Missing."""
        (groups_B,) = self.need("groups")
        return [(groups_B == group).nonzero().flatten() for group in groups_B.unique()]

    def trimmed(self) -> "Batch":
        """Without columns of tensors in which no row has a token that counts, at the end."""
        width = int(self.mask_BT.any(0).nonzero().max()) + 1 if self.mask_BT.any() else 0
        width = min(self.mask_BT.shape[1], width + 1)  # the token after the end tells something
        return replace(
            self,
            mask_BT=self.mask_BT[:, :width],
            logps={role: logp[:, :width] for role, logp in self.logps.items()},
            tokens_BT=None if self.tokens_BT is None else self.tokens_BT[:, :width],
            advantages_BT=None if self.advantages_BT is None else self.advantages_BT[:, :width],
            versions_BT=None if self.versions_BT is None else self.versions_BT[:, :width],
        )


# Reading -----------------------------------------------------------------------------------------


def read(path: Path) -> Batch:
    """The batch in a file. Nothing that a file holds is run. Raises UserError if it cannot be
    read."""
    if path.suffix not in READABLE:
        raise UserError(f"{path}: the name must end in {', '.join(READABLE)}")
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    try:
        columns = _columns(path)
    except UserError:
        raise
    except Exception as error:  # of four libraries, about a broken file
        raise UserError(f"{path}: cannot be read as {path.suffix} ({first_line(error)})") from error
    try:
        return of(columns)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def _columns(path: Path) -> dict[str, Any]:
    if path.suffix == ".pt":
        found = torch.load(path, weights_only=True, map_location="cpu")
        if not isinstance(found, Mapping):
            raise UserError(f"{path}: must hold a dictionary of columns, it holds {type(found)}")
        return dict(found)
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return dict(load_file(path))
    if path.suffix == ".parquet":
        import pandas

        table = pandas.read_parquet(path)
        return {name: [_plain(value) for value in table[name]] for name in table.columns}
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
    if not (rows and all(isinstance(row, dict) for row in rows)):
        raise UserError(f"{path}: must hold a JSON object in each line")
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


# Columns to tensors ------------------------------------------------------------------------------


def of(columns: Mapping[str, Any]) -> Batch:
    """The batch of these columns: tensors, arrays, or lists, padded or a list for each row.

    Raises UserError for columns that contradict each other, or if no column has a value for each
    token.
    """
    given: dict[str, Any] = {}
    for name, value in columns.items():
        ours = ALIASES.get(name, name)
        if value is not None and ours not in given:
            given[ours] = value
    tokens = {name: given[name] for name in ("tokens", "mask", *LOGPS) if name in given}
    if not tokens:
        raise UserError(
            "no column has a value for each token; give logp, behavior_logp, sampler_logp, tokens "
            f"or mask. {meant(next(iter(columns), ''), COLUMNS)}"
        )
    matrices = {name: _matrix(name, value) for name, value in tokens.items()}
    mask_BT = _mask(tokens, matrices)
    shape = tuple(mask_BT.shape)
    for name, matrix in matrices.items():
        if tuple(matrix.shape) != shape:
            raise UserError(
                f"{name} {tuple(matrix.shape)}: must have one row for each response and one column "
                f"for each token, as mask {shape}"
            )
    for name in LOGPS.keys() & matrices.keys():
        _check_logp(name, matrices[name], mask_BT)
    prompts = _prompts(given, matrices.get("tokens"), mask_BT)
    if prompts is not None:
        given.setdefault("groups", [str(prompt) for prompt in prompts])
    return Batch(
        mask_BT=mask_BT,
        logps={
            role: matrices[name].double().where(mask_BT, 0.0)
            for name, role in LOGPS.items()
            if name in matrices
        },
        tokens_BT=matrices["tokens"].long() if "tokens" in matrices else None,
        prompts=prompts,
        advantages_BT=_spread(given, "advantages", mask_BT),
        versions_BT=_spread(given, "versions", mask_BT),
        rewards_B=_row(given, "rewards", mask_BT),
        groups_B=_row(given, "groups", mask_BT),
        finished_B=_row(given, "finished", mask_BT),
        step=_number(given, "step"),
        loss=_number(given, "loss"),
        learning_rate=_number(given, "learning_rate"),
        group_size=_number(given, "group_size"),
        eos=_ids(given, "eos"),
        bos=_ids(given, "bos"),
        aggregation=_one(given, "aggregation"),
        dtype=_one(given, "dtype"),
        unread=tuple(sorted(given.keys() - set(COLUMNS) - {"attention_mask"})),
    ).trimmed()


def _matrix(name: str, value: Any) -> Tensor:
    """B x T; shorter lists are padded with zeros."""
    if isinstance(value, Tensor):
        found = value.detach().cpu()
    elif hasattr(value, "dtype"):  # an array
        found = torch.as_tensor(value)
    else:
        try:
            found = padded([[0 if x is None else x for x in row] for row in value], torch.float64)
        except (TypeError, ValueError) as error:
            raise UserError(f"{name}: must be a list of numbers for each response") from error
    if found.ndim != 2 or not len(found):
        raise UserError(f"{name} {tuple(found.shape)}: must be B x T, a row for each response")
    return found


def _mask(tokens: Mapping[str, Any], matrices: Mapping[str, Tensor]) -> Tensor:
    """The given mask, or that of the lengths of lists."""
    if "mask" in matrices:
        mask = matrices["mask"]
        if not ((mask == 0) | (mask == 1)).all():
            raise UserError("mask: must be true or false, or 1 or 0, at every token")
        return mask.bool()
    name, lists = next(iter(tokens.items()))
    if not isinstance(lists, list):
        raise UserError("mask: is missing; tensors are padded, and it says which tokens count")
    lengths = torch.tensor([len(row) for row in lists])
    return torch.arange(matrices[name].shape[1]) < lengths[:, None]


def _check_logp(name: str, logp_BT: Tensor, mask_BT: Tensor) -> None:
    odd = ((~torch.isfinite(logp_BT) | (logp_BT > 1e-3)) & mask_BT).nonzero()
    if len(odd):
        row, token = odd[0].tolist()
        raise UserError(
            f"{name}: must be a log-probability where mask is true: row {row}, token {token} is "
            f"{float(logp_BT[row, token]):g}"
        )


def _prompts(
    given: Mapping[str, Any], tokens_BT: Tensor | None, mask_BT: Tensor
) -> list[list[int]] | None:
    """The given prompts without padding; else what stands in `tokens` before the mask."""
    if "prompts" in given:
        ids = _matrix("prompts", given["prompts"]).long()
        live = torch.ones_like(ids, dtype=torch.bool)
        if isinstance(given["prompts"], list):
            lengths = torch.tensor([len(row) for row in given["prompts"]])
            live = torch.arange(ids.shape[1]) < lengths[:, None]
        elif (mask := given.get("prompt_mask", given.get("attention_mask"))) is not None:
            live = _matrix("prompt_mask", mask)[:, : ids.shape[1]].bool()
        _check_rows("prompts", ids, mask_BT)
        return [row[kept].tolist() for row, kept in zip(ids, live, strict=True)]
    if tokens_BT is None or mask_BT[:, 0].any():
        return None
    first_B = mask_BT.int().argmax(1)
    return [row[:first].tolist() for row, first in zip(tokens_BT.long(), first_B, strict=True)]


def _spread(given: Mapping[str, Any], name: str, mask_BT: Tensor) -> Tensor | None:
    """B x T of a column that has a value for each token or for each row; 0 outside the mask."""
    if name not in given:
        return None
    value = given[name]
    nested = not isinstance(value, Tensor) and isinstance(value[0], Sequence)
    found = _matrix(name, value) if nested else torch.as_tensor(value).cpu()
    if found.ndim == 1:
        found = found[:, None]
    _check_rows(name, found, mask_BT)
    if found.shape[1] not in (1, mask_BT.shape[1]):
        raise UserError(f"{name} {tuple(found.shape)}: must be B, or B x T as mask")
    found = found.long() if name == "versions" else found.double()
    return found.expand(mask_BT.shape).where(mask_BT, 0)


def _row(given: Mapping[str, Any], name: str, mask_BT: Tensor) -> Tensor | None:
    """One value for each response. Groups may have any names; a row of a matrix is summed."""
    if name not in given:
        return None
    value = given[name]
    if name == "groups" and not isinstance(value, Tensor):
        numbers = {each: n for n, each in enumerate(dict.fromkeys(map(str, value)))}
        value = [numbers[str(each)] for each in value]
    try:
        found = torch.as_tensor(value).cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{name}: must be one number for each response") from error
    if found.ndim == 2:  # rewards of tokens, which are those of responses where they end
        found = found.sum(1)
    _check_rows(name, found, mask_BT)
    if name == "finished":
        return found.bool()
    return found.long() if name == "groups" else found.double()


def _check_rows(name: str, found: Tensor, mask_BT: Tensor) -> None:
    if len(found) != len(mask_BT):
        raise UserError(f"{name}: must have {len(mask_BT)} rows, as mask, it has {len(found)}")


def _one(given: Mapping[str, Any], name: str) -> Any:
    """The value of a column that is the same for the whole batch; files repeat it in each row."""
    value = given.get(name)
    if value is None or isinstance(value, str):
        return value
    flat = value.flatten().tolist() if isinstance(value, Tensor) else value
    if isinstance(flat, list | tuple):
        if len({str(each) for each in flat}) != 1:
            raise UserError(f"{name}: must be one value for the whole batch")
        return flat[0]
    return flat


def _number(given: Mapping[str, Any], name: str) -> Any:
    value = _one(given, name)
    if value is None:
        return None
    try:
        return int(value) if name in ("step", "group_size") else float(value)
    except (TypeError, ValueError) as error:
        raise UserError(f"{name}={value}: must be a number") from error


def _ids(given: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """Token ids: one, or several."""
    value = given.get(name)
    if value is None:
        return ()
    flat = torch.as_tensor(value).flatten().tolist() if not isinstance(value, int) else [value]
    return tuple(dict.fromkeys(map(int, flat)))
