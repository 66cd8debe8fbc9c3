"""The arrows between the parts of the package: every import is looked at, those inside functions too."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import workbench

ROOT = Path(workbench.__file__).parent
FRAMEWORKS = {"torch", "tensorflow", "keras", "jax", "jaxlib", "mxnet"}
HEAVY = FRAMEWORKS | {"mpi4py", "cupy", "cupyx"}
OUR_FRAMEWORKS = {f"workbench.{name}" for name in ("torch", "tensorflow", "keras", "jax", "mxnet")}

# folder or file → (what it may import of ours, or None for no limit; what it must not import at all)
RUNTIME = {f"workbench.{name}" for name in ("core", "steady", "control", "faults", "observe")}
BELOW = {"workbench.errors", "workbench.config", "workbench.machine", "workbench.common"}
COURSE = {"workbench.course"}  # imported by lessons, tests and benchmarks only: a production install need not have it
TO_TRANSPORT = {f"workbench.transport.{name}" for name in ("base", "memory", "process_sets")}
CORE = {"workbench.core", "workbench.errors", "workbench.config", "workbench.common"}
CORE |= TO_TRANSPORT | {"workbench.collectives.reduction"}
RULES: dict[str, tuple[set[str] | None, set[str]]] = {
    "core": (CORE, HEAVY),  # so all verbs work without the accelerations, the control plane and the watch for faults
    **dict.fromkeys(("steady", "control", "faults"), (CORE | RUNTIME | BELOW, HEAVY)),
    "collectives": ({"workbench.collectives"}, HEAVY),
    "simulate": (
        {"workbench.simulate", "workbench.collectives", "workbench.core", "workbench.core.buckets"},
        HEAVY,
    ),  # what it predicts is what runs
    "calibration": (None, FRAMEWORKS - {"torch"}),  # torch.spans records a model's layers
    "training": (None, FRAMEWORKS | OUR_FRAMEWORKS),
    "launch": (BELOW | {"workbench.launch"}, set()),
    "transport": (BELOW | {"workbench.transport", "workbench.collectives"}, set()),
    "errors": (set(), HEAVY),
    "config": ({"workbench.config", "workbench.errors"}, HEAVY),
    "machine": ({"workbench.errors"}, HEAVY),
    "common": ({"workbench.common"}, HEAVY),
}
# May pass the environment on to other processes as a whole, without reading a variable out of it.
PASS_ENVIRONMENT_ON = {"launch", "cluster", "executors"}


def modules() -> dict[str, Path]:
    """Dotted name → file, of everything in the package."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = ["workbench", *path.relative_to(ROOT).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def part(module: str) -> str:
    """The folder or file of a module: ``runtime`` for ``workbench.core.engine``."""
    return module.split(".")[1] if "." in module else ""


