"""The rehearsal: before a rank is started, everything is tried that a job on several hosts needs.

1. An agent answers on each host: ssh, the key, the folder, Python, and the package are there.
2. The hosts are alike: Python, packages, our code, the script; and there is room for temporary files.
3. Each host has one interface from which packets to all others leave. From now on everything uses that one.
4. Each host connects to a port of each other host.

All hosts are asked at once. What is found wrong is told together, each with the host and what to do.
"""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.common.messages import Message
from workbench.common.text import plural
from workbench.errors import LaunchError
from workbench.launch.hosts.agent_connections import Connections
from workbench.launch.hosts.facts import source
from workbench.launch.hosts.reach import SMALL_ONLY, Port, PortAddress
from workbench.launch.hosts.remote_shell import LocalShell
from workbench.launch.start.hosts import ONCE

LIMIT_S = 30.0
"""So long a host may take, unless ``--start-timeout`` gives more."""
_HOSTS_PER_S = 50
_REPORT_AFTER_S = 3.0  # who is still waited for
_REACH_S = 2.0
_LEAST_BYTES = 64 << 20  # for temporary files, and for shared memory
_CLOCKS_S = 30.0
_MOST_LINES = 12
# What to do where a host fails in a step, by the answer that did not come.
_CURES = {
    "listening": "Use a larger range: WORKBENCH_PORTS=40000-40100. This shows which programs listen there: ss -ltnp."
}
LOOPBACK = ("lo", "127.0.0.1")


@dataclass(frozen=True)
class HostProblem:
    """What is wrong with a host.

    Args:
        host: its name.
        what: the problem.
        cure: what to do.
    """

    host: str
    what: str
    cure: str

    def line(self) -> str:
        """As it is told.

        Example:
            >>> HostProblem("b", "no sshd listens there", "Start it.").line()
            'b: no sshd listens there. Start it.'
        """
        return f"{self.host}: {self.what}. {self.cure}"


@dataclass(frozen=True)
class Endpoint:
    """A host, as the rehearsal has found it.

    Args:
        name: as the user wrote it.
        interface, address: by which the other hosts reach it.
        ports: two that were free a moment ago; the first was reached by all others.
    """

    name: str
    interface: str
    address: str
    ports: tuple[int, int]


def rehearse(
    connections: Connections,
    words: Sequence[str],
    networks: Sequence[str] = (),
    ports: tuple[int, int] = (0, 0),
    grows: bool = False,
    limit_s: float = LIMIT_S,
    log: Callable[[str], None] = lambda line: None,
    runs: bool = False,
) -> tuple[list[Endpoint], list[str]]:
    """Try everything.

    Args:
        connections: to the agents.
        words: of the ranks' command.
        networks: names of interfaces, of which one is to be used; any where there are none.
        ports: the first and the last that may be listened on; (0, 0): any.
        grows: other hosts may come later, so a host that is alone needs an address that they reach.
        limit_s: deadline of the whole.
        log: gets a line where a host is waited for.
        runs: the job does already, on other hosts.

    Returns:
        The hosts, in the order of the connections, and warnings.

    Raises:
        LaunchError: something is wrong; the text names each host and what to do.
    """
    rehearsal = _Rehearsal(connections, limit_s, log, runs)
    facts = rehearsal.facts(words)
    warnings = rehearsal.compare(facts)
    places = rehearsal.choose(facts, networks, grows)
    return rehearsal.connect(places, ports), warnings


def _by_name(host: str, interfaces: Sequence[Sequence[str]], networks: Sequence[str]) -> tuple[str, str]:
    """The interface with the address that a host's name stands for; or the one that the user names; else loopback."""
    try:
        known = {str(info[4][0]) for info in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)}
    except OSError:
        known = set()
    for interface, address, *_ in interfaces:
        if interface in networks or (not networks and address in known and interface != LOOPBACK[0]):
            return interface, address
    return LOOPBACK


