"""What the ranks print, line by line, each line with its rank: ``[1]<stdout>:epoch 3``, as horovodrun prints it."""

from __future__ import annotations

import codecs
import contextlib
import functools
import io
import math
import os
import re
import select
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, TextIO

from workbench.errors import LaunchError
from workbench.launch.ranks.bars import Bars
from workbench.launch.ranks.repeats import Repeats
from workbench.machine import make_room

_END = re.compile(rb"\r?\n|\r")  # a progress bar ends its lines with \r
_LONGEST = 1 << 20  # so much of a line is kept until it ends
_PARTIAL_S = 0.2  # so long a line without an end waits
_REMEMBERED, _REMEMBERED_BYTES = 200, 8192  # lines of stderr per rank, for its last words, and of each line
_PIECE = 4096  # a pipe that can be written takes so much at once
_STALLED_S = 2.0  # a screen that takes nothing for so long is waited for no more, once the launcher is to end

_ERASE = b"\r\x1b[K"
_TRACEBACK = b"Traceback (most recent call last):"
_CHAINED = (b"The above exception was the direct cause", b"During handling of the above exception")
# What a rank raises because another one has failed.
_FOLLOWS = re.compile(rb"^(?:workbench\.errors\.)?(?:RankFailed|PeerLost|ShutDown)Error\b")


class Lines:
    r"""Bytes in, whole lines out. Each byte is looked at once, and at most about a megabyte is kept.

    Attributes:
        since: when the line that is open began, by ``time.monotonic``; infinite if there is none.

    Example:
        >>> lines = Lines()
        >>> lines.feed(b"one\r\ntw"), lines.feed(b"o\n50%\r"), lines.feed(b"60%"), lines.rest()
        (b'one\r\n', b'two\n', b'50%\r', b'60%')
    """

    def __init__(self) -> None:
        self._open, self._length = list[bytes](), 0
        self._held = b""  # a \r at the end of what was read: a \n may follow
        self.since = math.inf

    def feed(self, data: bytes) -> bytes:
        """The lines that ``data`` completes, with their ends; of a line that is too long, what there is."""
        data = self._held + data
        self._held = b"\r" if data.endswith(b"\r") else b""
        data = data.removesuffix(self._held)
        cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        whole = self.partial() + data[:cut] if cut else b""
        self._keep(data[cut:])
        return whole + self.partial() if self._length > _LONGEST else whole

    def partial(self) -> bytes:
        """The beginning of a line that has no end yet; it is forgotten."""
        found = b"".join(self._open)
        self._open, self._length, self.since = [], 0, math.inf
        return found

    def rest(self) -> bytes:
        """The same, when nothing follows."""
        found, self._held = self.partial() + self._held, b""
        return found

    def _keep(self, data: bytes) -> None:
        if data:
            self._open.append(data)
            self._length += len(data)
            self.since = min(self.since, time.monotonic())


class Sink:
    """Where lines go. When it cannot be written, it says so, drops what comes from then on, and the job goes on.

    So does a screen that takes nothing while the launcher is asked to end: ``| less``, or a stopped terminal.

    Args:
        stream: a file, which is closed at the end, a screen, or a notebook's stream, which takes text only; None where
            this process has been started without one.
        complain: gets the reason.
        urgent: was the launcher asked to end?
    """

    def __init__(
        self, stream: IO[Any] | None, complain: Callable[[str], None], urgent: Callable[[], bool] = lambda: False
    ) -> None:
        self._stream: IO[Any] | None = stream
        self._is_file, self._complain = isinstance(stream, io.BufferedIOBase), complain
        self._urgent = urgent
        self._text = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def redraws(self) -> bool:
        """Can a line be replaced there? On a terminal, and in a notebook's stream."""
        stream: Any = self._stream
        return stream is not None and not self._is_file and (stream.isatty() or hasattr(stream, "pub_thread"))

    def write(self, data: bytes) -> None:
        """Write all of it.

        Raises:
            BrokenPipeError: nobody reads the screen.
        """
        self._try(lambda stream: self._put(stream, data))

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

    def _put(self, stream: IO[Any], data: bytes) -> None:
        if self._is_file:
            stream.write(data)
        elif isinstance(buffer := getattr(stream, "buffer", None), io.BufferedWriter | io.FileIO):
            stream.flush()
            self._write_through(buffer.fileno(), data)
        elif buffer:
            buffer.write(data)
        else:
            stream.write(self._text.decode(data))

    def _write_through(self, screen: int, data: bytes) -> None:
        """Write past Python's buffer, which would wait for a reader for ever."""
        ready, left = select.poll(), memoryview(data)
        ready.register(screen, select.POLLOUT)
        while left:
            if ready.poll(_STALLED_S * 1000):
                with contextlib.suppress(BlockingIOError):
                    left = left[os.write(screen, left[:_PIECE]) :]
            elif self._urgent():
                self.mute()
                return

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


