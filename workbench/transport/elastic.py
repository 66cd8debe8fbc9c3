"""The ranks of an elastic job: the launcher, which knows who lives, tells each epoch's ranks of each other.

Each process has one connection to its launcher, or to the launcher's agent on its host, as long as it lives: over a
socket in a folder that no other user can enter. Of a new epoch it hears its rank, the number of ranks and the epoch's
key; whatever the ranks exchange in ``init()`` goes the same way. Then the launcher is not asked any more. It tells, of
its own accord, which rank was lost and that ranks come or go. See :mod:`workbench.launch.elastic.membership`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import logging
import math
import os
import platform
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from workbench.common.alone import ALONE
from workbench.common.messages import Decoder, Message, MessageError, encode
from workbench.config import Launch, Settings
from workbench.errors import LaunchError, PeerLostError, WorkbenchError
from workbench.machine import machine
from workbench.transport.bootstrap.base import unless_given_up
from workbench.transport.bootstrap.values import Problem
from workbench.transport.bootstrap.values import decode as decode_value
from workbench.transport.bootstrap.values import encode as encode_value

log = logging.getLogger("workbench")

VERSION = 1
"""Of what workers and launcher say to each other."""
_CUT = "cut"
_ELASTIC_DEADLINE = "WORKBENCH_ELASTIC_TIMEOUT_S, --elastic-timeout of workbench run"
_LOOK_S = 1.0  # at the clock
_LAST_WORDS_S = 2.0  # for the launcher to say that a rank was lost, after something has failed


class Dismissed(SystemExit):
    """The job goes on without this process, which ends well unless somebody catches it."""


class Registration:
    """This process's connection to its launcher.

    Args:
        path: the launcher's socket.
        worker: this process's number.

    Attributes:
        comes: numbers this process's wishes to belong to an epoch.
        on_news: called on another thread with what the launcher says of its own accord about an epoch: ``epoch``,
            ``lost`` or ``changed``, see :mod:`workbench.launch.elastic.membership`.

    Raises:
        LaunchError: nobody listens there.
    """

    def __init__(self, path: str, worker: int) -> None:
        self.on_news: Callable[[Message], None] = lambda message: None
        self.inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.comes = itertools.count(1)
        self._lock = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.connect(path)
            self.send("here", worker=worker, pid=os.getpid())
        except OSError as error:
            raise LaunchError(f"init(): the launcher of this elastic job is not at {path} any more: {error}") from None
        threading.Thread(target=self._listen, name="workbench-membership", daemon=True).start()

    def send(self, kind: str, data: bytes = b"", **fields: Any) -> None:
        """Tell the launcher something; raises OSError where it is gone."""
        with self._lock:
            self._socket.sendall(encode(Message(kind, fields, data)))

    def _listen(self) -> None:
        decoder = Decoder()
        with contextlib.suppress(OSError, MessageError):
            while data := self._socket.recv(1 << 16):
                for message in decoder.feed(data):
                    self._take(message)
        self.inbox.put(Message(_CUT, {}))

    def _take(self, message: Message) -> None:
        if message.kind == "ping":
            self.send("pong")
            return
        if message.kind in ("epoch", "lost", "changed"):
            self.on_news(message)
        if message.kind != "changed":
            self.inbox.put(message)


@functools.cache
def registration(path: str, worker: int, pid: int) -> Registration:
    """This process's registration: one, as long as it lives. A forked child has none of its own."""
    return Registration(path, worker)