class _Rehearsal:
    def __init__(self, connections: Connections, limit_s: float, log: Callable[[str], None], runs: bool) -> None:
        self._connections, self._log, self._runs = connections, log, runs
        self._begun = self._reported_at = time.monotonic()
        self._names = [target.name for target in connections.targets]
        self._until = time.monotonic() + limit_s + len(self._names) / _HOSTS_PER_S
        self._problems: list[HostProblem] = []

    def facts(self, words: Sequence[str]) -> dict[str, Any]:
        """What each host says about itself."""
        self._ask(dict.fromkeys(self._names, Message("", {})), "here")
        asked = time.time()
        answers = self._ask(dict.fromkeys(self._names, Message("facts", {"words": list(words)})), "facts")
        found = {name: message.fields["facts"] for name, message in answers.items()}
        middle = (asked + time.time()) / 2
        for facts in found.values():
            facts["clock"] = facts["now"] - middle
        return found

    def compare(self, facts: Mapping[str, Any]) -> list[str]:
        """Refuse hosts that are not as the first one. Returns warnings."""
        self._problems += differences(facts)
        self._raise()
        return suspicions(facts, {target.name: target.slots for target in self._connections.targets})

    def choose(self, facts: Mapping[str, Any], networks: Sequence[str], grows: bool) -> dict[str, tuple[str, str]]:
        """By host, the interface that the others reach, and its address."""
        if len(self._names) == 1:
            (name,) = self._names
            return {name: _by_name(name, facts[name]["interfaces"], networks) if grows else LOOPBACK}
        interfaces = {name: [tuple(each) for each in its["interfaces"]] for name, its in facts.items()}
        everywhere = sorted({address for listed in interfaces.values() for _, address, _ in listed})
        question = Message("sources", {"addresses": everywhere})
        answers = self._ask(dict.fromkeys(self._names, question), "sources")
        sources = {name: message.fields["sources"] for name, message in answers.items()}
        found, problems = facing(interfaces, sources, networks)
        self._problems += problems
        self._raise()
        return found

    def connect(self, places: Mapping[str, tuple[str, str]], ports: tuple[int, int]) -> list[Endpoint]:
        """Let each host connect to each other one."""
        low, high = ports
        questions = {
            name: Message("listen", {"address": address, "low": low, "high": high})
            for name, (_, address) in places.items()
        }
        listening = {name: message.fields for name, message in self._ask(questions, "listening").items()}
        doors = {name: (places[name][1], its["port"], its["word"]) for name, its in listening.items()}
        reach_s = max(0.5, min(_REACH_S, self._until - time.monotonic() - 0.5))
        questions = {
            name: Message("reach", {"places": {n: d for n, d in doors.items() if n != name}, "limit_s": reach_s})
            for name in self._names
        }
        for name, message in self._ask(questions, "reached").items():
            for other, why in message.fields["found"].items():
                if why:
                    address, port, _ = doors[other]
                    cure = f"A firewall? Allow {name} there; WORKBENCH_PORTS=40000-40100 limits the ports"
                    if SMALL_ONLY in why:
                        cure = (
                            f"Give {places[other][0]} the MTU of the whole route (ping -M do -s 1472 {address}; ip "
                            f"link)"
                        )
                    what = f"{name} cannot connect to it, at {address} port {port} ({places[other][0]}): {why}"
                    self._problems.append(
                        HostProblem(other, what, f"{cure}, and --network-interface chooses the network.")
                    )
        self._ask(dict.fromkeys(self._names, Message("close", {})), "closed")
        return [Endpoint(name, *places[name], (its["port"], its["spare"])) for name, its in listening.items()]

    def _ask(self, questions: Mapping[str, Message], answer: str) -> dict[str, Message]:
        limit_s = max(1.0, self._until - time.monotonic())
        answers, failures = self._connections.ask(questions, answer, limit_s, self._waiting)
        for name in self._names:
            if name in failures:
                fields = failures[name].fields
                what = fields.get("what") or fields.get("text", "")
                self._problems.append(HostProblem(name, what.rstrip("."), fields.get("cure") or _CURES.get(answer, "")))
        self._raise()
        return {name: answers[name] for name in questions}

    def _waiting(self, missing: Mapping[str, str]) -> None:
        """Say who is waited for: soon, then ever less often."""
        now = time.monotonic()
        if missing and now - self._reported_at > max(_REPORT_AFTER_S, self._reported_at - self._begun):
            self._reported_at = now
            names = sorted(missing)
            more = f" and {len(names) - _MOST_LINES} more" if len(names) > _MOST_LINES else ""
            states = "; ".join(f"{name}: {missing[name]}" for name in names[:_MOST_LINES])
            left_s = max(0.0, self._until - now)
            self._log(f"waiting for hosts since {now - self._begun:.0f} s, for {left_s:.0f} s more: {states}{more}")

    def _raise(self) -> None:
        if self._problems:
            raise LaunchError(failure(self._problems, self._runs))


