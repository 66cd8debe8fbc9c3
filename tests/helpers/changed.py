"""Which lessons a change concerns: of the others ``make test`` knows already that they run.

A lesson is run if one of these has changed since the commit that the main branch was left at, or, on the main branch
itself, within a day before the last commit: who pushes ten commits at once has the lessons of all ten run.

1. its text, its notebooks, the scripts beside them, and the modules of its tasks;
2. what these import of the package: each module that a cell or a task names, the module in which a name that a package
   hands on is defined, and what those modules import of ``workbench.course``, and so on.

Below that the graph says nothing: by way of ``import workbench`` every lesson comes to every file of the engine. For
these are their own tests, and the lessons that always run. Where git cannot say what has changed, all are concerned.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
ALWAYS = {"00", "03", "06", "08", "11", "22"}
PLACES = ("workbench/", "lessons/", "notebooks/", "exercises/", "solutions/", "examples/")
_DAY_S = 24 * 3600
BESIDE = {"10": ("lessons/steps/",), "21": ("examples/nano.py",), "22": ("examples/",)}


def git(*words: str) -> str:
    """What git prints; a ``CalledProcessError`` where it cannot."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


@cache
def changed() -> frozenset[str] | None:
    """Paths that differ from the main branch, or there from a day before; None: nobody knows."""
    try:
        try:
            since = git("merge-base", "HEAD", "origin/main")
        except subprocess.CalledProcessError:
            since = git("rev-parse", "HEAD")
        if since == git("rev-parse", "HEAD"):
            since = git("rev-list", "-1", f"--before={int(git('log', '-1', '--format=%ct')) - _DAY_S}", "HEAD")
        if not since:
            return None
        told = git("diff", "--name-only", since), git("ls-files", "--others", "--exclude-standard")
    except (subprocess.CalledProcessError, FileNotFoundError):
        return None
    return frozenset("\n".join(told).splitlines())


def file_of(module: str) -> Path | None:
    """Of a module of the package."""
    path = ROOT.joinpath(*module.split("."))
    return next((each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file()), None)


@cache
def imports(path: Path) -> frozenset[str]:
    """Modules of the package that a file's import statements name."""
    text = path.read_text(encoding="utf-8")
    if path.parent.name == "lessons":  # magics are no Python
        text = "\n".join(re.findall(r"^(?:# )?\s*((?:import|from) workbench\b.*)$", text, re.MULTILINE))
        statements = [tree for line in text.splitlines() if (tree := parsed(line))]
    else:
        statements = [ast.parse(text)]
    return frozenset(name for tree in statements for name in named(tree))


def parsed(line: str) -> ast.Module | None:
    """A line of a cell, or None where it is a sentence."""
    try:
        return ast.parse(line)
    except SyntaxError:
        return None


def named(tree: ast.Module) -> Iterator[str]:
    """The modules that its imports name, or from which a package has the name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name.startswith("workbench."))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("workbench"):
            yield from (defined(str(node.module), each.name) for each in node.names)


def defined(module: str, name: str) -> str:
    """The module in which a name is that another hands on."""
    if file_of(f"{module}.{name}"):
        return f"{module}.{name}"
    path = file_of(module)
    if path is not None and path.name == "__init__.py":
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and name in {each.name for each in node.names} and node.module:
                return node.module
    return module


@cache
def concerns(lesson: str) -> frozenset[str]:
    """The paths that a lesson, such as ``"03"``, depends on."""
    own = [*ROOT.glob(f"lessons/{lesson}_*.py"), *ROOT.glob(f"workbench/course/tasks/t{lesson}*.py")]
    found = {
        *own,
        *(path for kind in ("notebooks", "exercises", "solutions") for path in ROOT.glob(f"{kind}/{lesson}_*")),
    }
    ahead = [name for path in own for name in imports(path)]
    while ahead:
        path = file_of(ahead.pop())
        if path is not None and path not in found and path != ROOT / "workbench" / "__init__.py":
            found.add(path)
            ahead += [name for name in imports(path) if name.startswith("workbench.course.")]
    return frozenset(path.relative_to(ROOT).as_posix() for path in found)


def run_now(lesson: str) -> bool:
    """Is a lesson's notebook to be run, though the run is not thorough?"""
    paths = changed()
    if lesson in ALWAYS or paths is None:
        return True
    if not any(path.startswith(PLACES) for path in paths):
        return False
    return bool(paths & concerns(lesson)) or any(path.startswith(BESIDE.get(lesson, ())) for path in paths)
