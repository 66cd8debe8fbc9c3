"""One rank does not come through ``init()``, in the way that the first word says; the second word is the rank."""

import os
import signal
import sys
import threading
import time
from typing import Any

import workbench as hvd
from workbench import config
from workbench.errors import WorkbenchError
from workbench.transport.bootstrap import rendezvous
from workbench.transport.gpu import select as gpu_select
from workbench.transport.host import sockets

HOW, WHO = sys.argv[1], int(sys.argv[2])

if HOW.startswith("MPI"):
    from mpi4py import MPI

    assert MPI.COMM_WORLD.size > 1

ME = config.launch().rank == WHO


def die(*ignored: object) -> object:
    """This rank's end."""
    print("ends at", time.time(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def fail(*ignored: object) -> object:
    """A mistake amid init()."""
    print("ends at", time.time(), flush=True)
    raise OSError("a mistake on purpose")


if ME and HOW.endswith("raise before"):
    time.sleep(1.0)  # the others are in init() by now
    print("ends at", time.time(), flush=True)
    raise ValueError("a mistake on purpose")
if ME and HOW.endswith("hook before"):
    sys.excepthook = lambda kind, error, trace: print("my own words:", error, file=sys.stderr)
    time.sleep(1.0)
    print("ends at", time.time(), flush=True)
    raise ValueError("a mistake on purpose")
if ME and "exit before" in HOW:
    time.sleep(1.0)
    print("ends at", time.time(), flush=True)
    CODE = HOW.rpartition("exit before ")[2]
    (exit if "site's" in HOW else sys.exit)(int(CODE) if CODE.isdigit() else CODE)
if HOW.endswith("caught exit"):
    try:
        sys.exit(7)
    except SystemExit as caught:
        print("caught", caught.code, flush=True)
if ME and HOW.endswith("kill before"):
    time.sleep(1.0)
    die()
if ME and HOW == "kill amid":
    gpu_select.see = die  # looks at the GPUs after the ranks have met, before they know anything else
if ME and HOW == "fail amid":
    gpu_select.see = fail
if ME and HOW.startswith("kill late"):
    gpu_select.join = die
if not ME and HOW == "kill late, seen at once":  # this rank finds all that the other says in one look

    def slowly(self: Any, collect: Any = rendezvous._Meeting.collect) -> None:
        """Until the other knows that it is known."""
        collect(self)
        time.sleep(1.0)

    rendezvous._Meeting.collect = slowly
if ME and HOW == "fail late":
    gpu_select.join = fail
if HOW == "interrupt waiting":  # its own value is on its way, and the others come later
    see = gpu_select.see

    def late(settings: Any) -> Any:
        """All ranks have met; this one's value waits for the others' when the interrupt comes."""
        if ME:
            threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
        else:
            time.sleep(2.5)
        return see(settings)

    gpu_select.see = late
if ME and HOW == "fail connecting":
    sockets.own_address = fail
if ME and HOW == "interrupt amid":
    gpu_select.join = lambda *ignored: os.kill(os.getpid(), signal.SIGINT)
try:
    hvd.init()
except WorkbenchError as error:
    print(f"{type(error).__name__}: {error}", flush=True)
    sys.exit(3)
except KeyboardInterrupt:
    print("ends at", time.time(), flush=True)
    sys.exit(4)
print("came through", flush=True)
