"""Every example in a docstring is run, unless it says itself that it needs a launcher (``+SKIP``)."""

from __future__ import annotations

import ast
import doctest
import importlib
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import workbench

ROOT = Path(workbench.__file__).parent
OPTIONAL = {"cupy", "ipyparallel", "jax", "keras", "matplotlib", "mpi4py", "mxnet", "nbclient", "nvidia", "pandas"}
OPTIONAL |= {"pyarrow", "pyspark", "ray", "sklearn", "tensorflow", "torch"}


def module_of(path: Path) -> str:
    """The dotted name of a file of the package."""
    return ".".join(
        ["workbench", *(part for part in path.relative_to(ROOT).with_suffix("").parts if part != "__init__")]
    )


def with_examples() -> dict[str, Path]:
    """Modules whose files have examples, found by reading them and not by importing them."""
    return {module_of(path): path for path in sorted(ROOT.rglob("*.py")) if b">>> " in path.read_bytes()}


def examples(path: Path) -> int:
    """How many docstrings of a file have examples."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return sum(">>> " in (ast.get_docstring(node) or "") for node in nodes if isinstance(node, documented))


FILES = with_examples()
LARGE = ["workbench.jax", "workbench.keras", "workbench.tensorflow", "workbench.tf", "workbench.spark.keras"]
STARTS_PROCESSES = {
    "workbench",
    "workbench.launch.ranks.process_tree",
    "workbench.launch.start.hosts",
    "workbench.launch.function",
}
COMPUTES = {"workbench.calibration.measure", "workbench.simulate.held_out", "workbench.simulate.ideas"}  # for seconds
APART = {name for name in FILES if name.startswith(tuple(LARGE))}


def load(name: str) -> object:
    """Import a module, or skip where an optional package is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in OPTIONAL:
            raise
        pytest.skip(f"{name} needs {missing}, which is not installed here")


def check(name: str) -> None:
    """Run a module's examples."""
    module = load(name)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    tests = [test for test in doctest.DocTestFinder().find(module) if test.examples]
    said: list[str] = []
    for test in tests:
        runner.run(test, out=said.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(said)
    assert len(tests) == examples(FILES[name]), "an example stands where doctest does not look"


def marked(name: str) -> Any:
    """A parameter, with what keeps it out of the first ring."""
    marks = [pytest.mark.process] * (name in STARTS_PROCESSES) + [pytest.mark.thorough] * (name in COMPUTES)
    return pytest.param(name, marks=marks)


@pytest.mark.parametrize("name", [marked(name) for name in FILES if name not in APART])
def test_examples_are_true(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every example of a module runs and prints what its docstring shows."""
    monkeypatch.setenv("WORKBENCH_HEARTBEAT_S", "0.1")
    check(name)


@pytest.mark.thorough
@pytest.mark.process
@pytest.mark.timeout(180)
def test_examples_of_large_frameworks_are_true() -> None:
    """So do those that need TensorFlow or JAX; in a process of their own, for these leave threads in it."""
    assert APART
    for package in ("jax", "tensorflow"):
        if find_spec(package) is None:
            pytest.skip(f"needs the extra {package}")
    here = {name for name in APART if find_spec("pyspark") or not name.startswith("workbench.spark")}
    code = f"import test_docs\nfor name in {sorted(here)}: test_docs.check(name)"
    env = {**os.environ, "WORKBENCH_HEARTBEAT_S": "0.1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    words = [sys.executable, "-c", code]
    child = subprocess.run(words, capture_output=True, text=True, timeout=170, cwd=Path(__file__).parent, env=env)
    assert child.returncode == 0, child.stdout[-3000:] + child.stderr[-6000:]