def failure(problems: Sequence[HostProblem], runs: bool) -> str:
    """The text of a rehearsal's error.

    Args:
        problems: what was found.
        runs: the job does already, on other hosts.

    Example:
        >>> failure([HostProblem("b", "no sshd listens there", "Start it.")], runs=True)
        'The rehearsal failed, and the job is not joined by new hosts: b: no sshd listens there. Start it.'
    """
    lines = [problem.line().rstrip() for problem in problems]
    if len(lines) > _MOST_LINES:
        lines[_MOST_LINES:] = [f"… and {len(lines) - _MOST_LINES} more"]
    between = "\n  " if len(lines) > 1 else " "
    what = "is not joined by new hosts" if runs else "was not started"
    return between.join([f"The rehearsal failed, and the job {what}:", *lines])


def way_back(connections: Connections, endpoints: Sequence[Endpoint], ports: tuple[int, int]) -> str:
    """The address of this machine to which programs on all hosts can connect; each of them has tried.

    Args:
        connections: to the agents.
        endpoints: of the rehearsal.
        ports: see :func:`rehearse`.

    Raises:
        LaunchError: there is none; the text names the host that cannot, and what to do.
    """
    shells = {target.name: target.shell for target in connections.targets}
    for endpoint in endpoints:
        if isinstance(shells[endpoint.name], LocalShell) or source(endpoint.address) == endpoint.address != LOOPBACK[1]:
            return endpoint.address  # this machine is one of the hosts, and the others have reached it
    address = source(endpoints[0].address if len(endpoints) > 1 else _resolved(endpoints[0].name))
    if not address:
        raise LaunchError(f"There is no route from this machine to {endpoints[0].name}, at {endpoints[0].address}.")
    port = Port(address, *ports)
    places = {"here": PortAddress(address, port.number, port.word)}
    questions = {endpoint.name: Message("reach", {"places": places, "limit_s": _REACH_S}) for endpoint in endpoints}
    with port.greeting():
        answers, failures = connections.ask(questions, "reached", LIMIT_S)
    said = {name: message.fields["found"]["here"] for name, message in answers.items()}
    said |= {name: message.fields.get("what", "no answer") for name, message in failures.items()}
    for name, why in said.items():
        if why:
            raise LaunchError(
                f"{name}: it cannot connect to this machine, at {address} port {port.number}: {why}. A firewall? Allow "
                f"{name} here; WORKBENCH_PORTS=40000-40100 limits the ports."
            )
    return address


def _resolved(name: str) -> str:
    try:
        return str(socket.getaddrinfo(name, None, type=socket.SOCK_DGRAM)[0][4][0])
    except OSError as error:
        raise LaunchError(
            f"{name}: its address is not known here ({error.strerror}). Name the host as in DNS or /etc/hosts."
        ) from None


def differences(facts: Mapping[str, Any]) -> list[HostProblem]:
    """In what hosts differ from the first one, or lack."""
    problems: list[HostProblem] = []
    (first, its), *rest = facts.items()
    machines = {its["machine"]: first}
    for name, other in rest:
        if (same := machines.setdefault(other["machine"], name)) != name:
            problems.append(HostProblem(name, f"it is the same machine as {same}", ONCE))
        for what, mine, theirs in _pairs(its, other):
            if mine != theirs:
                cure = "Make them the same on all hosts."
                problems.append(
                    HostProblem(name, f"{what} is {theirs or 'missing'}, but {mine or 'missing'} on {first}", cure)
                )
    for name, each in facts.items():
        for word, found in each["files"].items():
            if not found:
                cure = f"It is looked for in {each['folder']}: share that folder between the hosts."
                problems.append(HostProblem(name, f"there is no file {word}", cure))
        for folder, free in each["space"].items():
            if free < _LEAST_BYTES:
                what = f"{folder} is full: {free >> 20} MiB are free, and {_LEAST_BYTES >> 20} are needed"
                cure = "Delete old files there"
                cure += ", or give a container more: --shm-size 1g." if folder == "/dev/shm" else "."
                problems.append(HostProblem(name, what, cure))
    return problems


