"""Pages that are made of docstrings and of measured figures."""

from __future__ import annotations

import re
import shutil
from importlib.util import find_spec
from pathlib import Path

from workbench.course.build import ROOT

# module → what it is for; in the order of the page
API = {
    "workbench.api": "The verbs on numpy arrays, and the life of a job",
    "workbench.torch": "PyTorch",
    "workbench.tensorflow": "TensorFlow",
    "workbench.keras": "Keras",
    "workbench.jax": "JAX",
    "workbench.elastic": "Jobs whose ranks come and go",
    "workbench.cluster": "Engines for a notebook",
    "workbench.runner": "A function on ranks of its own",
    "workbench.collectives.ring": "Ring allreduce, over any link",
    "workbench.simulate": "What a step costs on ranks that nobody has",
    "workbench.calibration": "From a measurement to a prediction",
    "workbench.config.variables": "Settings",
    "workbench.errors": "Errors",
}
_NEEDS = {"torch": "torch", "tensorflow": "tensorflow", "keras": "keras", "jax": "jax", "cluster": "ipyparallel"}
# Each has the names of workbench.torch, so a reference by name alone means that one.
_OF_API = ("ProcessSet", "ReduceOp")
_SAME_NAMES = {"workbench.tensorflow", "workbench.keras", "workbench.jax", "workbench.elastic"}
_RESULTS = ROOT / "benchmarks" / "results"


def api_pages() -> dict[str, str]:
    """File → text: one page a module, and their list. A framework that is not installed here has none."""
    there = {name: says for name, says in API.items() if _is_there(name)}
    pages = {f"api/{name}.rst": _module_page(name, says) for name, says in there.items()}
    rows = "\n".join(f"| {{doc}}`{name} <{name}>` | {says} |" for name, says in there.items())
    toctree = "\n".join(["```{toctree}", ":hidden:", "", *there, "```"])
    pages["api/index.md"] = f"# API\n\nFrom the docstrings.\n\n| module | |\n|---|---|\n{rows}\n\n{toctree}\n"
    return pages


def _is_there(name: str) -> bool:
    needed = _NEEDS.get(name.split(".")[1])
    return needed is None or find_spec(needed) is not None


def _module_page(name: str, says: str) -> str:
    title = f"``{name}``"
    options = ["members"]
    if _has_all(name):  # the names are collected from other files
        options.append("imported-members")
    if name in _SAME_NAMES:
        options.append("no-index")
    own = [f"   :exclude-members: {', '.join(_OF_API)}"] if name == "workbench.torch" else []
    lines = [title, "=" * len(title), "", f"{says}.", "", f".. automodule:: {name}", *(f"   :{each}:" for each in options), *own]
    return "\n".join(lines) + "\n"


def _has_all(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    text = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")
    return re.search(r"^__all__ = ", text, re.MULTILINE) is not None


def benchmark_page(static: Path) -> str:
    """The tables and pictures of the last recorded runs."""
    parts = [_INTRODUCTION]
    for name, title in (("bench-full", "Full"), ("bench-frameworks", "Frameworks"), ("bench-quick", "Quick")):
        text = (_RESULTS / f"{name}.md").read_text(encoding="utf-8")
        text = re.sub(r"^# .*$", f"## {title}", text, count=1, flags=re.MULTILINE)
        text = text.replace("\n## ", "\n### ").replace(f"### {title}\n", f"## {title}\n", 1)
        if (_RESULTS / f"{name}.svg").exists():
            shutil.copy(_RESULTS / f"{name}.svg", static)
        parts.append(text)
    return "\n\n".join(parts)


_INTRODUCTION = """# Benchmarks

What `make bench-full` has written last, with every peer in the same run.
"""
