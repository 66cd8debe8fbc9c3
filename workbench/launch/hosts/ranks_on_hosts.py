"""The ranks of a job on several hosts: an agent on each, a rehearsal, and then the agents or MPI's own launcher."""

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
from workbench.launch.hosts.agent_connections import GONE, Connections, Target
from workbench.launch.hosts.host_plan import HostPlan
from workbench.launch.hosts.rehearsal import LIMIT_S, Endpoint, rehearse, way_back
from workbench.launch.hosts.remote_shell import GPU_REQUESTS, LocalShell, Srun, Ssh
from workbench.launch.ranks import files, job_folder, supervisor
from workbench.launch.ranks.events import REPORTS, HostLost, LauncherEvent, Signalled, Signals, WorkerMessage, Wrote
from workbench.launch.ranks.process_tree import ProcessTree
from workbench.launch.start import mpi
from workbench.launch.start.local_ranks import FixedRanks, LocalRanks
from workbench.launch.start.starters import JobSpec

_END_S = 3.0  # deadline of the agents' last words
_LOOK_S = 0.02
_SHORTEST_SILENCE_S = 2.0  # of an agent that lives, on a host with much to do


def ranks_on(
    targets: Sequence[Target],
    env: Mapping[str, str],
    n: int,
    networks: Sequence[str] = (),
    gpus: str = "",
    folder: str = "",
) -> tuple[Callable[[JobSpec, Signals], FixedRanks], list[str]]:
    """What makes the ranks of a job: here, if all its hosts are this machine, or on the hosts.

    Args:
        targets: the hosts.
        env: of the ranks.
        n: how many there are.
        networks, gpus, folder: see :class:`~workbench.launch.hosts.host_plan.HostPlan`.

    Returns:
        It, and by rank the name of its host; no names if all are here.

    Raises:
        LaunchError: ``WORKBENCH_PORTS`` is no range.
    """
    if all(isinstance(target.shell, LocalShell) for target in targets):
        return LocalRanks, []
    plan = HostPlan(targets, networks, config.ports(env), gpus, folder)
    return functools.partial(RanksOnHosts, plan), [name for name, ranks in plan.ranks(n).items() for _ in ranks]


@dataclass
class OpenHost:
    """A host whose agent is there.

    Args:
        endpoint: as the rehearsal has found it.
        connections: to its agent, and to those of hosts that were opened together with it.
        ranks: those that run there.
    """

    endpoint: Endpoint
    connections: Connections
    ranks: set[int]


