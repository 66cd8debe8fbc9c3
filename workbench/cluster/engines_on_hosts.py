"""Engines on several hosts: they are ranks on hosts whose command is the engine.

::

    kernel ─┬─ ipyparallel.controller        listens at one address, which all hosts reach; encrypted
            ├─ ssh, or srun ── agent on a ─┬─ supervisor 0 ── engine 0
            │                              └─ supervisor 1 ── engine 1
            └─ ssh, or srun ── agent on b ─── …

1. Agents and rehearsal are those of ``workbench run -H``, see :mod:`workbench.launch.hosts`.
2. The file with the controller's address and keys goes to each agent by its standard input.
3. A thread listens to the agents. When a host is lost, it notifies the hub, which otherwise would wait for heartbeats.
   So requests to that host end with an error.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import workbench.config
from workbench.cluster import engine_commands
from workbench.cluster.engines_here import Engines, Log
from workbench.cluster.recovery import are
from workbench.cluster.reservation import Allocation, ShortTime
from workbench.common.messages import Message
from workbench.common.text import count, numbered
from workbench.errors import LaunchError
from workbench.launch.hosts.agent_connections import Connections
from workbench.launch.hosts.host_plan import HostPlan
from workbench.launch.hosts.ranks_on_hosts import RanksOnHosts
from workbench.launch.hosts.remote_shell import Relay
from workbench.launch.ranks.ending import shell_code
from workbench.launch.ranks.events import HostLost, LauncherEvent, RankEnded, Signals, Stopped, Wrote
from workbench.launch.ranks.process_tree import ProcessTree
from workbench.launch.start import mpi
from workbench.launch.start.gpus import Gpu
from workbench.launch.start.starters import JobSpec, choose

_LOOK_S = 0.25
_ANSWER_S = 8.0
_LOG = "engines"
_LINES = 15


@dataclass(frozen=True)
class OnHosts:
    """Hosts as the place of engines.

    Args:
        n: how many engines.
        plan: the hosts, and how they are reached.
        reservation: where Slurm or Ray has given them.
        modules: environment modules to load.
    """

    n: int
    plan: HostPlan
    reservation: Allocation | None = None
    modules: tuple[str, ...] = ()
    gpus: tuple[Gpu | str, ...] = ()

    def engines(self) -> EnginesOnHosts:
        return EnginesOnHosts(self)

    def after_loss(self, engines: Engines, log: Log) -> OnHosts:
        """The place to start them anew: without hosts that do not answer; the others take their ranks.

        Raises:
            LaunchError: no host is left, or the Slurm job has ended.
        """
        if self.reservation and (over := self.reservation.ended()):
            raise LaunchError(f"{over}. cluster.up({self.reservation.kind}=…) asks for another one.")
        assert isinstance(engines, EnginesOnHosts)
        targets = list(self.plan.targets)
        if not (lost := engines.silent_hosts()):
            return self
        left = [target for target in targets if target.name not in lost]
        if not left:
            raise LaunchError(f"No host answers: {', '.join(lost)}. Are they up, and on this network?")
        slots = max(-(-self.n // len(left)), *(target.slots for target in left))
        silent = f"host {lost[0]} does" if len(lost) == 1 else f"hosts {', '.join(lost)} do"
        log(f"{silent} not answer: the ranks go to {', '.join(target.name for target in left)}")
        return replace(self, plan=replace(self.plan, targets=[replace(target, slots=slots) for target in left]))

    def notes(self, engines: Engines) -> list[str]:
        if not self.reservation:
            return []
        try:
            line, left_s, short_s = self.reservation.line(), self.reservation.left_s(), self.reservation.short_s()
        except LaunchError as error:  # the engines run, whether Slurm answers or not
            return [str(error)]
        if self.reservation.ended() or left_s is None or left_s > short_s:
            return [line]
        return [line, "its time is nearly over: save what you need"]

    def describe(self, state: str) -> str:
        """One line that is the same in every run on these hosts."""
        places = [f"{numbered(ranks)} on {name}" for name, ranks in self.plan.ranks(self.n).items()]
        return f"{count(self.n, 'engine')} {state}, whose ids are the ranks: {', '.join(places)}"

    def test(self) -> str:
        if any(isinstance(target.shell, Relay) for target in self.plan.targets):
            return "ray status"
        listed = ",".join(f"{target.name}:{target.slots}" for target in self.plan.targets)
        return f"workbench run -np {self.n} -H {listed} hostname"


class EnginesOnHosts:
    """See :class:`workbench.cluster.engines_here.Engines`.

    Args:
        place: where and how many.
    """

    def __init__(self, place: OnHosts) -> None:
        self._place = place
        env = workbench.config.without_launcher(mpi.environment(1)) | {"PYTHONUNBUFFERED": "1"}
        env |= engine_commands.loaded(place.modules, env)
        self.mpi = choose(None, None, env) == "mpi"
        self._task = JobSpec(place.n, engine_commands.engine_on_host(self.mpi), env, "mpi" if self.mpi else "gloo")
        self.job = ProcessTree(env | engine_commands.signing())
        self.job.env["IPYTHONDIR"] = str(self.job.folder)
        self._ranks: RanksOnHosts | None = None
        self._signals = Signals(())  # the kernel's are the notebook's
        self._over, self._thread = threading.Event(), threading.Thread(target=self._attend, daemon=True)
        self._codes: dict[int, int] = {}
        self._stopped: dict[int, str] = {}
        self._lost: dict[str, HostLost] = {}
        self._hub = Path()
        self._log: Log = print

    def start(self, profile: Path, deadline: float, log: Log) -> None:
        """Agents and rehearsal; then the controller, at the address that all hosts reach; then the engines."""
        self._log = log
        self._ranks = ranks = RanksOnHosts(self._place.plan, self._task, self._signals)
        atexit.register(self.stop)  # a kernel that ends without down() says goodbye to its agents
        ranks.rehearse(log)
        address, ports = ranks.way_back(), engine_commands.free_ports(ranks.way_back(), self._place.plan.ports)
        self.job.start("controller", engine_commands.controller(profile, address, ports))
        self._hub = profile / "security" / "ipcontroller-engine.json"
        self.job.wait("the controller listened", self._listens, deadline)
        ranks.give({engine_commands.READY: self._hub.read_bytes()})
        ranks.start_all(log, verbose=False)
        self._thread.start()

    def _listens(self) -> bool:
        """Agents hear meanwhile that their launcher lives.

        Raises:
            LaunchError: an engine or a host was lost already.
        """
        self._take(self._ranks.wait(0.0) if self._ranks else ())
        if self._lost or self._codes:
            raise LaunchError(f"{self.describe_lost(self.gone())}.")
        return engine_commands.listens(self._hub)

    def are_up(self, pids: Sequence[int]) -> None:
        """Nothing to do: agents leave the other ranks alone."""

    def gone(self) -> list[int]:
        return sorted(self._codes.keys() | {rank for lost in list(self._lost.values()) for rank in lost.ranks})

    def stopped(self, engine: int) -> str | None:
        if engine in self.gone():
            return None
        why, host = self._stopped.get(engine, ""), self._hosts().get(engine)
        return f"on host {host} {why}" if why else ""

    def describe_lost(self, gone: Sequence[int]) -> str:
        """The lost ranks with their hosts, or with how they have ended."""
        lines = [f"{are(ranks)} gone with {hosts}: {why}" for hosts, ranks, why in self._lost_hosts()]
        return "; ".join(lines + [f"rank {rank} on {name} is gone{how}" for rank, name, how in self._alone(gone)])

    def host_lost(self, gone: Sequence[int]) -> str:
        """By the agents' connections, and by Slurm; an engine whose host is there has ended by itself."""
        parts = [f"with {hosts} ({why})" for hosts, ranks, why in self._lost_hosts() if set(ranks) & set(gone)]
        return ", ".join(dict.fromkeys(parts + [f"on host {name}{how}" for _, name, how in self._alone(gone)]))

    def _lost_hosts(self) -> list[tuple[str, list[int], str]]:
        """Those that were lost for the same reason, their ranks, and why."""
        lost, hosts, found = self._lost.copy(), self._hosts(), []
        for why in dict.fromkeys(each.why for each in lost.values()):
            ranks = [rank for rank, name in hosts.items() if name in lost and lost[name].why == why]
            names = list(dict.fromkeys(hosts[rank] for rank in ranks))
            found.append((f"host{'s' if len(names) > 1 else ''} {', '.join(names)}", ranks, why))
        return found

    def _alone(self, gone: Sequence[int]) -> list[tuple[int, str, str]]:
        """Ranks that are gone, but not with their hosts: these, and how they have ended, if that is known."""
        how = {
            rank: f" (killed by signal {-code})" if code < 0 else f" (exit code {shell_code(code)})"
            for rank, code in self._codes.copy().items()
        }
        hosts = {rank: name for rank, name in self._hosts().items() if rank in gone and name not in self._lost}
        return [(rank, name, how.get(rank, "")) for rank, name in hosts.items()]

    def _hosts(self) -> dict[int, str]:
        return {rank: name for name, ranks in self._place.plan.ranks(self._place.n).items() for rank in ranks}

    def knows(self, rank: int) -> bool:
        return rank in self.gone()

    def silent_hosts(self) -> list[str]:
        """Which of the hosts that were lost do not answer now, either."""
        targets = [target for target in self._place.plan.targets if target.name in self._lost]
        if not targets:
            return []
        processes = ProcessTree(self._task.env)
        try:
            asked = Connections(targets, processes, os.getcwd())
            _, failures = asked.ask({target.name: Message("", {}) for target in targets}, "here", _ANSWER_S)
            asked.close()
        finally:
            processes.stop()
        return list(failures)

    def report(self) -> str:
        """Of the controller, the agents, and the last lines of the engines."""
        parts = [self.job.report(), self._ranks.report() if self._ranks else ""]
        log_file = self.job.log(_LOG)
        lines = log_file.read_text(errors="replace").splitlines()[-_LINES:] if log_file.exists() else []
        return "\n".join([*filter(None, parts), *(f"  | {line}" for line in lines)])

    def stop(self) -> None:
        """The agents end their ranks, and then the controller ends."""
        atexit.unregister(self.stop)
        self._over.set()
        if self._thread.ident:
            self._thread.join()
        ranks, self._ranks = self._ranks, None
        try:
            if ranks and self.job.owned():
                self._take(ranks.stop())
                self._signals.__exit__(None, None, None)
        finally:
            self.job.stop()

    # --- the thread -----------------------------------------------------------------------------------

    def _attend(self) -> None:
        assert self._ranks
        warn = ShortTime(self._place.reservation, self._log) if self._place.reservation else None
        while not self._over.is_set():
            try:
                self._take(self._ranks.wait(_LOOK_S))
                if warn:
                    warn.tick()
            except Exception as error:  # noqa: BLE001 - a full disk, say: the agents are still to be heard
                self._log(f"the engines' hosts: {error}")
                self._over.wait(1.0)

    def _take(self, events: Iterable[LauncherEvent]) -> None:
        for event in events:
            match event:
                case Wrote(_, _, data):
                    with self.job.log(_LOG).open("ab") as log:
                        log.write(data)
                case RankEnded(rank, code):
                    self._codes[rank] = code
                case Stopped(rank, why):
                    self._stopped[rank] = why
                case HostLost(host, _, _) if host not in self._lost and not self._over.is_set():
                    self._lose(event)

    def _lose(self, lost: HostLost) -> None:
        """Say so at once: the ranks of other hosts may go on waiting for it for some time."""
        over = self._place.reservation.ended() if self._place.reservation else ""
        said = any(each.why == over for each in self._lost.values())
        self._lost[lost.host] = lost = replace(lost, why=over) if over else lost
        if self._thread.is_alive() and not said:
            ranks = numbered(lost.ranks, "rank")
            self._log(over or f"host {lost.host} was lost with {ranks}: {lost.why}; call engines.rescue()")
        if engine_commands.listens(self._hub):
            unregister(json.loads(self._hub.read_text()), lost.ranks)


def unregister(hub: dict[str, Any], engines: Iterable[int]) -> None:
    """Tell the hub that engines are gone, as their nannies would: then it fails what is awaited from them.

    Args:
        hub: the engines' connection file.
        engines: their ids.
    """
    import zmq
    from ipyparallel import util
    from jupyter_client.session import Session

    session = Session(key=hub["key"].encode(), packer=hub["pack"], unpacker=hub["unpack"])
    session.signature_scheme = hub["signature_scheme"]
    context = zmq.Context()
    server = hub.get("curve_serverkey")
    keys: dict[str, bytes] = {}
    if server:
        public, secret = zmq.curve_keypair()
        keys = {"curve_serverkey": server.encode(), "curve_publickey": public, "curve_secretkey": secret}
    with context.socket(zmq.DEALER) as socket:
        socket.linger = 3000
        util.connect(socket, f"{hub['interface']}:{hub['registration']}", **keys)
        for engine in engines:
            session.send(socket, "unregistration_request", content={"id": engine})
    context.term()
