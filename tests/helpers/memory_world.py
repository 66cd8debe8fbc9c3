"""Ranks that are threads of this process, with memory in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from workbench.collectives.reduction import Reduction, fold, narrow, wire_dtype
from workbench.core.backend.base import Backend
from workbench.transport.host.threads import ThreadBootstrap, ThreadLink, spawn
from workbench.transport.links import link_backend
from workbench.transport.shm.backend import reserved_bytes, shm_backend
from workbench.transport.shm.node import Node, join_memory

T = TypeVar("T")
FUSION_BYTES = 1 << 20
DTYPES = [*["bool", "uint8", "int8", "int16", "uint16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]]


def nodes(n: int, function: Callable[[Node], T], timeout_s: float = 20.0, reserved: int = 0) -> list[T]:
    """Run a function on every rank of a node; its results by rank."""

    def run(thread: ThreadLink) -> T:
        bootstrap = ThreadBootstrap(thread.mailboxes, thread.rank)
        node, problem = join_memory(bootstrap.exchange, thread.rank, reserved, timeout_s)
        assert node, problem
        return function(node)

    return spawn(n, run, timeout_s)


def backends(
    n: int, function: Callable[[Backend], T], fusion_bytes: int = FUSION_BYTES, remote: bool = False
) -> list[T]:
    """Run a function on every rank's backend; its results by rank. ``remote``: with each other's memory, too."""

    def run(thread: ThreadLink) -> T:
        bootstrap = ThreadBootstrap(thread.mailboxes, thread.rank)
        node, problem = join_memory(bootstrap.exchange, thread.rank, reserved_bytes(fusion_bytes), timeout_s=20)
        assert node, problem
        node.pids = node.pids if remote else []
        return function(shm_backend(link_backend(thread), node, fusion_bytes))

    return spawn(n, run, timeout_s=40)


def drawn(rank: int, length: int, dtype: str, seed: int = 0) -> np.ndarray:
    """A rank's data, as it travels: floats for which the order of additions matters, integers that overflow."""
    dice = np.random.default_rng([seed, rank])
    if dtype == "bool":
        return dice.integers(0, 2, length).astype(bool)
    if "int" in dtype:
        info = np.iinfo(dtype)
        return dice.integers(info.min, info.max, length, endpoint=True, dtype=dtype)
    values = dice.normal(size=length) * 2.0 ** dice.integers(-6, 6, length)
    return narrow(values.astype(np.float32)) if dtype == "bfloat16" else values.astype(dtype)


def serial(ranks: Sequence[int], length: int, reduction: Reduction, seed: int = 0) -> np.ndarray:
    """What one thread makes of these ranks' data, one after the other."""
    out = np.empty(length, wire_dtype(reduction.dtype))
    with np.errstate(all="ignore"):
        fold([drawn(rank, length, reduction.dtype, seed) for rank in ranks], reduction, out)
    return out


def placed(backend: Backend, array: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """A copy of the array in memory that all can reach, and the places of all ranks' copies."""
    copy: Any = backend.shared.allocate(array.nbytes).view(array.dtype)
    copy[:] = array
    offsets = np.zeros(backend.size, np.int64)
    offsets[backend.rank] = backend.shared.offset(copy)
    backend.collectives.allgather(offsets, [1] * backend.size)
    return copy, offsets.tolist()
