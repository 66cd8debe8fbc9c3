"""Which hosts are there? Fixed ones, or what a script prints, which is run again and again on a thread of its own."""

from __future__ import annotations

import threading
from typing import Protocol

from workbench.errors import LaunchError
from workbench.launch.start.hosts import discover

EVERY_S = 1.0
"""Between two runs of the script."""

Found = list[tuple[str, int]]


class FindsHosts(Protocol):
    """Says which hosts there are; it is entered when the job begins, and left at its end."""

    def __enter__(self) -> FindsHosts:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def news(self) -> tuple[Found | None, str]:
        """The hosts, if they have changed since the last call, and what is wrong, if it is new."""


class Discovery:
    """What hosts there are.

    Args:
        hosts: names and slots at the start.
        script: prints them from then on, one ``host:slots`` a line; "" for none: they stay.
        slots: of each host that it prints without.
        every_s: pause between two runs.

    Example:
        >>> with Discovery([("localhost", 2)]) as discovery:
        ...     discovery.news(), discovery.news()
        (([('localhost', 2)], ''), (None, ''))
    """

    def __init__(self, hosts: Found, script: str = "", slots: int = 1, every_s: float = EVERY_S) -> None:
        self._new: Found | None = list(hosts)
        self._known, self._script, self._slots, self._every_s = list(hosts), script, slots, every_s
        self._lock, self._end = threading.Lock(), threading.Event()
        self._complaint = self._complained = ""
        self._thread = threading.Thread(target=self._look, name="workbench-discovery", daemon=True)

    def __enter__(self) -> Discovery:
        if self._script:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        if self._script:
            self._thread.join(5.0)

    def news(self) -> tuple[Found | None, str]:
        """The hosts, if they have changed since the last call, and what is wrong with the script, if it is new."""
        with self._lock:
            (new, self._new), (complaint, self._complaint) = (self._new, None), (self._complaint, "")
        return new, complaint

    def _look(self) -> None:
        while not self._end.wait(self._every_s):
            try:
                found, complaint = discover(self._script, self._slots), ""
            except LaunchError as error:
                found, complaint = self._known, str(error)
            with self._lock:
                if complaint != self._complained:
                    self._complained = self._complaint = complaint
                if found != self._known:
                    self._known = self._new = found
