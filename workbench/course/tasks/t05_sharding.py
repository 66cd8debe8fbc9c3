"""Lesson 05, sharding the data: who takes which samples, and a mean over shards of different lengths."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from workbench.common.text import count
from workbench.course import drawing
from workbench.course.judging import generators
from workbench.course.judging.likely import named
from workbench.course.judging.task import Bound, Case, CommTask, PlainTask
from workbench.course.provenance.weights import Weighed
from workbench.course.simulator import Run
from workbench.observe.figure import Figure

_EPOCHS = 100
_SAMPLES = (0, 1, 2, 5, 12, 13, 100, 101)
_RANKS = (1, 2, 3, 4, 7)
_FAR = 5_000  # seeds and epochs that are tried against each other: seed * 1234 + epoch is found out


def shard(samples: Any, epoch: Any, seed: Any, n: Any, rank: Any) -> Any:
    """Return this rank's part of the indices 0 … samples - 1, as an array or a list.

    Every rank gets ceil(samples / n) of them. If n does not divide samples, pad: repeat samples from the beginning of
    this epoch's order. (With n = 1, rank 0's part is that order.) Each epoch has a different order, and no order comes
    twice: neither in another epoch nor with another seed.
    """
    ### BEGIN SOLUTION
    order = np.random.default_rng([seed, epoch]).permutation(samples)  # the same on every rank
    padded = np.resize(order, -(-samples // n) * n)  # begins anew where it is too short
    return padded[rank::n]
    ### END SOLUTION


def _shards(function: Callable[..., Any], samples: int, n: int, epoch: int = 0, seed: int = 0) -> list[list[int]]:
    """All ranks' parts.

    Raises:
        TypeError: one is no list of whole numbers.
    """
    found = []
    for rank in range(n):
        mine = function(samples, epoch, seed, n, rank)
        if mine is None:
            raise TypeError(f"shard({samples}, {epoch}, {seed}, {n}, {rank}) is None. Is there a return?")
        array = np.asarray(list(mine))
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise TypeError(f"shard({samples}, {epoch}, {seed}, {n}, {rank}) is {mine!r}, and no list of indices")
        found.append([int(index) for index in array])
    return found


def _settings() -> Iterator[tuple[int, int]]:
    yield from sorted(((samples, n) for samples in _SAMPLES for n in _RANKS), key=lambda one: (one[0] + one[1], one))


def _equal_lengths(function: Callable[..., Any]) -> str:
    """Every rank gets ceil(samples / n) samples."""
    for samples, n in _settings():
        wanted = -(-samples // n)
        for rank, mine in enumerate(_shards(function, samples, n)):
            if len(mine) != wanted:
                has = count(len(mine), "sample")
                told = f"samples = {samples}, n = {n}, rank {rank}: your result has {has}, expected {wanted}"
                return told + named(_lengths_explained(function))
    return ""


_LENGTHS_OF: tuple[tuple[Callable[[int, int, int], int], str], ...] = (
    (lambda samples, n, rank: len(range(rank, samples, n)), "nothing is padded: repeat the beginning of the order"),
    (
        lambda samples, n, rank: len(np.array_split(range(samples), n)[rank]),
        "nothing is padded: repeat the beginning of the order",
    ),
    (
        lambda samples, n, rank: max(0, min(-(-samples // n), samples - rank * -(-samples // n))),
        "nothing is padded, so the last ranks have fewer samples: repeat the beginning of the order",
    ),
    (lambda samples, n, rank: samples // n, "the last samples are dropped where n does not divide them: pad instead"),
    (
        lambda samples, n, rank: (
            len(range(samples)[rank * (samples // n) : (rank + 1) * (samples // n)])
            if rank < n - 1
            else samples - (n - 1) * (samples // n)
        ),
        "the last rank takes all that is left over: pad instead, so that all ranks have equally many",
    ),
    (lambda samples, n, rank: samples, "each rank has all samples: it takes its own part of the order"),
    (lambda samples, n, rank: samples // n + 1, "each rank has one sample too many where n divides them"),
    (
        lambda samples, n, rank: len(range(rank, min(samples + -samples % n, 2 * samples), n)),
        "with fewer samples than the padding needs, the order must be repeated more than once: np.resize does",
    ),
    (
        lambda samples, n, rank: max(0, -(-samples // n) - 1),
        "each rank's last sample is missing: a slice ends before its end",
    ),
)


def _lengths_explained(function: Callable[..., Any]) -> Iterator[list[str]]:
    """For each setting, the mistakes that give parts of these lengths."""
    for samples, n in ((1, 1), (2, 2), (1, 3), (2, 3), (5, 2), (12, 7), (13, 4), (100, 3)):
        lengths = list(map(len, _shards(function, samples, n)))
        yield [why for of, why in _LENGTHS_OF if lengths == [of(samples, n, rank) for rank in range(n)]]


def _complete(function: Callable[..., Any]) -> str:
    """Together the ranks see every sample; how often differs by one at most."""
    for samples, n in _settings():
        counts = np.zeros(samples, int)
        for rank, mine in enumerate(_shards(function, samples, n, epoch=2, seed=5)):
            wrong = [index for index in mine if not 0 <= index < samples]
            if wrong:
                return f"samples = {samples}, n = {n}, rank {rank}: there is no sample {wrong[0]}"
            np.add.at(counts, np.array(mine, int), 1)
        if not samples or counts.max() - counts.min() <= 1 <= counts.min():
            continue
        return f"samples = {samples}, n = {n}: {_uneven_counts(counts)} {_asked(function, samples % n > 0)}"
    return ""


def _uneven_counts(counts: np.ndarray[Any, Any]) -> str:
    """A sample that nobody has, or that comes too often, and another one."""
    least, most = int(counts.argmin()), int(counts.argmax())
    lacking = f"no rank has sample {least}" if not counts[least] else f"sample {least} comes {_times(counts[least])}"
    return f"{lacking}, sample {most} comes {_times(counts[most])}."


def _times(often: int) -> str:
    return {1: "once", 2: "twice"}.get(int(often), f"{often} times")


def _asked(function: Callable[..., Any], divided: bool) -> str:
    """Are the orders wrong, or only the padding?"""
    whole = [(samples, n) for samples, n in _settings() if samples % n == 0]
    if divided and all(_is_whole(_shards(function, samples, n, epoch=2, seed=5), samples) for samples, n in whole):
        return "Your result is right where n divides samples: which samples does the padding repeat?"
    return "Do all ranks deal from the same order?"


def _is_whole(parts: list[list[int]], samples: int) -> bool:
    return sorted(index for mine in parts for index in mine) == list(range(samples))


def _padded(function: Callable[..., Any]) -> str:
    """The padding repeats the first samples of the epoch's order."""
    for samples, n in _settings():
        order = _shards(function, samples, 1, epoch=2, seed=5)[0]
        dealt = [index for mine in _shards(function, samples, n, epoch=2, seed=5) for index in mine]
        wanted = np.resize(np.array(order, int), len(dealt)).tolist()
        if sorted(dealt) != sorted(wanted):
            again = [index for index in range(samples) if dealt.count(index) > wanted.count(index)]
            return (
                f"samples = {samples}, n = {n}: the order begins with {_some(order)}; the padding must repeat these, "
                f"in this order. Your result repeats {_some(again)} instead"
            )
    return ""


