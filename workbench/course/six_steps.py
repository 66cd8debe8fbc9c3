"""The slides' six steps in a script that somebody wrote for Horovod or the workbench: which line takes which?

The script is read, and not run: a step that is there may still be wrong. Lesson 10's lights judge what a script does,
and so does ``workbench run --check``.
"""

from __future__ import annotations

import tokenize
from pathlib import Path

from workbench.common.script_steps import STEPS, WITHOUT, find

_WIDEST = 120  # characters of a line that is shown


def show(path: str | Path) -> None:
    """Print a script's steps, with their lines; of one that is missing, what happens without it.

    Args:
        path: the script.

    Raises:
        OSError: it cannot be read.
    """
    try:
        with tokenize.open(path) as file:
            text = file.read()
        found = find(text)
    except SyntaxError as error:
        where = f", line {error.lineno}" if error.lineno else ""
        print(f"✗ {path}{where}: this is no Python: {error.msg}")
        return
    except (UnicodeDecodeError, RecursionError, MemoryError) as error:
        print(f"✗ {path}: Python cannot read this: {str(error) or 'it is nested too deeply'}")
        return
    if not found[1]:
        print(
            f"{path} does not call init() of Horovod or the workbench, and only their calls are known here. "
            "(PyTorch's DistributedDataParallel takes steps 5 and 6 by itself.)"
        )
    lines = text.split("\n")  # as Python counts them: splitlines() knows other ends of lines, too
    for step, title in STEPS.items():
        says = "" if found[step] else f": without it, {WITHOUT[step]}"
        print(f"{'✓' if found[step] else '✗'} {step}. {title}{says}")
        for number in found[step]:
            print(f"  {number:>5}  {_shown(lines[number - 1])}")


def _shown(line: str) -> str:
    """A line without what a terminal would take as a command, and not longer than its screen is wide."""
    text = "".join(each if each.isprintable() else " " for each in line).strip()
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"


__all__ = ["STEPS", "WITHOUT", "find", "show"]
