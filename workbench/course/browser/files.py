"""What a site needs to run cells: Pyodide's files, and the part of this package that runs there."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path

from workbench.course.browser.session import LATER
from workbench.course.build import ROOT

CORE = ("pyodide.mjs", "pyodide.asm.js", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
PACKAGES = ("numpy",)
_COMPRESSED = (".wasm", ".asm.js")  # the others are compressed already
_PACKAGE = ROOT / "workbench"
_SUFFIXES = (".py", ".css", ".gz", ".html", ".js", ".json", ".svg", ".txt")
# What needs processes, frameworks or a network, and builds or grades.
_LEFT_OUT = (
    *("as_horovod", "calibration", "cluster", "executors", "jax", "keras", "labextensions", "mxnet", "ray", "spark"),
    *("tensorflow", "tf", "torch", "course/grading", "course/site"),
)


def missing(pyodide: Path) -> str:
    """What a folder lacks to be a distribution of Pyodide with numpy, in words; "" if nothing.

    Example:
        >>> missing(Path("nowhere"))
        'nowhere has no pyodide.mjs, pyodide.asm.js, pyodide.asm.wasm, python_stdlib.zip, pyodide-lock.json'
    """
    lacks = [name for name in CORE if not (pyodide / name).is_file()]
    if not lacks:
        lacks = [name for name in _wheels(pyodide, PACKAGES) if not (pyodide / name).is_file()]
    return f"{pyodide} has no {', '.join(lacks)}" if lacks else ""


def place(pyodide: Path, target: Path) -> int:
    """Put all files into a folder of the site.

    Args:
        pyodide: a distribution: https://github.com/pyodide/pyodide/releases, pyodide-….tar.bz2 without or with all
            packages.
        target: the folder, which is made.

    Returns:
        How many bytes a browser loads.
    """
    target.mkdir(parents=True)
    at_once = _wheels(pyodide, PACKAGES)
    for name in (*CORE, *at_once):
        if name.endswith(_COMPRESSED):
            with gzip.GzipFile(target / f"{name}.gz", "wb", mtime=0) as file:
                file.write((pyodide / name).read_bytes())
        else:
            shutil.copyfile(pyodide / name, target / name)
    pack(target / "workbench.zip")
    sizes = {path.name: path.stat().st_size for path in sorted(target.iterdir())}
    for name in LATER:  # a distribution may lack them
        wheels = [each for each in _wheels(pyodide, [name]) if each not in at_once]
        if all((pyodide / each).is_file() for each in wheels):
            for each in wheels:
                shutil.copyfile(pyodide / each, target / each)
    files = sorted(target.iterdir())
    version = hashlib.sha256(b"".join(hashlib.sha256(path.read_bytes()).digest() for path in files)).hexdigest()
    about = {"version": version[:16], "packages": PACKAGES, "sizes": sizes}
    (target / "files.json").write_text(json.dumps(about), encoding="utf-8")
    return sum(sizes.values())


def _wheels(pyodide: Path, packages: Sequence[str]) -> list[str]:
    """The files of packages, and of what they need."""
    known = json.loads((pyodide / "pyodide-lock.json").read_text(encoding="utf-8"))["packages"]
    found: dict[str, str] = {}
    names = [name for name in packages if name in known]
    while names:
        about = known[names.pop()]
        if about["name"] not in found:
            found[about["name"]] = about["file_name"]
            names += about["depends"]
    return sorted(found.values())


def pack(target: Path) -> None:
    """Write the part of this package that runs in a browser into a zip file, always the same one."""
    left_out = tuple(f"{each}/" for each in _LEFT_OUT)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in sorted(_PACKAGE.rglob("*")):
            name = path.relative_to(_PACKAGE).as_posix()
            if path.suffix not in _SUFFIXES or "__pycache__" in path.parts:
                continue
            if not name.startswith(left_out):
                about = zipfile.ZipInfo(f"workbench/{name}")
                about.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(about, path.read_bytes())


__all__ = ["missing", "pack", "place"]
