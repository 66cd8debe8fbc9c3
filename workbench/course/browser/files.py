"""What a site needs to run cells: Pyodide's files, and the part of this package that runs there."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.course.browser.session import LATER
from workbench.course.build import ROOT

CORE = ("pyodide.mjs", "pyodide.asm.js", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
PACKAGES = ("numpy",)
OF_A_KERNEL = ("ipython",)
"""Packages that a notebook needs besides."""
_COMPRESSED = (".wasm", ".asm.js")  # the others are compressed already
_PACKAGE = ROOT / "workbench"
_SUFFIXES = (".py", ".css", ".gz", ".html", ".js", ".json", ".svg", ".txt")
# What needs processes, frameworks or a network, and builds or grades.
_LEFT_OUT = (
    *("as_horovod/", "calibration/", "cli/class_server/", "cluster/", "convert/", "course/classroom/"),
    *("course/grading/", "course/site/", "course/slides/", "executors/", "jax/"),
    *("keras/", "labextensions/", "mxnet/", "ray/", "spark/", "tensorflow/", "tf/", "torch/"),
    "data/shakespeare.txt.gz",  # for models of torch
)


def missing(pyodide: Path, packages: Sequence[str] = PACKAGES) -> str:
    """What a folder lacks to be a distribution of Pyodide with some packages, in words; "" if nothing.

    Example:
        >>> missing(Path("nowhere"))
        'nowhere has no pyodide.mjs, pyodide.asm.js, pyodide.asm.wasm, python_stdlib.zip, pyodide-lock.json'
    """
    lacks = [name for name in CORE if not (pyodide / name).is_file()]
    if not lacks:
        known = _known(pyodide)
        lacks = [name for name in packages if name not in known]
        lacks += [name for name in _wheels(pyodide, packages) if not (pyodide / name).is_file()]
    return f"{pyodide} has no {', '.join(lacks)}" if lacks else ""


def place(pyodide: Path, target: Path, kernel: Mapping[str, bytes] | None = None) -> int:
    """Put all files into a folder of the site.

    Args:
        pyodide: a distribution: https://github.com/pyodide/pyodide/releases, pyodide-….tar.bz2 without or with all
            packages.
        target: the folder, which is made.
        kernel: files by name of the packages that the kernel of a notebook needs and a distribution has not; None: the
            site has no notebooks.

    Returns:
        How many bytes a browser loads for a page.
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
    for_a_page = {path.name for path in target.iterdir()}
    if kernel is not None:
        _copy(_wheels(pyodide, OF_A_KERNEL), pyodide, target)
        _write(target / "kernel.zip", kernel)
    parts = for_a_page, {path.name for path in target.iterdir()} - for_a_page
    for name in LATER:
        _copy(_wheels(pyodide, [name]), pyodide, target)
    _shorten(target / "pyodide-lock.json")
    files = sorted(target.iterdir())
    version = hashlib.sha256(b"".join(hashlib.sha256(path.read_bytes()).digest() for path in files)).hexdigest()
    page, more = ({path.name: path.stat().st_size for path in files if path.name in these} for these in parts)
    about = {
        "version": version[:16],
        "page": {"packages": PACKAGES, "sizes": page},
        "kernel": {"packages": OF_A_KERNEL, "sizes": more},
    }
    (target / "files.json").write_text(json.dumps(about), encoding="utf-8")
    return sum(page.values())


def _copy(names: Sequence[str], source: Path, target: Path) -> None:
    """All of them, or none: a distribution may lack a package."""
    if all((source / name).is_file() for name in names):
        for name in names:
            shutil.copyfile(source / name, target / name)


def _shorten(lock: Path) -> None:
    """Leave what is there: of no other package the browser asks for files."""
    found = json.loads(lock.read_text(encoding="utf-8"))
    there = {name: each for name, each in found["packages"].items() if (lock.parent / each["file_name"]).is_file()}
    for each in there.values():
        each["depends"] = [name for name in each["depends"] if _key(name) in there]
    lock.write_text(json.dumps({**found, "packages": there}), encoding="utf-8")


def _known(pyodide: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((pyodide / "pyodide-lock.json").read_text(encoding="utf-8"))["packages"]
    return found


def _wheels(pyodide: Path, packages: Sequence[str]) -> list[str]:
    """The files of packages, and of what they need."""
    known = _known(pyodide)
    found: dict[str, str] = {}
    names = [name for name in packages if name in known]
    while names:
        about = known[names.pop()]
        if about["name"] not in found:
            found[about["name"]] = about["file_name"]
            names += map(_key, about["depends"])
    return sorted(found.values())


def _key(name: str) -> str:
    """Of a lock, in which a name is also written with an underscore."""
    return name.lower().replace("_", "-")


def pack(target: Path) -> None:
    """Write the part of this package that runs in a browser into a zip file, always the same one."""
    found: dict[str, bytes] = {}
    for path in sorted(_PACKAGE.rglob("*")):
        name = path.relative_to(_PACKAGE).as_posix()
        if path.suffix in _SUFFIXES and "__pycache__" not in path.parts and not name.startswith(_LEFT_OUT):
            found[f"workbench/{name}"] = path.read_bytes()
    _write(target, found)


def _write(target: Path, files: Mapping[str, bytes]) -> None:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in files.items():
            about = zipfile.ZipInfo(name)  # without the time
            about.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(about, content)
