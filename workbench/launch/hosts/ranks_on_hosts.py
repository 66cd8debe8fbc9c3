"""The ranks of a job on several hosts: an agent on each, a rehearsal, and then MPI's own launcher or the agents."""

from __future__ import annotations

import dataclasses
import functools
import os
import secrets
import selectors
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench import config
from workbench.common.messages import Message
from workbench.common.text import count
from workbench.errors import LaunchError
from workbench.launch.hosts.connections import GONE, Connections, Target
from workbench.launch.hosts.rehearsal import LIMIT_S, Endpoint, rehearse, way_back
from workbench.launch.hosts.remote_shell import GPU_REQUESTS, LocalShell, Srun, Ssh
from workbench.launch.ranks import files, job_folder, supervisor
from workbench.launch.ranks.events import REPORTS, HostLost, LauncherEvent, Signalled, Signals, Wrote
from workbench.launch.ranks.process_tree import ProcessTree
from workbench.launch.slurm.allocation import JobGpus, allocation, job_gpus, slots_here
from workbench.launch.start import mpi
from workbench.launch.start.gpus import GpuChoice
from workbench.launch.start.hosts import ONCE, check, discover, is_here, parse, read
from workbench.launch.start.ranks_here import Ranks, RanksHere
from workbench.launch.start.starters import JobSpec

_END_S = 3.0  # deadline of the agents' last words
_SHORTEST_SILENCE_S = 2.0  # of an agent that lives, on a host with much to do


@dataclass(frozen=True)
class HostPlan:
    """Where the ranks go.

    Args:
        targets: the hosts, each with its slots.
        networks: names of interfaces, of which one is to be used.
        ports: the first and the last that may be listened on; (0, 0): any.
        gpus: which GPU each rank sees, see :func:`workbench.launch.start.gpus.assign`; "" for all.
        folder: where the ranks start, on each host; "" for this process's.
    """

    targets: Sequence[Target]
    networks: Sequence[str] = ()
    ports: tuple[int, int] = (0, 0)
    gpus: GpuChoice = None
    folder: str = ""

    def ranks(self, n: int) -> dict[str, list[int]]:
        """By host the numbers of its ranks: a host's slots are filled before the next host's. None is empty.

        Raises:
            LaunchError: there are too few slots.

        Example:
            >>> plan = HostPlan([Target("a", 2, Ssh()), Target("b", 2, Ssh()), Target("c", 2, Ssh())])
            >>> plan.ranks(3)
            {'a': [0, 1], 'b': [2]}
        """
        found: dict[str, list[int]] = {}
        for target in self.targets:
            first = sum(map(len, found.values()))
            if mine := list(range(first, min(n, first + target.slots))):
                found[target.name] = mine
        if (slots := sum(target.slots for target in self.targets)) < n:
            names = ", ".join(target.name for target in self.targets)
            raise LaunchError(f"{n} ranks do not fit the {slots} slots of {names}.")
        return found

    def slurm_gpus(self) -> JobGpus:
        """Those of the Slurm job that the hosts belong to, unless the user has said which GPU each rank sees."""
        found = (target.shell.gpus for target in self.targets if isinstance(target.shell, Srun))
        return JobGpus() if self.gpus else next(found, JobGpus())

    def order(self, task: JobSpec, listed: Mapping[str, bytes]) -> dict[str, Any]:
        """What each host's agent is told of the task, whether it starts ranks at once or workers one by one."""
        return {
            "command": list(task.command),
            "threads": config.omp_threads() > 0,
            "gpus": self.gpus,
            "slurm": dataclasses.asdict(self.slurm_gpus()),
            "silence_s": silence_s(task.env),
            "files": files.listed(listed),
        }


