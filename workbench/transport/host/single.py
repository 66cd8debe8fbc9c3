"""A world of one rank: nothing moves. The null implementation of Link."""

from __future__ import annotations

from collections.abc import Callable

from workbench.core.backend.base import Array, Backend
from workbench.transport.links import link_backend


def connect(bootstrap: object, settings: object) -> Backend:
    """A backend that moves nothing."""
    return link_backend(SingleLink())


class SingleLink:
    """A Link with nobody at the other end."""

    name = "SINGLE"
    rank, size = 0, 1

    def __init__(self) -> None:
        self.tick: Callable[[], None] = lambda: None  # never called: there is nobody to wait for

    def sendrecv(self, send: Array | None, dest: int, recv: Array | None, source: int) -> None:
        if send is not None and recv is not None:
            recv[:] = send

    def close(self, clean: bool = True) -> None:
        """Nothing to give back."""
