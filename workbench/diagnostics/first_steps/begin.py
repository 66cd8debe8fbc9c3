"""How a rank begins to record: which modules are watched, each as soon as the script imports it."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from workbench import config
from workbench.diagnostics.first_steps import keras_steps, torch_steps, writes
from workbench.diagnostics.first_steps.imported import before, when_imported
from workbench.diagnostics.first_steps.recorder import Recorder


def begin() -> None:
    """Record, where ``workbench run --check`` has said in which folder."""
    folder = config.check_folder()
    if not folder or any("multiprocessing" in word for word in sys.orig_argv):  # a worker is no rank
        return
    recorder = Recorder(Path(folder) / f"{config.launch().rank}.{os.getpid()}.jsonl")
    when_imported(
        {
            "workbench.job.api": lambda module: _watch_init(module, recorder),
            **torch_steps.watches(recorder),
            **keras_steps.watches(recorder),
            **writes.watches(recorder),
        }
    )
    writes.watch(recorder)
    recorder.write("script", path=_script())


def _script() -> str:
    """The script's path, as far as the command line says it; Python has not set ``sys.argv`` yet."""
    words = sys.orig_argv[1:]
    return next((str(Path(word).resolve()) for word in words if word.endswith(".py") and Path(word).is_file()), "")


def _watch_init(api: ModuleType, recorder: Recorder) -> None:
    """Of each call of ``init()``, write down the world that it has led to; and that ``join()`` was called."""
    plain = api.init

    @functools.wraps(plain)
    def init(comm: Any = None, process_sets: Any = None) -> None:
        again = api.is_initialized()
        plain(comm, process_sets)
        asked = comm.Get_size() if comm is not None and hasattr(comm, "Get_size") else api.size()
        recorder.write("init", size=api.size(), rank=api.rank(), asked=asked, again=again)

    vars(api)["init"] = init
    before(api, "join", lambda *_, **__: recorder.write("join"))
