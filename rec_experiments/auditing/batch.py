"""The batch that is audited: its columns by name, read from a file or given as tensors."""

import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rec_experiments.auditing.pieces import choices
from rec_experiments.common.batch import padded
from rec_experiments.common.errors import UserError, first_line

ROLES = ("current", "behavior", "sampler", "proximal", "reference")


def column(role: str) -> str:
    """The name of a role's log-probabilities."""
    return "logp" if role == "current" else f"{role}_logp"


OF_TOKENS = ("tokens", "mask", *map(column, ROLES))
# Whatever else is read. `prompt_mask` and `attention_mask` say what in `prompts` is no padding.
OTHERS = (
    "prompts", "prompt_mask", "attention_mask", "advantages", "rewards", "groups", "versions",
    "finished", "step", "loss", "learning_rate", "group_size", "eos", "bos", "aggregation", "dtype",
)  # fmt: skip
ALIASES = {  # what TRL, verl, SkyRL and prime-rl call a column
    "completion_ids": "tokens",
    "completion_mask": "mask",
    "prompt_ids": "prompts",
    "old_per_token_logps": "behavior_logp",
    "sampling_per_token_logps": "sampler_logp",
    "ref_per_token_logps": "reference_logp",
    "responses": "tokens",
    "response_mask": "mask",
    "old_log_probs": "behavior_logp",
    "rollout_log_probs": "sampler_logp",
    "ref_log_prob": "reference_logp",
    "token_level_scores": "rewards",
    "uid": "groups",
    "loss_mask": "mask",
    "action_log_probs": "behavior_logp",
    "base_action_log_probs": "reference_logp",
    "rollout_logprobs": "sampler_logp",
    "trainer_logprobs": "logp",
    "inference_logprobs": "sampler_logp",
}
DTYPES = ("float32", "bfloat16", "float16")
READABLE = (".pt", ".safetensors", ".parquet", ".jsonl")


