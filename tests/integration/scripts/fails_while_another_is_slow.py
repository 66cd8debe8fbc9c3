"""Rank 1 is slow amid an allreduce: rank 0 gets its error, and uses its tensor for something else at once.

The word: whether the array lies in memory that all ranks reach ("common") or in the rank's own. Rank 0 prints how many
elements have changed when rank 1 is through as well; rank 1 prints its error, or the first element of its result.
"""

import sys
import time
from collections.abc import Callable

import numpy as np

import workbench as hvd
from workbench.collectives import reduction, shared_memory
from workbench.errors import CollectiveError
from workbench.transport.shm import cross_memory

SLOW_S, LENGTH = 6.0, 1 << 18  # longer than the deadline, and than rank 0 is asked who is dead

hvd.init()
array = hvd.empty(LENGTH) if sys.argv[1] == "common" else np.empty(LENGTH, np.float32)
for _ in range(3):
    array.fill(1.0)
    hvd.allreduce_(array, name="x", op=hvd.Sum)
    assert (array == hvd.size()).all()

array.fill(1.0)
if hvd.rank() == 1:
    fold, combine = reduction.fold, reduction.Reduction.combine
    slow = [SLOW_S]  # once

    def slowly(function: Callable[..., None]) -> Callable[..., None]:
        """The function, but late the first time."""

        def late(*args: object, **options: object) -> None:
            if slow:
                time.sleep(slow.pop())
            function(*args, **options)

        return late

    shared_memory.fold = cross_memory.fold = slowly(fold)
    reduction.Reduction.combine = property(lambda self: slowly(combine.fget(self)))
try:
    hvd.allreduce_(array, name="x", op=hvd.Sum)
except CollectiveError as error:
    said = f"{type(error).__name__}: {error}"
else:
    said = f"no error, {array[0]}"
array.fill(7.0)
print("said", said, flush=True)
time.sleep(SLOW_S + 2.0)
print("changed", int((array != 7.0).sum()), flush=True)
