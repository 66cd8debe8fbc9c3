"""``python -m workbench.as_horovod train.py``: Python, with ``import horovod`` meaning the workbench.

For programs that start their ranks themselves, as drivers of Spark and Ray do; ``workbench run --as-horovod`` starts
ranks. The arguments are Python's: a script with its own, ``-m module``, ``-c code``. This process becomes that one.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from workbench import config


def command(words: list[str], path: str) -> tuple[list[str], dict[str, str]]:
    """What is to be started, and its environment.

    Args:
        words: Python's arguments.
        path: PYTHONPATH as it is.
    """
    here = Path(__file__).resolve().parent
    before = [str(here / "on_path"), str(here.parent.parent)]
    found = os.pathsep.join([*before, *([path] if path else [])])
    return [sys.executable, *words], config.child_environment(PYTHONPATH=found)


def main() -> None:
    """With the words of the command line."""
    if len(sys.argv) < 2:
        sys.exit("usage: python -m workbench.as_horovod script.py [arguments], or -m module, or -c code")
    words, env = command(sys.argv[1:], config.python_path())
    os.execve(words[0], words, env)


if __name__ == "__main__":
    main()
