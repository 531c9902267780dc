"""Sending weights to vLLM: devices and chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from rec_experiments.common.errors import UserError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

PUSHED_AT_ONCE = 1 << 30  # bytes of weights per chunk and device


def check_devices(engine: int, seen: int, ranks: int) -> None:
    """Raise UserError if an engine on `engine` GPUs cannot run. seen: GPUs that this process sees.
    ranks: training processes, each of which would start an engine."""
    if ranks > 1:
        raise UserError(
            f"sampler=vllm: with ranks={ranks} every engine would start on the first GPU; "
            "pipeline=overlap gives each a GPU of its own, as gpus=8x80gb does"
        )
    if engine > seen:
        raise UserError(
            f"sampler.tensor_parallel_size={engine}: the process that samples sees {seen} GPU; it "
            "sees one with pipeline=overlap, all with pipeline=sequential"
        )


def chunks(weights: Iterable[tuple[str, Tensor]], most: int) -> Iterator[list[tuple[str, Tensor]]]:
    """The weights in order, in chunks of at most `most` bytes, but at least one weight."""
    part: list[tuple[str, Tensor]] = []
    held = 0
    for name, weight in weights:
        if part and held + weight.nbytes > most:
            yield part
            part, held = [], 0
        part.append((name, weight))
        held += weight.nbytes
    if part:
        yield part


def update_info(
    part: list[tuple[str, Tensor]],
    copies: list[list[Tensor]],
    uuids: list[str],
    share: Callable[[Tensor], tuple[Any, Any]],
) -> dict[str, Any]:
    """The message to vLLM's IPC engine about a chunk. copies: of each weight, one on each device of
    `uuids`. share: makes a handle of a tensor, as torch's `reduce_tensor` does."""
    return {
        "names": [name for name, _ in part],
        "dtype_names": [dtype_name(w.dtype) for _, w in part],
        "shapes": [list(w.shape) for _, w in part],
        "ipc_handles": [
            {uuid: share(w)[1] for uuid, w in zip(uuids, row, strict=True)} for row in copies
        ],
    }


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
