"""What the ranks print, line by line, each line with its rank: ``[1]<stdout>:epoch 3``, as horovodrun prints it."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, Any, TextIO

from workbench.errors import LaunchError
from workbench.machine import make_room

# A progress bar ends its lines with \r. At the end of what was read it waits: a \n may follow.
_LINE = re.compile(rb"[^\r\n]*(?:\r?\n|\r(?=[^\n]))")
_LONGEST = 1 << 20  # more than this without an end is cut: it is no line
_REMEMBERED = 200  # lines of stderr per rank, for its last words

_TRACEBACK = b"Traceback (most recent call last):"
_CHAINED = (b"The above exception was the direct cause", b"During handling of the above exception")
# What a rank raises because another one has failed.
_FOLLOWS = re.compile(rb"^(?:workbench\.errors\.)?(?:RankFailed|PeerLost|ShutDown)Error\b")


class Lines:
    r"""Bytes in, whole lines out.

    Example:
        >>> lines = Lines()
        >>> lines.feed(b"one\r\ntw"), lines.feed(b"o\n50%\r"), lines.feed(b"60%"), lines.rest()
        ([b'one\r\n'], [b'two\n'], [b'50%\r'], b'60%')
    """

    def __init__(self) -> None:
        self._open = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that ``data`` completes, with their ends."""
        text = self._open + data
        lines = _LINE.findall(text)
        self._open = text[sum(map(len, lines)) :]
        if len(self._open) > _LONGEST:
            lines.append(self.rest() + b"\n")
        return lines

    def rest(self) -> bytes:
        """What has no end yet; it is forgotten."""
        rest, self._open = self._open, b""
        return rest


class Sink:
    """Where lines go. When it cannot be written, it says so, drops what comes from then on, and the job goes on.

    Args:
        stream: a file, which is closed at the end, a screen, or a notebook's stream, which takes text only.
        complain: gets the reason.
    """

    def __init__(self, stream: IO[Any], complain: Callable[[str], None]) -> None:
        self._stream: IO[Any] | None = stream
        self._is_file, self._complain = isinstance(stream, io.BufferedIOBase), complain

    def write(self, data: bytes) -> None:
        """Write all of it.

        Raises:
            BrokenPipeError: nobody reads the screen.
        """
        self._try(lambda stream: _write(stream, data))

    def flush(self) -> None:
        """Let everything be seen; raises as :meth:`write`."""
        self._try(lambda stream: stream.flush())

    def close(self) -> None:
        """Close the file; raises as :meth:`write`."""
        self._try(lambda stream: stream.close() if self._is_file else stream.flush())

    def mute(self) -> None:
        """Drop what comes, and what is still in the stream's own buffer: else it would fail once more at the end."""
        stream, self._stream = self._stream, None
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):  # not every stream has a descriptor
                _drop_buffer(stream)
                if self._is_file:
                    stream.close()

    def _try(self, act: Callable[[IO[Any]], object]) -> None:
        if self._stream is None:
            return
        try:
            act(self._stream)
        except OSError as error:
            if isinstance(error, BrokenPipeError) and not self._is_file:
                raise
            self.mute()
            self._complain(error.strerror or str(error))


def say(text: str) -> None:
    """The launcher's own words, on stderr, if anybody reads them there."""
    sink = Sink(sys.stderr, lambda why: None)
    with contextlib.suppress(BrokenPipeError):
        sink.write(f"workbench: {text}\n".encode(errors="replace"))
        sink.flush()


def _write(stream: IO[Any], data: bytes) -> None:
    if isinstance(stream, io.BufferedIOBase):
        stream.write(data)
    elif hasattr(stream, "buffer"):
        stream.buffer.write(data)
    else:
        stream.write(data.decode(errors="replace"))


def _drop_buffer(stream: IO[Any]) -> None:
    here, nowhere = os.dup(stream.fileno()), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    stream.flush()
    os.dup2(here, stream.fileno())
    os.close(here)
    os.close(nowhere)