class ElasticBootstrap:
    """One epoch of an elastic job, seen from one rank. To make it waits until the epoch begins.

    Args:
        launch: how this process was started.
        settings: ``elastic_timeout_s`` is the deadline for the epoch, ``init_timeout_s`` that of each exchange. A
            notebook's newcomer has no deadline: the others' cell, for which it waits, has.

    Attributes:
        epoch: its number.

    Raises:
        LaunchError: the epoch did not begin in time, or this process does not fit the others.
        Dismissed: the job goes on without this process.
    """

    backend, comm = "sockets", None

    def __init__(self, launch: Launch, settings: Settings) -> None:
        self._registration = registration(launch.file, launch.rank, os.getpid())
        self._timeout_s, self._exchanged, self._lost, self.epoch = settings.init_timeout_s, 0, "", -1
        self._news, self._lock, self._come = list[Message](), threading.Lock(), next(self._registration.comes)
        self._notify: Callable[[Message], None] = self._news.append
        self._registration.on_news = self._receive
        self.node = machine()
        self._send("come", about={"like": _like()}, number=self._come)
        try:
            fields = self._await("epoch", self._is_mine, math.inf if ALONE.get() else settings.elastic_timeout_s).fields
            self.rank, self.size, self.secret = fields["rank"], fields["size"], bytes.fromhex(fields["key"])
        except BaseException:
            self.withdraw()
            raise

    # --- the bootstrap --------------------------------------------------------------------------------

    def exchange(self, value: Any) -> list[Any]:
        number = self._put(value)

        def fits(found: dict[str, Any]) -> bool:
            return (found["epoch"], found["number"]) == (self.epoch, number)

        message = self._await("values", fits, self._timeout_s)
        values, data = [], message.data
        for length in message.fields["lengths"]:
            values.append(decode_value(data[:length]))
            data = data[length:]
        return unless_given_up(values)

    def give_up(self, problem: str) -> None:
        """The others find it in the next exchange. Where a rank was lost they know already."""
        if not self._lost:
            with contextlib.suppress(WorkbenchError):
                self._put(Problem(problem))

    def look(self) -> None:
        """At what the launcher has said."""
        if self._lost:
            raise PeerLostError(self._lost)

    def broken(self) -> None:
        """Nothing waits for the others at the end."""

    def over(self) -> bool:
        """After something failed in ``init()``: was it because a rank was lost? Then the next epoch begins."""
        until = time.monotonic() + _LAST_WORDS_S
        while not self._lost and time.monotonic() < until:
            time.sleep(0.01)
        return bool(self._lost)

    def withdraw(self) -> None:
        """This process is not in the epoch, and does not wait for one."""
        self._notify_launcher("withdrawn")

    def synced(self) -> None:
        """This process has what was trained: another epoch may make it rank 0."""
        self._notify_launcher("synced", epoch=self.epoch)

    def out(self) -> None:
        """This process has called ``shutdown()``."""
        self._notify_launcher("out")

    def _notify_launcher(self, kind: str, **fields: Any) -> None:
        """What changes nothing here where the launcher has ended."""
        with contextlib.suppress(OSError):
            self._registration.send(kind, **fields)

    def _is_mine(self, fields: dict[str, Any]) -> bool:
        return bool(fields["come"] == self._come)  # an older one was meant for who has withdrawn since

    def watch(self, lost: Callable[[int, str], None], changed: Callable[[float, int], None]) -> None:
        """Hear what the launcher has said and says about this epoch; on another thread from now on.

        Args:
            lost: called with a rank that was lost, and why.
            changed: called with a time stamp and what has happened, when ranks come or go.
        """

        def notify(message: Message) -> None:
            fields = message.fields
            if message.kind == "lost":
                lost(fields["rank"], fields["why"])
            else:
                changed(float(fields["timestamp"]), int(fields["what"]))

        with self._lock:  # or news that comes between the next two lines would overtake older ones
            self._notify = notify
            for message in self._news:
                notify(message)

    def _receive(self, message: Message) -> None:
        fields = message.fields
        with self._lock:
            if message.kind == "epoch":
                if self._is_mine(fields):
                    self.epoch = fields["epoch"]
            elif fields["epoch"] == self.epoch:
                if message.kind == "lost":
                    self._lost = f"init(): rank {fields['rank']} was lost: {fields['why']}."
                self._notify(message)

    def _put(self, value: Any) -> int:
        self._exchanged += 1
        self._send("value", encode_value(value), epoch=self.epoch, number=self._exchanged)
        return self._exchanged

    def _send(self, kind: str, data: bytes = b"", **fields: Any) -> None:
        try:
            self._registration.send(kind, data, **fields)
        except OSError as error:
            raise LaunchError(f"The launcher of this elastic job has ended: {error}.") from None

    def _await(self, kind: str, fits: Callable[[dict[str, Any]], bool], timeout_s: float) -> Message:
        """The next message of a kind. What belongs to older epochs is forgotten."""
        until, why = time.monotonic() + timeout_s, "its launcher has not answered"
        while True:
            try:
                message = self._registration.inbox.get(timeout=min(max(0.0, until - time.monotonic()), _LOOK_S))
            except queue.Empty:
                if time.monotonic() < until:
                    continue
                raise LaunchError(
                    f"init(): the ranks of this elastic job were not complete within {timeout_s:g} s "
                    f"({_ELASTIC_DEADLINE if kind == 'epoch' else 'WORKBENCH_INIT_TIMEOUT_S'}): {why}."
                ) from None
            fields = message.fields
            match message.kind:
                case "waiting":
                    why = fields["why"]
                    log.warning("elastic: waiting for the next epoch: %s", why)
                case "lost" if fields["epoch"] == self.epoch:
                    raise PeerLostError(f"init(): rank {fields['rank']} was lost: {fields['why']}.")
                case "dismissed":
                    raise Dismissed(0)
                case "refused":
                    raise LaunchError(f"init(): this process cannot join the job: {fields['why']}.")
                case found if found == _CUT:
                    raise LaunchError("init(): the launcher of this elastic job has ended.")
                case found if found == kind and fits(fields):
                    return message


@functools.cache  # what this process has begun with, whatever becomes of the file
def _like() -> dict[str, str]:
    """What must be the same for all that train together, such as the script."""
    found = {"Python": platform.python_version(), "byte order": sys.byteorder, "workbench": _version()}
    if torch := sys.modules.get("torch"):
        found["torch"] = str(torch.__version__)
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    if path and os.path.isfile(path) and "ipykernel" not in path:
        with open(path, "rb") as file:
            found["script"] = hashlib.blake2b(file.read(), digest_size=6).hexdigest()
    return found


def _version() -> str:
    """The release, and the words that workers and launcher use."""
    return f"{getattr(sys.modules.get('workbench'), '__version__', '')} ({VERSION})"
