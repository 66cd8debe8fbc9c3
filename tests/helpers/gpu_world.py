"""The whole runtime over made-up GPUs: ranks are threads, and the streams of the stand-in run late, in random order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from cuda_standin import Record, World, install
from thorough import quick

import workbench as hvd
from workbench.core.backend.base import Backend
from workbench.core.handle import Handle
from workbench.core.messages import Kind
from workbench.core.pending import Entry
from workbench.job.entries import entry, submit
from workbench.transport import polling
from workbench.transport.gpu import device as gpu
from workbench.transport.gpu import select as gpu_select
from workbench.transport.gpu import staged
from workbench.transport.gpu.device import CUPY
from workbench.transport.host import threads
from workbench.transport.host.threads import ThreadLink
from workbench.transport.links import link_backend

WAYS = ["nccl", "staged", "mpi"]
# For what is done before and after a way moves anything.
ONE_WAY = pytest.mark.parametrize("way", quick(WAYS, "nccl"))
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
        patch.setattr(
            polling, "_LONGEST_S", polling._SHORTEST_S
        )  # it is asking, not time, that lets a stream of these go on
        for name, text in {**QUICK, **(settings or {}), "GPU_OPERATIONS": way}.items():
            patch.setenv(f"WORKBENCH_{name}", text)
        if way == "mpi":
            ask = gpu_select._ask
            patch.setattr(gpu_select, "_ask", lambda: replace(ask(), aware=True))
            patch.setattr(threads, "connect", over_mpi)
        yield world


def over_mpi(bootstrap: threads.ThreadBootstrap, settings: object) -> Backend:
    """The host's backend, as an MPI that takes the memory of GPUs makes it."""
    return link_backend(MpiLink(bootstrap.mailboxes, bootstrap.rank))


def slow_bus(patch: pytest.MonkeyPatch) -> None:
    """Copies from the host take their time."""
    at_once = gpu.Gpu.copy_async

    def copy_async(self: gpu.Gpu, *args: Any) -> None:
        if args[-1] == staged._TO_GPU:
            self.stream.delay(12)
        at_once(self, *args)

    patch.setattr(gpu.Gpu, "copy_async", copy_async)


class MpiLink(ThreadLink):
    """As an MPI that takes the memory of GPUs: it reads and writes at once, and knows nothing of streams."""

    name = "MPI"

    def sendrecv(self, send: Any, dest: int, recv: Any, source: int) -> None:
        """What the memory holds now."""
        send, recv = (getattr(array, "_host", array) for array in (send, recv))
        super().sendrecv(send, dest, recv, source)


def ranks(world: World, n: int, function: Callable[[], Any], timeout_s: float = 45.0) -> list[Any]:
    """What the function returns on every rank, each on its GPU; a world that hangs ends after a while.

    Where ranks share a GPU each has a current stream of its own, as ranks have that are processes. Threads have one
    default stream, and what comes after one's wait for the others is behind it.
    """

    def one() -> Any:
        devices = len(world.defaults)
        world.set_device(hvd.local_rank() % devices)
        with world.cupy.cuda.Stream(non_blocking=True) if n > devices else nullcontext():
            return function()

    return hvd.run_threads(n, one, timeout_s)


def run(n: int, function: Callable[[], Any], way: str = "nccl", **options: Any) -> tuple[list[Any], Log]:
    """As :func:`ranks`, on a machine with a GPU for each rank; at the end nothing is left, and nothing went wrong."""
    with made_up(**{"devices": n, "way": way, **options}) as world:
        results = ranks(world, n, function)
        world.run_all()
        world.check_over()
    return results, Log(world.log)


@dataclass
class Log:
    """What was issued on the GPUs."""

    records: list[Record]

    def calls(self, rank: int = 0, communicator: int = 1) -> list[dict[str, Any]]:
        """NCCL's calls of a rank, without the first of each communicator, which only connects the ranks."""
        found = [each for record in self.records for each in _calls(record)]
        return [each for each in found if (each["rank"], each["communicator"]) == (rank, communicator)][1:]

    def count(self, rank: int = 0, communicator: int = 1) -> Counter[str]:
        """How often a rank called what."""
        return Counter(each["kind"] for each in self.calls(rank, communicator))

    def issued(self, rank: int = 0) -> dict[str, int]:
        """How often a rank issued what: NCCL's calls, and copies between its GPU and pinned memory."""
        mine = [record for record in self.records if record.device == rank]
        copies = [record.details["kind"] for record in mine if _pinned(record)]
        return dict(self.count(rank) + Counter(copies))

    def launches(self, rank: int = 0) -> int:
        """How often the kernel that packs and unpacks was launched."""
        return sum(record.verb == "kernel" and record.device == rank for record in self.records)


def _pinned(record: Record) -> bool:
    return record.verb == "memcpy" and not record.details["pageable"]


def _calls(record: Record) -> list[dict[str, Any]]:
    who = {name: record.details.get(name) for name in ("rank", "communicator")}
    if record.verb == "group":
        return [{**call, **who} for call in record.details["calls"]]
    return [{**record.details, "kind": record.verb, **who}] if record.verb in COLLECTIVES else []


def begin(kind: Kind, array: Any, name: str | None = None, **fields: Any) -> Handle:
    """Submit an array on a GPU with whatever the frameworks may say of it, such as that its bits mean bfloat16."""
    return submit([made(kind, array, name, **fields)])[0]


def made(kind: Kind, array: Any, name: str | None = None, **fields: Any) -> Entry:
    """As :func:`begin`, for a list: what all ranks submit at once travels together, on a busy machine, too."""
    if kind in (Kind.ALLREDUCE, Kind.BROADCAST) and array is not None:
        fields.setdefault("target", np.empty_like(array))
    return entry(kind, array, name, device="cuda", caller=CUPY, **fields)