def suspicions(facts: Mapping[str, Any], ranks: Mapping[str, int]) -> list[str]:
    """What is likely to be wrong, though a job can run so: a line for each.

    Args:
        facts: of each host; ``clock`` is how many seconds it is ahead of this one.
        ranks: how many each is to take.
    """
    lines, seen = [], dict[str, str]()
    for name, its in facts.items():
        if abs(its["clock"]) > _CLOCKS_S:
            lines.append(
                f"{name}: its clock is {abs(its['clock']):.0f} s {'ahead of' if its['clock'] > 0 else 'behind'} this "
                "one's: certificates may seem expired, and times of files and logs cannot be compared. Start an NTP "
                "client there."
            )
        if (other := seen.setdefault(its["host"], name)) != name:
            lines.append(
                f"{name}: its host name is {its['host']}, as that of {other}, though it is another machine: logs "
                "confuse them, and MPI may. Give it its own: hostnamectl set-hostname NAME."
            )
        if ranks[name] > its["cores"]:
            lines.append(
                f"{name}: {ranks[name]} ranks share {its['cores']} {plural('core', its['cores'])}, so they wait for "
                f"each other. Give it fewer slots: -H {name}:{its['cores']}"
            )
    return lines


def _pairs(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    pairs = [("Python", one["python"], other["python"])]
    packages = one["packages"].keys() | other["packages"].keys()
    pairs += [(name, one["packages"].get(name, ""), other["packages"].get(name, "")) for name in sorted(packages)]
    pairs.append(("the workbench's code (by its hash)", one["code"], other["code"]))
    both = one["files"].keys() & other["files"].keys()
    pairs += [
        (f"{word} (by its hash)", one["files"][word], other["files"][word])
        for word in sorted(both)
        if one["files"][word] and other["files"][word]
    ]
    mine, theirs = one.get("imports", {}), other.get("imports", {})  # other code may not say them
    names = sorted(mine.keys() | theirs.keys())
    pairs += [(f"{name} (by its hash)", mine.get(name, ""), theirs.get(name, "")) for name in names]
    return pairs


def facing(
    interfaces: Mapping[str, Sequence[tuple[Any, ...]]],
    sources: Mapping[str, Mapping[str, str]],
    networks: Sequence[str] = (),
) -> tuple[dict[str, tuple[str, str]], list[HostProblem]]:
    """For each host the interface from which packets to all other hosts leave, IPv4 first.

    Args:
        interfaces: by host: name, address and prefix's length of each.
        sources: by host: for an address, the own one that packets to it come from.
        networks: names of the interfaces that may be used; any where there are none.

    Returns:
        By host name and address of the interface; or what is wrong.

    Example:
        >>> hosts = {"a": [("eth0", "10.0.0.1", 24), ("docker0", "172.17.0.1", 16)], "b": [("eth0", "10.0.0.2", 24)]}
        >>> ways = {"a": {"10.0.0.2": "10.0.0.1"}, "b": {"10.0.0.1": "10.0.0.2", "172.17.0.1": ""}}
        >>> facing(hosts, ways)
        ({'a': ('eth0', '10.0.0.1'), 'b': ('eth0', '10.0.0.2')}, [])
    """
    lost: list[str] = []
    for version in (4, 6):
        found = {name: _one_facing(name, version, interfaces, sources, networks) for name in interfaces}
        lost = lost or [name for name, place in found.items() if place is None]
        if None not in found.values():
            return {name: place for name, place in found.items() if place}, []
    return {}, [_nowhere(name, interfaces[name], networks) for name in lost]


def _one_facing(
    name: str,
    version: int,
    interfaces: Mapping[str, Sequence[tuple[Any, ...]]],
    sources: Mapping[str, Mapping[str, str]],
    networks: Sequence[str],
) -> tuple[str, str] | None:
    mine = {address for _, address, _ in interfaces[name]}
    # An address that both have does not lead from one to the other: a bridge for containers is the same everywhere.
    ways = [
        {sources[name].get(address, "") for _, address, _ in listed if address not in mine}
        for other, listed in interfaces.items()
        if other != name
    ]
    return next(
        (
            (interface, address)
            for interface, address, _ in interfaces[name]
            if ipaddress.ip_address(address).version == version
            and (not networks or interface in networks)
            and all(address in way for way in ways)
        ),
        None,
    )


def _nowhere(name: str, listed: Sequence[tuple[Any, ...]], networks: Sequence[str]) -> HostProblem:
    has = ", ".join(f"{interface} {address}" for interface, address, _ in listed) or "none"
    among = f" among {', '.join(networks)}" if networks else ""
    what = f"no single interface{among} reaches all other hosts (it has {has})"
    return HostProblem(name, what, "Connect the hosts by one network, or name its interface: --network-interface.")
