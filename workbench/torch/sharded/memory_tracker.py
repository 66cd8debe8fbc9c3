"""How many bytes of tensors are alive, and how many were at most: counted, not computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class MemoryTracker(TorchDispatchMode):
    """Within it, the memory of every tensor that an operation takes or makes is followed until it is freed.

    It looks after each operation, so what comes and goes within one is not seen; nor is memory of which torch does not
    know, as that in which ranks exchange data. Views are counted once. It makes training several times slower.

    Args:
        known: tensors that are there already.

    Attributes:
        peak: the most bytes that were alive.

    Example:
        >>> x = torch.ones(1000)
        >>> with MemoryTracker([x]) as live:
        ...     y = (x + 1) * 2  # x + 1 is freed when y is made
        >>> live.now(), live.peak
        (8000, 12000)
    """

    def __init__(self, known: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self._seen: dict[int, StorageWeakRef] = {}
        self._follow(known)
        self.peak = self.now()

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if any(each.__module__.startswith("torch.distributed.tensor") for each in types):
            return NotImplemented  # a DTensor: its local tensor comes here next
        result = func(*args, **(kwargs or {}))
        self._follow(tree_leaves((args, kwargs, result)))
        self.look()
        return result

    def look(self) -> int:
        """The bytes that are alive now, which may be the most."""
        now = self.now()
        self.peak = max(self.peak, now)
        return now

    def now(self) -> int:
        here: list[tuple[int, int]] = []
        for key, seen in list(self._seen.items()):
            storage = torch.UntypedStorage._new_with_weak_ptr(seen.cdata)
            if storage is None:
                del self._seen[key]
            else:
                here.append((storage.data_ptr(), storage.nbytes()))
        total, end = 0, 0
        for start, nbytes in sorted(here):  # several storages may be over one memory: a numpy array's parts are
            total += max(0, start + nbytes - max(start, end))
            end = max(end, start + nbytes)
        return total

    def _follow(self, values: Iterable[Any]) -> None:
        for value in values:
            if isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.layout is torch.strided:
                with torch._C.DisableTorchFunctionSubclass():
                    storage = value.untyped_storage()
                if storage._cdata not in self._seen:
                    self._seen[storage._cdata] = StorageWeakRef(storage)
