"""The processes that train one model together, and the few things they tell each other.

torchrun starts `ranks` of them. Weights, gradients and the optimizer's state are split among them
(FSDP2); each draws its share of a batch and computes its share of the gradient. What they must
agree on they gather, so that every rank knows the whole batch. One process alone is a world of
size 1, in which all of this is trivial.
"""

from __future__ import annotations

import functools
import os
import shlex
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, TypeGuard, TypeVar

from rec_experiments.errors import UserError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.distributed_c10d import Store
    from torch.distributed.tensor import DTensor

# How long a rank waits for the others before it gives up: longer than an evaluation may take.
PATIENCE = timedelta(hours=1)
HOST = "cpu"  # where weights wait that nothing computes with; the plan of memory counts it apart
SHARD = "shard"  # marks a rank's part of a tensor in a packed state

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class World:
    """This process as one of `size` that train together: its rank and the device it trains on.

    store: what torchrun keeps for all ranks; None for a process alone.
    """

    rank: int = 0
    size: int = 1
    device: torch.device | str = "cpu"
    store: Store | None = field(default=None, repr=False, compare=False)

    @property
    def leads(self) -> bool:
        """Whether this is the rank that writes the run's files and speaks to people."""
        return self.rank == 0

    @property
    def mesh(self) -> DeviceMesh:
        """All ranks, along one dimension."""
        import torch

        return _mesh(torch.device(self.device).type, self.size)

    def share(self, n: int) -> slice:
        """Which of n things this rank does. The shares are consecutive and differ by at most 1."""
        return slice(n * self.rank // self.size, n * (self.rank + 1) // self.size)

    def rows(self, n: int) -> slice:
        """Which of the n rows of a tensor this rank has, if it is split."""
        most = -(-n // self.size)
        return slice(min(n, self.rank * most), min(n, (self.rank + 1) * most))

    def part(self, tensor: Tensor) -> Tensor:
        """This rank's part of a tensor: of one that is split, or of one that every rank has whole,
        the rows that would be this rank's if it were split."""
        if is_split(tensor):
            return tensor.to_local()
        if self.size == 1:
            return tensor
        return tensor[self.rows(len(tensor))]

    def gather(self, value: T) -> list[T]:
        """Every rank's value, in the order of ranks, on every rank. Tensors must be on the CPU."""
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
        """Whether the failure that this rank has seen is the run's first.

        The others then fail for want of this rank, which is nothing to report.
        """
        if self.store is None:
            return True
        return self.store.compare_set("failed first", "", str(self.rank)) == str(self.rank).encode()

    def split(self, model: nn.Module, compute_dtype: torch.dtype | None = None) -> nn.Module:
        """The model on this rank's device, its parameters split among the ranks.

        Gradients come out as sums over the ranks: a loss is divided by the denominators of the
        whole mini-batch on each of them, so nothing is left to average. compute_dtype: what
        parameters are gathered in, if it is smaller than their own; gradients are summed in their
        own. None for their own.
        """
        model.to(self.device)
        if self.size > 1:
            self.shard(model, compute_dtype)
        return model

    def shard(self, model: nn.Module, compute_dtype: torch.dtype | None = None) -> None:
        """Split the parameters of a model that is on this rank's device, in place."""
        from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

        own = next(model.parameters()).dtype
        precision = MixedPrecisionPolicy()
        if compute_dtype is not None and compute_dtype.itemsize < own.itemsize:
            precision = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=own)

        # Parameters go back to their shards after each forward pass, also those of the root: one
        # without a backward pass would leave them whole, and the next pass would not see the
        # optimizer's step.
        for module in (*decoder_layers(model), model):
            fully_shard(module, mesh=self.mesh, reshard_after_forward=True, mp_policy=precision)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)  # gloo knows no other

    def unpack(self, tree: Any) -> Any:
        """The inverse of `pack`, on this rank's device."""
        if not isinstance(tree, dict):
            return tree
        if SHARD not in tree:
            return {key: self.unpack(value) for key, value in tree.items()}
        import torch
        from torch.distributed.tensor import DTensor, Shard

        return DTensor.from_local(
            tree[SHARD].to(self.device),
            self.mesh,
            [Shard(0)],
            run_check=False,
            shape=torch.Size(tree["shape"]),
            stride=tree["stride"],
        )


