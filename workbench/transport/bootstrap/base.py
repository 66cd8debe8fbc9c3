"""What ``init()`` needs from a launcher: who am I, who else is there, and a way to exchange a few values."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable
from typing import Any, Protocol

from workbench.common.cell_numbers import idle
from workbench.common.text import rank_list
from workbench.errors import LaunchError
from workbench.machine import machine
from workbench.transport.bootstrap.values import Problem


class Bootstrap(Protocol):
    """What a launcher provides to ``init()``."""

    rank: int
    size: int
    node: str
    """Equal for ranks that share a machine's memory."""
    secret: bytes
    """The same on all ranks, and drawn anew for each job; nobody else knows it."""
    backend: str
    """What connects the ranks unless a setting says otherwise: a module of ``workbench.transport.host``."""
    comm: Any
    """MPI's communicator of the ranks; None without MPI."""

    def exchange(self, value: Any) -> list[Any]:
        """Every rank's value, by rank. All ranks call it.

        Raises:
            LaunchError: a rank has given up.
            PeerLostError: a rank has ended.
        """

    def give_up(self, problem: str) -> None:
        """Instead of the next :meth:`exchange`: the others learn the problem there. Waits for them a few seconds."""

    def look(self) -> None:
        """Called amid other waits of ``init()``; raises PeerLostError if a rank has ended."""

    def broken(self) -> None:
        """A rank was lost, or the data plane broke: not all ranks will ever be at one point again."""


def unless_given_up(values: Iterable[Any]) -> list[Any]:
    """All ranks' values.

    Raises:
        LaunchError: one of them is a problem.
    """
    found = list(values)
    for rank, each in enumerate(found):
        if isinstance(each, Problem):
            raise given_up(rank, each.text)
    return found


def given_up(rank: int, problem: str) -> LaunchError:
    """What the other ranks raise."""
    return LaunchError(f"init() failed on rank {rank}: {problem}")


def look_for_idle(ranks: Collection[int] | None = None) -> None:
    """Called amid the wait for ranks to call ``init()``: in a notebook, one whose cell has ended never will.

    Not after that: a rank whose cell has ended may have come through ``init()``.

    Args:
        ranks: who is waited for; all by default.

    Raises:
        LaunchError: there is one.
    """
    if missing := [rank for rank in idle() if ranks is None or rank in ranks]:
        are, has = ("are", "their cells have") if len(missing) > 1 else ("is", "its cell has")
        raise LaunchError(
            f"init(): {rank_list(missing)} {are} idle: {has} ended without it, so the ranks can never connect. Call "
            "init() in one cell on all engines. On a rank that is still in a job, init() does nothing: call shutdown() "
            "first, on all engines; or engines.rescue() in a cell without %%px."
        )


class SingleBootstrap:
    """One process alone: a world of one. The null implementation."""

    backend, comm = "single", None

    def __init__(self) -> None:
        self.rank, self.size, self.node, self.secret = 0, 1, machine(), secrets.token_bytes(32)

    def exchange(self, value: Any) -> list[Any]:
        return [value]

    def give_up(self, problem: str) -> None:
        """There is nobody to tell."""

    def look(self) -> None:
        """There is nobody to lose."""

    def broken(self) -> None:
        """Nobody waits for anybody."""
