"""A process that has imported what notebooks need, and forks: a run of nbval, or a kernel, without seconds of imports.

A notebook's test takes a process for pytest and nbval, and one for the kernel, which imports torch: four seconds of a
core before anything of the notebook is run. :class:`ForkServer` starts ``python fork_server.py SOCKET`` once for all
tests of a process. Each request is a connection, which lives as long as the fork:

    client → {"run": "nbval" or "kernel", "words": [...], "env": {...}, "cwd": ..., "out": file or ""}
    server → {"pid": ...} at once, {"code": ...} when it has ended

When the client closes the connection before that, the fork and whatever is in its session are killed. A fork has its
own environment, folder, session and signals, as a new process has; only the modules are there already.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

_PRELOADED = ["ipykernel.kernelapp", "ipyparallel", "nbval.plugin", "numpy", "pytest", "torch"]
_PRELOADED += ["pytest_timeout", "workbench.cluster", "workbench.course.exercise", "workbench.data", "workbench.torch"]


# --- what is forked -----------------------------------------------------------------------------------


def nbval(words: Sequence[str], forks: str) -> int:
    """One run of pytest; its kernels are forks as well.

    Args:
        words: pytest's.
        forks: the server's socket.
    """
    import pytest
    from jupyter_client.provisioning import local_provisioner

    plainly = local_provisioner.launch_kernel

    def launch(cmd: list[str], **options: Any) -> Any:
        if cmd[1:3] != ["-m", "ipykernel_launcher"]:
            return plainly(cmd, **options)
        return Fork(forks, "kernel", cmd[3:], options.get("env") or os.environ, options.get("cwd") or os.getcwd())

    local_provisioner.launch_kernel = launch
    return int(pytest.main(list(words)))


def kernel(words: Sequence[str], forks: str) -> int:
    """IPython's kernel, as ``python -m ipykernel_launcher`` has it."""
    from ipykernel import kernelapp

    os.environ["JPY_PARENT_PID"] = str(os.getppid())  # it ends when that is no longer its parent
    sys.argv = ["ipykernel_launcher", *words]
    kernelapp.launch_new_instance()
    return 0


_RUNS: dict[str, Callable[[Sequence[str], str], int]] = {"nbval": nbval, "kernel": kernel}


# --- the clients' side --------------------------------------------------------------------------------


