"""Wrong solutions of lesson 12, each with what the check must say."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from wrong_answers import Answers

from workbench.course.simulator.topology import ring_among

wrong = Answers()


@wrong(
    "12.local_ranks",
    "✗ Ranks that are placed on the nodes in turns: hosts = ['a', 'b', 'a', 'b'], rank 1: local_rank is 1",
)
def modulo(hosts):
    names = list(dict.fromkeys(hosts))
    per = len(hosts) // len(names)
    return [(rank % per, per, rank // per, len(names)) for rank in range(len(hosts))]
@wrong(
    "12.local_ranks",
    "the ranks of a node were taken to be together, node after node: hosts names the node of each rank",
)
def node_after_node(hosts):
    order = [host for node in dict.fromkeys(hosts) for host in hosts if host == node]
    local = [order[:rank].count(host) for rank, host in enumerate(order)]
    cross = [(local[:rank].count(mine), local.count(mine)) for rank, mine in enumerate(local)]
    return [(local[rank], order.count(host), *cross[rank]) for rank, host in enumerate(order)]
@wrong("12.local_ranks", "✗ Nodes with different numbers of ranks, in any order: hosts = ['a', 'a', 'b'], rank 1")
def number_of_the_node(hosts):
    names = list(dict.fromkeys(hosts))
    return [
        (hosts[:rank].count(host), hosts.count(host), names.index(host), len(names)) for rank, host in enumerate(hosts)
    ]
@wrong("12.local_ranks", "✗ cross_rank and cross_size, node after node: hosts = ['b', 'b', 'a', 'a'], rank 0")
def sorted_names(hosts):
    names = sorted(set(hosts))
    return [
        (hosts[:rank].count(host), hosts.count(host), names.index(host), len(names)) for rank, host in enumerate(hosts)
    ]
@wrong("12.local_ranks", "rank 0: local_size is 1 in your result, expected 2")
def neighbours_only(hosts):
    found: list[Any] = []
    groups = [list(group) for _, group in groupby(hosts)]
    for node, group in enumerate(groups):
        found += [(local, len(group), node, len(groups)) for local in range(len(group))]
    return found
@wrong("12.local_ranks", "✗ local_rank and local_size, node after node: hosts = ['a'], rank 0: local_rank is 1")
def counts_from_one(hosts):
    local = [hosts[: rank + 1].count(host) for rank, host in enumerate(hosts)]
    return [(local[rank], hosts.count(host), 0, 1) for rank, host in enumerate(hosts)]
@wrong("12.local_ranks", "✗ local_rank and local_size, node after node: hosts = ['a', 'a'], rank 0: local_size is 1")
def swapped(hosts):
    names = list(dict.fromkeys(hosts))
    return [
        (names.index(host), len(names), hosts[:rank].count(host), hosts.count(host)) for rank, host in enumerate(hosts)
    ]
@wrong("12.local_ranks", "✗ local_rank and local_size, node after node: hosts = ['a']: your result is of type dict")
def a_table_by_rank(hosts):
    return {rank: (hosts[:rank].count(host), hosts.count(host), 0, 1) for rank, host in enumerate(hosts)}
@wrong("12.hierarchical", "bytes out of a node; the limit")
def flat_ring(comm, nodes, x): return ring_among(comm, list(range(comm.size)), x)
@wrong("12.hierarchical", "bytes out of a node; the limit")
def tree_over_all(comm, nodes, x): return comm.allreduce(x)
@wrong("12.hierarchical", "✗ right: the leaders alone have the result: the other ranks return their own x")
def forgets_the_way_back(comm, nodes, x):
    here = [rank for rank, node in enumerate(nodes) if node == nodes[comm.rank]]
    leaders = [nodes.index(node) for node in dict.fromkeys(nodes)]
    if comm.rank != here[0]:
        comm.send(x, dest=here[0])
        return x
    for rank in here[1:]: x = x + comm.recv(source=rank)
    return ring_among(comm, leaders, x)
@wrong("12.hierarchical", "✗ no deadlock: n = 3, nodes a b b")
def others_wait_for_rank_0(comm, nodes, x):
    here = [rank for rank, node in enumerate(nodes) if node == nodes[comm.rank]]
    leaders = [nodes.index(node) for node in dict.fromkeys(nodes)]
    if comm.rank != here[0]:
        comm.send(x, dest=here[0])
        return comm.recv(source=0)
    for rank in here[1:]: x = x + comm.recv(source=rank)
    x = ring_among(comm, leaders, x)
    for rank in here[1:]: comm.send(x, dest=rank)
    return x
@wrong("12.hierarchical", "✗ runs: n = 2, nodes a a, length 1, rank 1: ValueError: Rank 1 is not among [0]")
def everybody_in_the_ring(comm, nodes, x):
    here = [rank for rank, node in enumerate(nodes) if node == nodes[comm.rank]]
    leaders = [nodes.index(node) for node in dict.fromkeys(nodes)]
    x = ring_among(comm, here, x)
    return ring_among(comm, leaders, x)
@wrong("12.local_ranks", "Look again: ranks of other nodes are counted, too")
def from_the_node_s_first_rank(hosts):
    local = [rank - hosts.index(host) for rank, host in enumerate(hosts)]
    return [
        (local[rank], hosts.count(host), local[:rank].count(local[rank]), local.count(local[rank]))
        for rank, host in enumerate(hosts)
    ]
@wrong("12.local_ranks", "local_rank counts those before it only, local_size the whole node")
def node_s_size_so_far(hosts):
    local = [hosts[:rank].count(host) for rank, host in enumerate(hosts)]
    return [
        (local[rank], hosts[: rank + 1].count(host), local[:rank].count(local[rank]), local.count(local[rank]))
        for rank, host in enumerate(hosts)
    ]
