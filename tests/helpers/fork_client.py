"""Python, as far as one sees from outside: it asks a fork server for a fork that runs its words, and ends as that ends.

``python -I -S fork_client.py SOCKET PYTHON FIXED WORDS…``; see fork_server.py.
"""

from __future__ import annotations

import os
import sys

_PASSED_ON = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGABRT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGCONT")


def main(address: str, real: str, fixed: str, *words: str) -> None:
    """Become the real Python, or stand before a fork."""
    pairs = [pair.split("=") for pair in fixed.split(",") if pair]
    if any(os.environ.get(name, value) != value for name, value in pairs):
        os.execv(real, [real, *words])
    if not words or (words[0].startswith("-") and words[0] not in ("-m", "-c")):
        os.execv(real, [real, *words])
    import json
    import signal
    import socket

    numbers = [getattr(signal, name) for name in _PASSED_ON]
    ignored = [number for number in numbers if signal.getsignal(number) is signal.SIG_IGN]
    files = [int(name) for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")]
    umask = os.umask(0)
    os.umask(umask)
    asked = {
        "run": "python", "words": words, "env": dict(os.environ), "cwd": os.getcwd(), "files": files, "umask": umask,
        "ignored": ignored, "cores": sorted(os.sched_getaffinity(0)),
    }  # fmt: skip
    server = socket.socket(socket.AF_UNIX)
    try:
        server.connect(address)
    except OSError:  # it has ended: slower, and as well
        os.execv(real, [real, *words])
    text = json.dumps(asked).encode() + b"\n"
    sent = socket.send_fds(server, [text], files)
    server.sendall(text[sent:])
    for number in files:
        os.close(number)  # a pipe ends when the fork closes it
    answers = server.makefile("r")
    pid = json.loads(answers.readline())["pid"]
    for number in set(numbers) - set(ignored):
        signal.signal(number, lambda number, _: os.kill(pid, number))
    line = answers.readline()
    code = json.loads(line)["code"] if line else -signal.SIGKILL
    if code < 0:
        if code not in (-signal.SIGKILL, -signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])
