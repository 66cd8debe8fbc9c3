"""Lesson 18, sharding further: which rank owns what, a step on its own part, and parameters gathered layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from workbench.common import text
from workbench.course.judging.task import Bound, Case, CommTask, PlainTask, stated
from workbench.course.simulator import Run

Array = np.ndarray[Any, Any]


def owners(sizes: Any, n: Any) -> Any:
    """Return a list: for each of n ranks, its parts, a list of (parameter, start, stop).

    sizes: how many elements each parameter has. All parameters are stored one after the other in one array, which is
    cut into n chunks; the first (sum of sizes) % n of them get one element more. Rank r owns chunk r. (2, 5, 9) means
    elements 5 to 8 of parameter number 2. Parts in order, none of them empty.
    """
    ### BEGIN SOLUTION
    total = sum(sizes)
    lengths = [total // n + (rank < total % n) for rank in range(n)]
    found = []
    for rank in range(n):
        low, parts, start = sum(lengths[:rank]), [], 0
        high = low + lengths[rank]
        for number, size in enumerate(sizes):
            first, last = max(low, start), min(high, start + size)
            if first < last:
                parts.append((number, first - start, last - start))
            start += size
        found.append(parts)
    return found
    ### END SOLUTION


def _told(function: Callable[..., Any], sizes: list[int], n: int) -> str:
    """Nothing, or the first rank whose parts are wrong and what is wrong with them."""
    yours, about = function(list(sizes), n), f"sizes {sizes}, {text.count(n, 'rank')}"
    if not isinstance(yours, (list, tuple)) or len(yours) != n:
        return f"{about}: your result is {yours!r}, and it should be a list with an entry for each rank"
    odd = next((part for parts in yours for part in parts if not _is_part(part)), None)
    if odd is not None:
        return f"{about}: {odd!r} is no part; (parameter, start, stop) is"
    element = [(number, i) for number, size in enumerate(sizes) for i in range(size)]
    lengths = [len(chunk) for chunk in np.array_split(np.arange(len(element)), n)]
    ends = np.cumsum(lengths).tolist()
    for rank, (end, length) in enumerate(zip(ends, lengths, strict=True)):
        parts = [tuple(map(int, part)) for part in yours[rank]]
        got = [(number, i) for number, start, stop in parts for i in range(start, stop)]
        wanted = element[end - length : end]
        where = f"{about}: rank {rank} owns {parts}"
        if len(got) != len(wanted):
            return f"{where}: {len(got)} elements, expected {len(wanted)}{_why(sizes, yours, lengths)}"
        if got != wanted:
            first_last = f"expected elements {wanted[0]} to {wanted[-1]} as (parameter, element)"
            return f"{where}, {first_last}{_why(sizes, yours, lengths)}"
        if any(start >= stop for _, start, stop in parts):
            return f"{where}: one of these parts is empty"
        if len({number for number, _, _ in parts}) < len(parts):
            return f"{where}: two parts of one parameter are next to each other; make them one"
    return ""


def _is_part(part: Any) -> bool:
    return isinstance(part, (list, tuple)) and len(part) == 3


def _why(sizes: list[int], yours: Sequence[Any], lengths: list[int]) -> str:
    """What was done, if these are the parts of a usual mistake; else nothing."""
    parts = [(int(number), int(start), int(stop)) for mine in yours for number, start, stop in mine]
    if parts and max(number for number, _, _ in parts) == len(sizes):
        return ". Parameters are numbered from 0"
    before = np.cumsum([0, *sizes]).tolist()
    from_start = [(number, start - before[number % len(sizes)], stop) for number, start, stop in parts]
    if any(start < 0 for _, start, _ in parts) or not parts:
        return ""
    if any(stop > sizes[number % len(sizes)] for number, _, stop in parts) and all(at >= 0 for _, at, _ in from_start):
        return ". Start and stop count from the parameter's own first element, and not from that of the whole array"
    if len(sizes) > 1 and all((start, stop) == (0, sizes[number % len(sizes)]) for number, start, stop in parts):
        return ". Every parameter is whole: the array is cut, also in the middle of a parameter"
    if sum(stop + 1 - start for _, start, stop in parts) == sum(sizes):
        return ". Is the last element missing? Stop is the element behind it, as in a slice"
    got = [sum(stop - start for _, start, stop in mine) for mine in yours]
    in_order = [before[number % len(sizes)] + i for number, start, stop in parts for i in range(start, stop)]
    if in_order == list(range(sum(sizes))):
        return f". All elements are there, in order, but the chunks have lengths {got} and not {lengths}"
    if sorted(in_order) == list(range(sum(sizes))) and len(yours) > 1:
        return ". Each parameter was cut by itself: put them one after the other, and cut that array"
    return ""


def any_sizes(function: Callable[..., Any]) -> str:
    """Any sizes, 100 of them."""
    random = np.random.default_rng(18)
    cases = [(random.integers(1, 9, random.integers(1, 6)).tolist(), int(random.integers(1, 7))) for _ in range(100)]
    return next((wrong for sizes, n in cases if (wrong := _told(function, sizes, n))), "")


def reduce_scatter_step(comm: Any, grad: Any, shard: Any, lr: Any) -> Any:
    """Return this rank's shard of the weights after one step: shard - lr · (mean gradient of its elements).

    grad: this rank's gradient of ALL weights. shard: the weights that this rank owns: chunk number rank of
    np.array_split(all weights, n). Each rank sends n - 1 messages of one chunk: half of what an allreduce sends.
    """
    n, rank = comm.size, comm.rank
    chunks = np.array_split(grad.copy(), n)
    ### BEGIN SOLUTION
    right, left = (rank + 1) % n, (rank - 1) % n
    for step in range(n - 1):  # one chunk earlier than in lesson 03, so that rank r ends with chunk r
        mine = (rank - step - 2) % n
        chunks[mine] = chunks[mine] + comm.sendrecv(chunks[(rank - step - 1) % n], dest=right, source=left)
    ### END SOLUTION
    return shard - lr * chunks[rank] / n


def _stepped(n: int, length: int) -> Case:
    random = np.random.default_rng([n, length, 18])
    shards = np.array_split(random.normal(size=length), n)
    inputs = [(random.normal(size=length), shards[rank].copy(), 0.5) for rank in range(n)]
    return Case(n, f"{text.count(length, 'weight')}", inputs)


def _new_shards(case: Case) -> list[Array]:
    mean = sum(grad for grad, _, _ in case.inputs) / case.n
    pairs = zip(np.array_split(mean, case.n), case.inputs, strict=True)
    return [shard - lr * chunk for chunk, (_, shard, lr) in pairs]


def _half(case: Case, run: Run) -> Sequence[Bound]:
    best = (case.n - 1) / case.n * case.inputs[0][0].nbytes
    return Bound.per_rank(run, case.n - 1, best, "A rank needs its own chunk of the sum, and no other")


def gather_parameters(comm: Any, shards: Any, x: Any) -> Any:
    """Return what a network gives for x: each layer is x = np.tanh(W @ x). Hold one layer's whole W at a time.

    shards: for each layer, this rank's rows of W: part number rank of np.array_split(W, n). Gather W right before the
    layer is used, in a ring: n - 1 messages, in each of which a rank sends the rows that it received last.
    comm.compute(0.001) stands for using a layer: call it once for each, when W is there. After that free W.
    """
    n, rank = comm.size, comm.rank
    ### BEGIN SOLUTION
    for rows in shards:
        parts = {rank: rows}
        for step in range(n - 1):
            came = (rank - step - 1) % n
            parts[came] = comm.sendrecv(parts[(rank - step) % n], dest=(rank + 1) % n, source=(rank - 1) % n)
        comm.compute(0.001)
        x = np.tanh(np.concatenate([parts[each] for each in range(n)]) @ x)
    return x
    ### END SOLUTION


def _layers(n: int, widths: Sequence[int]) -> Case:
    random = np.random.default_rng([n, *widths])
    layers = [random.normal(size=(out, into)) for into, out in pairwise(widths)]
    inputs = [
        ([np.array_split(weights, n)[rank].copy() for weights in layers], random.normal(size=widths[0]))
        for rank in range(n)
    ]
    return Case(n, f"widths {', '.join(map(str, widths))}", inputs)


def _outputs(case: Case) -> list[Array]:
    layers = [np.concatenate(parts) for parts in zip(*(shards for shards, _ in case.inputs), strict=True)]
    found = []
    for _, x in case.inputs:
        for weights in layers:
            x = np.tanh(weights @ x)
        found.append(x)
    return found


def _one_at_a_time(case: Case, run: Run) -> Sequence[Bound]:
    """What is held is seen from outside: a layer has arrived when its messages have, and is freed when it is used."""
    shards = case.inputs[0][0]
    whole = sum(sum(np.asarray(one[0][layer]).nbytes for one in case.inputs) for layer in range(len(shards)))
    best = (case.n - 1) / case.n * whole
    uses = [sum(one.rank == rank for one in run.computed) for rank in range(case.n)]
    sent = max(size for _, size in run.sent())
    told = [
        Bound.calls(min(uses), max(uses), len(shards)),
        Bound.by_hand(run, "Build the ring from messages: send and recv"),
        Bound.busiest(run, best, best * 1.02, "In a ring each rank's rows pass once"),
    ]
    if sent > best * 1.02:  # then bytes do not tell which layers have come
        return told
    held = max((_held(case, run, rank) for rank in range(case.n)), default=1)
    return [
        *told,
        Bound.none(
            "calls of comm.compute before the layer's W was there",
            max((_too_early(case, run, rank) for rank in range(case.n)), default=0),
            "First gather W, then call comm.compute(0.001), which stands for using it",
        ),
        Bound(
            "layers held at once",
            held,
            1,
            1,
            "Gather a layer's W right before you use it, and free it before the next one",
        ),
    ]


def _held(case: Case, run: Run, rank: int) -> int:
    """At most so many whole layers are on a rank, if each is freed when it has been used."""
    if case.n == 1:
        return 1
    sizes = _missing(case, rank)
    return max((layers - used for used, layers in enumerate(_arrived(run, rank, sizes))), default=0)


def _too_early(case: Case, run: Run, rank: int) -> int:
    """How many uses began before their layer had arrived."""
    if case.n == 1:
        return 0
    return sum(layers <= used for used, layers in enumerate(_arrived(run, rank, _missing(case, rank))))


def _missing(case: Case, rank: int) -> list[int]:
    """Of each layer, the bytes of the other ranks' rows."""
    return [
        sum(np.asarray(one[0][layer]).nbytes for i, one in enumerate(case.inputs) if i != rank)
        for layer in range(len(case.inputs[0][0]))
    ]


