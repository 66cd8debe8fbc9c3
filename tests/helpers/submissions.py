"""Notebooks as learners hand them in, and their sheets."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import nbformat
import psutil

from workbench.cli.grade.grade import Grading, How
from workbench.cli.grade.results import NotebookResult
from workbench.cli.grade.submissions import read
from workbench.course.tasks import task

SETUP = "import os, sys, time, gc\nimport numpy as np\nfrom workbench.course.exercise import check, exercise"
NAME = "08.break_even"  # a formula: it costs half of what an exercise of ranks does
RIGHT = task(NAME).cell(solved=True)
WRONG = f'@exercise("{NAME}")\ndef break_even(*numbers):\n    return 1.0'
# A cell: what is refused to a submission, by the number of a system call or by Python's function.
REFUSED = """
import ctypes, errno, platform, resource, signal, socket
libc, column = ctypes.CDLL(None, use_errno=True), ["x86_64", "aarch64"].index(platform.machine())
def refused(name, numbers, *args, error=errno.EPERM):
    if numbers[column] is None: return
    got = libc.syscall(numbers[column], *args)
    assert (got, ctypes.get_errno()) == (-1, error), (name, got, ctypes.get_errno())
def raises(function, *args):
    try: function(*args)
    except OSError: return
    raise SystemExit(f"{function} {args}")
"""


def write(path: Path, *cells: str) -> str:
    """A notebook of code cells."""
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells]), path)
    return str(path)


def graded(path: Path, *cells: str, step_s: float = 30.0, deadline_s: float = 240.0, **limits: int) -> NotebookResult:
    """The sheet of a notebook of these cells."""
    return Grading(read(write(path, SETUP, *cells)), How(deadline_s, step_s, limits=limits)).run()


def state(sheet: NotebookResult, name: str = NAME) -> str:
    """Of one exercise."""
    return sheet.exercises[name].state.value


def living(word: str) -> list[int]:
    """Processes with a word in their command line."""
    found = []
    for one in psutil.process_iter(["cmdline", "status"]):
        if word in (one.info["cmdline"] or []) and one.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(one.pid)
    return found


def imports(name: str) -> str:
    """What a lesson imports for a solution: the names of the reference's module that it uses."""
    reference = task(name).reference
    ahead, lines = [reference.__code__], []
    while ahead:
        code = ahead.pop()
        ahead += [one for one in code.co_consts if isinstance(one, type(code))]
        for used in code.co_names:
            value = reference.__globals__.get(used)
            if isinstance(value, ModuleType):
                lines.append(f"import {value.__name__} as {used}")
            elif value is not None and getattr(value, "__module__", "") != "builtins":
                lines.append(f"from {reference.__module__} import {used}")
    return "\n".join(lines)
