"""N ranks as threads of one process: for lessons, tests and first steps, with the real algorithms."""

from __future__ import annotations

import queue
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from workbench.core.backend.base import SLOT_BYTES, Array, Backend
from workbench.errors import DeadlineError, PeerLostError
from workbench.transport.bootstrap.base import unless_given_up
from workbench.transport.bootstrap.values import Problem
from workbench.transport.links import link_backend

T = TypeVar("T")


def connect(bootstrap: ThreadBootstrap, settings: object) -> Backend:
    """Our algorithms over the mailboxes."""
    slots = bootstrap.exchange(memoryview(bytearray(SLOT_BYTES)))  # of this job alone
    return replace(link_backend(bootstrap.mailboxes.link(bootstrap.rank)), slots=slots)


class Mailboxes:
    """One queue per ordered pair of ranks, shared by all links of a world."""

    def __init__(self, size: int, timeout_s: float = 30.0) -> None:
        self.size, self.timeout_s, self.secret = size, timeout_s, secrets.token_bytes(32)
        self.broken = threading.Event()
        self.queues: dict[tuple[int, int], queue.SimpleQueue[Any]] = {
            (source, dest): queue.SimpleQueue() for source in range(size) for dest in range(size)
        }

    def link(self, rank: int) -> ThreadLink:
        return ThreadLink(self, rank)


class ThreadBootstrap:
    """The threads of :func:`workbench.run_threads`; see :class:`workbench.transport.bootstrap.base.Bootstrap`."""

    backend, comm = "threads", None

    def __init__(self, mailboxes: Mailboxes, rank: int) -> None:
        self.mailboxes, self.rank, self.size, self.node = mailboxes, rank, mailboxes.size, "threads"
        self.secret = mailboxes.secret

    def exchange(self, value: Any) -> list[Any]:
        for dest in range(self.size):
            self.mailboxes.queues[self.rank, dest].put(value)
        link = ThreadLink(self.mailboxes, self.rank)
        return unless_given_up(link.take(source) for source in range(self.size))

    def give_up(self, problem: str) -> None:
        for dest in range(self.size):
            self.mailboxes.queues[self.rank, dest].put(Problem(problem))

    def look(self) -> None:
        """No-op: threads of one process end together."""

    def broken(self) -> None:
        """Release the ranks that wait."""
        self.mailboxes.broken.set()


class ThreadLink:
    """A Link to the other threads; sending never blocks."""

    name = "THREADS"

    def __init__(self, mailboxes: Mailboxes, rank: int) -> None:
        self.mailboxes, self.rank, self.size = mailboxes, rank, mailboxes.size
        self.tick: Callable[[], None] = lambda: None

    def sendrecv(self, send: Array | None, dest: int, recv: Array | None, source: int) -> None:
        """Put a copy into the receiver's mailbox; take the next message from ``source``.

        Raises:
            DeadlineError: ``source`` sent nothing within the deadline.
            PeerLostError: another rank of this world failed.
        """
        if send is not None:
            self.mailboxes.queues[self.rank, dest].put(send.copy())
        if recv is not None:
            recv[:] = self.take(source)

    def take(self, source: int) -> Any:
        waiting, deadline = self.mailboxes.queues[source, self.rank], time.monotonic() + self.mailboxes.timeout_s
        while True:
            try:
                # In slices, so that a failure elsewhere ends this wait as well.
                return waiting.get(timeout=0.05)
            except queue.Empty:
                self.tick()
                if self.mailboxes.broken.is_set():
                    raise PeerLostError(f"rank {self.rank} waits for rank {source}, but a rank failed.") from None
                if time.monotonic() > deadline:
                    timeout_s = self.mailboxes.timeout_s
                    raise DeadlineError(f"rank {self.rank}: nothing from rank {source} in {timeout_s} s.") from None

    def close(self, clean: bool = True) -> None:
        """An unclean end releases the ranks that still wait."""
        if not clean:
            self.mailboxes.broken.set()


def spawn(n: int, function: Callable[[ThreadLink], T], timeout_s: float = 30.0) -> list[T]:
    """Run ``function(link)`` on n ranks, each a thread, and return the results by rank.

    The first rank that raises releases the others, and its exception is raised here.

    Example:
        >>> spawn(3, lambda link: link.rank * 10)
        [0, 10, 20]
    """
    mailboxes = Mailboxes(n, timeout_s)
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = function(mailboxes.link(rank))
        except BaseException as error:  # noqa: BLE001 - raised again on the caller's thread
            errors.append(error)
            mailboxes.broken.set()

    threads = [threading.Thread(target=run, args=(rank,), name=f"rank {rank}", daemon=True) for rank in range(n)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout_s + 5
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if errors:
        raise errors[0]
    stuck = [thread.name for thread in threads if thread.is_alive()]
    if stuck:
        raise DeadlineError(f"{', '.join(stuck)} did not return within {timeout_s + 5} s.")
    return [results[rank] for rank in range(n)]