def _arrived(run: Run, rank: int, sizes: Sequence[int]) -> Iterator[int]:
    """At each use, how many layers have arrived as a whole."""
    for begin in sorted(one.begin for one in run.computed if one.rank == rank):
        came = sum(one.nbytes for one in run.messages if one.dest == rank and one.end <= begin + 1e-12)
        layers, total = 0, 0.0
        while layers < len(sizes) and came >= total + 0.98 * sizes[layers]:
            total += sizes[layers]
            layers += 1
        yield layers


TASKS = [
    PlainTask(
        "18.owners",
        "which rank owns what",
        owners,
        probes=lambda: [
            ([3, 2], 1),
            ([4, 4], 2),
            ([6, 2], 2),
            ([1, 2, 1, 8], 3),
            ([3, 4], 4),
            ([10, 1], 3),
            ([1, 1], 4),
            ([4, 2, 6, 7, 3], 3),
        ],
        properties=[
            *stated(
                ("One rank owns all.", lambda f: _told(f, [3, 2], 1)),
                ("Parameters that end where chunks end.", lambda f: _told(f, [4, 4], 2) or _told(f, [2, 2, 2, 2], 4)),
                (
                    "A parameter that two ranks share, and a rank with parts of three.",
                    lambda f: _told(f, [6, 2], 2) or _told(f, [1, 2, 1, 8], 3),
                ),
                (
                    "Totals that n does not divide: the first chunks get one element more.",
                    lambda f: _told(f, [5], 2) or _told(f, [3, 4], 4) or _told(f, [10, 1], 3),
                ),
                ("More ranks than elements: some own nothing.", lambda f: _told(f, [1, 1], 4)),
            ),
            any_sizes,
        ],
        points=2,
    ),
    CommTask(
        "18.reduce_scatter_step",
        "a step on the part that a rank owns",
        reduce_scatter_step,
        cases=lambda: [_stepped(n, length) for n in (1, 2, 3, 4, 7) for length in sorted({1, n - 1, n, 1000} - {0})],
        expected=_new_shards,
        bounds=_half,
        scored=_stepped(4, 100_000),
        shown=_stepped(4, 100_000),
        points=2,
    ),
    CommTask(
        "18.gather_parameters",
        "a layer's parameters, when it is used",
        gather_parameters,
        cases=lambda: [_layers(n, widths) for n in (1, 2, 3, 4) for widths in ([4, 4], [3, 5, 2], [8, 8, 8, 8])],
        expected=_outputs,
        bounds=_one_at_a_time,
        scored=_layers(4, [64, 64, 64, 64]),
        shown=_layers(4, [64, 64, 64, 64]),
        points=2,
    ),
]
