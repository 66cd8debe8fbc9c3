"""Memory that several ranks can reach."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from workbench.core.buckets import Bucket
from workbench.core.handle import Handle
from workbench.core.messages import Kind
from workbench.core.pending import Entry
from workbench.job import api
from workbench.job.api import Array
from workbench.job.arrays import given, on_gpu
from workbench.job.context import HOLDER

ALONE_BYTES = 4 << 20  # from here on copying a gradient costs more than a request of its own
_LOOK_AGAIN_S = 0.001


def empty(shape: int | Sequence[int], dtype: str = "float32") -> Array:
    """An array in memory that all ranks of the machine can reach: reduced in place there, nothing is copied.

    In-place verbs, such as ``workbench.torch.allreduce_`` on ``torch.from_numpy`` of it, copy nothing where
    every rank's tensor is in such memory; without shared memory it is an ordinary array. Its values are arbitrary.

    Example:
        >>> api.run_threads(2, lambda: empty((2, 3)).shape)
        [(2, 3), (2, 3)]
    """
    itemsize, size = np.dtype(dtype).itemsize, int(np.prod(shape))
    return HOLDER.get().sets.everybody.shared.allocate(size * itemsize).view(dtype).reshape(shape)


def zeros(length: int, dtype: str = "float32") -> Array:
    """As :func:`empty`, all 0."""
    array = empty(length, dtype)
    array[...] = 0
    return array


class BucketMemory:
    """A bucket's memory. It is used again when nobody looks at it any more; until then there is another one.

    Args:
        layout: of the bucket.
        dtype: numpy's, of its elements.
        lent: a large gradient, which has a bucket of its own, may be reduced where it lies, if it is writeable.

    Attributes:
        name: of the collective.
    """

    def __init__(self, layout: Bucket, dtype: Any, lent: bool) -> None:
        self._layout, self._dtype = layout, dtype
        alone = len(layout.pieces) == 1
        # To one piece alone nothing is added: it has the same shape where it is lent and where it is copied.
        self._length = layout.pieces[0].length if alone else layout.flags
        self._lent = lent and alone and self._length * dtype.itemsize >= ALONE_BYTES
        self.name = f"gradients.{layout.names[0] if alone else layout.name}"
        self._bytes: list[tuple[Array, weakref.ref[Array] | None]] = []
        self._array: Array | None = None
        self._parts: dict[str, Array] = {}
        self._entry: Entry | None = None
        self._borrowed: weakref.ref[Array] | None = None

    def parts(self, gradients: Mapping[str, Array]) -> dict[str, Array]:
        """The pieces of this step's array, by name, in the shapes of the gradients."""
        if self._array is None:
            like = gradients[self._layout.names[0]]
            # On a GPU it is always new: the pool there knows best what is free in the order of its streams.
            self._use(np.zeros_like(like, shape=self._length) if on_gpu(like) else self._free(), gradients)
        return self._parts

    def borrow(self, gradients: Mapping[str, Array]) -> bool:
        """Take the gradient's own memory for this step, if it may be."""
        if not self._lent:
            return False
        gradient = gradients[self._layout.names[0]]
        if not isinstance(gradient, np.ndarray) or not (gradient.flags.writeable and gradient.flags.c_contiguous):
            return False
        # Over a memoryview, as in _free(): so it can be seen when the engine looks at it no more.
        seen: Array = np.frombuffer(gradient.reshape(-1).view(np.uint8).data, np.uint8)
        self._borrowed = weakref.ref(seen)
        self._use(seen.view(self._dtype), gradients)
        return True

    def entry_of(self, fields: Mapping[str, Any]) -> Entry:
        """This step's array, to be reduced in place."""
        assert self._array is not None
        about = {"target": self._array, **given(self._array)[1], **fields}
        self._entry = api.entry(Kind.ALLREDUCE, self._array, self.name, **about)
        return self._entry

    def give_back(self) -> None:
        """Leave memory that was borrowed: what is still in flight gets a copy, as other ranks may count on it."""
        seen, entry = self._borrowed, self._entry
        self.let_go()
        if seen is None or entry is None:
            return
        assert entry.source is not None
        entry.source = entry.target = entry.source.copy()
        while seen() is not None and not entry.handle.poll():  # the engine is at it, and so are all other ranks
            time.sleep(_LOOK_AGAIN_S)

    def let_go(self) -> None:
        self._array, self._parts, self._entry, self._borrowed = None, {}, None, None

    def _use(self, array: Array, gradients: Mapping[str, Array]) -> None:
        self._array = array
        flat = self._layout.parts(array)
        self._parts = {name: part.reshape(gradients[name].shape) for name, part in flat.items()}

    def _free(self) -> Array:
        at = next((i for i, (_, seen) in enumerate(self._bytes) if seen is None or seen() is None), len(self._bytes))
        if at == len(self._bytes):  # zeros, for what lies between two gradients is reduced, too
            self._bytes.append((zeros(self._length * self._dtype.itemsize, "uint8"), None))
        raw = self._bytes[at][0]
        # Over a memoryview: views of this array keep *it* alive, so its end says that there are none.
        seen: Array = np.frombuffer(raw.data, np.uint8)
        self._bytes[at] = raw, weakref.ref(seen)
        return seen.view(self._dtype)


class BucketLimit:
    """How large a bucket may be in the next step, where autotune may change it.

    The ranks' own threads are not equally far when the engines change to a new choice. So each handle has the choice
    that was in force when it was finished (:attr:`workbench.core.engine.Engine.tuned`), which is the same on every
    rank, and the newest one of a step's handles holds from the next step on. What only some ranks may know is left
    out: a step that a rank was spared by ``join()``, and whatever began before another job or a failed cell.
    """

    def __init__(self) -> None:
        self._latest: tuple[int, int] | None = None
        self._job: Any = None
        self._failures = 0

    @property
    def current(self) -> bool:
        """Has the latest step begun in this job, and since its last failed cell?"""
        context = HOLDER.find()
        return context is not None and self._job is context.world and self._failures == context.failures

    def __call__(self) -> int:
        """In bytes; 0: each gradient is reduced on its own."""
        return bucket_bytes(self._latest[1] if self._latest and self.current else None)

    def begin(self) -> None:
        context = HOLDER.find()
        if context and not self.current:
            self._latest, self._job, self._failures = None, context.world, context.failures

    def update_from(self, handles: Iterable[Handle]) -> None:
        """The step has ended well with these, on all ranks."""
        context = HOLDER.get()
        if not (context.settings.autotune and self.current and self()):
            return
        if context.tuner:
            context.tuner.mark_relevant("bucket_bytes")
        known = [handle.tuned for handle in handles]
        if known and None not in known:
            self._latest = max(each for each in known if each)


def bucket_bytes(wanted: int | None = None) -> int:
    """How large a bucket of gradients may be; 0: each gradient is reduced on its own.

    Args:
        wanted: another size than the job is set to.
    """
    settings = HOLDER.get().settings
    return min(settings.bucket_bytes if wanted is None else wanted, settings.fusion_threshold_bytes)
