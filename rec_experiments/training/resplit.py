"""A state that some ranks wrote, as another number of them goes on with it.

Values are carried as they are: weights and moments by rows, draws that wait by groups. Nothing else
is a rank's own: batches that have begun and draws kept for replay are whole on each, and random
numbers follow from names. What changes is the order of sums, and so the rounding, from the next
gradient on.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rec_experiments.distributed import SHARD, World
from rec_experiments.errors import UserError
from rec_experiments.rollout.packed import Packed, pack, unpack
from rec_experiments.runs.checkpoints import State
from rec_experiments.types import Rollouts


def resplit(parts: Sequence[State], world: World, names: Collection[str]) -> State:
    """This rank's part of the state of which each rank wrote one of `parts`.

    names: of the model's weights that are split among the ranks of `world`. Raises UserError if a
    part is missing.
    """
    first = parts[0]
    feeds, optimizers = ([part[key] for part in parts] for key in ("feed", "optimizer"))
    behavior = [feed["behavior"] for feed in feeds]
    return {
        **first,  # the step, and the batch, which every rank has whole
        "model": _weights([part["model"] for part in parts], world, names),
        "optimizer": {
            **first["optimizer"],
            "state": {
                number: _weights(
                    [each["state"][number] for each in optimizers], world, _moments(of)
                )
                for number, of in first["optimizer"]["state"].items()
            },
        },
        "policies": {
            role: _weights([part["policies"][role] for part in parts], world, names)
            for role in first["policies"]
        },
        "hook": _hook([part["hook"] for part in parts], world, names),
        "feed": {
            **first["feed"],
            "pending": [
                _draw(shares, world)
                for shares in zip(*(feed["pending"] for feed in feeds), strict=True)
            ],
            "behavior": {
                **behavior[0],
                "weights": _weights([each["weights"] for each in behavior], world, names),
            },
        },
    }


def _hook(parts: Sequence[State], world: World, names: Collection[str]) -> State:
    """The state of an update hook: the weights under "start" are split, the rest is whole."""
    if not parts[0]:
        return {}
    return {**parts[0], "start": _weights([part["start"] for part in parts], world, names)}


def _weights(
    parts: Sequence[dict[str, Any]], world: World, names: Collection[str]
) -> dict[str, Any]:
    """By rows those that are split already, and those in `names`; the others as the first has
    them."""
    return {
        name: _rows([part[name] for part in parts], world)
        if name in names or not isinstance(first, Tensor)
        else first
        for name, first in parts[0].items()
    }


def _moments(of_weight: dict[str, Any]) -> Collection[str]:
    """Of an optimizer's state of a weight, what is split as it is; a count of steps is not."""
    return [name for name, value in of_weight.items() if isinstance(value, Tensor) and value.dim()]


def _rows(parts: Sequence[Any], world: World) -> Any:
    """This rank's rows of a tensor, packed as `distributed.pack` does. parts: all of it on each
    rank, or each rank's rows."""
    first = parts[0]
    whole = isinstance(first, Tensor)
    shape = tuple(first.shape if whole else first["shape"])
    stride = first.stride() if whole else first["stride"]
    mine = world.rows(shape[0])
    found, start = [], 0
    for rows in [first] if whole else [part[SHARD] for part in parts]:
        found.append(rows[max(mine.start - start, 0) : max(mine.stop - start, 0)])
        start += len(rows)
    if start != shape[0]:
        raise UserError(f"a checkpoint has {start} of {shape[0]} rows: a rank is missing")
    local = torch.cat(found)
    return local if world.size == 1 else {SHARD: local, "shape": shape, "stride": stride}


def _draw(shares: Sequence[Packed], world: World) -> Packed:
    """This rank's share of a draw that waits to be trained on. What was drawn in vain is counted
    once."""
    drawn = [unpack(share) for share in shares]
    whole = Rollouts.joined(drawn, drawn[0].index)
    groups = world.share(whole.groups[-1] + 1)
    mine = whole.of_groups(range(groups.start, groups.stop))
    return pack(mine if world.leads else replace(mine, redrawn=0, drawn=0))
