"""The workers of an elastic job on several hosts, which come and go: an agent on each, opened when it is needed.

To *open* a host means: a rehearsal with all hosts that are open already, by agents of its own, and then the agent that
stays. That takes a second or more, so a thread does it while the job goes on.
"""

from __future__ import annotations

import os
import queue
import secrets
import selectors
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from workbench.common.messages import Message
from workbench.errors import LaunchError
from workbench.launch.hosts.connections import GONE, Connections, Target
from workbench.launch.hosts.ranks_on_hosts import HostPlan, host_environment, reported, silence_s
from workbench.launch.hosts.rehearsal import LIMIT_S, Endpoint, rehearse
from workbench.launch.hosts.remote_shell import Shell
from workbench.launch.ranks import job_folder
from workbench.launch.ranks.events import HostLost, LauncherEvent, Signalled, Signals
from workbench.launch.ranks.process_tree import ProcessTree
from workbench.launch.start.starters import JobSpec
from workbench.launch.workers.workers_here import Placement, WorkerMessage

_END_S = 3.0  # deadline of the agents' last words


@dataclass
class _Host:
    """An open host.

    Args:
        endpoint: as the rehearsal has found it.
        connections: to its agent alone.
        workers: who runs there.
    """

    endpoint: Endpoint
    connections: Connections
    workers: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class _Opened:
    """What a thread has come to: hosts, or why it could not."""

    names: Sequence[str]
    hosts: Mapping[str, _Host]
    why: str = ""


