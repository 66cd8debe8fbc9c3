"""Lesson 12, GPUs and nodes: a rank's number on its node, and an allreduce that uses the slow links little."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, product
from typing import Any

import numpy as np

from workbench.course.judging.likely import named
from workbench.course.judging.task import Bound, Case, CommTask, PlainTask, stated
from workbench.course.provenance.coding import Coded
from workbench.course.simulator import Run
from workbench.course.simulator.topology import Topology, ring_among


def local_ranks(hosts: Any) -> Any:
    """Return a list with (local_rank, local_size, cross_rank, cross_size) of every rank; hosts[rank] is its node.

    local_rank: how many ranks of the same node come before this one; local_size: how many ranks the node has.
    cross_rank: how many ranks with the same local_rank come before this one; cross_size: how many there are of them.
    """
    ### BEGIN SOLUTION
    local = [hosts[:rank].count(host) for rank, host in enumerate(hosts)]
    return [
        (local[rank], hosts.count(host), local[:rank].count(local[rank]), local.count(local[rank]))
        for rank, host in enumerate(hosts)
    ]
    ### END SOLUTION


def hierarchical(comm: Any, nodes: Any, x: Any) -> Any:
    """Return the sum of all ranks' x on every rank; nodes[rank] is the name of the rank's node.

    First add up inside each node, then among the nodes' first ranks, by ring_among(comm, leaders, x), then send the
    result to the other ranks inside each node. x is a one-dimensional array.
    """
    here = [rank for rank, node in enumerate(nodes) if node == nodes[comm.rank]]
    leaders = [nodes.index(node) for node in dict.fromkeys(nodes)]
    ### BEGIN SOLUTION
    if comm.rank != here[0]:
        comm.send(x, dest=here[0])
        return comm.recv(source=here[0])
    for rank in here[1:]:
        x = x + comm.recv(source=rank)
    x = ring_among(comm, leaders, x)
    for rank in here[1:]:
        comm.send(x, dest=rank)
    return x
    ### END SOLUTION


# --- 12.local_ranks ---------------------------------------------------------------------------------------

_ROWS = (list, tuple, np.ndarray)


def _placed(hosts: Sequence[str]) -> list[tuple[int, int, int, int]]:
    """The obvious way, from the definitions."""
    local = [sum(hosts[before] == hosts[rank] for before in range(rank)) for rank in range(len(hosts))]
    found = []
    for rank, host in enumerate(hosts):
        peers = [other for other, number in enumerate(local) if number == local[rank]]
        found.append((local[rank], sum(other == host for other in hosts), peers.index(rank), len(peers)))
    return found


def _hosts(most: int) -> Iterator[list[str]]:
    """All lists of up to ``most`` ranks on up to three nodes, the shortest first."""
    for length in range(1, most + 1):
        yield from (list(names) for names in product("abc", repeat=length))


def _numbers(function: Callable[..., Any], cases: Iterable[list[str]], which: slice) -> str:
    names = _NAMES[which]
    for hosts in cases:
        mine, wanted = function(list(hosts)), _placed(hosts)
        if mine is None:
            return f"hosts = {hosts}: your result is None. Is there a return?"
        if not isinstance(mine, _ROWS):
            return f"hosts = {hosts}: your result is of type {type(mine).__name__}, expected a list"
        if len(mine) != len(wanted):
            return f"hosts = {hosts}: your result has {len(mine)} items, expected one for each of {len(wanted)} ranks"
        for rank, (yours, right) in enumerate(zip(mine, wanted, strict=True)):
            if not isinstance(yours, _ROWS) or len(yours) != len(right):
                return f"hosts = {hosts}, rank {rank}: your result is {yours!r}, expected four numbers"
            pairs: Iterable[tuple[str, Any, int]] = zip(names, list(yours)[which], list(right)[which], strict=True)
            for name, a, b in pairs:
                if a != b:
                    told = f"hosts = {hosts}, rank {rank}: {name} is {a!r} in your result, expected {b}"
                    return told + named(_explained(function, name))
    return ""


def _nodes(hosts: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(hosts))


def _together(hosts: Sequence[str]) -> list[str]:
    """The same ranks, node after node."""
    return [host for node in _nodes(hosts) for host in hosts if host == node]


_NAMES = ["local_rank", "local_size", "cross_rank", "cross_size"]
_TELLING = [list(hosts) for hosts in ("aa", "aabb", "bbaa", "abab", "aab", "baab", "abcabc", "abbccc", "ccab")]
_Column = Callable[[list[str], int], Any]
_OTHERS: tuple[tuple[_Column, str], ...] = (
    *(
        (
            lambda hosts, rank, at=at: _placed(_together(hosts))[rank][at],
            "the ranks of a node were taken to be together, node after node: hosts names the node of each rank",
        )
        for at in range(4)
    ),
    (
        lambda hosts, rank: rank % hosts.count(hosts[0]),
        "that is rank modulo the first node's ranks, right only where all nodes are alike: count instead",
    ),
    (
        lambda hosts, rank: rank % max(1, len(hosts) // len(_nodes(hosts))),
        "that is rank modulo the ranks per node, right only where ranks fill node after node: count instead",
    ),
    (
        lambda hosts, rank: rank // max(1, len(hosts) // len(_nodes(hosts))),
        "that is rank divided by the ranks per node, right only where ranks fill node after node: count instead",
    ),
    (
        lambda hosts, rank: hosts[: rank + 1].count(hosts[rank]),
        "this rank is counted with those before it: local_rank counts those before it only, local_size the whole node",
    ),
    (
        lambda hosts, rank: rank - hosts.index(hosts[rank]),
        "ranks of other nodes are counted, too, between the node's first rank and this one",
    ),
    (
        lambda hosts, rank: _nodes(hosts).index(hosts[rank]),
        "that is the number of the node: count ranks, because a node may have no rank with this local_rank",
    ),
    (
        lambda hosts, rank: sorted(set(hosts)).index(hosts[rank]),
        "that is the node's place in the alphabet: count ranks, in the order of hosts",
    ),
    (
        lambda hosts, rank: len(_nodes(hosts)),
        "that is the number of nodes: count ranks, because a node may have no rank with this local_rank",
    ),
    (lambda hosts, rank: len(hosts) // len(_nodes(hosts)), "that is the mean over the nodes: nodes may differ"),
    (lambda hosts, rank: len(hosts), "that is the number of all ranks"),
    (lambda hosts, rank: rank, "that is the rank itself"),
    (lambda hosts, rank: len(hosts) - 1 - rank, "the ranks after this one are counted, also on other nodes"),
    (lambda hosts, rank: hosts[rank + 1 :].count(hosts[rank]), "the ranks after this one are counted: those before it"),
    (lambda hosts, rank: max(map(hosts.count, hosts)), "that is the largest node's number of ranks"),
    *(
        (lambda hosts, rank, at=at: _placed(hosts)[rank][at], f"that is {name}: the four numbers are in another order")
        for at, name in enumerate(_NAMES)
    ),
    (lambda hosts, rank: _runs(hosts)[rank][0], "only ranks next to each other in the list are counted"),
    (lambda hosts, rank: _runs(hosts)[rank][1], "only ranks next to each other in the list are counted"),
    (lambda hosts, rank: 0, "that is 0 for every rank"),
    (lambda hosts, rank: 1, "that is 1 for every rank"),
)


def _runs(hosts: Sequence[str]) -> list[tuple[int, int]]:
    """Place and length, in its run of equal names, of every rank."""
    lengths = [len(list(run)) for _, run in groupby(hosts)]
    return [(place, length) for length in lengths for place in range(length)]


def _explained(function: Callable[..., Any], name: str) -> Iterator[list[str]]:
    """Of each list of hosts, the mistakes that give the learner's numbers of this name."""
    at = _NAMES.index(name)
    for hosts in _TELLING:
        try:
            mine = [row[at] for row in function(list(hosts))]
        except Exception:  # noqa: BLE001 - the learner's: nothing is known, then
            yield []
            continue
        yield [why for other, why in _OTHERS if mine == [other(hosts, rank) for rank in range(len(hosts))]]


