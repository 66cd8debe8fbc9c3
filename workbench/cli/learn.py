"""``workbench demo``, ``lab`` and ``lessons``: the course, also where there is no clone of it.

A wheel carries the built lessons; ``lessons FOLDER`` copies them to where a learner can write.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from workbench import config
from workbench.errors import LaunchError
from workbench.launch.ranks.output import log

_FOLDER = "workbench-lessons"
_KINDS = ("notebooks", "exercises")
_NEEDS = {"demo": ("torch", "nbclient", "matplotlib"), "lab": ("jupyterlab",)}


def add(commands: Any) -> None:
    """Add the three commands."""
    demo = commands.add_parser(
        "demo",
        help="the first lesson on two ranks, in a minute: its table and proofs",
        description="Runs the first lesson from top to bottom. Exit code 0: every cell ran, and every proof was shown.",
    )
    demo.add_argument("--output", type=Path, default=None, help="where the executed notebook goes")
    demo.set_defaults(handle=_demo)
    lab = commands.add_parser(
        "lab",
        help="JupyterLab with the lessons, for this machine and you alone",
        description=f"Opens JupyterLab on a copy of the lessons in ./{_FOLDER}, or on a clone's own. It listens on "
        "loopback, asks for its token, and its kernels talk over sockets in a folder of yours.",
    )
    lab.add_argument("words", nargs=argparse.REMAINDER, metavar="…", help="further options for jupyter lab")
    lab.set_defaults(handle=_lab)
    lessons = commands.add_parser(
        "lessons",
        help="copy lessons and exercises into a folder of yours",
        description="Copies notebooks/ and exercises/. A file that is there already stays as it is.",
    )
    lessons.add_argument("folder", type=Path, metavar="COPY_TO")
    lessons.set_defaults(handle=_lessons)


def built() -> Path:
    """The folder with the built lessons: in an installed package, or in the clone that it is in.

    Raises:
        LaunchError: they are in neither.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "_lessons", package.parent):
        if (folder / "notebooks" / "00_quickstart.ipynb").exists():
            return folder
    raise LaunchError("The lessons are not in this installation. Install the wheel, or use a clone.")


def copy(target: Path) -> list[Path]:
    """Copy the lessons; what is there already stays. Returns what was written.

    Raises:
        LaunchError: the folder cannot be written.
    """
    written, source = [], built()
    try:
        for path in sorted(each for kind in _KINDS for each in (source / kind).rglob("*") if each.is_file()):
            to = target / path.relative_to(source)
            if "__pycache__" in path.parts or ".ipynb_checkpoints" in path.parts or to.exists():
                continue
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, to)
            written.append(to)
    except OSError as error:
        raise LaunchError(f"{target} cannot be written: {error.strerror}.") from None
    return written


def _lessons(args: argparse.Namespace) -> int:
    written = copy(args.folder)
    print(f"{len(written)} files in {args.folder}; open one in {args.folder / 'notebooks'}, or: workbench lab")
    return 0


def _demo(args: argparse.Namespace) -> int:
    _look_for("demo")
    source = built()
    output = (
        args.output
        or (source / "build" if (source / "lessons").exists() else Path.cwd()) / "00_quickstart.executed.ipynb"
    )
    return subprocess.call([sys.executable, "-m", "workbench.course.demo", "--output", str(output)])


def _lab(args: argparse.Namespace) -> int:
    _look_for("lab")
    root = built()
    if not (root / "lessons").exists():
        root = Path.cwd() / _FOLDER
        copy(root)
    root_user = ["--allow-root"] if os.geteuid() == 0 else []
    with _short_runtime_folder() as runtime:
        command = [sys.executable, "-m", "jupyterlab", "--ip=127.0.0.1", "--KernelManager.transport=ipc", *root_user]
        command += [f"--ServerApp.root_dir={root}", "--LabApp.default_url=/lab/tree/notebooks", *args.words]
        process = subprocess.Popen(command, env=config.child_environment(JUPYTER_RUNTIME_DIR=str(runtime)))
        with _signals_for(process):
            return process.wait()


def _look_for(command: str) -> None:
    """Say what is not installed, before anything is begun.

    Raises:
        LaunchError: something is not.
    """
    if missing := [name for name in _NEEDS[command] if not find_spec(name)]:
        needed = "pip install 'data-parallel-workbench[torch,lessons,lab,mpich]'"
        raise LaunchError(f"`workbench {command}` needs {', '.join(missing)}: {needed}")


@contextlib.contextmanager
def _short_runtime_folder() -> Iterator[Path]:
    """A short name for Jupyter's runtime folder: the path of a socket has at most 103 bytes."""
    from jupyter_core.paths import jupyter_runtime_dir

    runtime = Path(jupyter_runtime_dir())
    try:
        runtime.mkdir(parents=True, exist_ok=True)
        runtime.chmod(0o700)
    except OSError as error:
        raise LaunchError(f"{runtime} cannot be written: {error.strerror}. Set JUPYTER_RUNTIME_DIR.") from None
    with tempfile.TemporaryDirectory(prefix="workbench-lab-", dir="/tmp") as folder:
        short = Path(folder) / "r"
        short.symlink_to(runtime)
        yield short


@contextlib.contextmanager
def _signals_for(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Ctrl-C and SIGTERM reach JupyterLab, which asks and ends; this process waits for it."""
    forward = {signal.SIGTERM: lambda *_: process.terminate(), signal.SIGINT: lambda *_: None}
    before = {number: signal.signal(number, handle) for number, handle in forward.items()}
    try:
        yield
    finally:
        for number, handle in before.items():
            signal.signal(number, handle)
        if process.poll() is None:
            log("JupyterLab still runs")


__all__ = ["add", "built", "copy"]