ALONE = World()


class _Joined:
    """What this process is part of."""

    world: ClassVar[World] = ALONE


def join() -> World:
    """Meet the other ranks, if torchrun started this process. Call it once, before all else.

    Raises UserError if the environment is not what torchrun makes it.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size > 1:
        import torch
        import torch.distributed as dist
        from torch.distributed.rendezvous import rendezvous

        try:
            store, rank, _ = next(rendezvous("env://"))
        except ValueError as error:  # RANK, MASTER_ADDR or MASTER_PORT is not set
            raise UserError(f"WORLD_SIZE={size}: {error}; start the ranks with torchrun") from error
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENCE)
        _Joined.world = World(rank, size, store=store)
    return _Joined.world


def current() -> World:
    """The world that this process has joined, or that of a process alone."""
    return _Joined.world


def leave() -> None:
    """Part from the other ranks at the end of a run that went well."""
    if current().size > 1:  # of a process alone, a process group is vLLM's, which ends it itself
        import torch.distributed as dist

        dist.destroy_process_group()


def check_ranks(ranks: int, world: World, arguments: list[str]) -> None:
    """Raise UserError, with the right command, unless as many ranks run as the experiment has."""
    if ranks == world.size:
        return
    start = "python" if ranks == 1 else f"torchrun --nproc-per-node {ranks}"
    raise UserError(
        f"ranks={ranks}: must be the number of processes that were started, {world.size}; "
        f"{ranks} are started by: {start} -m rec_experiments {shlex.join(arguments)}".rstrip()
    )


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The first list of modules; empty if there is none."""
    from torch import nn

    lists = (module for module in model.modules() if isinstance(module, nn.ModuleList))
    return list(next(lists, nn.ModuleList()))


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor that may be split among the ranks. Every rank must call it."""
    return tensor.full_tensor() if is_split(tensor) else tensor


def kept(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """A copy of the weights that waits: on the host, or, of weights that are split, each rank's
    part where it is. Weights that are tied stay so."""
    copies: dict[Any, Tensor] = {}
    for tensor in weights.values():
        if (memory := memory_of(tensor)) not in copies:
            copies[memory] = _kept(tensor)
    return {name: copies[memory_of(tensor)] for name, tensor in weights.items()}


def copied_to_host(tree: Any) -> Any:
    """A tree of dicts and lists with a copy of each tensor on the host; those that are tied stay
    so."""
    from torch import Tensor
    from torch.utils._pytree import tree_map_only

    copies: dict[Any, Tensor] = {}

    def copied(tensor: Tensor) -> Tensor:
        if (memory := memory_of(tensor)) not in copies:
            copies[memory] = tensor.detach().to(HOST, copy=True)
        return copies[memory]

    return tree_map_only(Tensor, copied, tree)


def memory_of(tensor: Tensor) -> tuple[Any, ...]:
    """What weights have in common that are tied."""
    local = tensor.to_local() if is_split(tensor) else tensor
    return local.untyped_storage()._cdata, local.storage_offset(), local.shape


def _kept(tensor: Tensor) -> Tensor:
    return tensor.detach().clone() if is_split(tensor) else tensor.detach().to(HOST, copy=True)


def pack(tree: Any) -> Any:
    """A tree of dicts with every split tensor replaced by this rank's part of it, to be saved."""
    if is_split(tree):
        return {SHARD: tree.to_local(), "shape": tuple(tree.shape), "stride": tree.stride()}
    if isinstance(tree, dict):
        return {key: pack(value) for key, value in tree.items()}
    return tree


def is_split(value: Any) -> TypeGuard[DTensor]:
    from torch.distributed.tensor import DTensor  # slow to import; what reads no run needs it not

    return isinstance(value, DTensor)


@functools.cache
def _mesh(device_type: str, size: int) -> DeviceMesh:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(device_type, (size,))