class Fork:
    """A process that the server has forked for us, with the methods of ``subprocess.Popen`` that are asked of it."""

    stdin = stdout = stderr = None

    def __init__(
        self, forks: str, run: str, words: Sequence[str], env: Mapping[str, str], cwd: str, out: str = ""
    ) -> None:
        self.returncode: int | None = None
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(forks)
        self._lines = self._socket.makefile("r")
        asked = {"run": run, "words": list(words), "env": dict(env), "cwd": str(cwd), "out": out}
        self._socket.sendall(json.dumps(asked).encode() + b"\n")
        self.pid: int = json.loads(self._lines.readline())["pid"]  # of the leader of a session

    def poll(self) -> int | None:
        """Its exit code, if it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""
        if self.returncode is None:
            with selectors.DefaultSelector() as ready:
                ready.register(self._socket, selectors.EVENT_READ)
                if not ready.select(timeout):
                    raise subprocess.TimeoutExpired("a fork", timeout or 0.0)
            line = self._lines.readline()
            self.returncode = json.loads(line)["code"] if line else -signal.SIGKILL
            self.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal to it."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """Nobody asks for it any more: if it runs it is killed, with its session."""
        self._lines.close()
        self._socket.close()


class ForkServer:
    """The server, and the way to it. It ends when :meth:`close` is called, or with this process."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="wb-forks-")
        self._address = f"{self._folder.name}/socket"
        command = [sys.executable, str(Path(__file__).resolve()), self._address]
        # Its standard input ends with this process, whatever ends that.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        assert self._process.stdout
        if not self._process.stdout.readline():  # it listens
            raise RuntimeError(f"the fork server ended with {self._process.wait()}")

    def run(
        self, run: str, words: Sequence[str], env: Mapping[str, str], cwd: Path, timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        """As ``subprocess.run``: what it printed, stdout and stderr together.

        Raises:
            subprocess.TimeoutExpired: it was killed.
        """
        with tempfile.NamedTemporaryFile(dir=self._folder.name) as out:
            fork = self.fork(run, words, env, cwd, out.name)
            try:
                code = fork.wait(timeout_s)
            finally:
                fork.close()
            return subprocess.CompletedProcess(list(words), code, out.read().decode(errors="replace"), "")

    def fork(self, run: str, words: Sequence[str], env: Mapping[str, str], cwd: Path, out: str = "") -> Fork:
        """As ``subprocess.Popen``; it ends at the latest when its ``close()`` is called, or this process ends."""
        return Fork(self._address, run, words, env, str(cwd), out)

    def close(self) -> None:
        """End it, and what it has forked."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.wait(20)
        self._process.stdout.close()
        self._folder.cleanup()


# --- the server ---------------------------------------------------------------------------------------


class _Server:
    """One thread: threads and locks would be copied halfway by a fork."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen()
        self._clients: dict[int, socket.socket] = {}
        self._ready = selectors.DefaultSelector()
        self._wake, ended = socket.socketpair()
        for each in (self._wake, ended):
            each.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(ended.fileno())
        self._ended = ended
        for what in (self._listener, self._wake, sys.stdin):
            self._ready.register(what, selectors.EVENT_READ)

    def serve(self) -> None:
        """Until standard input ends."""
        print("listens", flush=True)
        while True:
            for key, _ in self._ready.select():
                if key.fileobj is sys.stdin:
                    for pid in self._clients:
                        _kill(pid)
                    return
                if key.fileobj is self._listener:
                    self._fork(self._listener.accept()[0])
                elif key.fileobj is self._wake:
                    self._reap()
                else:  # the client has closed
                    _kill(key.data)
                    self._ready.unregister(key.fileobj)

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wake.recv(4096):
                pass
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                client = self._clients.pop(found[0], None)
                if client is None:
                    continue
                with contextlib.suppress(OSError):
                    client.sendall(json.dumps({"code": os.waitstatus_to_exitcode(found[1])}).encode() + b"\n")
                with contextlib.suppress(KeyError):
                    self._ready.unregister(client)
                client.close()

    def _fork(self, client: socket.socket) -> None:
        with client.makefile("r") as lines:
            asked = json.loads(lines.readline())
        pid = os.fork()
        if not pid:
            self._become(asked, client)
        self._clients[pid] = client
        self._ready.register(client, selectors.EVENT_READ, pid)

    def _become(self, asked: Mapping[str, Any], client: socket.socket) -> None:
        """What a new process has: a session, signals, an environment, a folder, and open files, of its own."""
        code = 1
        try:
            os.setsid()
            # Only now: whoever knows the process may send a signal to its group.
            client.sendall(json.dumps({"pid": os.getpid()}).encode() + b"\n")
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._ready.close()
            for each in (client, self._listener, self._wake, self._ended, *self._clients.values()):
                each.close()
            null = os.open(os.devnull, os.O_RDWR)
            out = os.open(asked["out"], os.O_WRONLY | os.O_APPEND) if asked["out"] else null
            for number, to in enumerate((null, out, out)):
                os.dup2(to, number)
            os.environ.clear()
            os.environ.update(asked["env"])
            os.chdir(asked["cwd"])
            code = _RUNS[asked["run"]](asked["words"], self._address)
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        except BaseException:  # noqa: BLE001 - as any program ends that raises
            sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        finally:
            _end(code)


def _end(code: int) -> None:
    """As at the end of any program, but for the modules, which need not be taken apart."""
    import atexit

    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _kill(pid: int) -> None:
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)


def main(address: str) -> None:
    """Import, and serve."""
    from importlib import import_module

    sys.path[:] = [path for path in sys.path if Path(path) != Path(__file__).parent]
    sys.modules["fork_server"] = sys.modules["__main__"]
    for name in _PRELOADED:
        with contextlib.suppress(ImportError):  # an extra that is not installed
            import_module(name)
    gc.freeze()  # what all forks have is looked through by none
    _Server(address).serve()


if __name__ == "__main__":
    main(sys.argv[1])
