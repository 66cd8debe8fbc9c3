"""What the reduction of a step's gradients must do in every framework that has them in one list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from checks import Check, adasum, needs, ours, process_set, same, values
from modes import Array, Mode, dtype_of, wide

from workbench import Adasum, Average, Sum

SHAPES = {"layer/kernel": (2, 3), "layer/bias": (3,), "scale": (), "nothing": (0, 2)}
DTYPES = ("float32", "float16", "float32", "float64")


def gradients(rank: int, step: int = 0) -> list[Array]:
    """A rank's gradients, one for each of SHAPES, in several dtypes."""
    made = zip(SHAPES.values(), DTYPES, strict=True)
    return [(values(rank, dtype, shape) * (step + 1)).astype(dtype_of(dtype)) for shape, dtype in made]


def mean_of(n: int, step: int = 0, factor: float = 1.0) -> list[Array]:
    """The closed form of their average."""
    every = [gradients(r, step) for r in range(n)]
    return [factor * sum(wide(each[i]) for each in every) / n for i in range(len(SHAPES))]


def equal(mode: Mode, made: Sequence[Any], wanted: Sequence[Array]) -> None:
    """All of them, in their own dtypes."""
    for mine, right, dtype in zip(made, wanted, DTYPES, strict=True):
        mine = mode.array(mine)
        same(mine, right, dtype if "float64" in mode.dtypes or dtype != "float64" else "float32")


def rows(rank: int, step: int = 0) -> tuple[Array, Array, int]:
    """A sparse gradient of 5 rows; every rank, and every step, has others, and another number of them."""
    places = np.arange(rank + step, 2 * (rank + step) + 1) % 5
    return np.full((len(places), 2), rank + 1.0, np.float32) * (step + 1), places.astype(np.int64), 5


def whole(values_: Array, places: Array, length: int = 5) -> Array:
    """A sparse gradient as a dense one."""
    made = np.zeros((length, *values_.shape[1:]))
    np.add.at(made, np.asarray(places), wide(values_))
    return made


@needs("lists")
def gradients_are_averaged(mode: Mode) -> None:
    """Or summed up, in whatever dtypes and shapes; a None stays one; what an earlier step gave stays as it was."""
    rank, n = ours()
    names = [*SHAPES]
    for op, factor in ((Average, 1), (Sum, n)):
        reduce = mode.reducer(op=op)
        first = reduce(gradients(rank), names)
        kept = [first] + [reduce(gradients(rank, step), names) for step in (1, 2)]
        for step, made in enumerate(kept):
            equal(mode, made, mean_of(n, step, factor))
    reduce = mode.reducer()
    made = reduce([None, gradients(rank)[1], None, None], names)
    assert [each is None for each in made] == [True, False, True, True]
    same(mode.array(made[1]), mean_of(n)[1], "float16")
    assert mode.reducer()([None], ["alone"]) == [None]


@needs("lists")
def the_order_is_each_rank_s_own(mode: Mode) -> None:
    """Gradients are matched by name: ranks that give them in reversed order get what is right, and nobody waits."""
    rank, n = ours()
    turn = slice(None, None, -1 if rank % 2 else 1)
    reduce = mode.reducer()
    for step in range(3):
        made = reduce(gradients(rank, step)[turn], [*SHAPES][turn])
        equal(mode, made[turn], mean_of(n, step))


@needs("lists", "sparse")
def sparse_gradients_are_gathered(mode: Mode) -> None:
    """Every rank's rows, of which each has its own number; who adds them up has the average, or the sum."""
    rank, n = ours()
    for op, factor in ((Average, 1 / n), (Sum, 1)):
        reduce = mode.reducer(op=op)
        for step in range(2):
            made = reduce([rows(rank, step), gradients(rank)[0]], ["embedding", "kernel"])
            got = whole(*map(mode.array, made[0]))
            np.testing.assert_allclose(got, factor * sum(whole(*rows(r, step)) for r in range(n)), rtol=1e-6)
            same(mode.array(made[1]), factor * n * mean_of(n)[0], "float32")


@needs("lists", "sparse")
def sparse_gradients_can_be_made_dense(mode: Mode) -> None:
    """With ``sparse_as_dense`` they travel, and come back, as dense ones."""
    rank, n = ours()
    if mode.name == "numpy":
        return
    made = mode.reducer(sparse_as_dense=True)([rows(rank), gradients(rank)[0]], ["embedding", "kernel"])
    same(mode.array(made[0]), sum(whole(*rows(r)) for r in range(n)) / n, "float32")
    same(mode.array(made[1]), mean_of(n)[0], "float32")


