"""Pages that are made of docstrings and of measured figures."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from workbench.common.extras import has
from workbench.course.build import ROOT
from workbench.diagnostics.explain import explanation, names

# module → what it is for; in the order of the page
API = {
    "workbench.job.api": "The verbs on numpy arrays, and the life of a job",
    "workbench.torch": "PyTorch",
    "workbench.tensorflow": "TensorFlow",
    "workbench.keras": "Keras",
    "workbench.jax": "JAX",
    "workbench.elastic": "Jobs whose ranks come and go",
    "workbench.cluster": "Engines for a notebook",
    "workbench.spark.run": "A function on ranks in Spark's tasks: [Run in Spark](../how-to/spark.md)",
    "workbench.spark.torch": "An estimator for PyTorch in Spark",
    "workbench.spark.keras": "An estimator for Keras in Spark",
    "workbench.ray": "Ranks as actors of Ray: [Run in Ray](../how-to/ray.md)",
    "workbench.launch.function": "A function on ranks of its own",
    "workbench.collectives.ring": "Ring allreduce, over any link",
    "workbench.simulate.measured.prediction": "From a measurement to a prediction for more ranks",
    "workbench.simulate.steps": "What a step costs on ranks that nobody has",
    "workbench.simulate.machines": "… on which racks, hosts and wires",
    "workbench.simulate.models": "… with which layers",
    "workbench.config.variables": "Settings",
    "workbench.errors": "Errors",
}
_NEEDS = {
    "torch": "torch",
    "tensorflow": "tensorflow",
    "keras": "keras",
    "jax": "jax",
    "cluster": "ipyparallel",
    "spark": "pyspark",
    "ray": "ray",
}
_CLUSTERS = ("workbench.spark", "workbench.ray")  # where these are not installed they are in the list without a page
_FRAMEWORKS = {
    f"workbench.{name}" for name in ("torch", "tensorflow", "keras", "jax", "elastic", "spark.torch", "spark.keras")
}
_OF_API = ("ProcessSet", "ReduceOp")
# Each has the names of workbench.torch, so a reference by name alone means that one.
_SAME_NAMES = {"workbench.tensorflow", "workbench.keras", "workbench.jax", "workbench.elastic"}
_RESULTS = ROOT / "benchmarks" / "results"


def api_pages(frameworks: bool = True) -> dict[str, str]:
    """File → text: one page a module, and their list. A framework that is not installed here has none.

    Args:
        frameworks: else no page of a module that imports one.
    """
    asked = {name: says for name, says in API.items() if frameworks or name not in _FRAMEWORKS}
    there = {name: says for name, says in asked.items() if _is_there(name)}
    listed = {name: says for name, says in asked.items() if name in there or name.startswith(_CLUSTERS)}
    pages = {f"api/{name}.rst": _module_page(name) for name in there}
    names = {name: f"{{doc}}`{name} <{name}>`" if name in there else f"`{name}`" for name in listed}
    rows = "\n".join(f"| {names[name]} | {says} |" for name, says in listed.items())
    toctree = "\n".join(["```{toctree}", ":hidden:", "", *there, "```"])
    pages["api/index.md"] = (
        f"# API\n\nFrom the docstrings.\n\n| module | what it is for |\n|---|---|\n{rows}\n\n{toctree}\n"
    )
    return pages


def error_pages() -> dict[str, str]:
    """File → text: what ``workbench explain`` prints, a page for each class, and their list."""
    rows = "\n".join(f"| [`{name}`]({name}.md) | {says} |" for name, says in names().items())
    toctree = "\n".join(["```{toctree}", ":hidden:", "", *names(), "```"])
    index = (
        "# Errors\n\nWhat each error means, its usual causes with an example that you can run, and what to do. "
        "`workbench explain NAME` prints the same page without a network.\n\n"
        f"| error | meaning |\n|---|---|\n{rows}\n\n{toctree}\n"
    )
    pages = {f"reference/errors/{name}.md": explanation(name) for name in names()}
    return pages | {"reference/errors/index.md": index}


def _is_there(name: str) -> bool:
    needed = _NEEDS.get(name.split(".")[1])
    return needed is None or has(needed)


def _module_page(name: str) -> str:
    title = f"``{name}``"
    options = ["members"]
    if _has_all(name):  # the names are collected from other files
        options.append("imported-members")
    if name in _SAME_NAMES:
        options.append("no-index")
    own = [f"   :exclude-members: {', '.join(_OF_API)}"] if name == "workbench.torch" else []
    lines = [title, "=" * len(title), "", f".. automodule:: {name}", *(f"   :{each}:" for each in options), *own]
    return "\n".join(lines) + "\n"


def _has_all(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    text = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")
    return re.search(r"^ *__all__ = ", text, re.MULTILINE) is not None


def benchmark_pages() -> dict[str, str]:
    """File → text: how to read the figures, the tables of the last recorded runs, and what else was measured."""
    readme = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    how = "".join(_section(readme, title) for title in ("How to read it", "How"))
    gpu = "" if (_RESULTS / "gpu-report.json").exists() else " No figure of a real GPU has been measured yet."
    rows = "\n".join(f"| {{download}}`{name} <../files/{name}>` | {says} |" for name, says in _measured())
    pages = {"benchmarks/index.md": _BENCHMARKS.format(gpu=gpu, rows=rows, how=how)}
    for name, title in {"full": "Allreduce and training", "frameworks": "torch, TensorFlow, JAX and Keras"}.items():
        text = (_RESULTS / f"bench-{name}.md").read_text(encoding="utf-8")
        pages[f"benchmarks/{name}.md"] = re.sub(r"^# .*$", f"# {title}", text, count=1, flags=re.MULTILINE)
    return pages


def benchmark_files() -> list[Path]:
    """What these pages offer for download, and their picture."""
    return [_RESULTS / "bench-full.svg", *(_RESULTS / name for name, _ in _measured())]


def _measured() -> list[tuple[str, str]]:
    """File of results → the first line of the script that wrote it, without the command."""
    found = []
    for path in sorted(_RESULTS.glob("*.json")):
        script = ROOT / "benchmarks" / f"{path.stem.replace('-', '_')}.py"
        if script.exists():
            first = (ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or "").partition("\n")[0]
            found.append((path.name, re.sub(r": ``.*|\.$", "", first).replace("``", "`")))
    return found


def _section(text: str, title: str) -> str:
    body = text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    if not body:
        raise ValueError(f"benchmarks/README.md has no section '## {title}', which the site shows.")
    return f"\n## {title}\n{body}"


_BENCHMARKS = """# Benchmarks

Every peer is measured in the same run, in turns, by a script of `benchmarks/`.{gpu}

```{{toctree}}
:maxdepth: 1

full
frameworks
```

```{{image}} ../files/bench-full.svg
:alt: The figures of "Allreduce and training": time by size, and speed of training, each peer beside ours
:class: wb-plot
:target: ../_images/bench-full.svg
```

The picture is a link to itself in full size.

## What else was measured

| figures | what was measured |
|---|---|
{rows}
{how}
"""
