"""What an engine prints to: where ipykernel's streams do not suit engines, or do not outlive a mistake in a cell.

1. What is printed is sent every 50 ms; ipykernel waits for 200.
2. A character that UTF-8 cannot have is sent as its number; ipykernel loses all that was printed with it.
3. What C code and child processes print is read in pieces, and a character may begin in one and end in the next.
   ipykernel shows two question marks then. Where the disk is full its thread ends, and with it this output.
4. ``sys.stdout.close()``, or ``with sys.stdout:``, closes nothing: an engine prints as long as it lives.
"""

from __future__ import annotations

import codecs
import contextlib
import os

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
