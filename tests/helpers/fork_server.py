"""A process that has imported what tests need, and forks: a kernel, a rank, an engine, without seconds of imports.

A notebook's test takes a process for pytest and nbval, and one for the kernel, which imports torch: four seconds of a
core before anything of the notebook is run; a rank of a job takes two seconds for torch. :class:`ForkServer` starts
``python fork_server.py SOCKET MODULE…`` once for all tests of a process. Each request is a connection, which lives as
long as the fork:

    client → {"run": "nbval", "kernel" or "python", "words": [...], "env": {...}, "cwd": ..., "out": file or ""}
    server → {"pid": ...} at once, {"code": ...} when it has ended

When the client closes the connection before that, the fork and whatever is in its session are killed. A fork has its
own environment, folder, session and signals, as a new process has; only the modules are there already.

``ForkServer.python`` is a command that stands for Python wherever one is started: it asks for a fork that runs its
words, gives it its own open files, passes signals on, and ends as the fork ends (fork_client.py). It becomes the real
Python where a fork would not do: with words like ``-I`` before the script, ``-m`` or ``-c``, and where the environment
says other than the server's did about what an import fixes.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import io
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

_PLAIN = ("numpy", "torch", "torch.utils.data")
# The first optimizer imports torch's compiler: four seconds of a core, where torch itself takes one and a half.
TORCH = (*_PLAIN, "torch._dynamo")
TENSORFLOW = (*_PLAIN, "tensorflow")  # imports keras, too
_FIXED = ("KERAS_BACKEND=tensorflow", "TF_USE_LEGACY_KERAS=", "JAX_ENABLE_X64=")
_FIXED_BY_TORCH = "WORKBENCH_C10D="
_NOTEBOOKS = (*TORCH, "ipykernel.kernelapp", "ipyparallel", "ipyparallel.engine.app", "nbval.plugin", "pytest")
_NOTEBOOKS += ("pytest_timeout", "workbench.cluster", "workbench.course.exercise", "workbench.data", "workbench.torch")


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
    sys.executable = f"{Path(forks).parent}/bin/python"  # the engines that it starts are forks, too
    sys.argv = ["ipykernel_launcher", *words]
    kernelapp.launch_new_instance()
    return 0


def python(asked: Mapping[str, Any]) -> None:
    """``python SCRIPT``, ``python -m MODULE`` or ``python -c CODE``; it ends as Python does."""
    import faulthandler
    import importlib

    words, env = asked["words"], asked["env"]
    os.umask(asked["umask"])
    os.sched_setaffinity(0, asked["cores"])
    for number in asked["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    sys.stdin, sys.stdout, sys.stderr = _streams(env)
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]
    sys.dont_write_bytecode = bool(env.get("PYTHONDONTWRITEBYTECODE"))
    if env.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(int(env.get("OMP_NUM_THREADS") or len(asked["cores"])))
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    importlib.invalidate_caches()
    first = words[0] if words[0].startswith("-") else os.path.realpath(words[0])
    own = os.path.dirname(first) if first == os.path.realpath(words[0]) else os.getcwd() if first == "-m" else ""
    sys.path[:0] = [own, *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    code = 0
    try:
        _run_main(first, words)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    except BaseException as error:  # noqa: BLE001 - as any program ends that raises
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    finally:
        _end(code)


def _run_main(first: str, words: Sequence[str]) -> None:
    """What Python's words ask for, in the module ``__main__``."""
    import runpy

    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    if first == "-m":
        sys.argv[:] = ["-m", *words[2:]]
        runpy._run_module_as_main(words[1])  # type: ignore[attr-defined]
    elif first == "-c":
        sys.argv[:] = ["-c", *words[2:]]
        exec(compile(words[1], "<string>", "exec", dont_inherit=True), main.__dict__)
    else:
        sys.argv[:] = list(words)
        main.__dict__.update(__file__=words[0], __cached__=None)
        exec(compile(Path(words[0]).read_bytes(), words[0], "exec", dont_inherit=True), main.__dict__)


