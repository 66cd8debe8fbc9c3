"""What of the stand-in's surface the real cupy has, and with which arguments. Run by the Python that has cupy.

Reads a surface as JSON from stdin (see `surface.py`), writes the differences, a line each. Needs no GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

_MISSING = object()


def main() -> None:
    """Read, compare, print."""
    nccl = Path(sys.argv[1])
    ctypes.CDLL(str(nccl), ctypes.RTLD_GLOBAL)  # before cupy's own module, which is linked with it
    for difference in [*differences(json.load(sys.stdin)), *missing_symbols(nccl)]:
        print(difference)


def differences(surface: dict[str, Any]) -> list[str]:
    """By dotted name: a list of arguments, the value of a constant, or null for an attribute."""
    found = []
    for path, mine in surface.items():
        real = named(path)
        if real is _MISSING:
            found.append(f"{path}: cupy has none")
        elif isinstance(mine, list):
            found += [f"{path}: {each}" for each in other_arguments(mine, arguments(real))]
        elif isinstance(mine, dict) and real != mine["value"]:
            found.append(f"{path}: {mine['value']!r} here, {real!r} in cupy")
    return found


def named(path: str) -> Any:
    """What stands behind a dotted name, or `_MISSING`."""
    value: Any = importlib.import_module("cupy")
    for part in path.split(".")[1:]:
        if inspect.ismodule(value):
            with contextlib.suppress(ImportError):
                importlib.import_module(f"{value.__name__}.{part}")
        value = getattr(value, part, _MISSING)
        if value is _MISSING:
            return value
    return value


def arguments(real: Any) -> list[list[Any]] | None:
    """(name, has it a default?, kind) of each; None where nothing says. Compiled functions say it in a docstring."""
    try:
        wanted = inspect.signature(real).parameters.values()
    except (TypeError, ValueError):
        return compiled_arguments((inspect.getdoc(real) or "").split("\n")[0])
    if any(each.kind is each.VAR_POSITIONAL for each in wanted):
        return None
    return [
        [each.name, each.default is not each.empty, "**" if each.kind is each.VAR_KEYWORD else ""] for each in wanted
    ]


def compiled_arguments(line: str) -> list[list[Any]] | None:
    """Of `copy(intptr_t dst, size_t size=0, *, stream)`: the last word before each default is the name."""
    inside = re.match(r"[\w.]+\((.*)\)(\s*->.*)?$", line)
    if inside is None:
        return None
    found = []
    for part in re.split(r",\s*(?![^\[(]*[\])])", inside[1]):
        name, default, _ = part.partition("=")
        words = name.split()
        if words and words[-1] not in ("*", "/", "\\*"):
            found.append([words[-1].lstrip("*"), bool(default), "**" if words[-1].startswith("**") else ""])
    return found


def other_arguments(mine: list[list[Any]], real: list[list[Any]] | None) -> list[str]:
    """What a call that the stand-in takes would meet in cupy."""
    if real is None:
        return []
    mine, real = ([each for each in those if each[0] != "self"] for those in (mine, real))
    takes_any = any(each[2] == "**" for each in real)
    names = [each[0] for each in real]
    found = []
    for i, (name, _default, kind) in enumerate(mine):
        if kind == "**":
            continue
        if name not in names:
            if not takes_any:
                found.append(f"argument {name!r} is none of {names}")
        elif not kind and names.index(name) != i:
            found.append(f"argument {name!r} has place {i + 1} here, and {names.index(name) + 1} in {names}")
    needed = [name for name, default, kind in real if not default and not kind]
    has = {each[0] for each in mine}
    return found + [f"cupy needs {name!r}" for name in needed if name not in has]


def missing_symbols(nccl: Path) -> list[str]:
    """NCCL's functions that cupy's module calls, and the library does not have."""
    import cupy_backends.cuda.libs.nccl as module

    listed = subprocess.run(
        ["nm", "-D", "--undefined-only", module.__file__], capture_output=True, text=True, check=True
    )
    called = set(re.findall(r"\bnccl[A-Z]\w+", listed.stdout))
    library = ctypes.CDLL(str(nccl))
    return [f"{name}: not in {nccl.name}" for name in sorted(called) if not hasattr(library, name)] or (
        [] if called else ["cupy's module calls nothing of NCCL: look whether it was built with it"]
    )


if __name__ == "__main__":
    main()
