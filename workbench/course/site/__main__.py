"""``make site``: the pages, from notebooks that are built already."""

from __future__ import annotations

import argparse
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from workbench.config import child_environment
from workbench.course.build import ROOT
from workbench.course.site.stage import stage


def main(arguments: list[str] | None = None) -> int:
    """Stage the sources and run Sphinx; a warning is an error. Returns Sphinx's exit status."""
    parser = argparse.ArgumentParser(prog="make site", description="Build the static pages.")
    parser.add_argument("--instructors", action="store_true", help="with the solutions; default: none of their text")
    parser.add_argument("--out", type=Path, help="folder; default: build/site, or build/site-instructors")
    options = parser.parse_args(arguments)
    name = "site-instructors" if options.instructors else "site"
    out = options.out or ROOT / "build" / name
    source = out.with_name(out.name + ".source")
    if missing := [name for name in ("sphinx", "myst_nb", "furo") if not find_spec(name)]:
        print(f"make site needs {', '.join(missing)}: make setup EXTRAS=torch,lessons,site,dev", file=sys.stderr)
        return 1
    stage(source, options.instructors)
    words = ["-b", "html", "-d", str(source / ".doctrees"), "-W", "--keep-going", "-q"]
    command = [sys.executable, "-m", "sphinx", *words, str(source), str(out)]
    # TensorFlow, whose docstrings are read, says nothing about itself.
    done = subprocess.run(
        command, env=child_environment(TF_CPP_MIN_LOG_LEVEL="3", TF_ENABLE_ONEDNN_OPTS="0"), check=False
    )
    if done.returncode == 0:
        print(f"Open {out / 'index.html'}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
