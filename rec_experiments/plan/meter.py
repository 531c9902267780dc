"""Bytes of tensors that are alive, and the most there have been, by device."""

import weakref
from collections import Counter
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_map_only


class Meter(TorchDispatchMode):
    """Counts every storage that an operation within makes, until nothing refers to it any more.

    now, most: bytes by type of device, such as cpu. `most` is since the last `reset`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self._alive: dict[int, tuple[str, int]] = {}  # device and bytes, by the storage's identity

    def reset(self) -> None:
        """Begin to look for the most anew."""
        self.most = Counter(self.now)

    def see(self, tensor: Tensor) -> None:
        """Count a tensor that was made before."""
        if is_traceable_wrapper_subclass(tensor):
            parts = (getattr(tensor, name) for name in tensor.__tensor_flatten__()[0])
            tree_map_only(Tensor, self.see, list(parts))  # a mesh of devices may be among them
            return
        storage = tensor.untyped_storage()
        key = id(storage)
        if key not in self._alive:
            self._alive[key] = tensor.device.type, 0
            weakref.finalize(storage, self._forget, key).atexit = False
        self._count(key, storage.nbytes())

    def _count(self, key: int, size: int) -> None:
        """A storage has now this size. Its device is that of its tensor: those of tensors without
        values are all on another one."""
        kind, before = self._alive[key]
        self._alive[key] = kind, size
        self.now[kind] += size - before
        self.most[kind] = max(self.most[kind], self.now[kind])

    def _forget(self, key: int) -> None:
        self._count(key, 0)
        del self._alive[key]

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        tree_map_only(Tensor, self.see, result)
        return result

    def __enter__(self) -> "Meter":
        resize = torch.UntypedStorage.resize_

        def counted(storage: torch.UntypedStorage, size: int) -> Any:  # as FSDP frees and takes
            result = resize(storage, size)
            if id(storage) in self._alive:
                self._count(id(storage), size)
            return result

        self._resizing = mock.patch.object(torch.UntypedStorage, "resize_", counted)
        self._resizing.start()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._resizing.stop()
