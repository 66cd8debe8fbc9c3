"""The fork server: ``python -m workbench.launch.forks.server SOCKET LEASE MODULES…``, started by ``forks/find.py``.

It imports the modules and forks, in one thread, as long as a process that has asked for it lives::

    kernel ── lease ──► server ──► engine 0   a session, signals, files and an environment as the stand-in had them
                          ▲   └──► engine 1
    mpiexec ── stand-in ──┘        (fork_client.py says what is sent)

What keeps a fork like a new process:

1. One thread, no MPI, no context of ZeroMQ, no CUDA: nothing is forked halfway. Otherwise it forks nothing.
2. What imports read in the environment is part of the server's name: another environment is another server
   (:func:`workbench.launch.forks.environment.read_by_imports`). A fork is refused where its stand-in differs in that.
3. Files of its modules that have changed, or are hidden by files of the folder where the fork runs: refused.
4. Random generators are seeded anew.
5. ``/proc`` shows the environment of the fork, by which jobs find their processes. It is written over the server's, for
   an orphan, such as a worker of a process pool whose engine was killed, is found by this alone: ``down()`` would leave
   it running.

It takes no orders but from this user's processes, which find its socket in a folder that nobody else may enter, and
reads texts alone. It ends when the last lease and the last fork have ended, or after half an hour without forks.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import importlib
import os
import random
import runpy
import selectors
import signal
import socket
import sys
import tempfile
import threading
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from workbench import config
from workbench.common.ports import peer
from workbench.launch.forks.environment import PAD, read_by_imports
from workbench.launch.forks.fork_client import FORK, MOST_FILES

_IDLE_S = 1800.0
_SET_BLAS_THREADS = ("scipy_openblas_set_num_threads64_", "openblas_set_num_threads64_", "openblas_set_num_threads")
_LONGEST = 8 << 20  # bytes of a request


@dataclass(frozen=True)
class Request:
    """What a stand-in asks for, see ``fork_client.request``."""

    cwd: str
    stand_in: int
    umask: int
    nice: int
    cores: Sequence[int]
    ignored: Sequence[int]
    files: Sequence[int]
    words: Sequence[str]
    env: Mapping[str, str]

    @classmethod
    def of(cls, data: bytes) -> Request:
        """Of what was sent.

        Raises:
            ValueError: it is nothing like that.
        """
        texts = [os.fsdecode(each) for each in data.split(b"\0")]
        if len(texts) < 7 or texts[0] != "fork":
            raise ValueError("no request for a fork")
        (stand_in, umask, nice), cores, ignored, files = (list(map(int, each.split())) for each in texts[2:6])
        end = 7 + int(texts[6])
        env = dict(each.split("=", 1) for each in texts[end:])
        return cls(texts[1], stand_in, umask, nice, cores, ignored, files, texts[7:end], env)


@dataclass(eq=False)
class _Client:
    """A connection: what has come, and what it has become."""

    socket: socket.socket
    data: bytes = b""
    files: list[int] = field(default_factory=list)
    request: Request | None = None  # one that has been granted, and waits for its files
    pid: int = 0  # of its fork
    go: int = -1  # a pipe, on which that waits


class Server:
    """See the module. One thread: threads and locks would be copied halfway by a fork.

    Args:
        path: of the socket, which is made.
        lease: readable when the process that started the server has ended.
    """

    def __init__(self, path: str, lease: socket.socket) -> None:
        self._path = path
        self._own = read_by_imports(config.child_environment())
        self._modules = _files_of_modules()
        self._block = _environment_block()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(256)
        self._listener.setblocking(False)
        self._clients: dict[int, _Client] = {}  # of forks, by pid
        self._ready = selectors.DefaultSelector()
        self._wake, self._ended = socket.socketpair()
        for each in (self._wake, self._ended):
            each.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(self._ended.fileno(), warn_on_full_buffer=False)
        self._ready.register(self._listener, selectors.EVENT_READ)
        self._ready.register(self._wake, selectors.EVENT_READ)
        self._leases = {lease}
        self._ready.register(lease, selectors.EVENT_READ, lease)
        self._closed = False

    def serve(self) -> Request | None:
        """Until nobody needs it: None. It returns in a fork, too: with what this is to run."""
        while (self._leases and not self._closed) or self._clients:
            ready = self._ready.select(None if self._clients else _IDLE_S)
            if not ready:
                return None
            for key, _ in ready:
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._wake:
                    self._reap()
                elif key.data in self._leases:
                    self._end_lease(key.data)
                elif key.fd in self._ready.get_map() and (request := self._hear(key.data)):
                    return request
        return None

    def close(self) -> None:
        """Nobody finds it any more."""
        if not self._closed:
            self._closed = True
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
            self._ready.unregister(self._listener)
            self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            visitor, _ = self._listener.accept()
            if peer(visitor)[1] != os.getuid():  # the folder keeps others away, too
                visitor.close()
                return
            visitor.setblocking(False)
            self._ready.register(visitor, selectors.EVENT_READ, _Client(visitor))

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wake.recv(4096):
                pass
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if client := self._clients.pop(found[0], None):
                    self._answer(client, str(os.waitstatus_to_exitcode(found[1])))
                    self._drop(client)

    def _end_lease(self, lease: socket.socket) -> None:
        self._ready.unregister(lease)
        self._leases.discard(lease)
        lease.close()

    def _drop(self, client: _Client) -> None:
        for each in client.files:
            os.close(each)
        client.files = []
        if client.go >= 0:
            os.close(client.go)
            client.go = -1
        with contextlib.suppress(KeyError, ValueError):
            self._ready.unregister(client.socket)
        client.socket.close()

    def _answer(self, client: _Client, text: str) -> None:
        with contextlib.suppress(OSError):
            client.socket.sendall(f"{text}\n".encode())

    def _hear(self, client: _Client) -> Request | None:
        """Take what a client sends; in a fork for it, its request."""
        try:
            part, files, *_ = socket.recv_fds(client.socket, 1 << 20, MOST_FILES + 8)
        except BlockingIOError:
            return None
        except OSError:
            part, files = b"", []
        client.files += files
        if client.pid:  # it lets its fork go, waits for the end of that, or has ended itself
            if part and client.go >= 0:
                os.write(client.go, b"g")
                os.close(client.go)
                client.go = -1
            elif not part:
                os.kill(client.pid, signal.SIGKILL)  # not yet waited for: it is no other process
                self._ready.unregister(client.socket)
            return None
        if part and client.request:
            return self._fork(client, client.request)
        client.data += part
        length = int.from_bytes(client.data[:4], "little")
        if not part or length > _LONGEST:
            self._drop(client)
        elif len(client.data) >= 4 + length:
            return self._do(client, client.data[4 : 4 + length])
        return None

    def _do(self, client: _Client, data: bytes) -> Request | None:
        if data == b"lease":
            if changed := self._changed():
                self._answer(client, f"no {changed}")
                self._drop(client)
                self.close()
                return None
            self._answer(client, f"{os.getpid()}")
            self._ready.modify(client.socket, selectors.EVENT_READ, client.socket)
            self._leases.add(client.socket)
            return None
        try:
            request = Request.of(data)
        except ValueError as error:
            self._answer(client, f"no {error}")
            self._drop(client)
            return None
        if why := self._why_not(request):
            self._answer(client, f"no {why}")
            self._drop(client)
            return None
        client.request = request
        self._answer(client, "yes")
        return None

    def _why_not(self, request: Request) -> str:
        """Why such a process cannot be forked here; "" if it can."""
        theirs = read_by_imports(request.env)
        for name in sorted(self._own.keys() | theirs.keys()):
            if self._own.get(name) != theirs.get(name):
                return f"{name} is {theirs.get(name)!r}, and {self._own.get(name)!r} where the modules were imported"
        if request.nice < os.getpriority(os.PRIO_PROCESS, 0):
            return "its priority is higher"
        if request.words[:1] != ["-m"]:
            return "it runs no module"
        if len(_environ(request.env, 0)) > self._block[1]:
            return "its environment is too long"
        return unsafe() or _hidden(request.cwd)

    def _changed(self) -> str:
        """The file of a module that is not what was imported; "" if there is none."""
        return next((f"{path} has changed" for path, about in self._modules.items() if _about(path) != about), "")

    def _fork(self, client: _Client, request: Request) -> Request | None:
        take, give = os.pipe()
        pid = os.fork()
        if pid:
            for each in (take, *client.files):
                os.close(each)
            client.files, client.pid, client.go = [], pid, give
            self._clients[pid] = client
            return None
        try:
            os.close(give)
            self._become(client, request, take)
        except BaseException as error:  # noqa: BLE001 - it must not go on as a second server
            with contextlib.suppress(OSError):
                os.write(2, f"the fork has failed: {error!r}\n".encode())
            os._exit(1)
        return request

    def _become(self, client: _Client, request: Request, go: int) -> None:
        """What a new process has: a session, signals, an environment, a folder, and open files, of its own."""
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in request.ignored:
            signal.signal(number, signal.SIG_IGN)
        self._answer(client, str(os.getpid()))  # only now: whoever knows the process may send a signal to its group
        if not os.read(go, 1):
            os._exit(1)
        self._answer(client, "gone")
        sockets = [self._listener, self._wake, self._ended, *self._leases]
        sockets += [each.socket for each in (client, *self._clients.values())]
        sockets += [key.data.socket for key in self._ready.get_map().values() if isinstance(key.data, _Client)]
        self._ready.close()
        for each in sockets:
            each.detach()  # else it would close its number later, which is another file by then
        _place(client.files, request.files)
        os.umask(request.umask)
        os.setpriority(os.PRIO_PROCESS, 0, request.nice)
        os.sched_setaffinity(0, request.cores)
        env = {**request.env, FORK: f"{os.getpid()} {request.stand_in}"}
        config.replace_environment(env)
        ctypes.memmove(self._block[0], _environ(env, self._block[1]), self._block[1])
        os.chdir(request.cwd)


def unsafe() -> str:
    """Why this process cannot be forked now; "" if it can."""
    if len(os.listdir("/proc/self/task")) > 1:
        return "the fork server has a second thread"
    mpi, torch = sys.modules.get("mpi4py.MPI"), sys.modules.get("torch")
    if mpi is not None and mpi.Is_initialized():
        return "MPI is initialized in the fork server"
    if torch is not None and torch.cuda.is_initialized():
        return "CUDA is initialized in the fork server"
    return ""


def _hidden(cwd: str) -> str:
    """A file in the folder that a new Python would import in the place of a module that is here."""
    try:
        there = set(os.listdir(cwd))
    except OSError as error:
        return str(error)
    for name, module in list(sys.modules.items()):
        if "." in name or not ({name, f"{name}.py"} & there) or name == "__main__":
            continue
        own = str(Path(cwd, f"{name}.py" if f"{name}.py" in there else f"{name}/__init__.py"))
        file = getattr(module, "__file__", None)
        if os.path.exists(own) and not (file and os.path.samefile(own, file)):
            return f"{own} hides a module of this name"
    return ""


def _about(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


def _files_of_modules() -> dict[str, tuple[int, int]]:
    paths = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    return {path: _about(path) for path in paths if path}


def _environment_block() -> tuple[int, int]:
    """Where the system reads the environment of this process, and how many bytes."""
    words = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(words[47]), int(words[48])
    return begin, end - begin


def _environ(env: Mapping[str, str], length: int) -> bytes:
    data = b"".join(os.fsencode(f"{name}={text}") + b"\0" for name, text in env.items())
    return data.ljust(length, b"\0")


def _place(files: Sequence[int], numbers: Sequence[int]) -> None:
    """Each file gets the number that it has where it comes from; all others are closed."""
    first = max([*files, *numbers]) + 1
    out_of_the_way = [fcntl.fcntl(each, fcntl.F_DUPFD, first) for each in files]
    for number in set(range(first)) - set(numbers):
        with contextlib.suppress(OSError):
            os.close(number)
    for file, number in zip(out_of_the_way, numbers, strict=True):
        os.dup2(file, number)
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))


def run(request: Request) -> NoReturn:
    """Run a module as ``python -m`` does, and end."""
    _begin_anew(request)
    code = 1
    try:
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        main.__dict__["__builtins__"] = __builtins__
        sys.argv[:] = ["-m", *request.words[2:]]
        sys.orig_argv[:] = [sys.executable, *request.words]
        runpy._run_module_as_main(request.words[1])  # type: ignore[attr-defined]
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 - as any program ends that raises
        sys.excepthook(*sys.exc_info())
    finally:
        _end(code)


def _begin_anew(request: Request) -> None:
    """What imports have taken from the first process, and what a new one would have of its own."""
    random.seed()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    threads = config.omp_threads(request.env) or len(request.cores)
    if torch := sys.modules.get("torch"):
        torch.default_generator.seed()
    if threads > 1:
        _allow_threads(min(threads, len(request.cores)))
    tempfile.tempdir = None
    importlib.invalidate_caches()
    sys.path.insert(0, request.cwd)


def _allow_threads(number: int) -> None:
    """As many as the variables say, which the libraries have read in the server."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(number)
    with contextlib.suppress(OSError):
        loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "openblas" in line}
        for each in loaded:
            library = ctypes.CDLL(each)
            for name in _SET_BLAS_THREADS:
                if function := getattr(library, name, None):
                    function(number)


def _end(code: int) -> NoReturn:
    """As at the end of any program, but for the modules: to take them apart would copy all that the forks share."""
    import atexit

    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    os._exit(code)


def main(words: Sequence[str]) -> None:
    """``python -m workbench.launch.forks.server SOCKET LEASE MODULES…``."""
    path, lease, *modules = words
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)  # the shell that started it has had it ignored
    config.replace_environment({name: text for name, text in config.child_environment().items() if name != PAD})
    sys.path.pop(0)  # the folder where it was started
    for each in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(each)
    gc.collect()
    gc.freeze()  # a collection would write to all objects, and copy what the forks share
    if why := unsafe():
        Path(f"{path}.no").write_text(why)
        return
    server = Server(path, socket.socket(fileno=int(lease)))
    if request := server.serve():
        run(request)
    server.close()
    with contextlib.suppress(OSError):
        os.unlink(f"{path}.lock")  # it is held until this process has ended


if __name__ == "__main__":
    main(sys.argv[1:])
