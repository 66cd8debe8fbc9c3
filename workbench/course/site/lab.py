"""JupyterLab in a browser, for the lessons of which most cells run there: JupyterLite, with the kernel of the pages."""

from __future__ import annotations

import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import nbformat

from workbench.common.extras import has
from workbench.config import child_environment
from workbench.course.browser.files import OF_A_KERNEL, missing

FOLDER = "lab"
"""Of the site."""
ENGINES = re.compile(r"^\s*(%%?\w|!\w)|\b(cluster|engines)\.|\bsubprocess\b", re.MULTILINE)
"""A cell that needs more than a browser; page.js has the same."""
_KERNEL = "@jupyterlite/pyodide-kernel-extension"
_EXTENSIONS = ("@jupyter-widgets/jupyterlab-manager", "anywidget", _KERNEL)
_WIDGETS = ("anywidget", "comm", "ipywidgets", "psygnal", "typing_extensions")
_WHEELS = ("pyodide_kernel", "ipykernel")  # of JupyterLite's kernel
# What that kernel would get from servers: kernel.mjs brings it, or it is not needed.
_BROUGHT = ("micropip", "piplite", "ssl", "sqlite3", "ipykernel", "comm", "pyodide-kernel", "jedi", "ipython")
# Letters for browsers that cannot run it, what builds it, and what kernel.mjs brings.
_LEFT_OUT = ("build/*.eot", "build/*.ttf", "build/fa-*.svg", "doc", "rspack.*", f"extensions/{_KERNEL}/static/pypi")
# On isolated pages JupyterLite's kernel shares memory with the page, and was seen to hang in its first cells. On others
# it gets files through a service worker.
_NOT_ISOLATED = '<script>Object.defineProperty(window, "crossOriginIsolated", { value: false });</script>'
_WITH_LICENCES = ("jupyterlite-core", "jupyterlite-pyodide-kernel", "jupyterlab-widgets", "anywidget")


def hindrance(pyodide: Path | None) -> str:
    """What is missing, in words; "" if nothing."""
    needed = ("jupyterlite_core", "jupyterlite_pyodide_kernel", "jupyter_server", "anywidget")
    if lacks := [name for name in needed if not has(name)]:
        return f"{', '.join(lacks)} not installed"
    return missing(pyodide, OF_A_KERNEL) if pyodide else ""


def address(stem: str, kind: str) -> str:
    """Where a notebook opens, from the site's top."""
    return f"{FOLDER}/lab/index.html?path={kind}/{stem}.ipynb"


def runs(notebook: Path) -> bool:
    """Whether at most half of a notebook's cells need engines."""
    cells = [each for each in nbformat.read(notebook, as_version=4).cells if each.cell_type == "code"]
    return 2 * sum(bool(ENGINES.search(each.source)) for each in cells) <= len(cells)


def kernel() -> dict[str, bytes]:
    """Files by name: the packages of a kernel that a distribution of Pyodide lacks, with their licences."""
    found: dict[str, bytes] = {}
    for name in _WIDGETS:
        for each in importlib.metadata.files(name) or []:
            if each.parts[0] != ".." and (each.suffix == ".py" or each.name in ("LICENSE", "METADATA")):
                found[each.as_posix()] = Path(str(each.locate())).read_bytes()
    for name in _WHEELS:
        (wheel,) = (_extension(_KERNEL) / "static" / "pypi").glob(f"{name}-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            found |= {each: archive.read(each) for each in archive.namelist()}
    return dict(sorted(found.items()))


def _extension(name: str) -> Path:
    return Path(sys.prefix) / "share" / "jupyter" / "labextensions" / name


def build(target: Path, books: Iterable[Path]) -> None:
    """Make the folder, with notebooks in it."""
    with tempfile.TemporaryDirectory(prefix="workbench-lab-") as folder:
        for path in books:
            place = Path(folder) / "contents" / path.parent.name
            place.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, place)
        for name, content in _settings(target).items():
            (Path(folder) / name).write_text(json.dumps(content), encoding="utf-8")
        command = [sys.executable, "-m", "jupyterlite_core", "build"]
        done = subprocess.run(command, cwd=folder, env=child_environment(), check=False, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"jupyter lite build: {done.stdout}\n{done.stderr}")
    start = target / "lab" / "index.html"
    start.write_text(start.read_text(encoding="utf-8").replace("<head>", f"<head>\n    {_NOT_ISOLATED}", 1), "utf-8")
    (target / "licenses").mkdir()
    for name in _WITH_LICENCES:  # besides third-party-licenses.json, which JupyterLite and its kernel have
        for each in importlib.metadata.files(name) or []:
            if each.name == "LICENSE":
                shutil.copy(str(each.locate()), target / "licenses" / f"{name}.LICENSE")
    for pattern in _LEFT_OUT:
        for path in target.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _settings(target: Path) -> dict[str, Any]:
    """Files of settings, by name."""
    build = {
        "apps": ["lab"],
        "contents": ["contents"],
        "federated_extensions": [str(_extension(name)) for name in _EXTENSIONS],
        "ignore_sys_prefix": ["federated_extensions"],
        "no_sourcemaps": True,
        "no_unused_shared_packages": True,
        "output_dir": str(target),
    }
    kernel = {
        "pyodideUrl": "../../_static/live/kernel.mjs",
        "disablePyPIFallback": True,
        "loadPyodideOptions": {"packages": _BROUGHT},
    }
    lite = {"appName": "Data-Parallel Workbench", "litePluginSettings": {f"{_KERNEL}:kernel": kernel}}
    return {
        "jupyter_lite_config.json": {"LiteBuildConfig": build},
        "jupyter-lite.json": {"jupyter-lite-schema-version": 0, "jupyter-config-data": lite},
    }