class AgentsOnHosts:
    """What ranks on hosts need of their agents, in a fixed job and in an elastic one.

    Args:
        plan: the hosts.
        task: what to start.
        signals: of this process; they come as events.

    Attributes:
        files: see :class:`workbench.launch.start.local_ranks.Ranks`.
    """

    def __init__(self, plan: HostPlan, task: JobSpec, signals: Signals) -> None:
        self._plan, self._task, self._signals = plan, task, signals
        self.files = dict[str, bytes]()
        self._processes = ProcessTree(task.env)
        self._given = dict(task.files)
        self._folder = str(Path(tempfile.gettempdir()) / f"{job_folder.BEGINS}{secrets.token_hex(8)}")
        self._limit_s = max(LIMIT_S, task.start_timeout_s)
        self._hosts: dict[str, OpenHost] = {}
        self._where: dict[int, str] = {}  # the host of each rank
        self._last_heard: dict[int, float] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(signals.pipe, selectors.EVENT_READ)

    # --- hosts are opened, and lost -------------------------------------------------------------------

    def _connect(self, targets: Sequence[Target]) -> Connections:
        return Connections(targets, self._processes, self._plan.folder or os.getcwd())

    def _start_agents(self, connections: Connections, orders: Mapping[str, Message]) -> dict[str, str]:
        """Have agents start what there is to start; by host, which cores its ranks are bound to.

        Raises:
            LaunchError: one cannot.
        """
        answers, failures = connections.ask(orders, "starting", self._limit_s)
        for name, message in failures.items():
            why = message.fields.get("what") or message.fields.get("text")
            raise LaunchError(f"The ranks could not be started on {name}: {why}")
        connections.watch(silence_s(self._task.env))
        return {name: message.fields["line"] for name, message in answers.items()}

    def _order(self, number: int, slots: int, env: Mapping[str, str], **more: Any) -> Message:
        """What a host's agent is told.

        Args:
            number: no other host of this job has it: hosts may share the folder, and one may be this machine.
            slots: how many ranks share the host's cores.
            env: the ranks' environment.
            more: about a fixed job.
        """
        return Message(
            "start",
            {
                "tag": f"{self._processes.id}.{number}",
                "folder": f"{self._folder}.{number}",
                "slots": slots,
                "command": list(self._task.command),
                "env": dict(env),
                "threads": config.omp_threads() > 0,
                "gpus": self._plan.gpus,
                "slurm": dataclasses.asdict(self._plan.slurm_gpus()),
                "silence_s": silence_s(self._task.env),
                "files": files.listed(self._given),
                "elastic": not more,
                **more,
            },
            b"".join(self._given.values()),
        )

    def _listen_to(self, connections: Connections) -> None:
        self._selector.register(connections, selectors.EVENT_READ, connections)

    def _heard(self) -> list[Connections]:
        return [key.data for key in self._selector.get_map().values() if isinstance(key.data, Connections)]

    def _lose(self, name: str, why: str) -> Iterator[LauncherEvent]:
        if host := self._hosts.pop(name, None):
            host.connections.drop(name)
            yield HostLost(name, tuple(sorted(host.ranks)), why.rstrip(". "))

    # --- the run --------------------------------------------------------------------------------------

    def wait(self, timeout_s: float) -> Iterator[LauncherEvent]:
        early = any(connections.early for connections in self._heard())
        if any(key.fd == self._signals.pipe for key, _ in self._selector.select(0.0 if early else timeout_s)):
            yield from map(Signalled, os.read(self._signals.pipe, 64))
        for connections in self._heard():
            for name, message in connections.receive(0.0):
                yield from self._event(name, message)

    def _event(self, name: str, message: Message) -> Iterator[LauncherEvent]:
        fields, host = message.fields, self._hosts.get(name)
        match message.kind:
            case "wrote":
                yield Wrote(**fields, data=message.data)
            case "started" | "ended" | "stopped":
                if message.kind == "ended" and host:
                    host.ranks.discard(fields["rank"])
                yield REPORTS[message.kind](**fields)
            case "heard":
                self._last_heard[fields["worker"]] = time.monotonic()
                yield WorkerMessage(fields["worker"], Message(fields["what"], fields["fields"], message.data))
            case "gone":
                yield from self._lose(name, f"{fields['what']}. {fields['cure']}")
            case "failed":
                yield from self._lose(name, fields["text"])

    def _tell(self, rank: int, message: Message) -> None:
        """Tell the agent of a rank's host; nothing where that was lost."""
        name = self._where.get(rank, "")
        if name in self._hosts:
            self._hosts[name].connections.send(name, message)

    def signal(self, ranks: Iterable[int], number: int) -> None:
        for rank in ranks:
            self._tell(rank, Message("signal", {"rank": rank, "number": number}))

    def ended(self) -> dict[str, int]:
        """Mpiexec; an agent's end comes as an event."""
        return {name: code for name, code in self._processes.codes().items() if name == "mpiexec"}

    def report(self) -> str:
        return self._processes.report()

    def stop(self) -> list[LauncherEvent]:
        """Let each agent end its ranks, and tell the rest; then end what runs here."""
        rest: list[LauncherEvent] = []
        heard = self._heard()
        try:
            waiting = {(connections, name) for connections in heard for name in connections.there()}
            for connections, name in waiting:
                connections.send(name, Message("end", {}))
            until = time.monotonic() + _END_S
            while waiting and time.monotonic() < until:
                for connections in heard:
                    for name, message in connections.receive(_LOOK_S):
                        if message.kind == "file":
                            self.files[message.fields["name"]] = message.data
                        elif message.kind in ("ended all", GONE):
                            waiting.discard((connections, name))
                        elif message.kind in ("wrote", "started", "ended"):
                            rest += self._event(name, message)
        finally:
            for connections in heard:
                connections.close()
            self._selector.close()
            self._processes.stop()
        return rest


