"""In each rank of ``workbench run``: a script that fails ends its process, though MPI_Finalize would wait for others.

mpi4py calls MPI_Finalize at the end of a process whose script has imported it, and there MPI waits for all ranks. They
may be in ``init()``, which waits for this one. So after an exception that nobody caught, or ``sys.exit`` with anything
but 0, the process ends just before that, when all of Python's own exit functions have run. The launcher then sees its
exit code, and ends the job.

Python imports this by its name at each start, for ``workbench run`` puts its folder first on PYTHONPATH. Another
``sitecustomize`` further back on the path is run as well.

A script that ends well and never called ``init()`` is told so: the ranks have not trained together. So is one that
torchrun, started in each rank, has begun in a job of its own.

A rank that has lost another holds its traceback back for a moment. A batch system that ends a job sends SIGTERM to all
processes, one after the other, and the last need not tell that they have lost the first.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import importlib
import importlib.machinery
import importlib.util
import os
import sys
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # this runs at each start of Python
    from collections.abc import Callable, Mapping
    from types import TracebackType
    from typing import NoReturn

_ALONE = (
    "workbench: this script has ended without init(): each of the {} ranks has run it alone, without communication. To "
    "train together, call init() at its start: import workbench.torch as hvd; hvd.init(){}"
)
_FOR_LIGHTNING = '. With Lightning: Trainer(strategy="workbench", devices=1)'
_FOR_HOROVOD = (
    ". A program written for Horovod may look at Open MPI's variables first: workbench run --as-horovod sets them"
)
_TORCHRUN = (
    "workbench: each of the {0} ranks has started a job of its own (torchrun, accelerate launch) and trains alone. "
    "Leave that launcher out: workbench run -np {0} python script.py"
)
_ALL_ENDED_WITHIN_S = 0.5
_codes: list[object] = []  # of a SystemExit that nobody caught


class _Mark:
    """An attribute of a SystemExit, deleted with it: in the frame that caught it, or in no frame if none did."""

    def __init__(self, code: object) -> None:
        self.code = code

    def __del__(self) -> None:
        if sys._getframe().f_back is None and threading.current_thread() is threading.main_thread():
            _codes.append(self.code)


def _marking(leave: Callable[..., object]) -> Callable[..., NoReturn]:
    """``sys.exit``, or the ``exit`` and ``quit`` that ``site`` makes, with a mark on what it raises."""

    def exit(*args: object, **named: object) -> NoReturn:
        try:
            leave(*args, **named)
        except SystemExit as error:
            error.__dict__["workbench"] = _Mark(error.code)
            raise
        raise AssertionError("not reached")

    return exit


def failed() -> int:
    """The code of a process that ends by an exception; 0 where it just ends."""
    # Python sets last_value before it calls sys.excepthook, whosever that is. Who has caught an exception may set it as
    # well, such as pytest; but that one has not left the outermost frame.
    trace = getattr(getattr(sys, "last_value", None), "__traceback__", None)
    if trace is not None and trace.tb_frame.f_back is None:
        return 130 if isinstance(sys.last_value, KeyboardInterrupt) else 1
    code = _codes[-1] if _codes else None
    return 0 if code is None else code & 0xFF if isinstance(code, int) else 1


def _ranks(env: Mapping[str, str], pid: int) -> int:
    """How many ranks there are, if ``pid`` is the process of the first one that its supervisor has started; else 0."""
    ranks = env.get("HOROVOD_SIZE", "")
    first = env.get("HOROVOD_RANK") == "0" and "WORKBENCH_MEMBER" in env and os.getsid(pid) == pid
    return int(ranks) if first and ranks.isdecimal() else 0


def _under_torchrun(env: Mapping[str, str]) -> int:
    """How many ranks there are, if this is the first process of a torchrun that has not met those of the others."""
    first = "TORCHELASTIC_RUN_ID" in env and env.get("RANK") == "0" and env.get("GROUP_WORLD_SIZE") == "1"
    return _ranks(env, os.getppid()) if first else 0


def _has_begun() -> bool:
    """Has Python found the script that it was asked to run?"""
    loader = getattr(sys.modules.get("__main__"), "__loader__", None)
    return loader is not importlib.machinery.BuiltinImporter or sys.argv[:1] in ([], [""], ["-"], ["-c"])


def _has_met_others() -> bool:
    """Has the script come together with the other ranks by other means than ours?"""
    mpi, jax = sys.modules.get("mpi4py.MPI"), sys.modules.get("jax._src.distributed")
    by_torch = "torch.distributed.distributed_c10d"  # which sets a hook that stays
    starts_ranks = {"torch.distributed.launcher", "accelerate.commands.launch"} & sys.modules.keys()
    return bool(
        (mpi and mpi.Is_initialized() and (mpi.Is_finalized() or mpi.COMM_WORLD.Get_size() > 1) and _talks_by(mpi))
        or (jax and jax.global_state.client)
        or getattr(sys.excepthook, "__module__", "") == by_torch
        or (by_torch in sys.modules and sys.modules[by_torch].is_initialized())
        or starts_ranks
    )


def _talks_by(mpi: object) -> bool:
    """Does a module send something by MPI? Lightning, for one, only asks for the number of ranks.

    A package that holds the module mpi4py.MPI may send by it. Of the user's own files the text says it.
    """
    import re

    sends = r"\.i?(all)?(reduce|gather|scatter|bcast|toall|[bsr]?send|recv|barrier|scan|exscan|spawn|connect|win)\w*\("
    library = os.path.dirname(os.__file__)
    for name, module in list(sys.modules.items()):
        loader = getattr(module, "__loader__", None)  # at the end of a script Python has taken its __file__ away
        path = str(getattr(module, "__file__", None) or getattr(loader, "path", ""))
        if name.split(".")[0] in ("mpi4py", "workbench"):
            continue
        if "site-packages" in path or (name == "__main__" and not path):
            if any(each is mpi for each in list(getattr(module, "__dict__", {}).values())):
                return True
        elif path.endswith(".py") and not path.startswith(library):
            with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="ignore") as file:
                text = file.read()
                if "mpi4py" in text and re.search(sends, text, re.IGNORECASE):
                    return True
    return False


def _hold_back() -> None:
    """Before an uncaught PeerLostError is printed, wait whether this process is ended, too."""
    show = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if kind.__name__ == "PeerLostError":
            time.sleep(_ALL_ENDED_WITHIN_S)
        show(kind, error, trace)

    sys.excepthook = hook


def _watch() -> None:
    def leave() -> None:
        mpi = sys.modules.get("mpi4py.MPI")
        code = failed()
        alone = ranks > 1 and _has_begun() and not os.path.exists(member) and not _has_met_others()
        if not code and os.getpid() == pid and alone:
            with contextlib.suppress(Exception):
                by_lightning = {"lightning", "pytorch_lightning"} & sys.modules.keys()
                text = _ALONE.format(ranks, _FOR_LIGHTNING if by_lightning else cause)
                print(text, file=sys.stderr, flush=True)
        if not code or os.getpid() != pid or mpi is None or not mpi.Is_initialized() or mpi.Is_finalized():
            return
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)

    env = dict(os.environ)
    pid, member = os.getpid(), env.get("WORKBENCH_MEMBER", "")
    ranks = _ranks(env, pid)
    if (torchruns := _under_torchrun(env)) > 1:
        print(_TORCHRUN.format(torchruns), file=sys.stderr, flush=True)
    cause = "" if "WORKBENCH_AS_HOROVOD" in env else _FOR_HOROVOD
    _hold_back()
    sys.exit = _marking(sys.exit)
    if quitter := getattr(builtins, "exit", None):
        type(quitter).__call__ = _marking(type(quitter).__call__)
    atexit.register(leave)  # the first one registered, so the last one called
    if module := env.get("WORKBENCH_AT_START"):  # what the launcher wants to see of the script, as --check does
        importlib.import_module(module).begin()


def _other() -> None:
    """Run the ``sitecustomize`` that this one stands before."""
    here = os.path.dirname(os.path.abspath(__file__))
    path = [folder for folder in sys.path if os.path.abspath(folder or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if threading.current_thread() is threading.main_thread():
    _watch()
_other()
