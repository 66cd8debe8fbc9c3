"""What is public: as dir() shows it, as ``__all__`` lists it, and as mypy sees it."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def seen_by_mypy(faces: Iterable[str]) -> dict[str, set[str]]:
    """Module → the names that a strict mypy lets a user's script use. The files are checked as by ``make check``."""
    from mypy.build import build
    from mypy.main import process_options
    from mypy.modulefinder import BuildSource

    _, options = process_options(["--config-file", str(ROOT / "pyproject.toml")])
    # A script of its own: what mypy knows from an earlier run it loads for what is new alone.
    made = build([BuildSource("script.py", "script", "\n".join(f"import {face}" for face in faces))], options)
    return {
        face: {
            name
            for name, symbol in made.files[face].names.items()
            if symbol.module_public and not symbol.module_hidden and not name.startswith("_")
        }
        for face in faces
    }


def differences(face: str, typed: set[str]) -> list[str]:
    """Where dir(), ``__all__`` and what mypy sees differ; modules that are loaded when asked for are in none."""
    module = import_module(face)
    shown = {name for name in dir(module) if not name.startswith("_")}
    listed = set(module.__all__)
    lazy = set(vars(module).get("_MODULES", ()))
    wrong = [f"{face}.{name}: mypy does not see it" for name in sorted(shown - typed)]
    wrong += [f"{face}.{name}: dir() does not show it" for name in sorted(typed - shown)]
    wrong += [f"{face}.{name}: in __all__ or in dir() alone" for name in sorted(shown ^ (listed | lazy))]
    return wrong + [f"{face}.{name}: twice in __all__" for name in listed if module.__all__.count(name) > 1]


def opaque(face: str) -> list[str]:
    """Functions whose signature hides what they take."""
    module = import_module(face)
    functions = {name: getattr(module, name) for name in module.__all__ if inspect.isfunction(getattr(module, name))}
    return [
        f"{face}.{name}{signature}"
        for name, signature in ((name, inspect.signature(each)) for name, each in functions.items())
        if any(one.kind is one.VAR_KEYWORD for one in signature.parameters.values())
    ]


__all__ = ["ROOT", "differences", "opaque", "seen_by_mypy"]
