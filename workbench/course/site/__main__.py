"""``make site``: the pages, from notebooks that are built already."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from workbench.common.extras import has
from workbench.config import child_environment
from workbench.course.build import ROOT
from workbench.course.site.stage import stage

_MARK = ".buildinfo"  # Sphinx writes it into what it has built


def main(arguments: list[str] | None = None) -> int:
    """Build the pages, and put them in place of older ones if all went well; a warning of Sphinx is an error.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(prog="make site", description="Build the static pages.")
    parser.add_argument("--instructors", action="store_true", help="with the solutions; default: none of their text")
    parser.add_argument(
        "--no-frameworks", action="store_true", help="without the API of torch and others: half the time"
    )
    parser.add_argument("--out", type=Path, help="folder; default: build/site, or build/site-instructors")
    options = parser.parse_args(arguments)
    out = options.out or ROOT / "build" / ("site-instructors" if options.instructors else "site")
    if why := _hindrance(out):
        print(f"make site: {why}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="workbench-site-") as folder:
        source, pages = Path(folder) / "source", Path(folder) / "pages"
        stage(source, options.instructors, not options.no_frameworks)
        status = _sphinx(source, pages)
        if status == 0:
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


def _sphinx(source: Path, pages: Path) -> int:
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q"]
    command += ["-d", str(source / ".doctrees"), str(source), str(pages)]
    # TensorFlow, whose docstrings are read, says nothing about itself.
    environment = child_environment(TF_CPP_MIN_LOG_LEVEL="3", TF_ENABLE_ONEDNN_OPTS="0")
    return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