def log(text: str) -> None:
    """The launcher's own words, on stderr, if anybody reads them there."""
    sink = Sink(sys.stderr, lambda why: None)
    with contextlib.suppress(BrokenPipeError):
        sink.write(f"workbench: {text}\n".encode(errors="replace"))
        sink.flush()


def _drop_buffer(stream: IO[Any]) -> None:
    here, nowhere = os.dup(stream.fileno()), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    stream.flush()
    os.dup2(here, stream.fileno())
    os.close(here)
    os.close(nowhere)


class Printer:
    """Writes the ranks' lines to two streams, and each rank's own to files if wanted.

    A line without an end is shown after 0.2 s, and goes on where it stands unless another rank has written meanwhile.
    Of several ranks, progress bars share a line that is replaced on a terminal; elsewhere the last state of each is
    shown. A traceback that several print is shown once.

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
        out: TextIO | None,
        err: TextIO | None,
        n: int,
        timestamps: bool = False,
        folder: str = "",
        hosts: Sequence[str] = (),
    ) -> None:
        self._hosts = dict(enumerate(hosts))
        self._urgent: Callable[[], bool] = lambda: False
        self._streams = {
            name: Sink(stream, functools.partial(self._complain, name, "Its lines are lost"), lambda: self._urgent())
            for name, stream in (("stdout", out), ("stderr", err))
        }
        self._timestamps = timestamps
        self._lines = defaultdict[tuple[int, str], Lines](Lines)
        self._last = defaultdict[int, deque[bytes]](lambda: deque(maxlen=_REMEMBERED))
        self._unfinished: tuple[int, str] | None = None  # whose line stands on the screen without a \\n
        self._midway = set[tuple[int, str]]()  # of whom a part of a line was written
        self._cut = set[int]()  # whose stderr stands amid a line, as far as it is remembered
        self._ranks, self._repeats, self._bars = n, Repeats(), Bars()
        self._drawn = ""  # the stream on which a bar stands
        self._complaints: set[str] = set()
        self._files: dict[tuple[int, str], Sink] = {}
        self._folder, self._digits = Path(folder) if folder else None, len(str(n - 1))
        if folder:
            make_room(2 * n, "The files of --output-dir need")
            for rank in range(n):
                self._open_files(rank)

    def add(self, rank: int, host: str = "") -> None:
        """One rank more, of an elastic job; raises as the constructor."""
        self._ranks = max(self._ranks, rank + 1)
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
        lines = self._lines[rank, name]
        self._take(rank, name, lines.feed(data))
        if data:
            return
        rest = lines.rest().rstrip(b"\r")
        if rest or (rank, name) in self._midway or self._bars.state((rank, name)):
            self._take(rank, name, rest + b"\n")

    def heed(self, urgent: Callable[[], bool]) -> None:
        """Do not wait for a reader once the launcher was asked to end, which ``urgent`` says."""
        self._urgent = urgent

    def pause_s(self, most_s: float) -> float:
        """Seconds until :meth:`flush` has a line without an end to show, at most ``most_s``."""
        since = min((lines.since for lines in self._lines.values()), default=math.inf)
        return max(0.0, min(most_s, min(since + _PARTIAL_S, self._repeats.due) - time.monotonic()))

    def flush(self) -> None:
        due = time.monotonic() - _PARTIAL_S
        for (rank, name), lines in self._lines.items():
            if lines.since <= due:
                self._take(rank, name, lines.partial())
        if self._repeats.due <= time.monotonic():
            self._release()
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
            self._release(everything=True)
            for rank, name in self._bars.open():
                self._show(rank, name, b"\n")
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

    def _take(self, rank: int, name: str, text: bytes) -> None:
        """Show it, or let it wait for what other ranks print."""
        if name == "stderr":
            self._remember(rank, text)
        if self._ranks == 1:
            self._write(rank, name, text)
        else:
            self._show(rank, name, self._repeats.feed(rank, name, text, (rank, name) not in self._midway))

    def _release(self, everything: bool = False) -> None:
        for ranks, name, text in self._repeats.release(everything):
            if len(ranks) == 1:
                self._show(ranks[0], name, text)
            else:
                self._finish()
                self._put(name, labelled(text, self._label(_span(ranks), name)))

    def _show(self, rank: int, name: str, text: bytes) -> None:
        """Write lines, and the state of a bar where it can be replaced."""
        who = rank, name
        if not text:
            return
        first, end, _ = text.partition(b"\n")
        if who in self._midway and b"\r" in (first.removesuffix(b"\r") if end else first):
            text = b"\n" + text  # the bar gets a line of its own
        self._write(rank, name, self._bars.feed(who, text))
        if (state := self._bars.state(who)) and self._unfinished is None and self._streams[name].redraws:
            self._erase()
            self._put(name, self._label(rank, name) + state)
            self._drawn = name

    def _erase(self) -> None:
        if self._drawn:
            self._put(self._drawn, _ERASE)
            self._drawn = ""

    def _write(self, rank: int, name: str, text: bytes) -> None:
        """Write lines, of which the first may go on where the rank's last one was left, and the last have no end."""
        who = rank, name
        if who in self._midway and self._unfinished != who and (end := _END.match(text)):
            text = text[end.end() :]  # its line was ended for another's
            self._midway.discard(who)
        if not text:
            return
        self._erase()
        if self._unfinished not in (None, who):
            self._finish()
        label = self._label(rank, name)
        goes_on = self._unfinished == who and who in self._midway
        self._put(name, labelled(text, label).removeprefix(label if goes_on else b""))
        self._midway.discard(who)
        if not text.endswith((b"\r", b"\n")):
            self._midway.add(who)
        self._unfinished = None if text.endswith(b"\n") else who

    def _label(self, rank: int | str, name: str) -> bytes:
        when = time.asctime() if self._timestamps else ""
        label = f"{rank}@{self._hosts[rank]}" if isinstance(rank, int) and rank in self._hosts else str(rank)
        return f"{when}[{label}]<{name}>:".encode()

    def _remember(self, rank: int, text: bytes) -> None:
        last, lines = self._last[rank], text.splitlines(keepends=True)
        if rank in self._cut and last and lines:
            last[-1] = (last[-1] + lines.pop(0))[:_REMEMBERED_BYTES]
        if text:
            (self._cut.discard if text.endswith((b"\r", b"\n")) else self._cut.add)(rank)
        last.extend(line[:_REMEMBERED_BYTES] for line in lines[-_REMEMBERED:])

    def _finish(self) -> None:
        self._erase()
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


def labelled(text: bytes, label: bytes) -> bytes:
    r"""Lines with a label before each.

    Example:
        >>> labelled(b"one\r\n50%\rtwo\n", b"[0]:")
        b'[0]:one\r\n[0]:50%\r[0]:two\n'
    """
    return label + label.join(text.splitlines(keepends=True))


def _span(ranks: list[int]) -> str:
    joined = ranks == list(range(ranks[0], ranks[-1] + 1))
    return f"{ranks[0]}-{ranks[-1]}" if joined else ",".join(map(str, ranks))


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
    while starts and any(line.startswith(_CHAINED) for line in lines[start - 2 : start]):
        start = starts.pop()
    return lines[start:]