_EVEN = [["a"], ["a", "a"], ["a", "b"], ["a", "a", "b", "b"], ["b", "b", "a", "a"]]


# --- 12.hierarchical --------------------------------------------------------------------------------------


def _sum_on(nodes: str, length: int) -> Case:
    n = len(nodes)
    random = np.random.default_rng([n, length])
    arrays = [random.integers(-50, 50, length).astype(float) for _ in range(n)]
    label = f"nodes {' '.join(nodes)}, length {length:,}"
    return Case(n, label, [(list(nodes), array) for array in arrays])


def _cases() -> list[Case]:
    placements = ("a", "ab", "aa", "aab", "abb", "aba", "bacbac", "aaabbb", "abcdabc", "abab", "aabb")
    return [_sum_on(nodes, length) for length in (1, 0, 10, 3000) for nodes in placements]


def _between(case: Case, run: Run) -> Sequence[Bound]:
    nodes, array = case.inputs[0]
    m = len(set(nodes))
    best = 2 * (m - 1) / m * array.nbytes
    left = max(Topology(nodes).left(run).values())
    rounds = Topology(nodes).rounds(run)
    return [
        Bound("bytes out of a node", left, best, 1.02 * best, "Only the first rank of each node has to send to others"),
        Bound(
            "messages of a rank to other nodes",
            rounds,
            2 * (m - 1),
            2 * (m - 1),
            "A ring of m leaders makes 2(m - 1) steps",
        ),
    ]


_TWO_NODES = Coded(
    inputs=lambda arrays: [
        (["a" if one < (len(arrays) + 1) // 2 else "b" for one in range(len(arrays))], array) for array in arrays
    ],
    returned=lambda result, rank, n: {0: result},
    wanted=lambda rank, chunk, n: range(n),
    chunked=False,
    length=30_000,
)

TASKS = [
    PlainTask(
        "12.local_ranks",
        "the four numbers of a rank",
        local_ranks,
        properties=stated(
            ("local_rank and local_size, node after node.", lambda f: _numbers(f, _EVEN, slice(0, 2))),
            ("cross_rank and cross_size, node after node.", lambda f: _numbers(f, _EVEN, slice(2, 4))),
            (
                "Ranks that are placed on the nodes in turns.",
                lambda f: _numbers(f, [["a", "b", "a", "b"], ["b", "a", "b", "a"], ["a", "b", "c"] * 2], slice(0, 4)),
            ),
            ("Nodes with different numbers of ranks, in any order.", lambda f: _numbers(f, _hosts(6), slice(0, 4))),
        ),
    ),
    CommTask(
        "12.hierarchical",
        "an allreduce for several nodes",
        hierarchical,
        cases=_cases,
        expected=lambda case: [sum(array for _, array in case.inputs)] * case.n,
        bounds=_between,
        scored=_sum_on("abacbc", 30_000),
        shown=_sum_on("aabb", 30_000),
        coded=_TWO_NODES,
        asks_for=("comm.allreduce", "comm.Allreduce", "comm.reduce", "workbench.allreduce"),
        points=2,
    ),
]
