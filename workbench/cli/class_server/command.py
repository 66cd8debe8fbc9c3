"""The words of ``workbench class up``, ``down`` and ``rehearse``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from workbench.cli.class_server.place import FILE, Place
from workbench.cli.face import Parser
from workbench.cli.grade.results import print_lines
from workbench.errors import LaunchError
from workbench.launch.start.starters import free_port

_FOLDER = Path("workbench-class")


def asked(words: Sequence[str]) -> bool:
    """Is it one of these commands?

    Example:
        >>> asked(["class", "up", "--learners", "30"]), asked(["class", "/shared/course"])
        (True, False)
    """
    return list(words[:1]) == ["class"] and list(words[1:2]) in (["up"], ["down"], ["rehearse"])


def run(words: Sequence[str]) -> int:
    """One of them; the words behind ``class``."""
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
    begin.add_argument("--port", type=int, default=8000, help="default: 8000")
    begin.add_argument("--password", default="", help="of the class; default: four words by chance")
    begin.add_argument("--cert", default="", metavar="FILE", help="certificate, for HTTPS")
    begin.add_argument("--key", default="", metavar="FILE", help="its key")
    _limits(begin)
    begin.add_argument("--idle", type=int, default=30, metavar="MINUTES", help="then a server ends; default: 30")
    begin.set_defaults(handle=_up)
    end = commands.add_parser(
        "down",
        description="Ends a class: its servers, users, disks and limits. What the learners have written is in the "
        "folder collected/ afterwards.",
    )
    end.add_argument("folder", nargs="?", type=Path, default=_FOLDER, help=f"of the class; default: ./{_FOLDER}")
    end.set_defaults(handle=_down)
    play = commands.add_parser(
        "rehearse",
        description="Plays lessons as a whole class, through a JupyterHub that is begun for it: how many learners does "
        "this machine carry, and what fails? Nothing is left of it.",
    )
    play.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=Path("workbench-rehearsal"),
        help="for the class; default: ./workbench-rehearsal",
    )
    play.add_argument("--learners", type=int, default=30, metavar="N", help="default: 30")
    play.add_argument("--lessons", default="00,02-04", help="which are played; default: 00,02-04")
    play.add_argument("--minutes", type=float, default=15.0, help="how long the lessons may take; default: 15")
    play.add_argument("--hostile", action="store_true", help="every second learner attacks the class; needs root")
    _limits(play)
    play.set_defaults(handle=_rehearse)
    return top


def _limits(command: argparse.ArgumentParser) -> None:
    command.add_argument("--memory", type=int, default=2048, metavar="MIB", help="of each learner; default: 2048")
    command.add_argument("--processes", type=int, default=400, metavar="N", help="of each learner; default: 400")
    command.add_argument("--disk", type=int, default=1024, metavar="MIB", help="of each; 0: no limit; default: 1024")
    command.add_argument("--cores", type=int, default=2, metavar="N", help="of each learner; default: 2")


def _limited(place: Place, args: argparse.Namespace) -> Place:
    return replace(place, memory_mib=args.memory, processes=args.processes, disk_mib=args.disk, cores=args.cores)


def _up(args: argparse.Namespace) -> int:
    from workbench.cli.class_server import control

    wanted = Place(
        args.folder.resolve(),
        *(args.port, args.host, args.password),
        idle_min=args.idle,
        cert=args.cert and str(Path(args.cert).resolve()),
        key=args.key and str(Path(args.key).resolve()),
    )
    print_lines(control.up(_limited(wanted, args), control.names(args.learners, args.names)))
    return 0


def _down(args: argparse.Namespace) -> int:
    from workbench.cli.class_server import control

    print_lines(control.down(args.folder.resolve()))
    return 0


def _rehearse(args: argparse.Namespace) -> int:
    from workbench.cli.class_server.rehearsal import Rehearsal

    if (args.folder / FILE).exists():
        raise LaunchError(f"A class is in {args.folder}: rehearse in another folder.")
    wanted = _limited(Place(args.folder.resolve(), free_port(), "127.0.0.1"), args)
    played = Rehearsal(wanted, args.lessons, args.minutes, args.hostile, lambda text: print_lines([text]))
    report = played.run(args.learners)
    print_lines(report.lines())
    return int(bool(report.failed or report.hangs or report.broken))