class WorkersOnHosts:
    """See :class:`workbench.launch.workers.workers_here.Workers`.

    Args:
        task: each worker's command and environment.
        plan: hosts that are known at the start, with their shells; networks, ports and GPUs.
        shell: how to reach a host that is found later.
        signals: of this process; they come as events.
    """

    def __init__(self, task: JobSpec, plan: HostPlan, shell: Callable[[str], Shell], signals: Signals) -> None:
        self._task, self._plan, self._shell, self._signals = task, plan, shell, signals
        self._shells = {target.name: target.shell for target in plan.targets}
        self._slots = {target.name: target.slots for target in plan.targets}
        self._processes = ProcessTree(task.env)
        self._silence_s = silence_s(task.env)
        self._hosts: dict[str, _Host] = {}
        self._where: dict[int, str] = {}
        self._last_seen: dict[int, float] = {}
        self._waiting: dict[str, list[tuple[int, Placement]]] = {}  # for their host to be opened
        self._opening: threading.Thread | None = None
        self._opened: queue.SimpleQueue[_Opened] = queue.SimpleQueue()
        self._bell, self._ring = os.pipe()
        self._selector = selectors.DefaultSelector()
        for source in (signals.pipe, self._bell):
            self._selector.register(source, selectors.EVENT_READ, None)
        self._begun, self.files = 0, dict[str, bytes]()

    def takes(self, host: str) -> bool:
        return True

    def start(self, worker: int, placement: Placement) -> None:
        """See :class:`Workers`. Where the host is not open yet, it is opened first."""
        self._where[worker] = placement.host
        self._slots[placement.host] = max(self._slots.get(placement.host, 0), placement.slot + 1)
        if placement.host in self._hosts:
            self._start(worker, placement)
        else:
            self._waiting.setdefault(placement.host, []).append((worker, placement))

    def _start(self, worker: int, placement: Placement) -> None:
        host = self._hosts[placement.host]
        host.workers.add(worker)
        self._last_seen[worker] = time.monotonic()
        where = {
            "slot": placement.slot,
            "number": placement.number,
            "total": placement.total,
            "beside": placement.beside,
        }
        host.connections.send(placement.host, Message("worker", {"worker": worker} | where))

    def wait(self, timeout_s: float) -> Iterator[LauncherEvent | WorkerMessage]:
        """See :class:`Workers`.

        Raises:
            LaunchError: the first hosts could not be opened.
        """
        self._open_what_is_waited_for()
        early = any(host.connections.early for host in self._hosts.values())
        ready = {key.fd for key, _ in self._selector.select(0.0 if early else timeout_s)}
        if self._signals.pipe in ready:
            yield from map(Signalled, os.read(self._signals.pipe, 64))
        if self._bell in ready:
            os.read(self._bell, 64)
            yield from self._take_opened()
        for name, host in list(self._hosts.items()):
            for _, message in host.connections.receive(0.0):
                yield from self._event(name, message)

    def _event(self, name: str, message: Message) -> Iterator[LauncherEvent | WorkerMessage]:
        fields, host = message.fields, self._hosts.get(name)
        match message.kind:
            case "wrote" | "started" | "ended":
                if message.kind == "ended" and host:
                    host.workers.discard(fields["rank"])
                yield reported(message)
            case "heard":
                self._last_seen[fields["worker"]] = time.monotonic()
                yield WorkerMessage(fields["worker"], Message(fields["what"], fields["fields"], message.data))
            case "gone":
                yield from self._lose(name, f"{fields['what']}. {fields['cure']}".rstrip(". "))
            case "failed":
                yield from self._lose(name, fields["text"].rstrip(". "))

    def _lose(self, name: str, why: str) -> Iterator[LauncherEvent | WorkerMessage]:
        host = self._hosts.pop(name, None)
        if host:
            self._selector.unregister(host.connections)
            host.connections.close()
            yield HostLost(name, tuple(sorted(host.workers)), why)

    def send(self, worker: int, message: Message) -> None:
        """See :class:`Workers`."""
        name = self._where.get(worker, "")
        if name in self._hosts:
            fields = {"worker": worker, "what": message.kind, "fields": message.fields}
            self._hosts[name].connections.send(name, Message("tell", fields, message.data))

    def silent_for(self, worker: int) -> float:
        """See :class:`Workers`."""
        return time.monotonic() - self._last_seen.get(worker, time.monotonic())

    def signal(self, workers: Iterable[int], number: int) -> None:
        """See :class:`Workers`."""
        for worker in workers:
            name = self._where.get(worker, "")
            if name in self._hosts:
                for each in (number, signal.SIGCONT) if number == signal.SIGKILL else (number,):
                    order = Message("signal", {"rank": worker, "number": each})
                    self._hosts[name].connections.send(name, order)

    def stop(self) -> list[LauncherEvent | WorkerMessage]:
        """See :class:`Workers`."""
        if self._opening:
            self._opening.join(LIMIT_S)
            list(self._take_opened(starts=False))
        rest: list[LauncherEvent | WorkerMessage] = []
        for name, host in self._hosts.items():
            host.connections.send(name, Message("end", {}))
        until = time.monotonic() + _END_S
        waiting = set(self._hosts)
        while waiting and time.monotonic() < until:
            for name in list(waiting):
                for _, message in self._hosts[name].connections.receive(0.02):
                    if message.kind == "file":
                        self.files[message.fields["name"]] = message.data
                    elif message.kind in ("ended all", GONE):
                        waiting.discard(name)
                    else:
                        rest += self._event(name, message) if message.kind in ("wrote", "ended") else ()
        for host in self._hosts.values():
            host.connections.close()
        self._selector.close()
        self._processes.stop()
        os.close(self._bell)
        os.close(self._ring)
        return rest

    # --- hosts are opened -----------------------------------------------------------------------------

    def _open_what_is_waited_for(self) -> None:
        names = [name for name in self._waiting if name not in self._hosts]
        if names and self._opening is None:
            known = [self._target(name) for name in self._hosts]
            new = [self._target(name) for name in names]
            self._opening = threading.Thread(target=self._open, args=[new, known], name="workbench-opening")
            self._opening.start()

    def _target(self, name: str) -> Target:
        if name not in self._shells:
            self._shells[name] = self._shell(name)
        return Target(name, self._slots[name], self._shells[name])

    def _open(self, new: Sequence[Target], known: Sequence[Target]) -> None:
        """On a thread of its own."""
        names, opened = [target.name for target in new], dict[str, _Host]()
        try:
            endpoints = self._rehearse([*known, *new])
            for target in new:
                opened[target.name] = self._begin(target, endpoints[target.name])
            result = _Opened(names, opened)
        except (LaunchError, OSError) as error:
            for host in opened.values():
                host.connections.close()
            result = _Opened(names, {}, str(error).rstrip(". "))
        self._opened.put(result)
        os.write(self._ring, b"!")

    def _rehearse(self, targets: Sequence[Target]) -> dict[str, Endpoint]:
        plan = self._plan
        plan.slurm_gpus().check({target.name: target.slots for target in targets})
        connections = Connections(targets, self._processes, self._plan.folder or os.getcwd())
        try:
            limit_s = max(LIMIT_S, self._task.start_timeout_s)
            endpoints, _ = rehearse(
                connections,
                self._task.command,
                plan.networks,
                plan.ports,
                grows=True,
                limit_s=limit_s,
                runs=bool(self._hosts),
            )
        finally:
            connections.close()
        for endpoint in endpoints:
            open_already = self._hosts.get(endpoint.name)
            if open_already and open_already.endpoint.address != endpoint.address:
                raise LaunchError(
                    f"The hosts would need another network for {', '.join(target.name for target in targets)}: "
                    f"{endpoint.name} is already used by its address {open_already.endpoint.address}, and now "
                    f"{endpoint.address} would be needed. Choose one with --network-interface."
                )
        return {endpoint.name: endpoint for endpoint in endpoints}

    def _begin(self, target: Target, endpoint: Endpoint) -> _Host:
        """Start the agent that stays, and make it ready for workers."""
        connections = Connections([target], self._processes, self._plan.folder or os.getcwd())
        try:
            limit_s = max(LIMIT_S, self._task.start_timeout_s)
            for question, answer in ((Message("", {}), "here"), (self._order(target, endpoint), "starting")):
                _, failures = connections.ask({target.name: question}, answer, limit_s)
                if failures:
                    fields = failures[target.name].fields
                    raise LaunchError(f"{target.name}: {fields.get('what') or fields.get('text')}")
            connections.watch(self._silence_s)
        except BaseException:
            connections.close()
            raise
        return _Host(endpoint, connections)

    def _order(self, target: Target, endpoint: Endpoint) -> Message:
        self._begun += 1  # a host that comes again gets another folder, for its last agent may still clean up
        mark = f"{self._processes.id}.{self._begun}"
        folder = Path(tempfile.gettempdir()) / f"{job_folder.BEGINS}{secrets.token_hex(8)}"
        fields = {
            "tag": mark,
            "folder": str(folder),
            "host": target.name,
            "slots": target.slots,
            "env": host_environment(self._task.env, endpoint),
        }
        order = fields | self._plan.order(self._task, self._task.files)
        return Message("workers", order, b"".join(self._task.files.values()))

    def _take_opened(self, starts: bool = True) -> Iterator[LauncherEvent | WorkerMessage]:
        while not self._opened.empty():
            opened = self._opened.get()
            if self._opening:
                self._opening.join()
                self._opening = None
            if opened.why and starts and not self._begun:
                raise LaunchError(opened.why)
            self._hosts |= opened.hosts
            for name, host in opened.hosts.items():
                self._selector.register(host.connections, selectors.EVENT_READ, name)
            for name in opened.names:
                orders = self._waiting.pop(name, [])
                if name not in self._hosts:
                    yield HostLost(name, tuple(worker for worker, _ in orders), opened.why)
                for worker, placement in orders if name in self._hosts and starts else ():
                    self._start(worker, placement)


__all__ = ["WorkersOnHosts"]