def run_time_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those that only a type checker sees."""
    yield node
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        children: list[ast.AST] = list(node.orelse)
    else:
        children = list(ast.iter_child_nodes(node))
    for child in children:
        yield from run_time_nodes(child)


def imported(tree: ast.AST, module: str, is_package: bool = False) -> set[str]:
    """Dotted names of the modules that a source text imports."""
    names: set[str] = set()
    for node in run_time_nodes(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.split(".")[: len(module.split(".")) - node.level + is_package]
                base = ".".join([*package, *filter(None, [node.module])])
            submodules = {f"{base}.{alias.name}" for alias in node.names} & MODULES.keys()
            names |= submodules or {base}
            if len(submodules) < len(node.names):
                names.add(base)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("importlib.import_module", "__import__"):
            names |= {arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant)}
    return names


def is_in(name: str, group: set[str]) -> bool:
    """Is a module, or a package that it is in, among ``group``?"""
    return any(name == each or name.startswith(f"{each}.") for each in group)


def wrong_imports(module: str, source: str, is_package: bool = False) -> list[str]:
    """What a source text imports against the rules."""
    allowed, forbidden = RULES.get(part(module), (None, set()))
    wrong = []
    for name in sorted(imported(ast.parse(source), module, is_package)):
        ours = is_in(name, {"workbench"})
        # The package's own names come from api, so whoever imports them imports api.
        means = "workbench.job.api" if name == "workbench" else name
        outside = forbidden | (set() if part(module) == "course" else COURSE)
        if (ours and allowed is not None and not is_in(means, allowed)) or is_in(means, outside):
            wrong.append(f"{module} imports {name}")
    return wrong


def wrong_reads(module: str, source: str) -> list[str]:
    """Where a source text reads environment variables though it must not."""
    if part(module) == "config":
        return []
    tree = ast.parse(source)
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    wrong = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "os":
            bad = bool({alias.name for alias in node.names} & {"environ", "environb", "getenv", "getenvb"})
        elif isinstance(node, ast.Import):
            bad = any(alias.name == "os" and alias.asname for alias in node.names)
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in ("os.getenv", "os.getenvb", "os.environb"):
            bad = True
        elif isinstance(node, ast.Attribute) and ast.unparse(node) == "os.environ":
            bad = part(module) not in PASS_ENVIRONMENT_ON or not is_passed_on(parents[node])
        else:
            bad = False
        if bad:
            wrong.append(f"{module}, line {node.lineno}: {ast.unparse(node)}")
    return wrong


def is_passed_on(parent: ast.AST) -> bool:
    """Is the environment taken as a whole: ``dict(os.environ)``, ``os.environ.copy()``, ``{**os.environ}``?"""
    if isinstance(parent, ast.Attribute):
        return parent.attr in ("copy", "items")
    return isinstance(parent, ast.Call | ast.Dict | ast.keyword | ast.BinOp)


def wrong_words(module: str, source: str) -> list[str]:
    """``global`` statements and classes built with three-argument ``type()``."""
    wrong = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Global):
            wrong.append(f"{module}, line {node.lineno}: global {', '.join(node.names)}")
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "type" and len(node.args) == 3:
            wrong.append(f"{module}, line {node.lineno}: {ast.unparse(node)}")
    return wrong


@pytest.mark.parametrize("module", MODULES)
def test_module_keeps_the_rules(module: str) -> None:
    """A module imports only downwards, leaves the environment to config, and has no ``global``."""
    path = MODULES[module]
    source = path.read_text(encoding="utf-8")
    assert wrong_imports(module, source, path.name == "__init__.py") == []
    assert wrong_reads(module, source) == []
    assert wrong_words(module, source) == []


def test_every_rule_is_about_something() -> None:
    """Each rule's folder or file exists, so none is kept by having nothing to look at."""
    assert set(RULES) | PASS_ENVIRONMENT_ON <= {part(module) for module in MODULES}


