"""The processes (ranks) that train one model together, and how they communicate.

torchrun starts `ranks` of them. FSDP2 splits weights, gradients and optimizer state among them.
Each rank draws its share of a batch and computes its share of the gradient; what all must agree on
is gathered, so every rank knows the whole batch. A single process is a world of size 1, in which
all of this does nothing.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

from rec_experiments.common.errors import UserError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.distributed_c10d import Store
    from torch.distributed.tensor import DTensor

TIMEOUT = timedelta(hours=1)  # for the other ranks; an evaluation must take less
HOST = "cpu"  # where unused weights are kept; the plan of memory counts it separately

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class World:
    """This process as one of `size` ranks, and the device it trains on.

    store: torchrun's key-value store; None before the ranks have joined and for a single process.
    """

    rank: int = 0
    size: int = 1
    device: torch.device | str = "cpu"
    store: Store | None = field(default=None, repr=False, compare=False)

    @property
    def leads(self) -> bool:
        """Whether this rank writes the run's files and prints."""
        return self.rank == 0

    @property
    def neighbours(self) -> int:
        """How many of the ranks are on this machine, itself included."""
        return int(os.environ.get("LOCAL_WORLD_SIZE", self.size)) if self.size > 1 else 1

    @property
    def mesh(self) -> DeviceMesh:
        """All ranks, in one dimension."""
        import torch

        return _mesh(torch.device(self.device).type, self.size)

    def share(self, n: int) -> slice:
        """Which of n things this rank does. Shares are consecutive and differ by at most 1."""
        return slice(n * self.rank // self.size, n * (self.rank + 1) // self.size)

    def rows(self, n: int) -> slice:
        """Which of the n rows of a split tensor this rank has, as FSDP2 splits it."""
        most = -(-n // self.size)
        return slice(min(n, self.rank * most), min(n, (self.rank + 1) * most))

    def part(self, tensor: Tensor) -> Tensor:
        """This rank's rows of a tensor, which may be split among the ranks or whole on each. All of
        it if it has no rows."""
        if is_split(tensor):
            return tensor.to_local()
        if self.size == 1 or not tensor.dim():
            return tensor
        return tensor[self.rows(len(tensor))]

    def parts(self, tree: Any) -> Any:
        """`part` of every tensor in nested dicts. Rows of a whole tensor are copied, since a file
        would hold all of the memory that they are a view of; tied weights stay tied."""
        if self.size == 1:
            return tree
        return _copied(
            tree,
            lambda tensor: tensor.to_local() if is_split(tensor) else self.part(tensor).clone(),
        )

    def joined(self, trees: Sequence[Any]) -> Any:
        """This rank's part of every tensor, given the parts of all ranks of any world.

        Raises ValueError if the trees differ in their keys.
        """
        from torch.utils._pytree import tree_map

        return tree_map(lambda *parts: self._rows_of(parts), *trees)

    def _rows_of(self, parts: Sequence[Any]) -> Any:
        import torch

        if not isinstance(parts[0], torch.Tensor) or not parts[0].dim():
            return parts[0]
        if len(parts) == self.size:
            return parts[self.rank]
        mine = self.rows(sum(map(len, parts)))
        found, start = [], 0
        for part in parts:
            found.append(part[max(mine.start - start, 0) : max(mine.stop - start, 0)])
            start += len(part)
        return torch.cat(found)

    def gather(self, value: T) -> list[T]:
        """The values of all ranks, on every rank. Tensors must be on the CPU."""
        if self.size == 1:
            return [value]
        import torch.distributed as dist

        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def barrier(self) -> None:
        """Wait until every rank is here."""
        self.gather(None)

    def fails_first(self) -> bool:
        """Whether this rank should report its failure: the first that fails does, since the others
        may fail only because it is gone. Before they have joined, all fail alike and rank 0 does.
        """
        if self.store is None:
            return self.leads
        return self.store.compare_set("failed first", "", str(self.rank)) == str(self.rank).encode()

    def split(
        self,
        model: nn.Module,
        compute_dtype: torch.dtype | None = None,
        weights: Mapping[str, Tensor] | None = None,
    ) -> nn.Module:
        """Move the model to this rank's device and split its parameters among the ranks. All get
        the weights of the first. One layer after the other is moved and split, so that no device
        ever holds the whole model.

        weights: those of the first rank, if they are not the model's own.
        Gradients are summed over the ranks: each divides its loss by the denominators of the whole
        mini-batch, so there is nothing to average. compute_dtype: the dtype in which parameters are
        gathered, if it is smaller than theirs; gradients are summed in that of the parameters.
        """
        if self.size == 1:
            return model.to(self.device)
        given = model.state_dict() if weights is None else weights
        self.shard(model, compute_dtype)
        self._send(given, model)
        return model

    def _send(self, given: Mapping[str, Tensor], model: nn.Module) -> None:
        """Copy the first rank's weights into a model that is split."""
        import torch
        import torch.distributed as dist

        for name, own in model.state_dict().items():
            if self.leads:
                sent = given[name].to(self.device, own.dtype)
            else:
                sent = torch.empty(own.shape, dtype=own.dtype, device=self.device)
            dist.broadcast(sent, src=0)
            if is_split(own):
                own.to_local().copy_(sent[self.rows(len(sent))])
            else:
                own.copy_(sent)

    def shard(self, model: nn.Module, compute_dtype: torch.dtype | None = None) -> None:
        """Split the parameters of a model in place, on this rank's device."""
        from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

        own = next(model.parameters()).dtype
        precision = MixedPrecisionPolicy()
        if compute_dtype is not None and compute_dtype.itemsize < own.itemsize:
            precision = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=own)

        # Parameters are split again after each forward pass, also those of the root. Otherwise a
        # forward pass without a backward pass would leave them whole, and the next one would not
        # see the optimizer's step.
        for module in (*decoder_layers(model), model):
            fully_shard(module, mesh=self.mesh, reshard_after_forward=True, mp_policy=precision)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)  # the only one that gloo has