def find_hosts(
    listed: str, file: str, n: int | None, ssh: Ssh | None = None, script: str = "", slots: int = 1
) -> list[Target]:
    """The hosts of a job: those that the user names, else those of the Slurm job around this process.

    Args:
        listed, file: ``a:2,b:2``, or a file with a host per line; "" for none.
        n: how many ranks; None: as many as there are slots.
        ssh: how to reach hosts that the user names.
        script: prints hosts instead; "" for none.
        slots: of each host that it prints without.

    Returns:
        They; none where all ranks are to be here.

    Raises:
        LaunchError: hosts are named in two ways, one is named wrongly or twice, also by two names, there are too few
            slots, or the script or Slurm does not answer.
    """
    if ssh and ssh.identity and not os.access(os.path.expanduser(ssh.identity), os.R_OK):
        raise LaunchError(f"The key {ssh.identity} does not exist or cannot be read (--ssh-identity-file).")
    if sum(map(bool, (listed, file, script))) > 1:
        raise LaunchError("Name the hosts in one way: -H, --hostfile or --host-discovery-script.")
    if listed or file or script:
        named = parse(listed) if listed else read(file) if file else discover(script, slots)
        check(named, n or 0)
        targets = [Target(name, slots, LocalShell() if is_here(name) else ssh or Ssh()) for name, slots in named]
        if len(here := [target.name for target in targets if isinstance(target.shell, LocalShell)]) > 1:
            raise LaunchError(f"{' and '.join(here)} are one machine, this one. {ONCE}")
        return targets
    if alone := slots_here(n):  # its ranks need no agent
        return [Target("localhost", alone, LocalShell())]
    try:
        return slurm_targets(n)
    except LaunchError as error:
        hosts = ", ".join(part.names for part in config.batch_parts())
        raise LaunchError(f"{error} This Slurm job has {hosts}; -H localhost:{n or 1} starts all ranks here.") from None


def slurm_targets(n: int | None = None) -> list[Target]:
    """The hosts of the Slurm job around this process, which srun reaches; none outside of one.

    Args:
        n: how many ranks there are to be; None: as many as the job has tasks.

    Raises:
        LaunchError: Slurm does not answer.
    """
    parts = allocation(n)
    gpus = job_gpus(config.batch_job()) if parts else JobGpus()
    shells = [Srun(gpus=gpus, component=number if len(parts) > 1 else None) for number in range(len(parts))]
    return [Target(*host, shell) for part, shell in zip(parts, shells, strict=True) for host in part]


def ranks_on(
    targets: Sequence[Target],
    env: Mapping[str, str],
    n: int,
    networks: Sequence[str] = (),
    gpus: str = "",
    folder: str = "",
) -> tuple[Callable[[JobSpec, Signals], Ranks], list[str]]:
    """What makes the ranks of a job: here, if all its hosts are this machine, or on the hosts.

    Args:
        targets: the hosts.
        env: of the ranks.
        n: how many there are.
        networks, gpus, folder: see :class:`HostPlan`.

    Returns:
        It, and by rank the name of its host; no names if all are here.

    Raises:
        LaunchError: ``WORKBENCH_PORTS`` is no range.
    """
    if all(isinstance(target.shell, LocalShell) for target in targets):
        return RanksHere, []
    plan = HostPlan(targets, networks, config.ports(env), gpus, folder)
    return functools.partial(RanksOnHosts, plan), [name for name, ranks in plan.ranks(n).items() for _ in ranks]