def _some(samples: Sequence[int]) -> str:
    return ", ".join(map(str, samples[:5])) + (" …" if len(samples) > 5 else "")


def _again(function: Callable[..., Any]) -> str:
    """A second call gives the same result, and leaves the random generators of all other code alone."""
    with generators.kept():
        for samples, n in ((5, 2), (100, 3)):
            generators.seed(samples)
            before = generators.states()
            first = _shards(function, samples, n, epoch=3, seed=1)
            if changed := [name for name, state in generators.states().items() if state != before.get(name)]:
                return (
                    f"it changes {changed[0]}'s own generator, which other code uses: draw from "
                    "np.random.default_rng(...)"
                )
            generators.seed(samples + 1)
            if first != _shards(function, samples, n, epoch=3, seed=1):
                return f"samples = {samples}, n = {n}, epoch 3, seed 1: called twice, two answers"
    return ""


def _reshuffled(function: Callable[..., Any]) -> str:
    """Each epoch has a different order, and each rank gets different samples."""
    samples, n = 40, 4
    before: list[int] = []
    for epoch in range(10):
        order = _shards(function, samples, 1, epoch)[0]
        kept = _neighbours(before) & _neighbours(order)
        if len(kept) > samples // 2:
            one = min(kept)
            return (
                f"epochs {epoch - 1} and {epoch}, n = 1: {len(kept)} of {samples} samples are followed by the same "
                f"sample in both, {one[0]} by {one[1]} for instance. Is it shuffled anew?"
            )
        before = order
    seen: list[set[int]] = [set() for _ in range(n)]
    for epoch in range(_EPOCHS):
        for rank, mine in enumerate(_shards(function, samples, n, epoch)):
            seen[rank] |= set(mine)
    for rank, mine_ever in enumerate(seen):
        if len(mine_ever) < samples:
            return f"samples = {samples}, n = {n}: in {_EPOCHS} epochs rank {rank} sees {len(mine_ever)} of {samples}"
    return ""