class RanksOnHosts(AgentsOnHosts):
    """Those of a fixed job, see :class:`workbench.launch.start.local_ranks.FixedRanks`.

    Args:
        plan: where they go.
        task: what to start.
        signals: of this process; they come as events.
    """

    def __init__(self, plan: HostPlan, task: JobSpec, signals: Signals) -> None:
        super().__init__(plan, task, signals)
        self._ranks = plan.ranks(task.n)
        self._where = {rank: name for name, ranks in self._ranks.items() for rank in ranks}
        self._targets = [
            dataclasses.replace(target, slots=len(self._ranks[target.name]))
            for target in plan.targets
            if target.name in self._ranks
        ]
        self._agents = self._connect(self._targets)
        self._listen_to(self._agents)
        self._endpoints: list[Endpoint] = []

    def rehearse(self, log: Callable[[str], None], verbose: bool = False) -> None:
        """Try everything that the job needs. :meth:`start_all` does so itself where nobody has.

        Raises:
            LaunchError: as :func:`workbench.launch.hosts.rehearsal.rehearse`.
        """
        begun, plan = time.monotonic(), self._plan
        plan.slurm_gpus().check({name: len(ranks) for name, ranks in self._ranks.items()})
        endpoints, warnings = rehearse(
            self._agents, self._task.command, plan.networks, plan.ports, limit_s=self._limit_s, log=log
        )
        for line in warnings:
            log(line)
        if verbose:
            log(f"the rehearsal with {count(len(endpoints), 'host')} took {time.monotonic() - begun:.1f} s")
            for endpoint in endpoints:
                ranks = count(len(self._ranks[endpoint.name]), "rank")
                log(f"{endpoint.name}: {ranks}, by {endpoint.interface} {endpoint.address}")
        self._endpoints = endpoints
        self._hosts = {each.name: OpenHost(each, self._agents, set(self._ranks[each.name])) for each in endpoints}

    def way_back(self) -> str:
        """The address of this machine to which the ranks of all hosts can connect; after :meth:`rehearse`.

        Raises:
            LaunchError: as :func:`workbench.launch.hosts.rehearsal.way_back`.
        """
        return way_back(self._agents, self._endpoints, self._plan.ports)

    def give(self, further: Mapping[str, bytes]) -> None:
        """Further files for the folder of the task's files, before :meth:`start_all`."""
        self._given |= further

    def start_all(self, log: Callable[[str], None], verbose: bool) -> None:
        """Rehearse, if that has not been done, then start the ranks on all hosts at once."""
        if not self._endpoints:
            self.rehearse(log, verbose)
        if self._task.starter == "mpi":
            self._check_mpi()
        lines = self._start_agents(self._agents, self._orders())
        if verbose:
            for name, line in lines.items():
                log(f"{name}: {line}")
        if self._task.starter == "mpi":
            self._start_mpi(log, verbose)

    def _orders(self) -> dict[str, Message]:
        """By host, the order to start its ranks."""
        secret = secrets.token_hex(32)  # over ssh, to this job's agents, and nowhere else
        orders = {}
        for i, endpoint in enumerate(self._endpoints):
            ranks = self._ranks[endpoint.name]
            env = mpi.port_variables(*self._plan.ports) | host_environment(self._task.env, endpoint, self._endpoints[0])
            env["WORKBENCH_SECRET"] = secret
            share = {"ranks": ranks, "size": self._task.n, "host": i, "hosts": len(self._endpoints)}
            orders[endpoint.name] = self._order(ranks[0], len(ranks), env, starter=self._task.starter, **share)
        return orders

    def _check_mpi(self) -> None:
        if any(isinstance(each.shell, Srun) and each.shell.component for each in self._targets):
            raise LaunchError(
                "MPI's launcher starts ranks in the first component of a heterogeneous Slurm job only. Leave out --mpi."
            )
        if ":" in self._endpoints[0].address and mpi.library_vendor() == "MPICH":
            raise LaunchError(
                f"MPICH's launcher needs IPv4, and {', '.join(each.name for each in self._endpoints)} share only an "
                "IPv6 network. Leave out --mpi: then the ranks use TCP, which supports both."
            )

    def _start_mpi(self, log: Callable[[str], None], verbose: bool) -> None:
        """Let MPI's launcher start a supervisor for each rank, which finds there what its agent has left."""
        endpoints = self._endpoints
        firsts = ",".join(str(self._ranks[endpoint.name][0]) for endpoint in endpoints)
        supervised = [sys.executable, "-I", "-S", supervisor.__file__, self._folder, supervisor.AGENTS, firsts]
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