class RanksOnHosts:
    """See :class:`workbench.launch.start.ranks_here.Ranks`.

    Args:
        plan: where they go.
        task: what to start.
        signals: of this process; they come as events.
    """

    def __init__(self, plan: HostPlan, task: JobSpec, signals: Signals) -> None:
        self._plan, self._task, self._signals = plan, task, signals
        self._ranks = plan.ranks(task.n)
        self._host = {rank: name for name, ranks in self._ranks.items() for rank in ranks}
        self._processes = ProcessTree(task.env)
        self._targets = [
            dataclasses.replace(target, slots=len(self._ranks[target.name]))
            for target in plan.targets
            if target.name in self._ranks
        ]
        self._connections = Connections(self._targets, self._processes, plan.folder or os.getcwd())
        self._endpoints: list[Endpoint] = []
        self._files = dict(task.files)
        self._silence_s, self._limit_s = silence_s(task.env), max(LIMIT_S, task.start_timeout_s)
        self._waiting = selectors.DefaultSelector()
        for source in (self._connections, signals.pipe):
            self._waiting.register(source, selectors.EVENT_READ)

    def start(self, log: Callable[[str], None], verbose: bool) -> None:
        """Rehearse, if that has not been done, then start the ranks on all hosts at once."""
        endpoints = self._endpoints or self.rehearse(log, verbose)
        if self._task.starter == "mpi" and any(
            isinstance(each.shell, Srun) and each.shell.component for each in self._targets
        ):
            raise LaunchError(
                "MPI's launcher starts ranks in the first component of a heterogeneous Slurm job only. Leave out --mpi."
            )
        if self._task.starter == "mpi" and ":" in endpoints[0].address and mpi.library_vendor() == "MPICH":
            raise LaunchError(
                f"MPICH's launcher needs IPv4, and {', '.join(each.name for each in endpoints)} share only an IPv6 "
                "network. Leave out --mpi: then the ranks use TCP, which supports both."
            )
        folder = str(Path(tempfile.gettempdir()) / f"{job_folder.BEGINS}{secrets.token_hex(8)}")
        answers, failures = self._connections.ask(self._orders(endpoints, folder), "starting", self._limit_s)
        if failures:
            name, message = next(iter(failures.items()))
            why = message.fields.get("what") or message.fields.get("text")
            raise LaunchError(f"The ranks could not be started on {name}: {why}")
        for name, message in answers.items():
            if verbose:
                log(f"{name}: {message.fields['line']}")
        self._connections.watch(self._silence_s)
        if self._task.starter == "mpi":
            self._start_mpi(endpoints, folder, log, verbose)

    def rehearse(self, log: Callable[[str], None], verbose: bool = False) -> list[Endpoint]:
        """Try everything that the job needs. :meth:`start` does so itself where nobody has.

        Raises:
            LaunchError: as :func:`workbench.launch.hosts.rehearsal.rehearse`.
        """
        begun = time.monotonic()
        self._plan.slurm_gpus().check({name: len(ranks) for name, ranks in self._ranks.items()})
        plan = self._plan
        endpoints, warnings = rehearse(
            self._connections, self._task.command, plan.networks, plan.ports, limit_s=self._limit_s, log=log
        )
        for line in warnings:
            log(line)
        if verbose:
            log(f"the rehearsal with {count(len(endpoints), 'host')} took {time.monotonic() - begun:.1f} s")
            for endpoint in endpoints:
                ranks = count(len(self._ranks[endpoint.name]), "rank")
                log(f"{endpoint.name}: {ranks}, by {endpoint.interface} {endpoint.address}")
        self._endpoints = endpoints
        return endpoints

    def way_back(self) -> str:
        """The address of this machine to which the ranks of all hosts can connect; after :meth:`rehearse`.

        Raises:
            LaunchError: as :func:`workbench.launch.hosts.rehearsal.way_back`.
        """
        return way_back(self._connections, self._endpoints, self._plan.ports)

    def give(self, further: Mapping[str, bytes]) -> None:
        """Further files for the folder of the task's files, before :meth:`start`."""
        self._files |= further

    def _orders(self, endpoints: Sequence[Endpoint], folder: str) -> dict[str, Message]:
        """By host, the order to start its ranks."""
        common = self._plan.order(self._task, self._files) | {
            "tag": self._processes.id,
            "folder": folder,
            "size": self._task.n,
            "hosts": len(endpoints),
            "starter": self._task.starter,
            "bind": config.settings(self._task.env).bind,
        }
        secret = secrets.token_hex(32)
        orders = {}
        for i, endpoint in enumerate(endpoints):
            env = mpi.port_variables(*self._plan.ports) | host_environment(self._task.env, endpoint, endpoints[0])
            env["WORKBENCH_SECRET"] = secret  # over ssh, to this host's agent, and nowhere else
            mine = {"host": i, "ranks": self._ranks[endpoint.name], "env": env}
            orders[endpoint.name] = Message("start", common | mine, b"".join(self._files.values()))
        return orders

    def _start_mpi(self, endpoints: Sequence[Endpoint], folder: str, log: Callable[[str], None], verbose: bool) -> None:
        """Let MPI's launcher start a supervisor for each rank, which finds there what its agent has left."""
        firsts = ",".join(str(self._ranks[endpoint.name][0]) for endpoint in endpoints)
        supervised = [sys.executable, "-I", "-S", supervisor.__file__, folder, supervisor.AGENTS, firsts]
        ssh = self._processes.folder / "ssh"
        shells = [target.shell for target in self._targets if isinstance(target.shell, Ssh)]
        ssh.write_text(f'#!/bin/sh\nexec ssh {shlex.join(shells[0].options() if shells else [])} "$@"\n')
        ssh.chmod(0o700)
        slots = [(endpoint.name, len(self._ranks[endpoint.name])) for endpoint in endpoints]
        first = self._targets[0].shell
        by_ssh = "" if isinstance(first, Srun) else str(ssh)
        if isinstance(first, Srun) and first.job:
            self._processes.env["SLURM_JOB_ID"] = str(first.job)  # in which srun, called by mpiexec, is to start
        if isinstance(first, Srun) and first.gpus.hosts:
            env = {name: text for name, text in self._processes.env.items() if name not in GPU_REQUESTS}
            gpus = sum(first.gpus.hosts.get(endpoint.name, 0) for endpoint in endpoints)
            self._processes.env = env | ({"SLURM_GPUS": str(gpus)} if gpus else {"SLURM_GRES": "none"})
        command = mpi.command_on_hosts(slots, endpoints[0].interface, by_ssh, self._task.mpi_args) + supervised
        if verbose:
            log(f"starting {shlex.join(command)}")
        # mpiexec passes its own environment on to the ranks, where what is meant for one machine must not be.
        env = {name: text for name, text in self._processes.env.items() if mpi.NO_TCP.get(name) != text}
        self._processes.env = mpi.port_variables(*self._plan.ports) | env
        self._processes.start("mpiexec", command)

    # --- the run --------------------------------------------------------------------------------------

    def wait(self, timeout_s: float) -> Iterator[LauncherEvent]:
        """From the agents, and this process's signals."""
        pause_s = 0.0 if self._connections.early else timeout_s
        if any(key.fd == self._signals.pipe for key, _ in self._waiting.select(pause_s)):
            yield from map(Signalled, os.read(self._signals.pipe, 64))
        for name, message in self._connections.receive(0.0):
            yield from self._event(name, message)

    def _event(self, name: str, message: Message) -> Iterator[LauncherEvent]:
        fields = message.fields
        match message.kind:
            case "wrote" | "started" | "ended" | "stopped":
                yield reported(message)
            case "gone":
                yield HostLost(name, tuple(self._ranks[name]), f"{fields['what']}. {fields['cure']}".rstrip(". "))
            case "lost" | "failed":
                yield HostLost(name, tuple(self._ranks[name]), fields["text"])

    def signal(self, ranks: Iterable[int], number: int) -> None:
        for rank in ranks:
            self._connections.send(self._host[rank], Message("signal", {"rank": rank, "number": number}))

    def ended(self) -> dict[str, int]:
        """Mpiexec; an agent's end comes as an event."""
        return {name: code for name, code in self._processes.codes().items() if name == "mpiexec"}

    def report(self) -> str:
        """Of mpiexec and the ssh processes."""
        return self._processes.report()

    def stop(self, take: Callable[[Iterable[LauncherEvent]], None]) -> dict[str, bytes]:
        """Let each agent end its ranks, and tell the rest; then end what runs here."""
        left: dict[str, bytes] = {}
        waiting = self._connections.there()
        for name in waiting:
            self._connections.send(name, Message("end", {}))
        until = time.monotonic() + _END_S
        while waiting and (left_s := until - time.monotonic()) > 0:
            for name, message in self._connections.receive(left_s):
                if message.kind == "file":
                    left[message.fields["name"]] = message.data
                elif message.kind in ("ended all", GONE):
                    waiting.discard(name)
                else:
                    take(self._event(name, message))
        self._waiting.close()
        self._connections.close()
        self._processes.stop()
        return left


