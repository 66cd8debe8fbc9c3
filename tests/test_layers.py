"""What import-linter's contracts (pyproject.toml) cannot say: who reads the environment, and imports by name."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import workbench
import workbench.job

ROOT = Path(workbench.__file__).parent
HEAVY = {"torch", "tensorflow", "keras", "jax", "jaxlib", "mxnet", "mpi4py", "cupy", "cupyx"}
# May pass the environment on to other processes as a whole, without reading a variable out of it.
PASS_ENVIRONMENT_ON = {"launch", "cli", "cluster", "diagnostics", "executors"}
# Modules of ours that are imported by their names, which no contract sees → why.
BY_NAME = {
    ("as_horovod.on_path.horovod", "workbench.as_horovod"): "`import horovod` finds this file first",
    ("as_horovod.on_path.sparkdl", "workbench.as_horovod"): "and `import sparkdl` this one",
    ("ray.train", "workbench.as_horovod"): "only where the user's script asks for Horovod's names",
    ("ray.worker", "workbench.as_horovod"): "only where the user's script asks for Horovod's names",
    ("torch_plugin", "workbench.torch.distributed.devices"): "only when a group is made for several kinds of device",
    ("torch_plugin", "workbench.torch.distributed.joining"): "only when a group is made",
    ("torch_plugin", "workbench.torch.distributed.watching"): "only when a group is made, and watched",
}


def modules() -> dict[str, Path]:
    """Dotted name → file, of everything in the package."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = ["workbench", *path.relative_to(ROOT).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def room(module: str) -> str:
    """The folder or file of a module: ``core`` for ``workbench.core.engine``."""
    return module.split(".")[1] if "." in module else ""


def named_imports(module: str, source: str) -> set[tuple[str, str]]:
    """(module, module of ours that it imports by a name in quotes)."""
    if "import_module" not in source and "__import__" not in source:
        return set()
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and node.args]
    calls = [
        node for node in calls if ast.unparse(node.func) in ("importlib.import_module", "import_module", "__import__")
    ]
    names = [node.args[0].value for node in calls if isinstance(node.args[0], ast.Constant)]
    return {(module.removeprefix("workbench."), str(name)) for name in names if str(name).startswith("workbench")}


def wrong_reads(module: str, source: str) -> list[str]:
    """Where a source text reads environment variables though it must not."""
    if room(module) == "config" or not re.search(r"environ|getenv|\bos\b.* as ", source):
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
            bad = room(module) not in PASS_ENVIRONMENT_ON or not is_passed_on(parents[node])
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
    wrong: list[str] = []
    if "global " not in source and not re.search(r"\btype\(", source):
        return wrong
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Global):
            wrong.append(f"{module}, line {node.lineno}: global {', '.join(node.names)}")
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "type" and len(node.args) == 3:
            wrong.append(f"{module}, line {node.lineno}: {ast.unparse(node)}")
    return wrong


def test_modules_keep_the_rules() -> None:
    """A module leaves the environment to config, and has no ``global``."""
    sources = {module: path.read_text(encoding="utf-8") for module, path in MODULES.items()}
    assert [wrong for module, source in sources.items() for wrong in wrong_reads(module, source)] == []
    assert [wrong for module, source in sources.items() for wrong in wrong_words(module, source)] == []


# Classes of module-level objects that do not change, or that a foreign library has made.
CONSTANT = {
    *(
        "CDLL",
        "CFUNCTYPE",
        "Compression",
        "CupyCaller",
        "HostMemory",
        "IdxSource",
        "JaxBridge",
        "MappingProxyType",
        "NumpyKind",
    ),
    *(
        "Owner",
        "ParamSpec",
        "Path",
        "Policy",
        "Struct",
        "TensorFlowBridge",
        "TensorKind",
        "TypeVar",
        "Verb",
        "WireFormat",
    ),
    *("_GraphCall", "Variable"),
}
MADE = {"list", "dict", "set", "deque", "defaultdict", "Counter", "count", "local", "Lock", "RLock", "Event"}


def made_at_import(module: str, source: str) -> set[str]:
    """Names of a module that hold something which can change: an empty container, or an object of a class."""
    found = set()
    for node in ast.parse(source).body:
        value = getattr(node, "value", None)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(value, ast.Call):
            kind = ast.unparse(value.func).partition("[")[0].rpartition(".")[2]
            is_empty = kind in MADE and not (value.args or {each.arg for each in value.keywords} - {"maxlen"})
            changes = is_empty or (kind not in MADE and kind.lstrip("_")[:1].isupper() and kind not in CONSTANT)
        else:
            changes = ast.unparse(value) in ("[]", "{}") if value else False
        found |= {f"{module}.{each.id}" for each in targets if changes and isinstance(each, ast.Name)}
    return {name.removeprefix("workbench.") for name in found}


def test_what_outlives_a_job_is_listed() -> None:
    """``job/__init__.py`` lists every object that a module makes when it is imported, and that can change."""
    apart = ("course.tasks.", "launch.on_path.")
    found = set().union(*(made_at_import(name, path.read_text(encoding="utf-8")) for name, path in MODULES.items()))
    listed = set(re.findall(r"``([a-z_.]+\.\w+)``", workbench.job.__doc__ or ""))
    assert {name for name in found if not name.startswith(apart)} == listed
    assert made_at_import("workbench.x", "import threading\n_LOCK: object = threading.Lock()\nA = []\nB = [1]") == {
        "x._LOCK",
        "x.A",
    }


def test_imports_by_name_are_listed() -> None:
    """Each has a reason; none that is listed is gone."""
    found = [named_imports(module, path.read_text(encoding="utf-8")) for module, path in MODULES.items()]
    assert set().union(*found) == set(BY_NAME)
    assert named_imports("workbench.core.x", "import importlib\nimportlib.import_module('workbench.job')") == {
        ("core.x", "workbench.job")
    }


def test_importing_the_core_loads_nothing_heavy() -> None:
    """A fresh interpreter that imports all of the core and the launcher has loaded no framework, no MPI and no CUDA."""
    light = {"", "cli", "collectives", "config", "core", "errors", "job", "launch", "runtime", "training"}
    core = [m for m in MODULES if room(m) in light and not m.endswith("hub_config")]  # JupyterHub runs that one
    code = (
        "import importlib, sys\n"
        f"for module in {core}: importlib.import_module(module)\n"
        f"print(sorted({HEAVY} & set(sys.modules)))"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, cwd=ROOT.parent)
    assert child.stdout.strip() == "[]", child.stderr
