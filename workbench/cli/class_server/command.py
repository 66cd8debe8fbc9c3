"""The words of ``workbench class up``, ``down`` and ``rehearse``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.cli.face import Parser
from workbench.cli.grade.results import print_lines
from workbench.launch.as_command import become

if TYPE_CHECKING:
    from workbench.cli.class_server.place import Place

_FOLDER = Path("workbench-class")


def asked(words: Sequence[str]) -> bool:
    """Is it one of these commands?

    Example:
        >>> asked(["class", "up", "--learners", "30"]), asked(["class", "/shared/course"])
        (True, False)
    """
    return list(words[:1]) == ["class"] and list(words[1:2]) in (["up"], ["down"], ["collect"], ["rehearse"])


def run(words: Sequence[str]) -> int:
    """One of them; the words behind ``class``."""
    if words[0] == "rehearse":
        become("workbench.course.classroom.rehearsal", *words[1:])
    args = parser().parse_args(words)
    code: int = args.handle(args)
    return code


def parser() -> Parser:
    """Of these commands."""
    top = Parser(prog="workbench class")
    commands = top.add_subparsers(dest="subcommand", required=True)
    begin = commands.add_parser(
        "up",
        description="Begins a class on this machine: JupyterHub with an address and a password, and for each learner a "
        "JupyterLab with the lessons. Started by root, each learner is a user of the system, with limits and a disk of "
        "its own. The first time it installs JupyterHub into the class's folder.",
    )
    begin.add_argument("folder", nargs="?", type=Path, default=_FOLDER, help=f"of the class; default: ./{_FOLDER}")
    begin.add_argument("--learners", type=int, default=0, metavar="N", help="they are called learner01 …")
    begin.add_argument("--names", type=Path, metavar="FILE", help="instead: a name in each line")
    begin.add_argument("--host", default="", help="the address to listen on; default: this machine's in its network")
    begin.add_argument("--port", type=int, default=0, help="default: 8000")
    begin.add_argument("--password", default="", help="of the class; default: four words by chance")
    begin.add_argument("--tokens", action="store_true", help="a token for each learner instead, in tokens.csv")
    begin.add_argument("--cert", default="", metavar="FILE", help="certificate, for HTTPS")
    begin.add_argument("--key", default="", metavar="FILE", help="its key")
    each = "each server is a job of Slurm's; OPTIONS for sbatch: '--partition=gpu --time=4:00:00'"
    begin.add_argument("--slurm", nargs="?", const="", metavar="OPTIONS", help=each)
    limits(begin)
    begin.add_argument("--idle", type=int, default=30, metavar="MINUTES", help="then a server ends; default: 30")
    begin.set_defaults(handle=_up)
    end = commands.add_parser(
        "down",
        description="Ends a class: its servers, users, disks and limits. What the learners have written is in the "
        "folder collected/ afterwards.",
    )
    end.add_argument("folder", nargs="?", type=Path, default=_FOLDER, help=f"of the class; default: ./{_FOLDER}")
    end.set_defaults(handle=_down)
    copy = commands.add_parser(
        "collect", description="Copies what the learners have written by now; the class goes on."
    )
    copy.add_argument("folder", nargs="?", type=Path, default=_FOLDER, help=f"of the class; default: ./{_FOLDER}")
    copy.add_argument("--into", type=Path, help="default: a folder in collected/, with the time for its name")
    copy.set_defaults(handle=_collect)
    return top


def limits(command: argparse.ArgumentParser) -> None:
    """Add the options for what a learner may use."""
    command.add_argument("--memory", type=int, default=2048, metavar="MIB", help="of each learner; default: 2048")
    command.add_argument("--processes", type=int, default=400, metavar="N", help="of each learner; default: 400")
    command.add_argument("--disk", type=int, default=1024, metavar="MIB", help="of each; 0: no limit; default: 1024")
    command.add_argument("--cores", type=int, default=2, metavar="N", help="of each learner; default: 2")


def limited(place: Place, args: argparse.Namespace) -> Place:
    """A class with these options."""
    return replace(place, memory_mib=args.memory, processes=args.processes, disk_mib=args.disk, cores=args.cores)


def _up(args: argparse.Namespace) -> int:
    from workbench.cli.class_server import control
    from workbench.cli.class_server.place import Place

    wanted = Place(
        args.folder.resolve(),
        *(args.port, args.host, args.password),
        idle_min=args.idle,
        cert=args.cert and str(Path(args.cert).resolve()),
        key=args.key and str(Path(args.key).resolve()),
        slurm=args.slurm,
    )
    print_lines(control.up(limited(wanted, args), control.names(args.learners, args.names), args.tokens))
    return 0


def _down(args: argparse.Namespace) -> int:
    from workbench.cli.class_server import control

    print_lines(control.down(args.folder.resolve()))
    return 0


def _collect(args: argparse.Namespace) -> int:
    from workbench.cli.class_server import control

    print_lines(control.collect(args.folder.resolve(), args.into))
    return 0