class Missing(Exception):
    """A test needs columns that the batch lacks. Its text says which of them would do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """B responses of up to T tokens. A column that is unknown is None, or absent from `logps`.

    mask_BT: the tokens that count in the loss. logps: log-probabilities by role, B x T, float64, 0
    outside the mask: `current`, the policy that is trained; `behavior`, the policy that drew the
    tokens, in the trainer's computation; `sampler`, the same policy as the sampler reports it;
    `proximal`; `reference`. tokens_BT: ids. prompts: ids of each row's prompt. advantages_BT.
    versions_BT: gradient steps that the policy had taken that drew a token. step: those that the
    current policy has taken. finished_B: the response ended before the length limit. group_size:
    responses that were drawn for each prompt. eos, bos: token ids. aggregation: the declared one,
    by its name in conf/aggregation. dtype: in which both sides compute. unread: columns that no
    test knows.
    """

    mask_BT: Tensor
    logps: Mapping[str, Tensor]
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
        own = {column(role): logp for role, logp in self.logps.items()}
        for name in ("tokens", "advantages", "versions"):
            own[name] = getattr(self, f"{name}_BT")
        found = {
            name: own.get(name, getattr(self, f"{name}_B", getattr(self, name, None)))
            for name in names
        }
        if lacking := [name for name, value in found.items() if value is None]:
            raise Missing(" and ".join(lacking))
        return tuple(found.values())

    @property
    def lengths_B(self) -> Tensor:
        """Tokens of each response that count."""
        return self.mask_BT.sum(1)

    @property
    def used_B(self) -> Tensor:
        """Rows with a token that counts."""
        return self.mask_BT.any(1)

    @property
    def age_BT(self) -> Tensor:
        """Gradient steps since the policy that drew a token. Raises Missing."""
        versions_BT, step = self.need("versions", "step")
        return step - versions_BT

    def members(self) -> list[Tensor]:
        """The rows of each group. Raises Missing."""
        (groups_B,) = self.need("groups")
        return [(groups_B == group).nonzero().flatten() for group in groups_B.unique()]


# Reading -----------------------------------------------------------------------------------------


def read(path: Path) -> Batch:
    """The batch in a file. Nothing that a file holds is run. Raises UserError if it cannot be
    read."""
    if path.suffix not in READABLE:
        raise UserError(f"{path}: the name must end in {', '.join(READABLE)}")
    if not path.is_file():
        raise UserError(f"{path}: {'is a folder' if path.is_dir() else 'no such file'}")
    try:
        columns = _columns(path)
    except pickle.UnpicklingError as error:  # torch advises to run what is in the file
        raise UserError(
            f"{path}: holds more than tensors, numbers and texts, which is not read"
        ) from error
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
            raise TypeError(f"it holds no dictionary of columns but {type(found).__name__}")
        return dict(found)
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return dict(load_file(path))
    if path.suffix == ".parquet":
        import pandas

        table = pandas.read_parquet(path)
        return {name: [_plain(value) for value in table[name]] for name in table.columns}
    lines = path.read_text(encoding="utf-8-sig").split("\n")  # texts may hold other line ends
    rows = [json.loads(line) for line in lines if line.strip()]
    if not all(isinstance(row, dict) for row in rows):
        raise TypeError("a line is no object of columns")
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
        if value is not None:
            given.setdefault(ALIASES.get(name, name), value)
    matrices = {name: _matrix(name, given[name]) for name in OF_TOKENS if name in given}
    if not matrices:
        raise UserError(f"no column has a value for each token; one of {', '.join(OF_TOKENS)} must")
    mask_BT = _mask(given, matrices)
    if not mask_BT.any():
        raise UserError("mask: no token counts in the loss")
    for name, matrix in matrices.items():
        if matrix.shape != mask_BT.shape:
            raise UserError(
                f"{name} {tuple(matrix.shape)}: must have one row for each response and one column "
                f"for each token, as mask {tuple(mask_BT.shape)}"
            )
    if "tokens" in matrices:
        _check_finite("tokens", matrices["tokens"])
    prompts = _prompts(given, matrices.get("tokens"), mask_BT)
    if prompts is not None:
        given.setdefault("groups", [str(prompt) for prompt in prompts])
    return Batch(
        mask_BT=mask_BT,
        logps={
            role: _logp(column(role), matrices[column(role)], mask_BT)
            for role in ROLES
            if column(role) in matrices
        },
        tokens_BT=matrices["tokens"].long() if "tokens" in matrices else None,
        prompts=prompts,
        advantages_BT=_spread(given, "advantages", mask_BT),
        versions_BT=_spread(given, "versions", mask_BT),
        rewards_B=_row(given, "rewards", mask_BT),
        groups_B=_row(given, "groups", mask_BT),
        finished_B=_row(given, "finished", mask_BT),
        step=_one(given, "step", int),
        loss=_one(given, "loss", float),
        learning_rate=_one(given, "learning_rate", float),
        group_size=_group_size(given),
        eos=_ids(given, "eos"),
        bos=_ids(given, "bos"),
        aggregation=_word(given, "aggregation", [*choices("aggregation")]),
        dtype=_word(given, "dtype", DTYPES),
        unread=tuple(sorted(given.keys() - {*OF_TOKENS, *OTHERS})),
    )


def _tensor(name: str, value: Any) -> Tensor:
    """A tensor of numbers; lists of several lengths are padded with zeros."""
    try:
        if isinstance(value, list) and value and isinstance(value[0], Sequence):
            return padded([[0 if x is None else x for x in row] for row in value], torch.float64)
        found = torch.as_tensor(value).detach().cpu()
        if found.is_complex():
            raise TypeError(found.dtype)
        return found
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(
            f"{name}: must be numbers, or a list of numbers for each response"
        ) from error


def _matrix(name: str, value: Any) -> Tensor:
    found = _tensor(name, value)
    if found.ndim != 2 or not len(found):
        raise UserError(f"{name} {tuple(found.shape)}: must be B x T, a row for each response")
    return found


def _mask(given: Mapping[str, Any], matrices: Mapping[str, Tensor]) -> Tensor:
    """The given mask, or that of the lengths of lists."""
    if "mask" in matrices:
        if not ((matrices["mask"] == 0) | (matrices["mask"] == 1)).all():
            raise UserError("mask: must be true or false, or 1 or 0, at every token")
        return matrices["mask"].bool()
    name, matrix = next(iter(matrices.items()))
    if not isinstance(given[name], list):
        raise UserError("mask: is missing; tensors are padded, and it says which tokens count")
    lengths = torch.tensor([len(row) for row in given[name]])
    return torch.arange(matrix.shape[1]) < lengths[:, None]


def _logp(name: str, logp_BT: Tensor, mask_BT: Tensor) -> Tensor:
    odd = ((~torch.isfinite(logp_BT) | (logp_BT > 1e-3)) & mask_BT).nonzero()
    if len(odd):
        row, token = odd[0].tolist()
        raise UserError(
            f"{name}: must be a log-probability where mask is true: row {row}, token {token} is "
            f"{float(logp_BT[row, token]):g}"
        )
    return logp_BT.double().where(mask_BT, 0.0)


def _prompts(
    given: Mapping[str, Any], tokens_BT: Tensor | None, mask_BT: Tensor
) -> list[list[int]] | None:
    """The given prompts without padding; else what stands in `tokens` before the mask."""
    if "prompts" in given:
        ids_BP = _matrix("prompts", given["prompts"]).long()
        _check_rows("prompts", ids_BP, mask_BT)
        if isinstance(given["prompts"], list):
            pairs = zip(ids_BP, given["prompts"], strict=True)
            return [ids[: len(row)].tolist() for ids, row in pairs]
        mask = given.get("prompt_mask", given.get("attention_mask", torch.ones_like(ids_BP)))
        live_BP = _matrix("prompt_mask", mask)[:, : ids_BP.shape[1]].bool()
        if live_BP.shape != ids_BP.shape:
            raise UserError(f"prompt_mask {tuple(live_BP.shape)}: must be as prompts")
        return [row[kept].tolist() for row, kept in zip(ids_BP, live_BP, strict=True)]
    if tokens_BT is None or mask_BT[:, 0].any():
        return None
    first_B = mask_BT.int().argmax(1)
    return [row[:first].tolist() for row, first in zip(tokens_BT.long(), first_B, strict=True)]


def _spread(given: Mapping[str, Any], name: str, mask_BT: Tensor) -> Tensor | None:
    """B x T of a column that has a value for each token or for each row; 0 outside the mask."""
    if name not in given:
        return None
    found = _tensor(name, given[name])
    found = found[:, None] if found.ndim == 1 else found
    _check_rows(name, found, mask_BT)
    if found.ndim != 2 or found.shape[1] not in (1, mask_BT.shape[1]):
        raise UserError(f"{name} {tuple(found.shape)}: must be B, or B x T as mask")
    found_BT = found.expand(mask_BT.shape).where(mask_BT, 0)
    _check_finite(name, found_BT)
    return found_BT.long() if name == "versions" else found_BT.double()


def _row(given: Mapping[str, Any], name: str, mask_BT: Tensor) -> Tensor | None:
    """One value for each response. Groups may have any names. Rewards of tokens are summed."""
    if name not in given:
        return None
    value = given[name]
    if name == "groups" and not isinstance(value, Tensor) and hasattr(value, "__len__"):
        numbers = {each: n for n, each in enumerate(dict.fromkeys(map(str, value)))}
        value = [numbers[str(each)] for each in value]
    found = _tensor(name, value)
    _check_rows(name, found, mask_BT)
    if found.ndim > 2:
        raise UserError(f"{name} {tuple(found.shape)}: must have one value for each response")
    _check_finite(name, found)
    found = found.sum(1) if found.ndim == 2 else found
    return found.to({"groups": torch.long, "finished": torch.bool}.get(name, torch.float64))


def _check_rows(name: str, found: Tensor, mask_BT: Tensor) -> None:
    if not found.ndim or len(found) != len(mask_BT):
        rows = len(found) if found.ndim else "one number"
        raise UserError(f"{name}: must have {len(mask_BT)} rows, as mask, it has {rows}")


def _check_finite(name: str, found: Tensor) -> None:
    """A NaN would pass every test."""
    if not torch.isfinite(found).all():
        raise UserError(f"{name}: must be finite")


def _one(given: Mapping[str, Any], name: str, kind: type) -> Any:
    """The value of a column that is the same for the whole batch; files repeat it in each row."""
    values: Any = given.get(name)
    if hasattr(values, "flatten"):
        values = values.flatten().tolist()
    if not isinstance(values, list | tuple):
        values = [values]
    if len({*map(str, values)}) != 1:
        raise UserError(f"{name}: must be one value for the whole batch")
    try:
        found = None if values[0] is None else kind(values[0])
        if isinstance(found, int | float) and not abs(found) < 2**63:
            raise ValueError(found)
        return found
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{name}={values[0]}: must be a finite number") from error


def _word(given: Mapping[str, Any], name: str, allowed: Sequence[str]) -> str | None:
    """One of these words; a dtype also as torch writes it."""
    found: str | None = _one(given, name, str)
    word = None if found is None else found.removeprefix("torch.")
    if word not in (None, *allowed):
        raise UserError(f"{name}={found}: must be one of {', '.join(allowed)}")
    return word


def _group_size(given: Mapping[str, Any]) -> int | None:
    found: int | None = _one(given, "group_size", int)
    if found is not None and found < 1:
        raise UserError(f"group_size={found}: must be at least 1")
    return found


def _ids(given: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """Token ids: none, one, or several."""
    found = _tensor(name, given.get(name, []))
    return tuple(dict.fromkeys(found.flatten().long().tolist()))
