"""The workers of an elastic job on several hosts, which come and go: an agent on each, opened when it is needed.

To *open* hosts means: a rehearsal, and then agents that stay. Where other hosts are open already, they take part in the
rehearsal by agents of its own. That takes a second or more, so a thread does it while the job goes on.
"""

from __future__ import annotations

import dataclasses
import os
import queue
import selectors
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from workbench.common.messages import Message
from workbench.errors import LaunchError
from workbench.launch.hosts.agent_connections import Connections, Target
from workbench.launch.hosts.host_plan import HostPlan
from workbench.launch.hosts.ranks_on_hosts import AgentsOnHosts, OpenHost, host_environment
from workbench.launch.hosts.rehearsal import LIMIT_S, Endpoint, rehearse
from workbench.launch.hosts.remote_shell import Shell
from workbench.launch.ranks.events import HostLost, LauncherEvent, Signals
from workbench.launch.start.starters import JobSpec, Placement


@dataclass(frozen=True)
class _Opened:
    """What a thread has come to: hosts, or why it could not."""

    names: Sequence[str]
    hosts: Mapping[str, OpenHost]
    why: str = ""


class WorkersOnHosts(AgentsOnHosts):
    """See :class:`workbench.launch.elastic.workers.Workers`.

    Args:
        plan: hosts that are known at the start, with their shells; networks, ports and GPUs.
        task: each worker's command and environment.
        signals: of this process; they come as events.
        shell: how to reach a host that is found later.
    """

    def __init__(self, plan: HostPlan, task: JobSpec, signals: Signals, shell: Callable[[str], Shell]) -> None:
        super().__init__(plan, task, signals)
        self._shell = shell
        self._shells = {target.name: target.shell for target in plan.targets}
        self._slots = {target.name: target.slots for target in plan.targets}
        self._waiting: dict[str, list[tuple[int, Placement]]] = {}  # for their host to be opened
        self._opening: threading.Thread | None = None
        self._opened: queue.SimpleQueue[_Opened] = queue.SimpleQueue()
        self._bell, self._ring = os.pipe()
        self._selector.register(self._bell, selectors.EVENT_READ)
        self._begun = 0

    def takes(self, host: str) -> bool:
        return True

    def start(self, worker: int, placement: Placement) -> None:
        """Start it; where the host is not open yet, open it first."""
        self._where[worker] = placement.host
        self._slots[placement.host] = max(self._slots.get(placement.host, 0), placement.slot + 1)
        if placement.host in self._hosts:
            self._start(worker, placement)
        else:
            self._waiting.setdefault(placement.host, []).append((worker, placement))

    def _start(self, worker: int, placement: Placement) -> None:
        self._hosts[placement.host].ranks.add(worker)
        self._last_heard[worker] = time.monotonic()
        there = dataclasses.replace(placement, index=placement.slot)
        self._tell(worker, Message("worker", {"worker": worker, "placement": dataclasses.asdict(there)}))

    def wait(self, timeout_s: float) -> Iterator[LauncherEvent]:
        """See :class:`~workbench.launch.start.local_ranks.Ranks`.

        Raises:
            LaunchError: the first hosts could not be opened.
        """
        self._open_what_is_waited_for()
        yield from super().wait(timeout_s)  # which the bell ends early
        yield from self._take_opened()
        for connections in self._heard():
            if not any(host.connections is connections for host in self._hosts.values()):
                self._selector.unregister(connections)
                connections.close()

    def send(self, worker: int, message: Message) -> None:
        fields = {"worker": worker, "what": message.kind, "fields": message.fields}
        self._tell(worker, Message("tell", fields, message.data))

    def silent_for(self, worker: int) -> float:
        return time.monotonic() - self._last_heard.get(worker, time.monotonic())

    def stop(self) -> list[LauncherEvent]:
        if self._opening:
            self._opening.join(LIMIT_S)
            list(self._take_opened(starts=False))
        rest = super().stop()
        os.close(self._bell)
        os.close(self._ring)
        return rest

    # --- hosts are opened -----------------------------------------------------------------------------

    def _open_what_is_waited_for(self) -> None:
        names = [name for name in self._waiting if name not in self._hosts]
        if names and self._opening is None:
            known = {name: host.endpoint for name, host in self._hosts.items()}
            targets = [self._target(name) for name in (*known, *names)]
            self._opening = threading.Thread(target=self._open, args=[targets, known], name="workbench-opening")
            self._opening.start()

    def _target(self, name: str) -> Target:
        if name not in self._shells:
            self._shells[name] = self._shell(name)
        return Target(name, self._slots[name], self._shells[name])

    def _open(self, targets: Sequence[Target], known: Mapping[str, Endpoint]) -> None:
        """On a thread of its own.

        Args:
            targets: those that are open, and the new ones.
            known: the former's endpoints.
        """
        new = [target for target in targets if target.name not in known]
        agents: Connections | None = None
        try:
            self._plan.slurm_gpus().check({target.name: target.slots for target in targets})
            agents = self._connect(targets)
            endpoints = self._rehearse(agents, known)
            if known:
                agents.close()
                agents = self._connect(new)
            self._start_agents(agents, {each.name: self._worker_order(each, endpoints[each.name]) for each in new})
            hosts = {each.name: OpenHost(endpoints[each.name], agents, set()) for each in new}
            opened = _Opened(list(hosts), hosts)
        except (LaunchError, OSError) as error:
            if agents:
                agents.close()
            opened = _Opened([each.name for each in new], {}, str(error).rstrip(". "))
        self._opened.put(opened)
        os.write(self._ring, b"!")

    def _rehearse(self, agents: Connections, known: Mapping[str, Endpoint]) -> dict[str, Endpoint]:
        plan, words = self._plan, self._task.command
        endpoints, _ = rehearse(
            agents, words, plan.networks, plan.ports, grows=True, limit_s=self._limit_s, runs=bool(known)
        )
        for endpoint in endpoints:
            if endpoint.name in known and known[endpoint.name].address != endpoint.address:
                raise LaunchError(
                    f"The hosts would need another network for {', '.join(each.name for each in endpoints)}: "
                    f"{endpoint.name} is already used by its address {known[endpoint.name].address}, and now "
                    f"{endpoint.address} would be needed. Choose one with --network-interface."
                )
        return {endpoint.name: endpoint for endpoint in endpoints}

    def _worker_order(self, target: Target, endpoint: Endpoint) -> Message:
        self._begun += 1  # a host that comes again gets another folder, for its last agent may still clean up
        return self._order(self._begun, target.slots, host_environment(self._task.env, endpoint))

    def _take_opened(self, starts: bool = True) -> Iterator[LauncherEvent]:
        while not self._opened.empty():
            opened = self._opened.get()
            os.read(self._bell, 1)
            if self._opening:
                self._opening.join()
                self._opening = None
            if opened.why and starts and not self._begun:
                raise LaunchError(opened.why)
            self._hosts |= opened.hosts
            for connections in {host.connections for host in opened.hosts.values()}:
                self._listen_to(connections)
            for name in opened.names:
                orders = self._waiting.pop(name, [])
                if name not in self._hosts:
                    yield HostLost(name, tuple(worker for worker, _ in orders), opened.why)
                for worker, placement in orders if name in self._hosts and starts else ():
                    self._start(worker, placement)
