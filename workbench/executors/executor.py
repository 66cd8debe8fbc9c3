"""An executor: a process that Spark or Ray has started, and that runs what the launcher asks for.

::

    launcher ── client ── registry ══ TCP ══ executor ── sh ── agent ── supervisors ── ranks

The executor connects to the launcher's registry, so it listens nowhere. It then does what sshd does on a host: it
runs a shell's script, and carries its standard streams. Each script has a connection of its own. When the launcher, the
executor or the connection between them is gone, the script's standard input ends. The agent takes that as the end of
the job on its host.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO, Any

from workbench.common.secret.channel import SealedChannel
from workbench.common.secret.handshake import HANDSHAKE_S, connect
from workbench.common.secret.seal import derived
from workbench.errors import LaunchError
from workbench.machine import machine

_CHUNK = 1 << 16
_END_S = 10.0
"""So long a script has to end when its standard input has ended. An agent needs about a second."""
PURPOSE = "executors"


@dataclass(frozen=True)
class Invitation:
    """What an executor must know to come; hand it over inside the engine's own messages.

    Args:
        address, port: where the executor registry listens.
        secret: without it nobody is admitted. Its ``repr`` leaves it out, for engines log their arguments.
    """

    address: str
    port: int
    secret: bytes = field(repr=False)


@dataclass(frozen=True)
class About:
    """What an executor says of itself.

    Args:
        label: its name in messages: ``task 3``.
        gpus: which GPUs of its host the engine has given it, by number or uuid; a host's ranks see those of all its
            executors.
    """

    label: str
    gpus: tuple[str, ...] = ()


def serve(invitation: Invitation, about: About, timeout_s: float = 30.0) -> str:
    """Offer this process as a slot for one rank, until the launcher needs it no more.

    Args:
        invitation: where to go.
        about: who this is.
        timeout_s: deadline of the first connection.

    Returns:
        Why it ends: ``over`` when the launcher says so, or ``lost`` when the launcher is gone.

    Raises:
        LaunchError: the launcher cannot be reached.
    """
    channel = connected(invitation, time.monotonic() + timeout_s)
    host = socket.gethostname()
    channel.send("here", host=host, machine=machine(), pid=os.getpid(), label=about.label, gpus=list(about.gpus))
    streams: list[threading.Thread] = []
    why = "lost"
    while message := channel.receive():
        if message.kind == "over":
            why = "over"
            break
        if message.kind == "run":
            stream = threading.Thread(target=_stream, args=(invitation, dict(message.fields)), daemon=True)
            stream.start()
            streams.append(stream)
    channel.close()
    until = time.monotonic() + _END_S
    for stream in streams:
        stream.join(max(0.0, until - time.monotonic()))
    return why


def connected(invitation: Invitation, until: float) -> SealedChannel:
    """A channel to the executor registry.

    Args:
        invitation: where it is.
        until: deadline, by ``time.monotonic()``.

    Raises:
        LaunchError: it cannot be reached.
    """
    key = derived(invitation.secret, PURPOSE)
    where = f"{invitation.address} port {invitation.port}"
    try:
        sock, session = connect(invitation.address, invitation.port, key, min(until, time.monotonic() + HANDSHAKE_S))
    except OSError as error:
        raise LaunchError(
            f"{socket.gethostname()} does not reach the launcher at {where}: {error}. Does a firewall block it? Set "
            "WORKBENCH_PORTS where the job is started, to choose the ports."
        ) from None
    return SealedChannel(sock, session, listened=False)


def _stream(invitation: Invitation, order: Mapping[str, Any]) -> None:
    """Run one script, and carry its standard streams."""
    with contextlib.suppress(LaunchError):  # then the launcher waits in vain for the connection, and says so
        channel = connected(invitation, time.monotonic() + HANDSHAKE_S)
        channel.send("stream", number=order["number"])
        try:
            _run(channel, order["script"], order["env"])
        finally:
            channel.close()


def _run(channel: SealedChannel, script: str, env: Mapping[str, str]) -> None:
    with subprocess.Popen(
        ["sh", "-c", script],
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **env},
        start_new_session=True,
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        readers = [
            threading.Thread(target=_carry, args=(stream, kind, channel), daemon=True)
            for kind, stream in (("out", process.stdout), ("err", process.stderr))
        ]
        feeder = threading.Thread(target=_feed, args=(channel, process.stdin), daemon=True)
        for thread in (*readers, feeder):
            thread.start()
        _wait(process, feeder)
        for thread in readers:
            thread.join(_END_S)
        channel.send("exit", code=process.returncode)
        channel.shut()
        feeder.join()


def _wait(process: subprocess.Popen[bytes], feeder: threading.Thread) -> None:
    """Until the script has ended. Its input may end before; then it has ``_END_S`` left, from there on."""
    while feeder.is_alive():
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.25)
            return
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _carry(stream: IO[bytes], kind: str, channel: SealedChannel) -> None:
    while (data := os.read(stream.fileno(), _CHUNK)) and channel.send(kind, data):
        pass


def _feed(channel: SealedChannel, stdin: IO[bytes]) -> None:
    with stdin, contextlib.suppress(BrokenPipeError):
        while (message := channel.receive()) and message.kind == "in":
            left = message.data
            while left:
                left = left[os.write(stdin.fileno(), left) :]
