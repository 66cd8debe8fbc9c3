"""What an engine prints to: where ipykernel's streams do not suit engines, or do not outlive a mistake in a cell.

1. What is printed is sent every 50 ms; ipykernel waits for 200.
2. A character that UTF-8 cannot have is sent as its number; ipykernel loses all that was printed with it.
3. What C code and child processes print is read in pieces, and a character may begin in one and end in the next.
   ipykernel shows two question marks then. Where the disk is full its thread ends, and with it this output.
4. ``sys.stdout.close()``, or ``with sys.stdout:``, closes nothing: an engine prints as long as it lives.
5. A cell that sets ``sys.stdout`` to None, to a file that it closes, or to an object without ``flush()``: ipykernel
   flushes before it answers, fails, and never answers any more.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import sys
from typing import TextIO

from ipykernel.iostream import OutStream

_AT_ONCE_BYTES = 65536


class Stream(OutStream):
    """What ``print`` writes to."""

    flush_interval = 0.05

    def write(self, string: str) -> int | None:  # type: ignore[override]  # as ipykernel's
        try:
            string.encode()
        except UnicodeEncodeError:
            string = string.encode(errors="backslashreplace").decode()
        return super().write(string)

    def close(self) -> None:
        """Send what was printed, and stay open."""
        self.flush()  # type: ignore[no-untyped-call]  # ipykernel's

    def _watch_pipe_fd(self) -> None:
        """On a thread of its own: what comes by the file descriptor, for the notebook and for the engine's log."""
        text = codecs.getincrementaldecoder("utf-8")(errors="replace")
        while self._fid is not None and (data := os.read(self._fid, _AT_ONCE_BYTES)):
            self.write(text.decode(data))
            with contextlib.suppress(OSError):  # a full disk
                os.write(self._original_stdstream_copy, data)


class OwnStreams:
    """``sys.stdout`` and ``sys.stderr``, put back where a cell has replaced them by what cannot be written to.

    Example:
        >>> before, streams = sys.stdout, OwnStreams()
        >>> streams.take()
        >>> sys.stdout = None
        >>> with contextlib.redirect_stderr(before):
        ...     streams.mend()
        workbench: sys.stdout, as the cell has set it, cannot be written to (AttributeError: 'NoneType' object has \
no attribute 'write'): it is the engine's own again.
        >>> sys.stdout is before
        True
    """

    def __init__(self) -> None:
        self._own: dict[str, TextIO] = {}

    def take(self) -> None:
        """Those that there are now are the engine's."""
        self._own = {"stdout": sys.stdout, "stderr": sys.stderr}

    def mend(self) -> None:
        """Called when a cell ends."""
        wrong = list[str]()
        for name in self._own:
            try:
                stream = getattr(sys, name)
                stream.write("")
                stream.flush()
            except Exception as error:  # noqa: BLE001 - of the user's object
                setattr(sys, name, self._own[name])
                why = f"cannot be written to ({type(error).__name__}: {error})"
                wrong.append(f"workbench: sys.{name}, as the cell has set it, {why}: it is the engine's own again.")
        for line in wrong:
            print(line, file=sys.stderr)


__all__ = ["OwnStreams", "Stream"]
