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
        self._sizes: dict[int, int] = {}  # by the storage's identity

    def reset(self) -> None:
        """Begin to look for the most anew."""
        self.most = Counter(self.now)

    def see(self, tensor: Tensor) -> None:
        """Count a tensor that was made before."""
        if is_traceable_wrapper_subclass(tensor):
            parts = (getattr(tensor, name) for name in tensor.__tensor_flatten__()[0])
            tree_map_only(Tensor, self.see, list(parts))  # a mesh of devices may be among them
            return
        storage, kind = tensor.untyped_storage(), tensor.device.type
        key, size = id(storage), storage.nbytes()
        if key not in self._sizes:
            weakref.finalize(storage, self._forget, key, kind).atexit = False
        self._count(key, kind, size)

    def _count(self, key: int, kind: str, size: int) -> None:
        self.now[kind] += size - self._sizes.get(key, 0)
        self._sizes[key] = size
        self.most[kind] = max(self.most[kind], self.now[kind])

    def _forget(self, key: int, kind: str) -> None:
        self.now[kind] -= self._sizes.pop(key)

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
            if (key := id(storage)) in self._sizes:
                self._count(key, storage.device.type, size)
            return result

        self._resizing = mock.patch.object(torch.UntypedStorage, "resize_", counted)
        self._resizing.start()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._resizing.stop()