def _neighbours(order: Sequence[int]) -> set[tuple[int, int]]:
    return set(zip(order, [*order[1:], *order[:1]], strict=True))


def _seeds(function: Callable[..., Any]) -> str:
    """Two seeds share no order in any epoch."""
    known: dict[tuple[int, ...], tuple[int, int]] = {}
    pairs = [(seed, epoch) for seed in range(8) for epoch in range(8)]
    powers = *(2**power for power in (14, 15, 16, 20)), *(10**power for power in (5, 6, 7, 8, 9, 14, 15, 16, 20))
    far = (*range(8, _FAR), *range(_FAR, 10_001, 1000), *powers, 7919, 9973, 9999, 31_337, 65_537, 99_991, 1_000_003)
    pairs += [(0, epoch) for epoch in far] + [(seed, 0) for seed in far]  # seed * 100 + epoch, epoch * 1000 + seed, …
    for seed, epoch in pairs:
        try:
            order = tuple(_shards(function, 40, 1, epoch, seed)[0])
        except Exception:
            if max(seed, epoch) < 2**32:
                raise
            continue  # RandomState takes numbers of 32 bits, torch's generators those of 64
        if order in known:
            other = known[order]
            return (
                f"seed {other[0]} in epoch {other[1]} and seed {seed} in epoch {epoch} give the same order. One number "
                "made of both is not enough: np.random.default_rng([seed, epoch]) takes two"
            )
        known[order] = (seed, epoch)
    return ""


def _drawn(function: Callable[..., Any]) -> Figure:
    """Who sees which of 13 samples in four epochs."""
    samples, n = 13, 3
    owner = [_shards(function, samples, n, epoch) for epoch in range(4)]
    return drawing.coverage(owner, samples, f"Your shards, {samples} samples on {n} ranks")


def weighted_mean(comm: Any, values: Any) -> Any:
    """Return the mean over all ranks' values, on every rank.

    values: an array, with a different length on each rank; on some ranks it may be empty. There may be many values:
    a rank sends a few numbers only.
    """
    ### BEGIN SOLUTION
    total, count = comm.allreduce(np.array([values.sum(), len(values)]))
    return float(total / count)
    ### END SOLUTION


def _uneven(*lengths: int) -> Case:
    source = np.random.default_rng(lengths)
    parts = [source.integers(0, 100, length).astype(float) + 100 * rank for rank, length in enumerate(lengths)]
    return Case(len(lengths), f"lengths {', '.join(map(str, lengths))}", [(part,) for part in parts])


def _mean(case: Case) -> list[float]:
    values = np.concatenate([part for (part,) in case.inputs])
    return [float(values.mean())] * case.n


_WEIGHED = Weighed(
    counts=lambda case: [len(values) for (values,) in case.inputs],
    ones=lambda case, rank: [(np.full_like(values, float(one == rank)),) for one, (values,) in enumerate(case.inputs)],
)


def _little(case: Case, run: Run) -> Sequence[Bound]:
    messages = 2 * (case.n - 1)
    sent = sum(size for _, size in run.sent())
    return [
        Bound("messages", len(run.messages), messages, 2 * messages, "One allreduce of two numbers is enough"),
        Bound(
            "bytes", sent, 16 * messages, 256 * messages, "The values need not be sent: a sum and a count are enough"
        ),
    ]


_LENGTHS = [(3,), (1, 1), (2, 1), (1, 0), (0, 2), (2, 2, 1), (0, 0, 5), (1, 0, 4, 2), (3, 0, 0, 1, 2, 9, 4)]

TASKS = [
    PlainTask(
        "05.shard",
        "this rank's samples in this epoch",
        shard,
        properties=[_equal_lengths, _complete, _again, _reshuffled, _seeds, _padded],
        draw=_drawn,
        points=2,
    ),
    CommTask(
        "05.weighted_mean",
        "a mean over shards of different lengths",
        weighted_mean,
        cases=lambda: [_uneven(*lengths) for lengths in _LENGTHS],
        expected=_mean,
        bounds=_little,
        scored=_uneven(10_000, 0, 9_000, 20_000),
        shown=_uneven(3, 0, 5, 2),
        weighed=_WEIGHED,
    ),
]
