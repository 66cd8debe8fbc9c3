"""DDP's buckets, in memory that all ranks of the machine reach: reduced where they lie."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from workbench.job import api
from workbench.job.context import HOLDER

_LEAST_BYTES = 256 << 10
_PART = 8  # of /dev/shm, which in a container often has 64 MB: so much is left beside the buckets of all ranks
_HERE = str(Path(__file__).parent)
_DDP = torch.autograd.graph.__file__, torch.nn.parallel.distributed.__file__


def called_by_ddp() -> bool:
    """Was a group's method called by DDP's C++, in ``backward()`` or before? No Python code but ours stands between."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return frame.f_code.co_filename in _DDP


def share(bucket: torch.Tensor) -> None:
    """Move a bucket into shared memory, as ``Tensor.share_memory_()`` does, and let the other ranks reach it.

    Only where nobody but DDP has it: an array of ``Tensor.numpy()`` would be left behind, and no shared tensor can
    change its size.
    """
    if bucket.device.type != "cpu" or bucket.nbytes < _LEAST_BYTES or bucket.is_shared():
        return
    storage = bucket.untyped_storage()
    try:
        free = shutil.disk_usage("/dev/shm").free
        if _PART * api.local_size() * storage.nbytes() > free:  # workers of a DataLoader need some of it, too
            return
        file, _ = storage._share_fd_cpu_()
    except (OSError, RuntimeError):  # there is none, or another process was faster
        return
    weak = StorageWeakRef(storage)
    shared = HOLDER.get().sets.everybody.shared
    shared.lend(storage.data_ptr(), storage.nbytes(), file, lambda: not weak.expired())