@needs("lists")
def several_passes_travel_once(mode: Mode) -> None:
    """Nothing comes before the last pass; then the sum of the passes, divided by their number if it was said."""
    rank, n = ours()
    for mean in (False, True):
        reduce = mode.reducer(passes=3, mean=mean)
        for _ in range(2):
            assert reduce(gradients(rank, 0), [*SHAPES]) is None
            assert reduce(gradients(rank, 1), [*SHAPES]) is None
            equal(mode, reduce(gradients(rank, 2), [*SHAPES]), mean_of(n, 0, 6 / (3 if mean else 1)))


@needs("lists", "sparse")
def several_passes_of_sparse_gradients(mode: Mode) -> None:
    """The rows of all passes come together."""
    rank, n = ours()
    for mean in (False, True):
        reduce = mode.reducer(passes=2, mean=mean)
        for _ in range(2):
            assert reduce([rows(rank, 0)], ["embedding"]) is None
            made = reduce([rows(rank, 1)], ["embedding"])
            total = sum(whole(*rows(r, step)) for r in range(n) for step in (0, 1))
            np.testing.assert_allclose(whole(*map(mode.array, made[0])), total / n / (2 if mean else 1), rtol=1e-6)


@needs("lists")
def predivision_keeps_half_precision_in_range(mode: Mode) -> None:
    """An average of numbers whose sum is too large for float16."""
    _, n = ours()
    (made,) = mode.reducer(predivide=float(n))([np.full(4, 40000, np.float16)], ["w"])
    same(mode.array(made), np.full(4, 40000), "float16")


@needs("lists", "compression")
def gradients_can_travel_short(mode: Mode) -> None:
    """In fp16 and bf16; what these hold exactly arrives exactly, in the dtype that it had."""
    rank, n = ours()
    for compression in ("fp16", "bf16"):
        equal(mode, mode.reducer(compression)(gradients(rank), [*SHAPES]), mean_of(n))
        (made,) = mode.reducer(compression, op=Sum)([np.float32([1 + 2**-12])], ["w"])
        assert mode.array(made).tolist() == [n]


@needs("lists", "compression")
def local_gradients_stay(mode: Mode) -> None:
    """On this rank, divided by the number of ranks unless it was said not to; the others are reduced."""
    rank, n = ours()
    for scale in (True, False):
        reduce = mode.reducer(scale_local=scale)
        reduce.keep_local(["layer/bias", "scale"])
        mine, made = gradients(rank), mean_of(n)
        made[1:3] = [wide(each) / (n if scale else 1) for each in mine[1:3]]
        equal(mode, reduce(mine, [*SHAPES]), made)


@needs("lists", "compression")
def local_gradients_of_a_rank_outside_are_whole(mode: Mode) -> None:
    """A rank that shares its work with nobody divides nothing, though it knows how many ranks the set has."""
    rank, n = ours()
    if n < 3:
        return
    with process_set(0, 1) as two:
        reduce = mode.reducer(process_set=two)
        reduce.keep_local([*SHAPES])
        made = [wide(each) / (2 if rank < 2 else 1) for each in gradients(rank)]
        equal(mode, reduce(gradients(rank), [*SHAPES]), made)


@needs("lists")
def outside_of_the_set_nothing_changes(mode: Mode) -> None:
    """A rank outside of the process set gets its own gradients back, of several passes their sum."""
    rank, n = ours()
    if n == 1:
        return
    with process_set(n - 1) as some:
        equal(mode, mode.reducer(process_set=some)(gradients(rank), [*SHAPES]), [wide(x) for x in gradients(rank)])
        reduce = mode.reducer(process_set=some, passes=2, mean=True)
        assert reduce(gradients(rank), [*SHAPES]) is None
        equal(mode, reduce(gradients(rank), [*SHAPES]), [wide(each) for each in gradients(rank)])


@needs("lists")
def adasum_takes_each_gradient_by_itself(mode: Mode) -> None:
    """For two ranks the formula, for each gradient."""
    rank, n = ours()
    if n != 2:
        return
    every = [[np.cos(np.arange(3.0) + r + i).astype(np.float32) for i in range(2)] for r in range(n)]
    made = mode.reducer(op=Adasum)(every[rank], ["a", "b"])
    for i, each in enumerate(made):
        np.testing.assert_allclose(mode.array(each), adasum(every[0][i], every[1][i]), rtol=1e-5)


LISTS: list[Check] = [
    each for name, each in list(globals().items())
    if callable(each) and getattr(each, "__annotations__", {}) == {"mode": "Mode", "return": "None"}
]  # fmt: skip

__all__ = ["LISTS", "local_gradients_of_a_rank_outside_are_whole"]
