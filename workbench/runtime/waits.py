"""Which of this rank's threads wait, for what, and where: from that rank 0 sees that nobody can go on.

A rank is blocked when every thread of it that submits tensors waits for one. It says so after :data:`REPORT_AFTER_S`,
so a wait that goes well says nothing.
"""

from __future__ import annotations

import linecache
import site
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from workbench.runtime.messages import Blocked

REPORT_AFTER_S = 0.1
_OURS = str(Path(__file__).resolve().parent.parent)
_LIBRARIES = (*site.getsitepackages(), str(Path(threading.__file__).parent))


class Waits:
    """The threads of one rank that submit, and those of them that wait.

    Args:
        rank: this rank.
        report: tells rank 0.
    """

    def __init__(self, rank: int, report: Callable[[Blocked], None]) -> None:
        self._rank, self._report = rank, report
        self._lock = threading.Lock()
        self._submit: set[int] = set()
        self._waiting: dict[int, tuple[int, str, str]] = {}

    def submits(self, engine: int | None = None) -> None:
        """This thread submits tensors. The engine's does not count: its callbacks follow from what others submitted."""
        self._submit |= {threading.get_ident()} - {engine}

    def others(self) -> bool:
        """Is there another living thread that submits and does not wait, so that more may come from this rank?"""
        # autograd's threads for a GPU are no Python threads; they submit only while a Python thread runs backward().
        alive = {t.ident for t in threading.enumerate() if not isinstance(t, threading._DummyThread)}
        return bool(alive & self._submit - self._waiting.keys() - {threading.get_ident()})

    @contextmanager
    def blocked(self, process_set: int, name: str) -> Iterator[None]:
        """Within the block this thread waits for a tensor."""
        me, wait = threading.get_ident(), (process_set, name, users_line())
        with self._lock:
            self._waiting[me] = wait
            if not self.others():
                self._report(Blocked(self._rank, tuple(self._waiting.values())))
        try:
            yield
        finally:
            with self._lock:
                del self._waiting[me]
                self._report(Blocked(self._rank, ()))


def users_line() -> str:
    """Where the caller of this package stands: ``in train.py, line 12: hvd.allreduce(x)``."""
    frame, found = sys._getframe(1), None
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith((_OURS, "<frozen")) and path != threading.__file__ and "contextlib" not in path:
            found = found or frame
            if not path.startswith(_LIBRARIES):
                found = frame
                break
        frame = frame.f_back  # type: ignore[assignment]  # None at the end
    if found is None:
        return ""
    path, line = found.f_code.co_filename, found.f_lineno
    place = "the cell" if "ipykernel_" in path or path.startswith("<ipython") else Path(path).name
    return f"in {place}, line {line}: {linecache.getline(path, line).strip()}".rstrip(": ")
