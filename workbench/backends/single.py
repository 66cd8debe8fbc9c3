"""A world of one rank: nothing moves. The null implementation of Link."""

from __future__ import annotations

from workbench.backends.base import Array


class SingleLink:
    """A Link with nobody at the other end."""

    rank, size = 0, 1

    def sendrecv(self, send: Array | None, dest: int, recv: Array | None, source: int) -> None:
        """A message to oneself."""
        if send is not None and recv is not None:
            recv[:] = send
