"""Processes that know of each other through environment variables only find each other in a store."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from workbench import config
from workbench.common.cell_numbers import WaitNotice
from workbench.common.extras import cure, has
from workbench.common.secret.seal import derived
from workbench.config import Launch, Settings
from workbench.errors import LaunchError, WorkbenchError
from workbench.machine import machine
from workbench.transport.bootstrap.base import given_up, look_for_idle, unless_given_up
from workbench.transport.bootstrap.file_board import FileBoard
from workbench.transport.bootstrap.peers import Peers, namespace
from workbench.transport.bootstrap.rendezvous import Board, find
from workbench.transport.bootstrap.shared_secret import SecretFile
from workbench.transport.bootstrap.tcp_board import TcpBoard
from workbench.transport.bootstrap.values import Problem, decode, encode

_LISTEN_EVERY_S = 0.25
_PROBLEM = "problem"


@functools.cache  # one per process: rank 0's must outlive every job of this process, for the next init()
def _board(launch: Launch, timeout_s: float) -> Board:
    """Where the ranks of this launch find each other."""
    # Not torch's store: it asks DNS for the names of both ends of a connection, which may not know them, or not answer.
    port = launch.port if launch.launcher == "slurm" else launch.board
    if port:
        return TcpBoard(launch.address, port, config.secret(), launch.rank, launch.size, timeout_s)
    if launch.file:
        return FileBoard(launch.file)
    if not has("torch"):
        raise LaunchError(
            f"{launch.launcher} started {launch.size} ranks, which connect through a store of torch: {cure('torch')}. "
            "Ranks of `workbench run` or mpiexec do not need it."
        )
    from workbench.transport.bootstrap.torch_store import StoreBoard, dist, open_store

    where, local = f"{launch.address}:{launch.port}", launch.local_size == launch.size
    store = open_store(launch.address, launch.port, launch.rank, launch.size, timeout_s, launch.agent, local)
    return StoreBoard(dist.PrefixStore(f"workbench/{launch.attempt}", store), where, timeout_s)


class StoreBootstrap:
    """The ranks that torchrun, srun or ``workbench run --gloo`` has started. What crosses the store is sealed.

    Args:
        launch: who this is among how many.
        settings: deadlines.
        board: where they meet; by default what the launcher has named.
    """

    backend, comm = "sockets", None

    def __init__(self, launch: Launch, settings: Settings, board: Board | None = None) -> None:
        self.rank, self.size = launch.rank, launch.size
        self._peers, self._exchanged, self._listen_at = Peers(), 0, 0.0
        self._notice = WaitNotice("init()")
        timeout_s = settings.init_timeout_s
        board = board or _board(launch, timeout_s)
        file, secret = None, config.secret()
        if not secret:
            file = SecretFile(board, self.rank, config.private_folders(), timeout_s, lambda: None)
            secret = file.secret
        try:
            about = {"node": machine(), "pids": namespace("pid"), "pid": os.getpid()}
            self.session = find(board, secret, self.rank, self.size, about, timeout_s, self._look_at)
            self._know(self.session.hellos)  # the last ones may have come after the last look
        finally:
            if file:
                file.remove()
        self.node, self.secret = str(about["node"]), derived(self.session.key, "control plane")

    def exchange(self, value: Any) -> list[Any]:
        self._exchanged += 1
        return unless_given_up(decode(self.session.gather(str(self._exchanged), self.rank, encode(value), self.look)))

    def give_up(self, problem: str) -> None:
        """The others find it in the store: in the next exchange, and amid what they wait for before that."""
        self.session.write(_PROBLEM, encode((self.rank, problem)))
        self._exchanged += 1
        self.session.write(f"{self._exchanged}/{self.rank}", encode(Problem(problem)))
        if self.rank == 0:
            time.sleep(2 * _LISTEN_EVERY_S)  # the store may end with this process

    def look(self) -> None:
        """At the processes of this machine, and at whether a rank has given up."""
        with self.telling_why():
            self._peers.look()
        if time.monotonic() > self._listen_at:
            self._listen()

    def broken(self) -> None:
        """Nothing waits for the others at the end."""

    def _listen(self) -> None:
        problem = self.session.seen(_PROBLEM)
        self._listen_at = time.monotonic() + _LISTEN_EVERY_S
        if problem is not None:
            rank, text = decode(problem)
            raise given_up(rank, text) from None

    @contextlib.contextmanager
    def telling_why(self) -> Iterator[None]:
        """A rank that is missed in the block may have said before why it gives up: then that is raised."""
        try:
            yield
        except WorkbenchError:
            self._listen()
            raise

    def _know(self, hellos: Sequence[Mapping[str, Any] | None]) -> None:
        found = [(hello["node"], hello["pids"], int(hello["pid"])) if hello else None for hello in hellos]
        self._peers.know(self.rank, found)

    def _look_at(self, hellos: Sequence[Mapping[str, Any] | None]) -> None:
        self._know(hellos)
        self._peers.look()
        missing = [rank for rank, hello in enumerate(hellos) if hello is None]
        look_for_idle(missing)
        self._notice.look(missing)
