"""Which lessons a change concerns: of the others ``make test`` knows already that they run.

A change is what differs from where the main branch was left, or from the commit that ``WORKBENCH_SINCE`` names: CI says
there what was on the main branch before a push. Without it, on the main branch itself, it is what was otherwise four
hours before the last commit: who pushes ten commits at once has those of all ten. A change concerns a lesson if

1. a code cell of its notebook has become another, or scripts beside it, or the module of one of its tasks;
2. a module has changed that it imports, and no lesson before it does: those that always run come first.

Imports are: each module that a cell or a task names, the module in which a name that a package hands on is defined, and
what those modules import of ``workbench.course``, and so on. Below that the graph says nothing: by way of ``import
workbench`` every lesson comes to every file of the engine. For these are their own tests, and the lessons that always
run. Who changes a docstring or a comment has changed no module. Where git cannot say what has changed, all run.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
ALWAYS = {"00", "03", "06", "08", "11", "22"}
_PUSH_S = 4 * 3600
BESIDE = {"10": ("lessons/steps/",), "21": ("examples/nano.py",), "24": ("examples/gpt.py",), "22": ("examples/",)}


def git(*words: str) -> str:
    """What git prints; a ``CalledProcessError`` where it cannot."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


@cache
def since() -> str:
    """The commit from which a change is counted; "" where nobody knows it."""
    try:
        found = os.environ.get("WORKBENCH_SINCE") or git("merge-base", "HEAD", "origin/main")
        if found == git("rev-parse", "HEAD"):
            found = git("rev-list", "-1", f"--before={int(git('log', '-1', '--format=%ct')) - _PUSH_S}", "HEAD")
        return found
    except (subprocess.CalledProcessError, FileNotFoundError):
        return ""


@cache
def changed() -> frozenset[str] | None:
    """Paths that differ from what was there before; None: nobody knows."""
    try:
        told = git("diff", "--name-only", since() or "unknown"), git("ls-files", "--others", "--exclude-standard")
    except (subprocess.CalledProcessError, FileNotFoundError):
        return None
    return frozenset("\n".join(told).splitlines())


@cache
def same_program(path: str) -> bool:
    """Has only a docstring, a comment or the layout of a module, or of a lesson's script, changed?"""
    looked_at = path.endswith(".py") and path.startswith(("workbench/", "tests/course/", *sum(BESIDE.values(), ())))
    try:
        return looked_at and program(git("show", f"{since()}:{path}")) == program((ROOT / path).read_text("utf-8"))
    except (subprocess.CalledProcessError, FileNotFoundError, SyntaxError):
        return False


def program(text: str) -> str:
    """The syntax tree of a module without its docstrings."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node, clean=False):
            del node.body[0]
    return ast.dump(tree)


def code(notebook: str) -> list[tuple[object, object]]:
    """The code cells of a notebook's text, and what they have printed."""
    cells = json.loads(notebook)["cells"]
    return [(cell["source"], cell["outputs"]) for cell in cells if cell["cell_type"] == "code"]


def other_code(path: str) -> bool:
    """Is the code of a notebook that has changed another now? Its text alone need not be run."""
    try:
        return code(git("show", f"{since()}:{path}")) != code((ROOT / path).read_text(encoding="utf-8"))
    except (subprocess.CalledProcessError, FileNotFoundError):
        return True


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
    """The modules that a lesson, such as ``"03"``, depends on, and its tasks."""
    tasks = [*ROOT.glob(f"workbench/course/tasks/t{lesson}*.py")]
    found = {*tasks}
    ahead = [name for path in (*ROOT.glob(f"lessons/{lesson}_*.py"), *tasks) for name in imports(path)]
    while ahead:
        path = file_of(ahead.pop())
        if path is not None and path not in found and path != ROOT / "workbench" / "__init__.py":
            found.add(path)
            ahead += [name for name in imports(path) if name.startswith("workbench.course.")]
    return frozenset(path.relative_to(ROOT).as_posix() for path in found)


@cache
def shown_by(module: str) -> str:
    """The first lesson that depends on a module; "" if none does."""
    others = sorted({path.name[:2] for path in ROOT.glob("lessons/[0-9]*.py")} - ALWAYS)
    return next((lesson for lesson in (*sorted(ALWAYS), *others) if module in concerns(lesson)), "")


def run_now(lesson: str) -> bool:
    """Is a lesson's notebook to be run, though the run is not thorough?"""
    paths = changed()
    if lesson in ALWAYS or paths is None:
        return True
    return any(
        other_code(path)
        if path.startswith(f"notebooks/{lesson}_")
        else (path.startswith(BESIDE.get(lesson, ())) or shown_by(path) == lesson) and not same_program(path)
        for path in paths
    )