class Printer:
    """Writes the ranks' lines to two streams, and each rank's own to files if wanted.

    Args:
        out, err: where the ranks' stdout and stderr go.
        n: how many ranks there are.
        timestamps: begin each line with the time, as ``horovodrun --prefix-output-with-timestamp`` does.
        folder: write ``<folder>/rank.N/stdout`` and ``stderr`` as well, without prefixes; "" for no files. N has
            zeros before it, so that the folders sort by rank.
        hosts: by rank, the host that it is on, if there are several.

    Raises:
        LaunchError: the files cannot be made.
    """

    def __init__(
        self,
        out: TextIO,
        err: TextIO,
        n: int,
        timestamps: bool = False,
        folder: str = "",
        hosts: Sequence[str] = (),
    ) -> None:
        self._hosts = dict(enumerate(hosts))
        self._streams = {
            name: Sink(stream, functools.partial(self._complain, name, "Its lines are lost"))
            for name, stream in (("stdout", out), ("stderr", err))
        }
        self._timestamps = timestamps
        self._lines = defaultdict[tuple[int, str], Lines](Lines)
        self._last = defaultdict[int, deque[bytes]](lambda: deque(maxlen=_REMEMBERED))
        self._unfinished: tuple[int, str] | None = None  # whose line stands on the screen and may be overwritten
        self._complaints: set[str] = set()
        self._files: dict[tuple[int, str], Sink] = {}
        self._folder, self._digits = Path(folder) if folder else None, len(str(n - 1))
        if folder:
            make_room(2 * n, "The files of --output-dir need")
        for rank in range(n):
            self._open_files(rank)

    def add(self, rank: int, host: str = "") -> None:
        """One rank more, of an elastic job; raises as the constructor."""
        if host:
            self._hosts[rank] = host
        self._open_files(rank)

    def feed(self, rank: int, name: str, data: bytes) -> None:
        """A rank wrote something; no ``data`` means that the stream has ended.

        Raises:
            BrokenPipeError: nobody reads what is written here.
        """
        if file := self._files.get((rank, name)):
            file.write(data)
        for line in self._lines[rank, name].feed(data):
            self._write(rank, name, line)
        if not data and (rest := self._lines[rank, name].rest()):
            self._write(rank, name, rest.rstrip(b"\r") + b"\n")

    def flush(self) -> None:
        """Let everything be seen."""
        for stream in self._streams.values():
            stream.flush()
        for file in self._files.values():
            file.flush()

    def mute(self) -> None:
        """Nobody reads: print nothing from now on."""
        for stream in self._streams.values():
            stream.mute()

    def close(self) -> None:
        """End the last line, and close the files."""
        with contextlib.suppress(BrokenPipeError):
            self._finish()
            self.flush()
        for file in self._files.values():
            file.close()

    def where(self, rank: int) -> str:
        """Words for a rank's host; empty if there is only one."""
        return f" on {self._hosts[rank]}" if rank in self._hosts else ""

    def last_words(self, rank: int) -> str:
        """The rank's last traceback; without one, its last lines on stderr."""
        return b"".join(last_traceback(list(self._last[rank]))).decode(errors="replace").rstrip()

    def follows(self, rank: int) -> bool:
        """Did the rank fail because another one had?"""
        return any(_FOLLOWS.match(line) for line in self._last[rank])

    def _write(self, rank: int, name: str, line: bytes) -> None:
        if name == "stderr":
            self._last[rank].append(line)
        if self._unfinished not in (None, (rank, name)):
            self._finish()
        when = time.asctime() if self._timestamps else ""
        label = f"{rank}@{self._hosts[rank]}" if rank in self._hosts else str(rank)
        self._put(name, f"{when}[{label}]<{name}>:".encode() + line)
        self._unfinished = (rank, name) if line.endswith(b"\r") else None

    def _finish(self) -> None:
        if self._unfinished is not None:
            self._put(self._unfinished[1], b"\n")
            self._unfinished = None

    def _put(self, name: str, line: bytes) -> None:
        self._streams[name].write(line)

    def _complain(self, what: str, then: str, why: str) -> None:
        if then not in self._complaints:  # one full disk is one complaint, however many ranks write to it
            self._complaints.add(then)
            self._finish()
            self._put("stderr", f"workbench: {what} cannot be written: {why}. {then}; the job goes on.\n".encode())

    def _open_files(self, rank: int) -> None:
        if self._folder is None:
            return
        for name in self._streams:
            path = self._folder / f"rank.{rank:0{self._digits}}" / name
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                file = path.open("wb")
            except OSError as error:
                raise LaunchError(
                    f"--output-dir: {path} cannot be written: {error.strerror}. Name another folder, or none."
                ) from None
            then = "Ranks' lines are on the screen only where their files take no more"
            self._files[rank, name] = Sink(file, functools.partial(self._complain, str(path), then))


def last_traceback(lines: list[bytes]) -> list[bytes]:
    r"""The last traceback among a rank's lines, with those that led to it; without one, the last fifteen lines.

    What the runtime says on its way out, after the traceback, is left away.

    Example:
        >>> trace = [b"Traceback (most recent call last):\n", b"  File ...\n", b"ValueError: no\n"]
        >>> last_traceback([b"epoch 1\n", *trace, b"workbench: rank 1 left the job.\n"]) == trace
        True
    """
    while lines and lines[-1].startswith(b"workbench:"):
        lines = lines[:-1]
    starts = [i for i, line in enumerate(lines) if _TRACEBACK in line]
    if not starts:
        return lines[-15:]
    start = starts.pop()
    while starts and _is_chained(lines[start - 2 : start]):
        start = starts.pop()
    return lines[start:]


def _is_chained(before: Iterable[bytes]) -> bool:
    return any(line.startswith(_CHAINED) for line in before)
