"""Rollouts as a few flat tensors, for checkpoints.

Lists of numbers take seconds to save and several times the memory. Packing and unpacking preserve
every bit.
"""

from collections.abc import Sequence
from typing import Any

import torch

from rec_experiments.types import Response, Rollouts, VerifierResult

Packed = dict[str, Any]  # tensors and plain values, for torch.load with weights_only

TOKENS, NUMBERS, FLAGS = torch.int64, torch.float64, torch.bool
OF_RESPONSES = {"tokens": TOKENS, "logp": NUMBERS, "mask": FLAGS}  # one value per token
OF_RESULTS = {"reward": NUMBERS, "accuracy": NUMBERS, "timed_out": FLAGS, "crashed": FLAGS}


def pack(rollouts: Rollouts) -> Packed:
    """The inverse of `unpack`."""
    responses, results = rollouts.responses, rollouts.results
    by_token = rollouts.token_versions
    return {
        "index": rollouts.index,
        "prompts": _flat(rollouts.prompts, TOKENS),
        "responses": {
            name: _flat([getattr(response, name) for response in responses], dtype)
            for name, dtype in OF_RESPONSES.items()
        },
        "finished": _column([response.finished for response in responses], FLAGS),
        "results": {
            name: _column([getattr(result, name) for result in results], dtype)
            for name, dtype in OF_RESULTS.items()
        },
        "groups": _column(rollouts.groups, TOKENS),
        "versions": _column(rollouts.versions, TOKENS),
        "logps": {role: _flat(rows, NUMBERS) for role, rows in rollouts.logps.items()},
        "redrawn": rollouts.redrawn,
        "drawn": rollouts.drawn,
        "seconds": rollouts.seconds,
        **({"token_versions": _flat(by_token, TOKENS)} if by_token is not None else {}),
    }


def unpack(packed: Packed) -> Rollouts:
    """Raises KeyError, TypeError or ValueError for anything that `pack` did not return."""
    written = [_rows(packed["responses"][name]) for name in OF_RESPONSES]
    columns = [packed["results"][name].tolist() for name in OF_RESULTS]
    finished = packed["finished"].tolist()
    return Rollouts(
        index=packed["index"],
        prompts=_rows(packed["prompts"]),
        responses=[
            Response(tokens, logp, ended, mask)
            for tokens, logp, mask, ended in zip(*written, finished, strict=True)
        ],
        results=[VerifierResult(*values) for values in zip(*columns, strict=True)],
        groups=packed["groups"].tolist(),
        versions=packed["versions"].tolist(),
        token_versions=_rows(packed["token_versions"]) if "token_versions" in packed else None,
        logps={role: _rows(flat) for role, flat in packed["logps"].items()},
        redrawn=packed["redrawn"],
        drawn=packed["drawn"],
        seconds=packed["seconds"],
    )


def _flat(rows: Sequence[Sequence[float]], dtype: torch.dtype) -> Packed:
    """Rows of different lengths as all their values, and the length of each row."""
    values = [value for row in rows for value in row]
    return {"values": _column(values, dtype), "lengths": _column([*map(len, rows)], TOKENS)}


def _rows(flat: Packed) -> list[list[Any]]:
    return [row.tolist() for row in flat["values"].split(flat["lengths"].tolist())]


def _column(values: Sequence[float], dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)
