"""The launcher's end of its executors: they check in here, and what runs on them is reached through here.

Executors of one machine make one host with a slot for each of them, so ranks of a machine share memory and have local
ranks, whatever the engine calls its parts. The host's agent runs in the executor of its first slot.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.common.ports import listen, peer
from workbench.common.secret.channel import SealedChannel, fields_of
from workbench.common.secret.handshake import HANDSHAKE_S, greet
from workbench.common.secret.listener import MOST, Listener
from workbench.common.secret.seal import derived
from workbench.common.text import count
from workbench.errors import LaunchError
from workbench.executors.executor import PURPOSE, Invitation
from workbench.launch.hosts.agent_connections import Target
from workbench.launch.hosts.remote_shell import Relay

_LOOK_S = 0.1
_SOCKET = "executors"


@dataclass
class Executor:
    """One that has checked in.

    Args:
        number: in the order of arrival.
        label: its name in messages.
        host: its host's name; other machines have other names.
        gpus: those that the engine has given it.
        channel: to it.
        here: is it still there?
    """

    number: int
    label: str
    host: str
    gpus: tuple[str, ...]
    channel: SealedChannel
    here: bool = True


@dataclass
class _WaitingScript:
    """A script for which the executor's connection is waited for."""

    came: threading.Event = field(default_factory=threading.Event)
    channel: SealedChannel | None = None


