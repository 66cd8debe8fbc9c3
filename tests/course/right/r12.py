"""Right answers of lesson 12 that are unlike the official ones."""

from __future__ import annotations

from collections import Counter

import numpy as np

from workbench.course.simulator.topology import ring_among


def by_counters(hosts):  # In one pass, with what was seen so far; the sizes afterwards.
    on_node: Counter[str] = Counter()
    of_number: Counter[int] = Counter()
    seen = []
    for host in hosts:
        local = on_node[host]
        seen.append((local, of_number[local]))
        on_node[host] += 1
        of_number[local] += 1
    return [(local, on_node[host], cross, of_number[local]) for host, (local, cross) in zip(hosts, seen, strict=True)]
def by_lists_of_ranks(hosts):  # Nodes as lists of their ranks, and across them the lists of those with one number.
    nodes: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts): nodes.setdefault(host, []).append(rank)
    local = {rank: place for ranks in nodes.values() for place, rank in enumerate(ranks)}
    across = {place: [rank for rank in range(len(hosts)) if local[rank] == place] for place in set(local.values())}
    return [
        [local[rank], len(nodes[host]), across[local[rank]].index(rank), len(across[local[rank]])]
        for rank, host in enumerate(hosts)
    ]
def along_a_chain(comm, nodes, x):  # Inside a node from rank to rank, and back the same way.
    here = [rank for rank, node in enumerate(nodes) if node == nodes[comm.rank]]
    leaders = [nodes.index(node) for node in dict.fromkeys(nodes)]
    place = here.index(comm.rank)
    if place + 1 < len(here): x = x + comm.recv(source=here[place + 1])
    if place:
        comm.send(x, dest=here[place - 1])
        x = comm.recv(source=here[place - 1])
    else: x = ring_among(comm, leaders, x)
    if place + 1 < len(here): comm.send(x, dest=here[place + 1])
    return x
def rings_inside_too(comm, nodes, x):  # The sum of a node by a ring as well; all have it, and the first ones go on.
    here = [rank for rank, node in enumerate(nodes) if node == nodes[comm.rank]]
    leaders = [nodes.index(node) for node in dict.fromkeys(nodes)]
    total = ring_among(comm, here, x)
    if comm.rank != here[0]: return comm.recv(source=here[0])
    total = ring_among(comm, leaders, total)
    waiting = [comm.isend(total, dest=rank) for rank in here[1:]]
    for request in waiting: request.wait()
    return total
def by_definition(hosts):  # What the text says, counted for each rank from the beginning.
    def local_of(rank): return sum(1 for before in range(rank) if hosts[before] == hosts[rank])
    answer = []
    for rank, host in enumerate(hosts):
        same = [other for other in range(len(hosts)) if local_of(other) == local_of(rank)]
        answer.append((local_of(rank), hosts.count(host), len([other for other in same if other < rank]), len(same)))
    return answer
def in_an_array(hosts):  # Comparisons of everything with everything; rows of one array.
    if not hosts: return []
    names = np.array(hosts)
    before = np.tri(len(hosts), k=-1, dtype=bool)
    same = names[:, None] == names
    local = (same & before).sum(axis=1)
    across = local[:, None] == local
    return np.column_stack([local, same.sum(axis=1), (across & before).sum(axis=1), across.sum(axis=1)])
def leader_adds_up(comm, nodes, x):  # The leader receives in the order of arrival; others leave early.
    here = [rank for rank, node in enumerate(nodes) if node == nodes[comm.rank]]
    leader, *others = here
    if comm.rank != leader:
        comm.send(x, dest=leader)
        return comm.recv(source=leader)
    total = np.array(x)
    for other in others: total = total + comm.recv(source=other)
    total = ring_among(comm, sorted({nodes.index(node) for node in nodes}), total)
    for other in reversed(others): comm.send(total, dest=other)
    return total
def a_tree_inside(comm, nodes, x):
    """Inside a node along a tree: half of the ranks give what they have to the other half, and get it back."""
    here = [rank for rank in range(comm.size) if nodes[rank] == nodes[comm.rank]]
    leaders = [nodes.index(node) for node in dict.fromkeys(nodes)]
    place, total, children = here.index(comm.rank), x.copy(), []
    bit = 1
    while bit < len(here) and not place & bit:
        if place + bit < len(here):
            total += comm.recv(source=here[place + bit])
            children.append(here[place + bit])
        bit <<= 1
    if place:
        comm.send(total, dest=here[place - bit])
        total = comm.recv(source=here[place - bit])
    else: total = ring_among(comm, leaders, total)
    for child in reversed(children): comm.send(total, dest=child)
    return total
RIGHT = {
    "12.local_ranks": [by_counters, by_lists_of_ranks, by_definition, in_an_array],
    "12.hierarchical": [along_a_chain, rings_inside_too, leader_adds_up, a_tree_inside],
}
