"""``make site``: the pages, from notebooks that are built already."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from workbench.common.extras import has
from workbench.config import cache_dir, child_environment
from workbench.course.browser.files import missing, place
from workbench.course.build import ROOT
from workbench.course.site import lab
from workbench.course.site.stage import books, stage

_MARK = ".buildinfo"  # Sphinx writes it into what it has built


def main(arguments: list[str] | None = None) -> int:
    """Build the pages, and put them in place of older ones if all went well; a warning of Sphinx is an error.

    Returns:
        The exit status.
    """
    cached = cache_dir() / "pyodide"
    parser = argparse.ArgumentParser(prog="make site", description="Build the static pages.")
    parser.add_argument("--instructors", action="store_true", help="with the solutions; default: none of their text")
    parser.add_argument("--few", action="store_true", help="three lessons, and no API of torch and others")
    parser.add_argument(
        "--pyodide",
        type=Path,
        help=f"folder of a Pyodide distribution, with which pages run their cells; default: {cached}, if it is there",
    )
    parser.add_argument("--out", type=Path, help="folder; default: build/site, or build/site-instructors")
    options = parser.parse_args(arguments)
    if options.pyodide is None and not missing(cached):
        options.pyodide = cached
    out = options.out or ROOT / "build" / ("site-instructors" if options.instructors else "site")
    why = _hindrance(out) or (options.pyodide and missing(options.pyodide))
    if why:
        print(f"make site: {why}", file=sys.stderr)
        return 1
    no_lab = lab.hindrance(options.pyodide)
    with_lab = options.pyodide is not None and not no_lab
    with tempfile.TemporaryDirectory(prefix="workbench-site-") as folder:
        source, pages = Path(folder) / "source", Path(folder) / "pages"
        found = books("notebooks", "exercises", every=not options.few) if with_lab else []
        in_lab = [each for each in found if lab.runs(each)]
        stage(source, options.instructors, not options.few, in_lab)
        status = _sphinx(source, pages, live=options.pyodide is not None)
        if status == 0:
            if options.pyodide:
                kernel = lab.kernel() if with_lab else None
                loaded = place(options.pyodide, pages / "_static" / "live" / "runtime", kernel)
                print(f"Cells run in the pages, which load {loaded / 1e6:.1f} MB for it")
                if with_lab:
                    lab.build(pages / lab.FOLDER, in_lab)
                print(f"{len(in_lab)} notebooks open in a lab in the browser" if with_lab else f"No lab: {no_lab}")
            else:
                shutil.rmtree(pages / "_static" / "live")
                print("Cells do not run in the pages: --pyodide FOLDER names a distribution of Pyodide")
            shutil.rmtree(out, ignore_errors=True)  # with pages that are no more, such as solutions
            shutil.move(pages, out)
            print(f"Open {out / 'index.html'}")
    return status


def _hindrance(out: Path) -> str:
    """Why nothing can be built, if so."""
    if missing := [
        name
        for name in ("sphinx", "myst_nb", "furo", "sphinx_copybutton", "sphinx_design", "sphinxext.opengraph")
        if not has(name)
    ]:
        return f"{', '.join(missing)} not installed. Do: make setup EXTRAS=torch,lessons,site,dev"
    if out.exists() and not (out / _MARK).exists() and any(out.iterdir()):
        return f"{out} holds something else than pages of an earlier build. Give an empty or a new folder."
    return ""


def _sphinx(source: Path, pages: Path, live: bool) -> int:
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-b",
        "html",
        "-W",
        "--keep-going",
        "-q",
        *(["-t", "live"] if live else []),
    ]
    command += ["-d", str(source / ".doctrees"), str(source), str(pages)]
    # TensorFlow, whose docstrings are read, says nothing about itself.
    environment = child_environment(TF_CPP_MIN_LOG_LEVEL="3", TF_ENABLE_ONEDNN_OPTS="0")
    return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
