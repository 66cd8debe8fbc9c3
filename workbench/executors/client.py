"""What the launcher starts to run a script on an executor: as ``ssh host script``, by way of the executor registry."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading

from workbench.common.secret.channel import SealedChannel

_IN, _OUT, _ERR = 0, 1, 2
LOST = 255
"""The exit code where the connection is lost, as ssh's."""


def main(path: str, host: str, script: str) -> int:
    """Carry the standard streams of this process to the script's; returns the script's exit code."""
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.connect(path)
    except OSError as error:
        print(f"the executor registry does not answer: {error}", file=sys.stderr)
        return LOST
    channel = SealedChannel(sock, b"", listened=False)
    channel.send("run", host=host, script=script)
    threading.Thread(target=_feed, args=[channel], daemon=True).start()
    while message := channel.receive():
        if message.kind == "refused":
            print(message.fields["text"], file=sys.stderr)
            return LOST
        if message.kind == "exit":
            return int(message.fields["code"])
        _write(_OUT if message.kind == "out" else _ERR, message.data)
    return LOST


def _feed(channel: SealedChannel) -> None:
    while (data := os.read(_IN, 1 << 16)) and channel.send("in", data):
        pass
    channel.send("no more")


def _write(file: int, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):
        while data:
            data = data[os.write(file, data) :]


def start() -> None:
    """With the words of the command line."""
    code = main(*sys.argv[1:4])
    os._exit(code if 0 <= code < 256 else 128 - code)  # a thread may be waiting for input