class Led(World):
    """The same ranks, of which the first draws for all."""

    @classmethod
    def of(cls, world: World) -> Led:
        return cls(world.rank, world.size, world.device, world.store)

    def share(self, n: int) -> slice:
        """Everything, of which the other ranks take part in gathering weights only."""
        return slice(0, n)

    def gather(self, value: T) -> list[T]:
        """What the first rank has."""
        return World.gather(self, value)[:1]


ALONE = World()
_joined: list[World] = []  # the world this process has joined, if any


def current() -> World:
    """The world that this process has joined; before that, what torchrun's variables say of it."""
    if _joined:
        return _joined[0]
    rank, size = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))
    if not size.isdecimal() or int(size) == 1:
        return ALONE
    return World(int(rank) if rank.isdecimal() else 0, int(size))


def started_by_torchrun() -> bool:
    """Whether all ranks are certain to be there."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def join() -> None:
    """Wait for the other ranks, if there are any. A second call does nothing.

    Raises UserError if an environment variable of torchrun is missing.
    """
    size = current().size
    if "RANK" in os.environ and "WORLD_SIZE" not in os.environ:
        raise UserError(
            f"RANK={os.environ['RANK']}: is set without WORLD_SIZE; unset it, or start the ranks "
            "with torchrun"
        )
    if size == 1 or _joined:
        return
    import torch
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous

    try:
        store, rank, _ = next(rendezvous("env://"))
    except ValueError as error:  # RANK, MASTER_ADDR or MASTER_PORT is not set
        raise UserError(f"WORLD_SIZE={size}: {error}; start the ranks with torchrun") from error
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT)
    _joined[:] = [World(rank, size, store=store)]


def leave() -> None:
    """Leave the other ranks at the end of a successful run."""
    if current().size > 1:  # in a single process, a process group is vLLM's
        import torch.distributed as dist

        dist.destroy_process_group()


def check_ranks(ranks: int, world: World, arguments: list[str]) -> None:
    """Raise UserError, with the right command, unless `ranks` processes were started."""
    if ranks == world.size:
        return
    start = "env -u WORLD_SIZE python" if ranks == 1 else f"torchrun --nproc-per-node {ranks}"
    raise UserError(
        f"ranks={ranks}: must be the number of processes that were started, {world.size}; "
        f"this starts {ranks}: {start} -m rec_experiments {shlex.join(arguments)}".rstrip()
    )


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The modules of the model's first ModuleList; empty if it has none."""
    from torch import nn

    lists = (module for module in model.modules() if isinstance(module, nn.ModuleList))
    return list(next(lists, nn.ModuleList()))


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor that may be split among the ranks. Every rank must call it."""
    return tensor.full_tensor() if is_split(tensor) else tensor


def digest_of(weights: Mapping[str, Tensor]) -> str:
    """A digest of names, types, shapes and bytes of weights, which may be split among the ranks.
    Every rank must call it."""
    import torch

    digest = hashlib.blake2b(digest_size=16)
    for name, part in weights.items():
        weight = whole(part).detach().cpu().contiguous()
        digest.update(repr((name, weight.dtype, tuple(weight.shape))).encode())
        digest.update(weight.view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def split_like(live: Tensor, rows: Any) -> Any:
    """This rank's rows of a tensor as a tensor that is split as `live` is. Anything else than rows
    of a split tensor is returned unchanged."""
    import torch
    from torch.distributed.tensor import DTensor

    if not is_split(live) or not isinstance(rows, torch.Tensor) or not rows.dim():
        return rows
    mesh, placements = live.device_mesh, live.placements
    return DTensor.from_local(
        rows.to(live.device), mesh, placements, shape=live.shape, stride=live.stride()
    )


def copied_to_host(tree: Any) -> Any:
    """A copy of all tensors in nested dicts and lists: on the host, but of a tensor that is split
    among the ranks on its own device. Tied weights stay tied."""

    def copy(tensor: Tensor) -> Tensor:
        own = tensor.detach()
        return own.clone() if is_split(own) else own.to(HOST, copy=True)

    return _copied(tree, copy)


def _copied(tree: Any, copy: Callable[[Tensor], Tensor]) -> Any:
    """`copy` of every tensor in nested dicts and lists; tensors that share memory share a copy."""
    from torch import Tensor
    from torch.utils._pytree import tree_map_only

    copies: dict[Any, Tensor] = {}

    def once(tensor: Tensor) -> Tensor:
        if (memory := memory_of(tensor)) not in copies:
            copies[memory] = copy(tensor)
        return copies[memory]

    return tree_map_only(Tensor, once, tree)


def memory_of(tensor: Tensor) -> tuple[Any, ...]:
    """Equal for tensors that share their memory, as tied weights do."""
    local = tensor.to_local() if is_split(tensor) else tensor
    return local.untyped_storage()._cdata, local.storage_offset(), local.shape


def is_split(value: Any) -> TypeGuard[DTensor]:
    from torch.distributed.tensor import DTensor  # slow to import, and most commands do not need it

    return isinstance(value, DTensor)


@functools.cache
def _mesh(device_type: str, size: int) -> DeviceMesh:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(device_type, (size,))
