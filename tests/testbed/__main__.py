"""The command line of the test bed: see ``hosts.py``."""

from __future__ import annotations

import argparse
import os
import sys

import slurm
from hosts import Hosts
from namespaces import CannotMakeHosts


def main() -> None:
    """Do what the command line says."""
    given = _parser().parse_args()
    hosts = Hosts(given.n, given.rate, given.mark) if given.verb == "up" else Hosts.find(given.mark)
    try:
        _do(given, hosts)
    except CannotMakeHosts as error:
        sys.exit(str(error))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python tests/testbed", description="Hosts on this machine, to be used as root."
    )
    parser.add_argument("--mark", default="hand", help="the test bed's name, where there are several")
    verbs = parser.add_subparsers(dest="verb", required=True)
    up = verbs.add_parser("up", help="make hosts: wb1, wb2, …")
    up.add_argument("n", type=int, nargs="?", default=2)
    up.add_argument("rate", nargs="?", default="none", help="of each link: 1gbit; none for as fast as it can")
    verbs.add_parser("down", help="kill what runs on them, and remove them")
    for verb, text in (("cut", "pull a host's cable out"), ("heal", "plug it in again")):
        verbs.add_parser(verb, help=text).add_argument("host")
    verbs.add_parser("rate", help="give the links another rate").add_argument("rate")
    start = verbs.add_parser("slurm", help="start Slurm on them; it ends with them")
    start.add_argument("--gpus", type=int, default=2, help="of each host; they are only counted")
    start.add_argument("--cpus", type=int, default=4, help="of each host; it need not have them")
    run = verbs.add_parser("run", help="run a command on a host")
    run.add_argument("host")
    run.add_argument("command", nargs=argparse.REMAINDER)
    return parser


def _do(given: argparse.Namespace, hosts: Hosts) -> None:
    if given.verb in ("up", "down"):
        getattr(hosts, given.verb)()
    elif not hosts.names:
        sys.exit(f"no test bed {given.mark}: python tests/testbed --mark {given.mark} up")
    elif given.verb == "slurm":
        slurm.start(hosts, given.gpus, given.cpus)
    elif given.verb == "rate":
        hosts.rate(given.rate)
    elif given.host not in hosts.names:
        sys.exit(f"no host {given.host}: there are {', '.join(hosts.names)}")
    elif given.verb == "run":
        words = hosts.words(hosts.names.index(given.host), *given.command)
        os.execvp(words[0], words)
    else:
        getattr(hosts, given.verb)(hosts.names.index(given.host))


main()
