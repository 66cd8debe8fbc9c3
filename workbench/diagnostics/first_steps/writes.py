"""Which files a script opens to write."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from workbench.common.user_line import stack_of, users_own
from workbench.diagnostics.first_steps.imported import Watch, before
from workbench.diagnostics.first_steps.recorder import Recorder

# Where these stand between the script and the file, the script has asked for it. Other libraries see to their own.
_ASK_FOR_US = ("numpy", "torch", "keras", "h5py", "pandas", "matplotlib", "PIL", "safetensors")
_NO_FILES = ("/dev/", "/proc/", "/sys/")


def watch(recorder: Recorder) -> None:
    """Watch what Python opens."""

    def hook(event: str, words: tuple[Any, ...]) -> None:
        if event == "open" and _is_path(words[0]) and _writes(words[1], words[2]):
            note(recorder, words[0], "a" in words[1] if isinstance(words[1], str) else bool(words[2] & os.O_APPEND))

    sys.addaudithook(hook)


def watches(recorder: Recorder) -> dict[str, Watch]:
    """What opens files past Python."""
    return {
        "torch.serialization": lambda module: _watch_save(module, recorder),
        "h5py._hl.files": lambda module: _watch_h5(module, recorder),
    }


def note(recorder: Recorder, path: Any, appends: bool) -> None:
    """Write down that the script writes this file, unless a library does so by itself."""
    name = os.path.realpath(os.fsdecode(path))
    if not recorder.mine or name.startswith(_NO_FILES) or os.path.isdir(name):  # a file without a name is in a folder
        return
    if asked_by_script([each for each, _ in _stack()]):
        recorder.write("write", path=name, appends=appends)


def asked_by_script(stack: list[str]) -> bool:
    """Is it the script that writes, itself or by a library that writes for others?

    Args:
        stack: files, from within outwards.

    Example:
        >>> asked_by_script(["/lib/site-packages/torch/serialization.py", "train.py"])
        True
        >>> asked_by_script(["/lib/site-packages/filelock/_unix.py", "train.py"]), asked_by_script([])
        (False, False)
    """
    for path in stack:
        if path.startswith("<frozen importlib"):
            return False  # bytecode
        if "site-packages" in path:
            if path.partition("site-packages")[2].split(os.sep)[1].partition(".")[0] not in _ASK_FOR_US:
                return False
        elif users_own(path) and not path.startswith("<"):
            return True
        elif "workbench" in Path(path).parts:
            return False
    return False


def _stack() -> list[tuple[str, int]]:
    here = str(Path(__file__).parent)
    return [each for each in stack_of(sys._getframe()) if not each[0].startswith(here)]


def _is_path(what: Any) -> bool:
    return isinstance(what, (str, bytes, os.PathLike))


def _writes(mode: Any, flags: Any) -> bool:
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR))


def _watch_save(module: ModuleType, recorder: Recorder) -> None:
    def look(obj: Any, f: Any, *_: Any, **__: Any) -> None:
        if _is_path(f):
            note(recorder, f, False)

    before(module, "save", look)


def _watch_h5(module: ModuleType, recorder: Recorder) -> None:
    def look(self: Any, name: Any, mode: Any = "r", *_: Any, **__: Any) -> None:
        if _is_path(name) and mode != "r":
            note(recorder, name, False)

    before(module.File, "__init__", look)
