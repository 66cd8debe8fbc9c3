"""An engine of ipyparallel whose nanny is forked: ``python -m workbench.launch.ranks.engine`` and ipengine's words.

Each engine has a nanny, a process that relays signals and reports the engine's end. ipyparallel starts it as a Python
of its own, which imports ipyparallel once more: a quarter of a second of a core for each engine, while the engine
waits. Here the engine forks it at once, as soon as both have imported what they need:

1. before MPI, ZeroMQ and any thread begin, for none of these survives a fork;
2. in a session of its own, with none of the engine's files but its output, as ipyparallel's is;
3. it waits for its arguments, which the engine knows when the hub has answered. If the engine ends before, so does it.

The fork server brings nothing here: it forks what is started through it, and ipyparallel starts its nanny itself. Then
two forked engines are up after 3.3 s, not 2.1 (two cores that others use as well), and a nanny takes 30 MB, not 14.

Only on Linux: elsewhere a fork is not safe so late.

However an engine ends, it ends at once, so that the notebook and the other ranks see each way alike. ipyparallel's own
handler of SIGTERM lets the running cell go on without its output, and a process of MPI waits in ``Finalize`` for the
other ranks. Children that a cell forks would inherit the handler, and ``Pool.terminate()`` waits for them.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any, BinaryIO, NoReturn

from ipykernel.iostream import OutStream
from ipyparallel.engine import app
from ipyparallel.engine.nanny import KernelNanny
from traitlets import default

from workbench.launch.ranks import kernel

_LOOK_S = 0.01
_AT_ONCE_BYTES = 65536


def fork() -> Callable[..., tuple[str, BinaryIO]]:
    """Fork the nanny. Only the engine returns, with what takes the place of ipyparallel's ``start_nanny``."""
    (take, give), (nanny_out, nanny_in) = os.pipe(), os.pipe()
    if os.fork():
        os.close(take)
        os.close(nanny_in)
        return partial(_start, os.fdopen(give, "wb"), os.fdopen(nanny_out, "rb", 0))
    code = 1
    try:
        _be_nanny(take, nanny_in)
        code = 0
    finally:  # it must not go on as a second engine
        if code:
            traceback.print_exc()
        os._exit(code)


def _start(pipe: BinaryIO, answer: BinaryIO, **arguments: Any) -> tuple[str, BinaryIO]:
    """Give the nanny its arguments: its url, and what must be kept open as long as it shall live."""
    with pipe:
        pickle.dump(arguments | {"pid": os.getpid()}, pipe)
    url = answer.readline().decode().strip()
    if not url:
        raise RuntimeError("The nanny has ended before it listened.")
    return url, answer


def _be_nanny(take: int, nanny_in: int) -> None:
    os.setsid()  # Ctrl-C is for the engine
    os.dup2(take, 0)  # the engine's is empty
    os.dup2(nanny_in, 3)
    os.closerange(4, os.sysconf("SC_OPEN_MAX"))  # what it inherits would keep the engine's pipes open after its end
    with os.fdopen(0, "rb") as pipe:
        text = pipe.read()
    if text:
        KernelNanny.main(**pickle.loads(text), pipe=os.fdopen(3, "w", 1))


class Stream(OutStream):
    """What ``print`` writes to, where ipykernel's streams do not suit engines, or do not outlive a mistake in a cell.

    1. What is printed is sent every 50 ms; ipykernel waits for 200.
    2. A character that UTF-8 cannot have is sent as its number; ipykernel loses all that was printed with it.
    3. What C code and child processes print is read in pieces, and a character may begin in one and end in the next.
       ipykernel shows two question marks then. Where the disk is full its thread ends, and with it this output.
    4. ``sys.stdout.close()``, or ``with sys.stdout:``, closes nothing: an engine prints as long as it lives.
    """

    flush_interval = 0.05

    def write(self, string: str) -> int | None:  # type: ignore[override]  # as ipykernel's
        try:
            string.encode()
        except UnicodeEncodeError:
            string = string.encode(errors="backslashreplace").decode()
        return super().write(string)

    def close(self) -> None:
        """Send what was printed, and stay open."""
        self.flush()  # type: ignore[no-untyped-call]  # ipykernel's

    def _watch_pipe_fd(self) -> None:
        """On a thread of its own: what comes by the file descriptor, for the notebook and for the engine's log."""
        text = codecs.getincrementaldecoder("utf-8")(errors="replace")
        while self._fid is not None and (data := os.read(self._fid, _AT_ONCE_BYTES)):
            self.write(text.decode(data))
            with contextlib.suppress(OSError):  # a full disk
                os.write(self._original_stdstream_copy, data)


class NotebookEngine(app.IPEngine):  # type: ignore[misc]  # ipyparallel has no types
    """An engine that SIGTERM ends as SIGKILL does."""

    out_stream_factory = Stream

    @default("work_dir")
    def _folder(self) -> str:
        """Where it starts; ipyparallel takes the folder where it was imported, which is a fork server's."""
        return os.getcwd()

    def init_engine(self) -> None:
        """As soon as the controller's file is there: ipyparallel looks ten times a second."""
        until = time.monotonic() + self.wait_for_url_file
        while self.url_file and not os.path.exists(self.url_file) and time.monotonic() < until:
            time.sleep(_LOOK_S)
        super().init_engine()

    def redirect_output(self, iopub_socket: Any) -> None:
        """What is printed goes to the notebook."""
        super().redirect_output(iopub_socket)
        self.kernel.streams |= {"stdout": sys.stdout, "stderr": sys.stderr}

    def start(self) -> None:
        """Serve until told to end. What a signal's handler raises between two cells, as of an alarm, is printed."""
        loop = self.loop.asyncio_loop
        serving = loop.create_task(self._start())
        serving.add_done_callback(lambda done: loop.stop())
        while True:
            try:
                loop.run_forever()
                break
            except (Exception, KeyboardInterrupt):  # noqa: BLE001 - of the user's handler
                traceback.print_exc()
        if serving.done():
            serving.result()

    def init_signal(self) -> None:
        """Only Ctrl-C has a handler, as the kernel expects."""
        signal.signal(signal.SIGINT, self._signal_sigint)


def main() -> NoReturn:
    """Run the engine until it ends."""
    if sys.platform == "linux":
        app.start_nanny = fork()
    app.Kernel = kernel.Kernel
    code: Any = 1
    try:
        NotebookEngine.launch_instance()
        code = 0
    except SystemExit as error:
        code = error.code
    except BaseException:  # noqa: BLE001 - the process ends
        traceback.print_exc()
    finally:
        end(code if isinstance(code, int) else int(code is not None))


def end(code: int) -> NoReturn:
    """End the process without what it does at its end: MPI's would wait for the other ranks."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
