"""The ranks of one machine share memory, or none of them does, for the same reason on all."""

from __future__ import annotations

import dataclasses
import gc
import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from memory_world import nodes
from thorough import once_more

from workbench.collectives.reduction import Reduction
from workbench.config import Settings
from workbench.errors import LaunchError
from workbench.transport import select
from workbench.transport.host import threads
from workbench.transport.host.threads import ThreadBootstrap, ThreadLink, spawn
from workbench.transport.shm import node as node_module
from workbench.transport.shm.arena import OwnArena, Ticket
from workbench.transport.shm.node import Node, join_memory

Change = Callable[[Ticket], Ticket | None]


def a_dead_process(ticket: Ticket) -> Ticket:
    """As if the process were in another container: its number is nobody's here."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    return dataclasses.replace(ticket, pid=gone.pid)


WRONG: dict[str, tuple[Change, str]] = {
    "another token": (lambda ticket: dataclasses.replace(ticket, token=bytes(16)), "could not be opened.*another one"),
    "a dead process": (a_dead_process, "could not be opened.*No such file"),
    "another size": (lambda ticket: dataclasses.replace(ticket, size=1 << 60), "could not be opened"),
    "no memory": (lambda ticket: None, "another rank has no shared memory"),
}


def left() -> int:
    """Arenas that this process has open or mapped; those of earlier tests wait for the garbage collection."""
    gc.collect()
    files = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the one of the listing itself is closed by now
            files.append(os.readlink(f"/proc/self/fd/{name}"))
    return sum("memfd:workbench" in text for text in [*files, *Path("/proc/self/maps").read_text().splitlines()])


def join(n: int, change: Callable[[int, Any], Any]) -> list[tuple[bool, str]]:
    """(is there a node?, the reason) by rank; ``change`` alters what a rank tells the others first."""

    def run(thread: ThreadLink) -> tuple[bool, str]:
        bootstrap, said = ThreadBootstrap(thread.mailboxes, thread.rank), []

        def exchange(value: Any) -> list[Any]:
            said.append(value)
            return bootstrap.exchange(change(thread.rank, value) if len(said) == 1 else value)

        node, problem = join_memory(exchange, thread.rank, 0, timeout_s=5)
        return node is not None, problem

    return spawn(n, run, timeout_s=20)


@pytest.mark.parametrize("who", [once_more(0), 1, once_more(2)])
@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_on_one_rank_is_the_reason_on_all(what: str, who: int) -> None:
    """A rank whose memory cannot be opened: all go without, with the same words, and nothing stays open or mapped."""
    change, text = WRONG[what]
    before = left()
    found = join(3, lambda rank, ticket: change(ticket) if rank == who else ticket)
    assert {there for there, _ in found} == {False}
    assert len({reason for _, reason in found}) == 1
    assert re.search(text, found[0][1]), found[0][1]
    assert left() == before


def test_a_system_without_futex_or_memfd(monkeypatch: pytest.MonkeyPatch) -> None:
    """There the ranks go without, and the reason says what there is not."""
    monkeypatch.setattr(node_module.futex, "available", False)
    assert join(2, lambda rank, ticket: ticket) == [(False, "there is no futex on this system")] * 2
    monkeypatch.undo()
    monkeypatch.delattr(os, "memfd_create")
    for there, reason in join(2, lambda rank, ticket: ticket):
        assert not there
        assert "no shared memory could be made: module 'os' has no attribute 'memfd_create'" in reason


def test_more_ranks_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The header has a place for each rank's count; with more ranks than places they go without."""
    monkeypatch.setattr(node_module, "_MOST_RANKS", 2)
    assert join(2, lambda rank, ticket: ticket) == [(True, "")] * 2
    assert join(3, lambda rank, ticket: ticket) == [(False, "too many ranks")] * 3


def test_nobody_can_open_it_afterwards() -> None:
    """Once all ranks have it, the memory is closed to every other process."""

    def run(node: Node) -> Ticket:
        assert isinstance(node.own, OwnArena)
        return node.own.ticket

    for ticket in nodes(2, run):
        target = Path(f"/proc/{ticket.pid}/fd/{ticket.file}")
        assert not target.exists() or "memfd:workbench" not in os.readlink(target)


# --- who decides --------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _no_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where ranks would be connected by MPI these threads are by their mailboxes."""
    monkeypatch.setattr(select, "_flat", lambda name, bootstrap, settings: threads.connect(bootstrap, settings))


def over(settings: list[Settings], machines: list[str] | None = None) -> list[str]:
    """The backend's name by rank; with shared memory it is tried out."""

    def run(thread: ThreadLink) -> str:
        bootstrap = ThreadBootstrap(thread.mailboxes, thread.rank)
        bootstrap.node = machines[thread.rank] if machines else "here"
        bootstrap.backend = "mpi"  # as ranks that are processes
        backend = select.connect(bootstrap, settings[thread.rank])
        if backend.name == "SHM":
            for nbytes in (80, 8000, 80_000):  # whether it fits into the buffer must be the same everywhere
                array = backend.shared.buffer(nbytes).view("float64")
                array[:] = backend.rank
                backend.collectives.allreduce(array, Reduction("sum", "float64"))
                assert (array == sum(range(backend.size))).all()
        return backend.name

    return spawn(len(settings), run, timeout_s=20)


def test_ranks_of_one_machine_use_its_memory() -> None:
    """By default, and where it is asked for; of several machines none does, and alone there is nobody to share with."""
    assert over([Settings()] * 3) == ["SHM"] * 3
    assert over([Settings(backend="shm")] * 2) == ["SHM"] * 2
    assert over([Settings(backend="mpi")] * 2) == ["THREADS"] * 2
    assert over([Settings()] * 2, ["one", "other"]) == ["THREADS"] * 2
    assert over([Settings()]) == ["THREADS"]


def test_who_insists_is_told_why_it_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """backend=shm without shared memory is a LaunchError with the reason and the cure."""
    monkeypatch.setattr(node_module.futex, "available", False)
    with pytest.raises(LaunchError, match=r"WORKBENCH_BACKEND=shm, but there is no futex on this system\. Unset it"):
        over([Settings(backend="shm")] * 2)
    assert over([Settings()] * 2) == ["THREADS"] * 2


@pytest.mark.parametrize("first", [0, 100, 10_000, 1 << 20])
def test_rank_0_s_settings_count(first: int) -> None:
    """Ranks whose own fusion thresholds or backends differ take the same way nevertheless, with the right sums."""
    others = [Settings(fusion_threshold_bytes=each) for each in (5000, 0, 1 << 20)]
    assert over([Settings(fusion_threshold_bytes=first), *others]) == ["SHM"] * 4
    assert over([Settings(), Settings(backend="mpi")]) == ["SHM"] * 2
    assert over([Settings(backend="mpi"), Settings()]) == ["THREADS"] * 2
