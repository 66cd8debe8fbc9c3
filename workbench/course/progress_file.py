"""The file in which a learner's progress is kept: ``.workbench/progress.json``, one object by names.

Each lesson has a kernel of its own, and all of them write here. So a writer reads what the others have written, changes
its own part, and puts a complete file in the place of the old one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # a browser, where nobody else writes here
    fcntl = None  # type: ignore[assignment]

FILE = Path(".workbench") / "progress.json"
PREDICTIONS = "predictions"
"""The key below which predictions are kept; every other key is an exercise."""


def read(path: Path) -> dict[str, Any]:
    """What is in the file; nothing where there is none, or where it is damaged.

    Example:
        >>> read(Path("no-such-file"))
        {}
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def update(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the file as ``change`` does it to its contents; in a folder that cannot be written nothing happens."""
    with suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        with path.with_suffix(".lock").open("w") as lock:
            if fcntl is not None:
                fcntl.flock(lock, fcntl.LOCK_EX)
            contents = read(path)
            change(contents)
            fresh = path.with_suffix(".new")
            fresh.write_text(json.dumps(contents, sort_keys=True), encoding="utf-8")
            fresh.replace(path)
