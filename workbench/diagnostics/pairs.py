"""``workbench doctor --hosts``: the rehearsal, and how fast each host reaches each other one.

Pairs are measured one after the other, so that they do not share the network.
"""

from __future__ import annotations

import itertools
import os
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from workbench import config
from workbench.common.messages import Message
from workbench.common.text import columns, count
from workbench.errors import LaunchError
from workbench.launch.hosts.connections import Connections, Target
from workbench.launch.hosts.rehearsal import Endpoint, rehearse
from workbench.launch.ranks.process_tree import ProcessTree

_ALL = 8  # with more hosts a sample is measured
_SAMPLE = 56
_LIMIT_S = 20.0  # of one pair
_SHADES = "░▒▓█"
_SLOWEST = 10  # lines of a sample

Pair = tuple[str, str]
"""From which host to which."""


@dataclass(frozen=True)
class Speed:
    """Of a pair.

    Args:
        latency_us: median time of a small round trip.
        megabytes_per_s: in one direction.
    """

    latency_us: float
    megabytes_per_s: float


def examine_hosts(targets: Sequence[Target], networks: Sequence[str] = ()) -> Iterator[str]:
    """The lines of the report.

    Args:
        targets: the hosts.
        networks: names of interfaces, of which one is to be used.

    Raises:
        LaunchError: the rehearsal fails, or a pair cannot be measured.
    """
    if len(targets) < 2:
        raise LaunchError("Name at least two hosts, whose links are measured: --hosts a,b")
    processes = ProcessTree(os.environ)
    connections = Connections(targets, processes, os.getcwd())
    ports = config.ports(os.environ)
    try:
        endpoints, warnings = rehearse(connections, [], networks, ports)
        yield f"✓ the rehearsal with {count(len(endpoints), 'host')}"
        yield from (f"! {line}" for line in warnings)
        yield from (f"  {endpoint.name}: by {endpoint.interface} {endpoint.address}" for endpoint in endpoints)
        names = [endpoint.name for endpoint in endpoints]
        pairs = sample(names)
        if len(names) > _ALL:
            yield f"  {len(names)} hosts have {len(names) * (len(names) - 1)} pairs; {len(pairs)} random are tested"
        places = {endpoint.name: endpoint for endpoint in endpoints}
        speeds = {(one, other): _measure(connections, one, places[other], ports) for one, other in pairs}
    finally:
        connections.close()
        processes.stop()
    yield from heat_map(names, speeds) if len(names) <= _ALL else listed(speeds)
    yield from slowest(speeds)


def sample(names: Sequence[str]) -> list[Pair]:
    """The pairs that are measured: all, or of many hosts a random sample.

    Example:
        >>> sample(["a", "b"]), len(sample([str(i) for i in range(100)]))
        ([('a', 'b'), ('b', 'a')], 56)
    """
    pairs = list(itertools.permutations(names, 2))
    return pairs if len(names) <= _ALL else random.sample(pairs, _SAMPLE)


def _measure(connections: Connections, one: str, other: Endpoint, ports: tuple[int, int]) -> Speed:
    low, high = ports
    question = Message("answer", {"address": other.address, "low": low, "high": high})
    place = _ask(connections, other.name, question, "answering").fields["place"]
    found = _ask(connections, one, Message("measure", {"place": place}), "measured", f" to {other.name}").fields[
        "found"
    ]
    return Speed(*found)


def _ask(connections: Connections, host: str, message: Message, answer: str, way: str = "") -> Message:
    answers, failures = connections.ask({host: message}, answer, _LIMIT_S)
    if host in failures:
        fields = failures[host].fields
        why = fields.get("what") or fields.get("text", "")
        raise LaunchError(
            f"The link from {host}{way} could not be measured: {why}. Try again; if it fails again, check its cable."
            if way
            else f"{host} opened no port for a measurement: {why}."
        )
    return answers[host]


def heat_map(names: Sequence[str], speeds: Mapping[Pair, Speed]) -> list[str]:
    r"""Two tables, of bandwidth and latency; the darker a cell, the slower it is.

    Example:
        >>> print("\n".join(heat_map(["a", "b"], {("a", "b"): Speed(80, 1000), ("b", "a"): Speed(85, 90)})))
        MB/s from (row) to (column); ░ is near the median, █ less than a quarter of it
                a       b
        a       ·  ░ 1000
        b  █   90       ·
        µs of a small round trip; ░ is near the median, █ more than 4 times as much
              a     b
        a     ·  ░ 80
        b  ░ 85     ·
    """
    fast = statistics.median(speed.megabytes_per_s for speed in speeds.values())
    quick = statistics.median(speed.latency_us for speed in speeds.values())
    bandwidths = {pair: (fast / max(it.megabytes_per_s, 1e-9), it.megabytes_per_s) for pair, it in speeds.items()}
    latencies = {pair: (it.latency_us / max(quick, 1e-9), it.latency_us) for pair, it in speeds.items()}
    return [
        "MB/s from (row) to (column); ░ is near the median, █ less than a quarter of it",
        *_table(names, bandwidths),
        "µs of a small round trip; ░ is near the median, █ more than 4 times as much",
        *_table(names, latencies),
    ]


def _table(names: Sequence[str], cells: Mapping[Pair, tuple[float, float]]) -> list[str]:
    """Of (how many times slower than the median, value)."""
    digits = max(len(f"{value:.0f}") for _, value in cells.values())
    rows = [["", *names]]
    for one in names:
        row = [one]
        for other in names:
            times, value = cells.get((one, other), (0.0, 0.0))
            row.append(f"{shade(times)} {value:{digits}.0f}" if times else "·")
        rows.append(row)
    return columns(rows, right=range(1, len(names) + 1))


def shade(times: float) -> str:
    """Of what is so many times slower than the median.

    Example:
        >>> [shade(times) for times in (0.9, 1.6, 3, 5)]
        ['░', '▒', '▓', '█']
    """
    return _SHADES[sum(times > bound for bound in (1.5, 2.0, 4.0))]


def listed(speeds: Mapping[Pair, Speed]) -> list[str]:
    """The slowest pairs of a sample, and its median."""
    ordered = sorted(speeds.items(), key=lambda item: item[1].megabytes_per_s)
    median = statistics.median(speed.megabytes_per_s for speed in speeds.values())
    rows = [["slowest", "MB/s", "µs"]]
    rows += [[" → ".join(pair), f"{it.megabytes_per_s:.0f}", f"{it.latency_us:.0f}"] for pair, it in ordered[:_SLOWEST]]
    return [*columns(rows, right=(1, 2)), f"median {median:.0f} MB/s"]


def slowest(speeds: Mapping[Pair, Speed]) -> list[str]:
    """The slowest pair, if it has less than half of the median bandwidth.

    Example:
        >>> slowest({("a", "b"): Speed(80, 1000), ("b", "a"): Speed(85, 90)})
        ['! b → a is the slowest: 90 MB/s, and the median is 545. Check the cable, port and speed of both.']
    """
    pair, speed = min(speeds.items(), key=lambda item: item[1].megabytes_per_s)
    median = statistics.median(each.megabytes_per_s for each in speeds.values())
    if speed.megabytes_per_s >= median / 2:
        return []
    return [
        f"! {' → '.join(pair)} is the slowest: {speed.megabytes_per_s:.0f} MB/s, and the median is {median:.0f}. Check "
        "the cable, port and speed of both."
    ]


__all__ = ["Speed", "examine_hosts", "heat_map", "listed", "sample", "shade", "slowest"]