class ExecutorRegistry:
    """Where executors check in.

    Args:
        address: of this machine, at which executors reach it.
        ports: the first free one from one to the other is listened at; any free one if both are 0.
        on_message: gets what somebody tells who is no executor, but was given the invitation; see ``workbench/ray``.

    Raises:
        LaunchError: no port is free there.

    Attributes:
        invitation: for the executors.

    Example:
        >>> from workbench.executors.executor import About, serve
        >>> with ExecutorRegistry("127.0.0.1") as board:
        ...     guest = threading.Thread(target=serve, args=(board.invitation, About("task 0")))
        ...     guest.start()
        ...     board.wait_for(1, timeout_s=10.0)
        ...     slots = [slots for _, slots in board.hosts()]
        >>> guest.join(); slots
        [1]
    """

    def __init__(
        self, address: str, ports: tuple[int, int] = (0, 0), on_message: Callable[[bytes], None] | None = None
    ) -> None:
        self._on_message = on_message
        try:
            port = listen(address, ports)
        except OSError as error:
            raise LaunchError(f"No executor can reach this process: {error}.") from None
        self.invitation = Invitation(address, port.getsockname()[1], secrets.token_bytes(32))
        self._folder = tempfile.mkdtemp(prefix="workbench-")  # mode 0700
        self.path = str(Path(self._folder) / _SOCKET)
        self._clients = socket.socket(socket.AF_UNIX)
        self._clients.bind(self.path)
        self._clients.listen()
        self._changed = threading.Condition()
        self._executors: list[Executor] = []
        self._names: dict[str, str] = {}  # by machine
        self._calls: dict[int, _WaitingScript] = {}
        self._numbers, self._over = itertools.count(1), False
        self._lost: list[str] = []
        self._listener = Listener(port, self._meet, 4 * MOST)
        threading.Thread(target=self._take_clients, name="workbench-executors", daemon=True).start()

    def __enter__(self) -> ExecutorRegistry:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- who is there ---------------------------------------------------------------------------------

    def executors(self) -> list[Executor]:
        """Those that are here, in the order in which they came."""
        with self._changed:
            return [each for each in self._executors if each.here]

    def hosts(self) -> list[tuple[str, int]]:
        """Names and slots: as many as executors are here."""
        slots: dict[str, int] = {}
        for each in self.executors():
            slots[each.host] = slots.get(each.host, 0) + 1
        return list(slots.items())

    def targets(self) -> list[Target]:
        """The same, for a :class:`workbench.launch.hosts.host_plan.HostPlan`."""
        return [Target(name, slots, Relay(self.path)) for name, slots in self.hosts()]

    def lost(self) -> list[str]:
        """The labels, with their hosts, of executors that went away before the job was over."""
        with self._changed:
            return list(self._lost)

    def wait_for(self, n: int, timeout_s: float, failed: Callable[[], str] = str) -> None:
        """Until ``n`` executors are here.

        Args:
            n: how many.
            timeout_s: deadline.
            failed: says why no more will come; "" while all is well.

        Raises:
            LaunchError: the deadline has passed, or ``failed`` has said why.
        """
        until = time.monotonic() + timeout_s
        with self._changed:
            while (there := sum(each.here for each in self._executors)) < n:
                if why := failed():
                    raise LaunchError(why)
                if (left_s := until - time.monotonic()) <= 0:
                    raise LaunchError(
                        f"{there} of {count(n, 'executor')} had started after {timeout_s:g} s. Does the cluster have "
                        "so many free slots? start_timeout= gives it more time."
                    )
                self._changed.wait(min(left_s, _LOOK_S))

    def close(self) -> None:
        """Tell the executors that the job is over, and listen no more."""
        with self._changed:
            if self._over:
                return
            self._over = True
        for each in self.executors():
            each.channel.send("over")
        self._listener.close()
        with contextlib.suppress(OSError):
            self._clients.shutdown(socket.SHUT_RDWR)  # its thread wakes up
        self._clients.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    # --- executors come -------------------------------------------------------------------------------

    def _meet(self, sock: socket.socket, known: Callable[[], None]) -> bool:
        key = greet(sock, derived(self.invitation.secret, PURPOSE), known)
        if not key:
            return False
        channel = SealedChannel(sock, key, listened=True)
        message = channel.receive()
        if about := fields_of(message, "here"):
            self._attend(channel, about)
        elif (call := self._calls.pop(fields_of(message, "stream").get("number", 0), None)) is not None:
            call.channel = channel
            call.came.set()
            return True
        elif message is not None and message.kind == "tell" and self._on_message is not None:
            self._on_message(message.data)
            channel.send("heard")
        channel.shut()
        return False

    def _attend(self, channel: SealedChannel, about: Mapping[str, Any]) -> None:
        """Until an executor is gone."""
        with self._changed:
            host = self._name(str(about["host"]), str(about["machine"]))
            executor = Executor(len(self._executors), str(about["label"]), host, tuple(about["gpus"]), channel)
            self._executors.append(executor)
            self._changed.notify_all()
        while channel.receive():  # it says nothing more
            pass
        with self._changed:
            executor.here = False
            if not self._over:
                self._lost.append(f"{executor.label}@{executor.host}")
            self._changed.notify_all()

    def _name(self, host: str, machine: str) -> str:
        """A host's name; another machine of the same name gets a number."""
        if machine not in self._names:
            taken = set(self._names.values())
            numbered = (host if i == 1 else f"{host}-{i}" for i in itertools.count(1))
            self._names[machine] = next(name for name in numbered if name not in taken)
        return self._names[machine]

    # --- scripts run there ----------------------------------------------------------------------------

    def _take_clients(self) -> None:
        while not self._over:
            try:
                sock, _ = self._clients.accept()
            except OSError:
                return
            if peer(sock)[1] not in (-1, os.getuid()):
                sock.close()
                continue
            threading.Thread(target=self._serve, args=[sock], name="workbench-relay", daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        """One client: find the executor, and carry what they say to each other."""
        client = SealedChannel(sock, b"", listened=True)
        fields = fields_of(client.receive(), "run")
        try:
            remote = self._run(str(fields["host"]), str(fields["script"]))
        except (KeyError, LaunchError) as error:
            client.send("refused", text=str(error))
            client.close()
            return
        there = threading.Thread(target=_carry, args=(client, remote), daemon=True)
        there.start()
        _carry(remote, client)
        there.join()
        client.close()
        remote.close()

    def _run(self, host: str, script: str) -> SealedChannel:
        """Have the host's first executor run a script.

        Raises:
            LaunchError: no executor is there, or it does not answer.
        """
        number, call = next(self._numbers), _WaitingScript()
        self._calls[number] = call
        executors = [each for each in self.executors() if each.host == host]
        gpus = ",".join(gpu for each in executors for gpu in each.gpus)
        order = {"number": number, "script": script, "env": {"CUDA_VISIBLE_DEVICES": gpus} if gpus else {}}
        for executor in executors:
            if executor.channel.send("run", **order):
                if call.came.wait(HANDSHAKE_S) and call.channel:
                    return call.channel
                break
        self._calls.pop(number, None)
        raise LaunchError(f"no executor of {host} answers")


def _carry(one: SealedChannel, other: SealedChannel) -> None:
    while (message := one.receive()) and other.send_message(message):
        pass
    for each in (one, other):
        each.shut()