@pytest.mark.parametrize(
    ("module", "source", "culprit"),
    [
        ("workbench.core.x", "import torch.distributed", "torch.distributed"),
        ("workbench.core.x", "def f():\n    from mpi4py import MPI", "mpi4py"),
        ("workbench.core.x", "import importlib\nimportlib.import_module('cupy')", "cupy"),
        ("workbench.core.x", "from workbench.transport.host import links", "workbench.transport.host.links"),
        ("workbench.core.x", "from workbench import Sum", "workbench"),
        ("workbench.core.x", "from workbench.runtime.steady import cache", "workbench.runtime.steady.cache"),
        (
            "workbench.core.x",
            "from workbench.runtime.faults.stall import StallInspector",
            "workbench.runtime.faults.stall",
        ),
        ("workbench.core.x", "from ..collectives import ring", "workbench.collectives.ring"),
        ("workbench.core.x", "if TYPE_CHECKING:\n    pass\nelse:\n    import jax", "jax"),
        ("workbench.collectives.x", "from workbench.errors import WorkbenchError", "workbench.errors"),
        ("workbench.training.x", "import tensorflow as tf", "tensorflow"),
        ("workbench.training.x", "from workbench.torch import ops", "workbench.torch.ops"),
        ("workbench.launch.x", "import workbench.job.api", "workbench.job.api"),
        ("workbench.cli.grade.x", "from workbench.course import tasks", "workbench.course.tasks"),
        ("workbench.observe.x", "from workbench.course.figures import number", "workbench.course.figures"),
        ("workbench.cluster", "def f():\n    import workbench.course.build", "workbench.course.build"),
        ("workbench.common.x", "from workbench import config", "workbench.config"),
        ("workbench.transport.x", "from workbench.core.engine import Engine", "workbench.core.engine"),
        ("workbench.transport.x", "from .. import api", "workbench.job.api"),
        ("workbench.errors", "from workbench import config", "workbench.config"),
        ("workbench.config", "from workbench.runtime.control import codec", "workbench.runtime.control.codec"),
    ],
)
def test_a_wrong_import_is_found(module: str, source: str, culprit: str) -> None:
    """The checker names the wrong import in a made-up source text, wherever it stands."""
    assert wrong_imports(module, source) == [f"{module} imports {culprit}"]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("workbench.core.x", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"),
        ("workbench.core.x", "from workbench.core.backend.base import Backend\nfrom . import handle\nimport torchlike"),
        ("workbench.course.x", "from workbench.course import tasks"),
        ("workbench.collectives.x", "import numpy\nfrom workbench.collectives.ring import cut"),
        ("workbench.launch.x", "import mpi4py\nfrom workbench.errors import LaunchError"),
        ("workbench.transport.x", "import torch\nfrom workbench.collectives import ring_allreduce"),
    ],
)
def test_right_imports_pass(module: str, source: str) -> None:
    """The checker has nothing against what the arrows allow."""
    assert wrong_imports(module, source) == []


@pytest.mark.parametrize(
    ("module", "line", "is_wrong"),
    [
        ("workbench.core.x", "import os\nx = os.environ['HOME']", True),
        ("workbench.core.x", "import os\nx = dict(os.environ)", True),
        ("workbench.job.api", "import os\nx = os.getenv('HOME')", True),
        ("workbench.job.api", "from os import environ", True),
        ("workbench.job.api", "import os as system", True),
        ("workbench.launch.x", "import os\nx = os.environ.get('HOME')", True),
        ("workbench.launch.x", "import os\nx = 'HOME' in os.environ", True),
        ("workbench.cluster", "import os\nos.environ['A'] = 'b'", True),
        ("workbench.cluster", "import os\nx = dict(os.environ)", False),
        ("workbench.launch.x", "import os\nx = os.environ.copy()", False),
        ("workbench.launch.x", "import os\nx = {**os.environ, 'A': 'b'}", False),
        ("workbench.config", "import os\nx = os.environ['HOME']", False),
        ("workbench.core.x", "import os\nx = os.getpid()", False),
    ],
)
def test_a_read_of_the_environment_is_found(module: str, line: str, is_wrong: bool) -> None:
    """Only config reads variables; launch and cluster may hand all of them on."""
    assert bool(wrong_reads(module, line)) == is_wrong


def test_wrong_words_are_found() -> None:
    """The checker finds ``global`` and a class built with ``type()``."""
    assert wrong_words("m", "def f():\n    global x\n    x = 1") == ["m, line 2: global x"]
    assert wrong_words("m", "C = type('C', (), {})") == ["m, line 1: type('C', (), {})"]
    assert wrong_words("m", "def f():\n    nonlocal_ = type(1)") == []


def test_importing_the_core_loads_nothing_heavy() -> None:
    """A fresh interpreter that imports all of the core and the launcher has loaded no framework, no MPI and no CUDA."""
    light = {"", "api", "core", "steady", "control", "faults", "collectives", "training", "launch", "errors", "config"}
    core = [m for m in MODULES if part(m) in light]
    code = (
        "import importlib, sys\n"
        f"for module in {core}: importlib.import_module(module)\n"
        f"print(sorted({HEAVY} & set(sys.modules)))"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, cwd=ROOT.parent)
    assert child.stdout.strip() == "[]", child.stderr