def reported(message: Message) -> LauncherEvent:
    """What an agent reports of a rank."""
    if message.kind == "wrote":
        return Wrote(**message.fields, data=message.data)
    return REPORTS[message.kind](**message.fields)


def silence_s(env: Mapping[str, str]) -> float:
    """So long an agent, or its launcher, may say nothing."""
    return max(_SHORTEST_SILENCE_S, config.settings(env).peer_timeout_s)


def host_environment(env: Mapping[str, str], endpoint: Endpoint, first: Endpoint | None = None) -> dict[str, str]:
    """The ranks' environment on a host: everything uses one interface, unless the user has said otherwise.

    Args:
        env: made for ranks of one machine.
        endpoint: the host.
        first: the host of rank 0, where the others find it; None where rank 0 may be on any.
    """
    loopback = {name for name, text in mpi.LOOPBACK.items() if env.get(name) == text}
    found = {name: text for name, text in env.items() if name not in loopback}
    found |= dict.fromkeys(loopback - mpi.NO_TCP.keys(), endpoint.interface)
    if "NCCL_SOCKET_IFNAME" in loopback:
        found["NCCL_SOCKET_IFNAME"] = f"={endpoint.interface}"  # without = it would take eth0.1 for eth0, too
    found.setdefault("OMPI_MCA_btl_tcp_if_include", endpoint.interface)
    found["WORKBENCH_HOST_ADDRESS"] = endpoint.address
    if first is None:
        return found
    found.setdefault("WORKBENCH_CONTROL_ADDRESS", first.address)
    found["WORKBENCH_RENDEZVOUS_PORT"] = str(first.ports[0])
    return found | {"MASTER_ADDR": first.address, "MASTER_PORT": str(first.ports[1])}


__all__ = [
    "HostPlan", "RanksOnHosts", "find_hosts", "host_environment", "ranks_on", "reported", "silence_s", "slurm_targets",
]  # fmt: skip
