"""Stands for a Python that a fork server forks: ``python -I -S fork_client.py SOCKET PYTHON WORDS…``.

It hands the fork server its words, its environment and its open files, and ends as the fork ends. Wherever that cannot
be (no server, a wrong one, one that does not answer), it becomes that Python: slower, and as well.

1. The request: 4 bytes of length, and texts between zeros (see :func:`request`). The answer: ``no WHY``, or ``yes``.
2. The open files, to a server that answers: another would keep pipes open. The answer: the number of the fork.
3. ``go``, for which the fork waits, and its ``gone``: so there is never a fork and a Python, and never none, whenever
   the server ends.
4. It becomes a shell that waits for the exit code, or the signal: ten engines are ten shells. A server that ends takes
   no fork with it: then the shell waits until the process is gone.

This file is run by its path, not with ``-m``, and imports next to nothing: it starts in 10 ms.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import os
import sys

FORK = "WORKBENCH_FORK_OF"
"""Variable of a fork: its process, and the one that stands for it."""
MOST_FILES = 200
_ANSWER_S = 3.0
_SIGNALS = (1, 2, 3, 15)  # those that a parent may have had ignored
_RIGHTS = 1
# It ends by the signal that has ended the fork. A zombie has no exe.
WAIT = (
    'read -r code <&3 && case $code in -*) kill "$code" $$;; *) exit "$code";; esac; '
    'exec 3<&-; while [ -e "/proc/$0/exe" ]; do sleep 0.5; done; exit 1'
)


def request(words: list[str], files: list[int]) -> bytes:
    """What the fork shall be as this process is, as bytes.

    Args:
        words: of Python, without its own name.
        files: the numbers of the open files.
    """
    umask = os.umask(0)
    os.umask(umask)
    numbers: tuple[object, ...] = (os.getpid(), umask, os.getpriority(os.PRIO_PROCESS, 0))
    ignored = [each for each in _SIGNALS if _signal.getsignal(each) == _signal.SIG_IGN]
    lists = (numbers, sorted(os.sched_getaffinity(0)), ignored, files)
    texts = ["fork", os.getcwd(), *(" ".join(map(str, each)) for each in lists), str(len(words)), *words]
    texts += [f"{name}={text}" for name, text in os.environ.items()]
    data = b"\0".join(map(os.fsencode, texts))
    return len(data).to_bytes(4, "little") + data


def ask(address: str, words: list[str]) -> tuple[int, int]:
    """Ask for a fork: the connection, and its process; 0 for none."""
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
    files = [int(name) for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")]
    files = [each for each in files if each != connection.fileno()]
    pid = 0
    try:
        if len(files) > MOST_FILES:
            raise OSError(f"{len(files)} files are open")
        connection.settimeout(_ANSWER_S)
        connection.connect(address)
        connection.sendall(request(words, files))
        if (answer := _line(connection)) != "yes":
            raise OSError(answer)
        rights = b"".join(each.to_bytes(4, sys.byteorder) for each in files)
        connection.sendmsg([b"f"], [(_socket.SOL_SOCKET, _RIGHTS, rights)])
        pid = int(_line(connection))
        connection.sendall(b"g")
        _line(connection)
    except OSError as error:
        connection.close()
        if pid:
            _kill(pid)
        print(f"not forked: {error}", file=sys.stderr, flush=True)
        return -1, 0
    return connection.detach(), pid


def _kill(pid: int) -> None:
    """End a fork that may have been let go."""
    try:  # contextlib would take as long as all that is imported here
        os.kill(pid, 9)
    except OSError:
        return


def _line(connection: _socket.socket) -> str:
    line = b""
    while not line.endswith(b"\n"):
        part = connection.recv(1)  # the next line is the shell's
        if not part:
            raise OSError("the fork server has ended")
        line += part
    return line.decode().strip()


def main(words: list[str]) -> None:
    """Become a shell that stands for the fork, or Python."""
    address, *command = words
    connection, pid = ask(address, command[1:])
    if not pid:
        os.execv(command[0], command)
    os.set_blocking(connection, True)
    if connection != 3:
        os.dup2(connection, 3)
    os.set_inheritable(3, True)
    os.closerange(4, os.sysconf("SC_OPEN_MAX"))  # a pipe ends when the fork closes it
    os.execv("/bin/sh", ["sh", "-c", WAIT, str(pid)])


if __name__ == "__main__":
    main(sys.argv[1:])
