"""The whole runtime over made-up GPUs: ranks are threads, and the streams of the stand-in run late, in random order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from cuda_standin import Record, World, install

import workbench as hvd
from workbench.backends import gpu, gpu_select
from workbench.backends.gpu import CUPY
from workbench.backends.links import LinkBackend
from workbench.backends.threads import ThreadLink, ThreadMeeting
from workbench.entries import entry, submit
from workbench.runtime.handle import Handle
from workbench.runtime.messages import Kind

WAYS = ["nccl", "staged", "mpi"]
COLLECTIVES = ("allReduce", "reduce", "broadcast", "reduceScatter", "allGather", "send", "recv")
QUICK = {"HEARTBEAT_S": "0.1", "FAILED_RANK_GRACE_S": "0.1", "SHUTDOWN_TIMEOUT_S": "5"}


@contextmanager
def made_up(devices: int, way: str = "auto", settings: dict[str, str] | None = None, **standin: Any) -> Iterator[World]:
    """Within the block this machine has GPUs.

    Args:
        devices: how many.
        way: WORKBENCH_GPU_OPERATIONS.
        settings: WORKBENCH_… without that word.
        standin: see :func:`cuda_standin.install`.
    """
    with pytest.MonkeyPatch.context() as patch:
        world = install(patch, devices=devices, **standin)
        patch.setattr(gpu_select, "has_driver", lambda: True)
        patch.setattr(gpu_select, "find_spec", lambda name: True)
        patch.setattr(gpu, "_LONGEST_S", gpu._SHORTEST_S)  # it is asking, not time, that lets a stream of these go on
        for name, text in {**QUICK, **(settings or {}), "GPU_OPERATIONS": way}.items():
            patch.setenv(f"WORKBENCH_{name}", text)
        if way == "mpi":
            ask = gpu_select._ask
            patch.setattr(gpu_select, "_ask", lambda: replace(ask(), aware=True))
            patch.setattr(ThreadMeeting, "backend", lambda self: LinkBackend(MpiLink(self.mailboxes, self.rank)))
        yield world


class MpiLink(ThreadLink):
    """As an MPI that takes the memory of GPUs: it reads and writes at once, and knows nothing of streams."""

    def sendrecv(self, send: Any, dest: int, recv: Any, source: int) -> None:
        """What the memory holds now."""
        send, recv = (getattr(array, "_host", array) for array in (send, recv))
        super().sendrecv(send, dest, recv, source)


def ranks(world: World, n: int, function: Callable[[], Any], timeout_s: float = 20.0) -> list[Any]:
    """What the function returns on every rank, each on its GPU; a world that hangs ends after a while."""

    def one() -> Any:
        world.set_device(hvd.local_rank() % len(world.defaults))
        return function()

    return hvd.run_threads(n, one, timeout_s)


def run(n: int, function: Callable[[], Any], way: str = "nccl", **options: Any) -> tuple[list[Any], Log]:
    """As :func:`ranks`, on a machine with a GPU for each rank; at the end nothing is left, and nothing went wrong."""
    with made_up(**{"devices": n, "way": way, **options}) as world:
        results = ranks(world, n, function)
        world.check_over()
    return results, Log(world.log)


@dataclass
class Log:
    """What was issued on the GPUs, by rank 0 to rank n - 1, without what ``init()`` has the ranks do."""

    records: list[Record]
    collectives: list[dict[str, Any]] = field(init=False)

    def __post_init__(self) -> None:
        self.collectives = [each for record in self.records for each in _calls(record)]

    def count(self, rank: int = 0, communicator: int = 1) -> Counter[str]:
        """How often a rank called what; its first allReduce of each communicator, which only connects, is left out."""
        mine = [
            each["kind"]
            for each in self.collectives
            if each["rank"] == rank and each["communicator"] == communicator
        ]
        return Counter(mine[1:])

    def copies(self, kind: str, device: int = 0) -> int:
        """How many copies between a GPU and the host were issued by the engine, whose memory is pinned."""
        return sum(
            record.verb == "memcpy"
            and record.device == device
            and record.details["kind"] == kind
            and not record.details["pageable"]
            for record in self.records
        )

    def launches(self, device: int = 0) -> int:
        """How often the kernel that packs and unpacks was launched."""
        return sum(record.verb == "kernel" and record.device == device for record in self.records)


def _calls(record: Record) -> list[dict[str, Any]]:
    who = {name: record.details.get(name) for name in ("rank", "communicator")}
    if record.verb == "group":
        return [{**call, **who} for call in record.details["calls"]]
    return [{**record.details, "kind": record.verb, **who}] if record.verb in COLLECTIVES else []


def bfloat16(kind: Kind, bits: Any, name: str, **fields: Any) -> Handle:
    """Submit bits that mean bfloat16, which cupy lacks, as the frameworks do."""
    if kind in (Kind.ALLREDUCE, Kind.BROADCAST):
        fields["target"] = np.empty_like(bits)
    return submit([entry(kind, bits, name, dtype="bfloat16", device="cuda", caller=CUPY, **fields)])[0]


def begin(kind: Kind, array: Any, name: str, **fields: Any) -> Handle:
    """Submit an array that lies on a GPU, for a verb that :mod:`workbench.api` offers only with a wait."""
    if kind in (Kind.ALLREDUCE, Kind.BROADCAST):
        fields["target"] = np.empty_like(array)
    return submit([entry(kind, array, name, device="cuda", caller=CUPY, **fields)])[0]
