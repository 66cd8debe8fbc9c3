"""Right answers of lesson 12 that are unlike the official ones."""

from __future__ import annotations

from collections import Counter
from typing import Any

from workbench.course.simulator.topology import ring_among


def by_counters(hosts: Any) -> Any:
    """In one pass, with what was seen so far; the sizes afterwards."""
    on_node: Counter[str] = Counter()
    of_number: Counter[int] = Counter()
    seen = []
    for host in hosts:
        local = on_node[host]
        seen.append((local, of_number[local]))
        on_node[host] += 1
        of_number[local] += 1
    return [(local, on_node[host], cross, of_number[local]) for host, (local, cross) in zip(hosts, seen, strict=True)]


def by_lists_of_ranks(hosts: Any) -> Any:
    """Nodes as lists of their ranks, and across them the lists of those with one number."""
    nodes: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        nodes.setdefault(host, []).append(rank)
    local = {rank: place for ranks in nodes.values() for place, rank in enumerate(ranks)}
    across = {place: [rank for rank in range(len(hosts)) if local[rank] == place] for place in set(local.values())}
    return [
        [local[rank], len(nodes[host]), across[local[rank]].index(rank), len(across[local[rank]])]
        for rank, host in enumerate(hosts)
    ]


def along_a_chain(comm: Any, nodes: Any, x: Any) -> Any:
    """Inside a node from rank to rank, and back the same way."""
    here = [rank for rank, node in enumerate(nodes) if node == nodes[comm.rank]]
    leaders = [nodes.index(node) for node in dict.fromkeys(nodes)]
    place = here.index(comm.rank)
    if place + 1 < len(here):
        x = x + comm.recv(source=here[place + 1])
    if place:
        comm.send(x, dest=here[place - 1])
        x = comm.recv(source=here[place - 1])
    else:
        x = ring_among(comm, leaders, x)
    if place + 1 < len(here):
        comm.send(x, dest=here[place + 1])
    return x


def rings_inside_too(comm: Any, nodes: Any, x: Any) -> Any:
    """The sum of a node by a ring as well; all have it, and the first ones go on."""
    here = [rank for rank, node in enumerate(nodes) if node == nodes[comm.rank]]
    leaders = [nodes.index(node) for node in dict.fromkeys(nodes)]
    total = ring_among(comm, here, x)
    if comm.rank != here[0]:
        return comm.recv(source=here[0])
    total = ring_among(comm, leaders, total)
    waiting = [comm.isend(total, dest=rank) for rank in here[1:]]
    for request in waiting:
        request.wait()
    return total


RIGHT = {
    "12.local_ranks": [by_counters, by_lists_of_ranks],
    "12.hierarchical": [along_a_chain, rings_inside_too],
}
