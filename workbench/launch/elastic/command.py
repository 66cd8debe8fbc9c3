"""``workbench run`` with ``--min-np``, ``--max-np`` or ``--host-discovery-script``: from options to an elastic job."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from workbench import config
from workbench.common.text import count
from workbench.errors import LaunchError
from workbench.launch.elastic.discovery import Discovery
from workbench.launch.elastic.run import Limits, run
from workbench.launch.elastic.workers import LocalWorkers
from workbench.launch.hosts.host_plan import HostPlan
from workbench.launch.hosts.remote_shell import LocalShell, Shell, Ssh
from workbench.launch.ranks.events import Signals
from workbench.launch.ranks.output import Printer
from workbench.launch.start.hosts import Hosts, is_here
from workbench.launch.start.run import TERMINAL, Outcome
from workbench.launch.start.starters import JobSpec
from workbench.machine import make_room

if TYPE_CHECKING:
    from workbench.launch.hosts.agent_connections import Target

_REST_S = (1.0, 60.0)
_LATER_S = 30.0  # by so much the ranks' own deadline is later, for the launcher knows more about the reason


def run_elastic(
    args: argparse.Namespace,
    task: JobSpec,
    targets: Sequence[Target],
    log: Callable[[str], None],
    numbers: Iterable[int] = TERMINAL,
) -> Outcome:
    """Run the job that the options of ``workbench run`` describe.

    Args:
        args: of the command line.
        task: made of them.
        targets: the hosts at the start; none: as many slots here as ranks were asked for.
        log: gets the launcher's own messages.
        numbers: signals that are passed on to the ranks.

    Raises:
        LaunchError: the options contradict each other.
    """
    limits = limits_of(args, task)
    if task.starter == "mpi":
        raise LaunchError(
            "--mpi: mpiexec ends all ranks when one is lost, so an elastic job starts plain processes. Leave --mpi out."
        )
    hosts = [(target.name, target.slots) for target in targets] or [("localhost", task.n)]
    if not args.host_discovery_script:
        check_slots(limits.least, hosts)
    env = elastic_environment(task.env, limits, task.n)
    task = dataclasses.replace(task, env=env, n=max(task.n, limits.most))
    make_room(6 * task.n + 64, f"{task.n} ranks need")
    discovery = Discovery(hosts, args.host_discovery_script or "", args.slots_per_host or 1)
    folder = args.output_filename or ""
    printer = Printer(sys.stdout, sys.stderr, 0, bool(args.prefix_output_with_timestamp), folder)
    here = all(isinstance(target.shell, LocalShell) for target in targets)
    if args.host_discovery_script:  # which may find others later
        here = all(target.name == "localhost" or target.name.startswith("127.") for target in targets)
    networks = [name for name in (args.network_interfaces or "").split(",") if name]
    with Signals(numbers) as signals:
        printer.heed(lambda: signals.came)
        if here:
            return run(limits, LocalWorkers(task, signals), discovery, printer, log)
        from workbench.launch.elastic.workers_on_hosts import WorkersOnHosts

        shells = {target.name: target.shell for target in targets}  # a host that comes later is not Slurm's

        def shell(host: str) -> Shell:
            ssh = Ssh(args.ssh_port or 0, args.ssh_identity_file or "")
            return shells.get(host) or (LocalShell() if is_here(host) else ssh)

        plan = HostPlan(targets, networks, config.ports(env), args.gpus or "")
        return run(limits, WorkersOnHosts(plan, task, signals, shell), discovery, printer, log)


def elastic_environment(env: Mapping[str, str], limits: Limits, n: int) -> dict[str, str]:
    """The environment of an elastic job's workers: how many there may be, and how long they wait for each other.

    Args:
        env: of any rank.
        limits: the job's.
        n: how many ranks were asked for.
    """
    mine = {"WORKBENCH_MAX_NP": limits.most or n, "WORKBENCH_ELASTIC_TIMEOUT_S": limits.timeout_s + _LATER_S}
    return {**env, **{name: str(value) for name, value in mine.items()}}


def limits_of(args: argparse.Namespace, task: JobSpec) -> Limits:
    """What the options allow.

    Raises:
        LaunchError: they contradict each other.
    """
    least = args.min_num_proc if args.min_num_proc is not None else task.n
    most = args.max_num_proc or 0
    if least < 1 or (most and most < least) or (most and args.num_proc is not None and args.num_proc > most):
        raise LaunchError(
            f"--min-np {least}, -np {task.n}, --max-np {most or 'any number'}: each must be at least 1, and no smaller "
            "than the one before it."
        )
    rest = tuple(map(float, args.blacklist_cooldown_range or _REST_S))
    if not 0 <= rest[0] <= rest[1]:
        raise LaunchError(
            f"--blacklist-cooldown-range {rest[0]:g} {rest[1]:g}: first the shorter time, then the longer."
        )
    if args.reset_limit is not None and args.reset_limit < 0:
        raise LaunchError(f"--reset-limit {args.reset_limit}: a number of resets is not negative.")
    settings = config.settings(task.env)
    timeout_s = args.elastic_timeout if args.elastic_timeout is not None else settings.elastic_timeout_s
    return Limits(least, most, args.reset_limit, timeout_s, (rest[0], rest[1]), settings.peer_timeout_s)


def check_slots(least: int, hosts: Hosts) -> None:
    """See to it that hosts to which no others will come are enough.

    Args:
        least: so many ranks are needed.
        hosts: with their slots.

    Raises:
        LaunchError: they are too few.

    Example:
        >>> check_slots(2, [("a", 1), ("b", 1)])
        >>> check_slots(3, [("a", 2)])
        Traceback (most recent call last):
        workbench.errors.LaunchError: --min-np 3, but there are 2 slots (a:2), and no other hosts will come. Give ...
    """
    total = sum(slots for _, slots in hosts)
    if total < least:
        listed = ", ".join(f"{name}:{slots}" for name, slots in hosts)
        raise LaunchError(
            f"--min-np {least}, but there {'is' if total == 1 else 'are'} {count(total, 'slot')} ({listed}), and no "
            "other hosts will come. Give a smaller --min-np, a larger -np or more slots (-H), or name a "
            "--host-discovery-script."
        )