def _streams(env: Mapping[str, str]) -> Iterator[io.TextIOWrapper]:
    """Standard input, output and error, as Python opens them."""
    at_once = bool(env.get("PYTHONUNBUFFERED"))
    yield open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - to the end of the process
    for number, errors in ((1, "strict"), (2, "backslashreplace")):
        raw = open(number, "wb", buffering=0 if at_once else -1, closefd=False)  # noqa: SIM115 - as above
        lines = number == 2 or os.isatty(number)
        yield io.TextIOWrapper(raw, "utf-8", errors, line_buffering=lines, write_through=at_once)  # type: ignore[type-var]


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
    """The server, and the way to it. It ends when :meth:`close` is called, or with this process.

    Args:
        modules: what it imports; one that is not installed is left out.
    """

    def __init__(self, modules: Sequence[str] = _NOTEBOOKS) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="wb-forks-")
        self._address = f"{self._folder.name}/socket"
        self._modules = modules
        self.python = str(self._stand_in())
        command = [sys.executable, str(Path(__file__).resolve()), self._address, *modules]
        env = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"} | {
            "OMP_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "passive",
        }
        # Its standard input ends with this process, whatever ends that.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, env=env
        )
        assert self._process.stdout
        if not self._process.stdout.readline():  # it listens
            raise RuntimeError(f"the fork server ended with {self._process.wait()}")

    def _stand_in(self) -> Path:
        """In a folder with all that is beside Python, where mpiexec is looked for."""
        real = Path(sys.executable)
        folder = Path(self._folder.name) / "bin"
        folder.mkdir()
        for each in real.parent.iterdir():
            if not each.name.startswith("python"):
                (folder / each.name).symlink_to(each)
        client = Path(__file__).with_name("fork_client.py").resolve()
        python = folder / "python"
        fixed = ",".join([_FIXED_BY_TORCH, *(_FIXED if "tensorflow" in self._modules else ())])
        python.write_text(f'#!/bin/sh\nexec {real} -I -S {client} {self._address} {real} "{fixed}" "$@"\n')
        python.chmod(0o755)
        return python

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
        self._python: Mapping[str, Any] = {}  # in a fork: what to run
        for what in (self._listener, self._wake, sys.stdin):
            self._ready.register(what, selectors.EVENT_READ)

    def serve(self) -> Mapping[str, Any]:
        """Until standard input ends. It returns in a fork, too: with what this is to run as Python."""
        print("listens", flush=True)
        while not self._python:
            for key, _ in self._ready.select():
                if key.fileobj is sys.stdin:
                    for pid in self._clients:
                        _kill(pid)
                    return {}
                if key.fileobj is self._listener:
                    with contextlib.suppress(OSError):  # a client that is killed while it asks takes nobody with it
                        self._fork(self._listener.accept()[0])
                    if self._python:
                        break
                elif key.fileobj is self._wake:
                    self._reap()
                elif key.fd in self._ready.get_map():  # the client has closed, and its fork has not ended meanwhile
                    _kill(key.data)
                    self._ready.unregister(key.fileobj)
        return self._python

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
        text, files, *_ = socket.recv_fds(client, 1 << 20, 200)
        while text and not text.endswith(b"\n") and (more := client.recv(1 << 20)):
            text += more
        if not text.endswith(b"\n"):  # the client has ended
            for each in files:
                os.close(each)
            client.close()
            return
        pid = os.fork()
        if not pid:
            self._become(json.loads(text), files, client)
            return
        for each in files:
            os.close(each)
        self._clients[pid] = client
        self._ready.register(client, selectors.EVENT_READ, pid)

    def _become(self, asked: Mapping[str, Any], files: Sequence[int], client: socket.socket) -> None:
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
            os.environ.clear()
            os.environ.update(asked["env"])
            os.chdir(asked["cwd"])
            if asked["run"] == "python":
                _place(files, asked["files"])
                self._python = asked
                return
            null = os.open(os.devnull, os.O_RDWR)
            out = os.open(asked["out"], os.O_WRONLY | os.O_APPEND) if asked["out"] else null
            for number, to in enumerate((null, out, out)):
                os.dup2(to, number)
            code = _RUNS[asked["run"]](asked["words"], self._address)
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        except BaseException:  # noqa: BLE001 - as any program ends that raises
            sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        finally:
            if not self._python:
                _end(code)


def _place(files: Sequence[int], numbers: Sequence[int]) -> None:
    """Each file gets the number that it has where it comes from."""
    out_of_the_way = [fcntl.fcntl(each, fcntl.F_DUPFD, max([*files, *numbers]) + 1) for each in files]
    for each in files:
        os.close(each)
    for file, number in zip(out_of_the_way, numbers, strict=True):
        os.dup2(file, number)
        os.close(file)


def _end(code: int) -> None:
    """As at the end of any program, but for the modules: to take them apart would copy all that the forks share."""
    import atexit

    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None:
        os._exit(code)
    import mpi4py

    if mpi4py.rc.finalize is not False and mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.Finalize()  # mpi4py does so where Python ends
    ctypes.PyDLL(None).exit(code)  # MPICH takes leave of mpiexec where a process ends, and that has not


def _kill(pid: int) -> None:
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)


def main(address: str, modules: Sequence[str]) -> None:
    """Import, and serve."""
    from importlib import import_module

    sys.path[:] = [path for path in sys.path if Path(path) != Path(__file__).parent]
    sys.modules["fork_server"] = sys.modules["__main__"]
    for name in modules:
        with contextlib.suppress(ImportError):  # an extra that is not installed
            import_module(name)
    gc.freeze()  # what all forks have is looked through by none
    if asked := _Server(address).serve():
        python(asked)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
