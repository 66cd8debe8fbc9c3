"""The launcher's input as one stream of events: its ranks' pipes, their supervisors' messages, and its own signals."""

from __future__ import annotations

import os
import selectors
import signal
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from workbench.common.messages import Message
from workbench.launch.ranks.supervisor import EVENTS, LEAVE, pipe_name

_CHUNK = 1 << 16


@dataclass(frozen=True)
class Started:
    """A rank's command was started."""

    rank: int
    pid: int


@dataclass(frozen=True)
class RankEnded:
    """A rank's command has ended, with this exit code or minus the number of the signal that killed it."""

    rank: int
    code: int


@dataclass(frozen=True)
class Stopped:
    """A rank's process was stopped, and why it does not run; no reason: it goes on."""

    rank: int
    why: str


@dataclass(frozen=True)
class Wrote:
    """A rank wrote to its stdout or stderr; no data: that has ended."""

    rank: int
    stream: str
    data: bytes


@dataclass(frozen=True)
class Signalled:
    """The launcher got a signal."""

    number: int


@dataclass(frozen=True)
class HostLost:
    """A host does not answer any more; its ranks are lost."""

    host: str
    ranks: tuple[int, ...]
    why: str


@dataclass(frozen=True)
class WorkerMessage:
    """A worker of an elastic job has said something to the launcher."""

    worker: int
    message: Message


REPORTS: dict[str, type[Started | RankEnded | Stopped]] = {"started": Started, "ended": RankEnded, "stopped": Stopped}
"""What an agent calls these in its messages, whose fields are theirs."""
LauncherEvent = Started | RankEnded | Stopped | Wrote | Signalled | HostLost | WorkerMessage


class Signals:
    """Within the block these signals do not end the process: each becomes one byte in :attr:`pipe`.

    A signal that was ignored stays ignored (``nohup``). Outside of the main thread the block does nothing.

    Attributes:
        pipe: those that came, to be read.
        came: has there been one?
    """

    def __init__(self, numbers: Iterable[int]) -> None:
        self.came = False
        self.pipe, self._write = os.pipe()
        self._numbers, self._before = tuple(numbers), dict[int, Any]()

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for number in self._numbers:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        # Handlers first: _note would else write into a descriptor that may be another file's by then.
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self.pipe)
        os.close(self._write)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        os.write(self._write, bytes([number]))


class RankPipes:
    """The read ends of the ranks' named pipes.

    Args:
        folder: the job's; the pipes are made in it.
        ranks: their numbers.
        signals: its pipe is read as well.
    """

    def __init__(self, folder: Path, ranks: Iterable[int], signals: Signals | None = None) -> None:
        self._selector = selectors.DefaultSelector()
        self._begun = b""  # an incomplete line of the pipe of events
        if signals:
            self._selector.register(signals.pipe, selectors.EVENT_READ, "signals")
        # Opened for writing as well, a pipe can be opened before there is a supervisor, and never ends by itself.
        self._listen(folder / EVENTS, EVENTS, os.O_RDWR)
        os.mkfifo(folder / LEAVE)
        self._leave = os.open(folder / LEAVE, os.O_RDWR)
        self._folder = folder
        for rank in ranks:
            self.add(rank)

    def add(self, rank: int) -> None:
        """One rank more, which has not been started yet."""
        for stream in ("stdout", "stderr"):
            self._listen(self._folder / pipe_name(rank, stream), (rank, stream), os.O_RDONLY)

    def fileno(self) -> int:
        return self._selector.fileno()

    def wait(self, timeout_s: float) -> Iterator[LauncherEvent]:
        """The next events; none after ``timeout_s`` without one."""
        for key, _ in self._selector.select(timeout_s):
            yield from self._read(key)

    def drain(self) -> Iterator[LauncherEvent]:
        """The rest of the output, when all ranks have ended."""
        for key in list(self._selector.get_map().values()):
            while isinstance(key.data, tuple) and (events := list(self._read(key))):
                yield from events
                if key.fd not in self._selector.get_map():
                    break

    def release_supervisors(self) -> None:
        """Let the supervisors end: all ranks have ended."""
        if self._leave >= 0:
            os.close(self._leave)
            self._leave = -1

    def close(self) -> None:
        self.release_supervisors()
        for key in list(self._selector.get_map().values()):
            if key.data != "signals":
                os.close(key.fd)
        self._selector.close()

    def _listen(self, path: Path, data: Any, flags: int) -> None:
        os.mkfifo(path)
        self._selector.register(os.open(path, flags | os.O_NONBLOCK), selectors.EVENT_READ, data)

    def _read(self, key: selectors.SelectorKey) -> Iterator[LauncherEvent]:
        try:
            data = os.read(key.fd, _CHUNK)
        except BlockingIOError:
            return
        if key.data == "signals":
            yield from map(Signalled, data)
        elif key.data == EVENTS:
            yield from self._parse(data)
        else:
            if not data:
                self._selector.unregister(key.fd)
                os.close(key.fd)
            rank, stream = key.data
            yield Wrote(rank, stream, data)

    def _parse(self, data: bytes) -> Iterator[LauncherEvent]:
        *lines, self._begun = (self._begun + data).split(b"\n")
        for line in lines:
            what, rank, number = line.split()
            yield (Started if what == b"started" else RankEnded)(int(rank), int(number))
