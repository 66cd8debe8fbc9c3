"""``workbench demo``, ``lab``, ``lessons``, ``site``, ``class`` and ``watch``: what belongs to notebooks and learners.

A wheel carries the built lessons; ``lessons FOLDER`` copies them to where a learner can write.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

from workbench.cli import flags
from workbench.common.extras import cure, has
from workbench.common.whole_file import write_whole
from workbench.errors import LaunchError
from workbench.launch.as_command import become

_FOLDER = "workbench-lessons"
_KINDS = ("notebooks", "exercises")
_NEEDS = {"demo": ("torch", "nbclient", "matplotlib"), "lab": ("jupyterlab",)}


def add(commands: Any) -> None:
    """Add the commands."""
    demo = commands.add_parser(
        "demo",
        help="run the first lesson on two ranks, in a minute: its table and checks",
        description="Runs the first lesson from top to bottom. Exit code 0: every cell ran, and every check succeeded.",
    )
    demo.add_argument("--output", type=Path, default=None, help="where to write the executed notebook")
    demo.set_defaults(handle=_demo)
    lab = commands.add_parser(
        "lab",
        help="open JupyterLab with the lessons, only for you on this machine",
        description=f"Opens JupyterLab with a copy of the lessons in ./{_FOLDER}, or with the lessons of a clone. It "
        "listens on loopback, asks for its token, and its kernels communicate over sockets in your own folder.",
    )
    lab.add_argument("command", nargs=argparse.REMAINDER, metavar="…", help="further options for jupyter lab")
    lab.set_defaults(handle=_lab)
    lessons = commands.add_parser(
        "lessons",
        help="copy lessons and exercises into a folder",
        description="Copies notebooks/ and exercises/. Existing files are not changed.",
    )
    lessons.add_argument("folder", type=Path, metavar="COPY_TO")
    lessons.set_defaults(handle=_lessons)
    site = commands.add_parser(
        "site",
        help="show the pages of the course, whose cells run in the browser, without a network",
        description="Serves the pages that `make site` has built, for browsers on this machine, until Ctrl-C.",
    )
    site.add_argument("--serve", type=Path, default=Path("build/site"), metavar="FOLDER", help="default: build/site")
    site.add_argument("--port", type=int, default=0, help="default: any that is free")
    site.set_defaults(handle=_site)
    board = commands.add_parser(
        "class",
        help="show how far a class is: learners and exercises, on a page that follows them",
        description="A page for the browser of the instructor, on this machine alone, until Ctrl-C. It reads the "
        "progress files below the folders, and changes nothing: who has passed, tried, or is stuck at which exercise, "
        "what is wrong there, and what was predicted.",
    )
    board.add_argument(
        "folders", nargs="+", type=Path, metavar="FOLDER", help="a learner's, or one with a folder for each"
    )
    board.add_argument("--numbers", action="store_true", help="call learners by numbers, not by their folders' names")
    board.add_argument("--port", type=int, default=0, help="default: any that is free")
    board.set_defaults(handle=_class)
    watch = commands.add_parser(
        "watch",
        help="show what each rank of a notebook's cluster does, once a second",
        description="A table of the ranks of a cluster that a notebook of yours has started on this machine: which "
        "ranks compute, which wait, for which rank, in which line. cluster.watch() shows the same in the notebook.",
    )
    watch.add_argument("cluster", nargs="?", default="", help="which one, where there are several")
    watch.add_argument("--once", action="store_true", help="print one table, and end")
    watch.add_argument("--stacks", action="store_true", help="print one table, and where in Python each rank is")
    watch.set_defaults(handle=_watch)


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
            name = path.relative_to(source)
            to = target / name
            if any(part.startswith((".", "__")) for part in name.parts) or to.exists():
                continue  # somebody's progress and checkpoints are theirs
            to.parent.mkdir(parents=True, exist_ok=True)
            write_whole(to, path.read_bytes())  # half a copy would stay for ever
            written.append(to)
    except OSError as error:
        raise LaunchError(f"{target} cannot be written: {error.strerror}.") from None
    return written


def _lessons(args: argparse.Namespace) -> int:
    written = copy(args.folder)
    print(f"{len(written)} files in {args.folder}; open one in {args.folder / 'notebooks'}, or: workbench lab")
    return 0


def _demo(args: argparse.Namespace) -> NoReturn:
    _look_for("demo")
    source = built()
    output = (
        args.output
        or (source / "build" if (source / "lessons").exists() else Path.cwd()) / "00_quickstart.executed.ipynb"
    )
    if output.is_dir():
        raise LaunchError(f"--output {output} is a folder: name a file, such as demo.ipynb.")
    become("workbench.course.demo", "--output", str(output))


def _site(args: argparse.Namespace) -> int:
    from workbench.cli.local_server import server

    with server(args.serve, args.port) as pages:
        print(f"http://127.0.0.1:{pages.server_port}/index.html (Ctrl-C ends it)", flush=True)
        pages.serve_forever()
    return 0


def _class(args: argparse.Namespace) -> NoReturn:
    words = [*map(str, args.folders), *(["--numbers"] if args.numbers else []), "--port", str(args.port)]
    become("workbench.course.classroom.__main__", *words)


def _watch(args: argparse.Namespace) -> NoReturn:
    options = [f"--{name}" for name in ("once", "stacks") if getattr(args, name)]
    words = [*([args.cluster] if args.cluster else []), *options]
    become("workbench.cluster.terminal", *words)


def _lab(args: argparse.Namespace) -> NoReturn:
    _look_for("lab")
    root = built()
    if not (root / "lessons").exists():
        root = Path.cwd() / _FOLDER
        copy(root)
    sys.stdout.flush()
    script, jupyter = Path(__file__).with_name("lab.sh"), Path(sys.executable).with_name("jupyter")
    os.execvp("bash", ["bash", str(script), str(root), str(jupyter), *flags.command(args)])


def _look_for(command: str) -> None:
    """Say what is not installed, before anything is begun.

    Raises:
        LaunchError: something is not.
    """
    if missing := [name for name in _NEEDS[command] if not has(name)]:
        raise LaunchError(f"`workbench {command}` needs {', '.join(missing)}: {cure('torch,lessons,lab,mpich')}")
