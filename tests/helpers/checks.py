"""What the verbs of every framework must do, as plain functions that run in any kind of rank.

``test_framework_ranks.py`` calls each with each mode of ``modes.py`` inside the ranks of a job, and
``test_framework_threads.py`` with the eager ones in ranks that are threads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from modes import Array, Mode, Program, dtype_of, wide

import workbench
from workbench import Adasum, Average, Max, Min, Product, Sum
from workbench.job.objects import allgather_object

Check = Callable[[Mode], None]
FOLD: dict[Any, Callable[[Array], Array]] = {
    Sum: lambda each: each.sum(0),
    Average: lambda each: each.sum(0) / len(each),
    Min: lambda each: each.min(0),
    Max: lambda each: each.max(0),
    Product: lambda each: each.prod(0),
}
DIGITS = {"bfloat16": 1e-2, "float16": 1e-3, "float32": 1e-6, "float64": 1e-14}


def needs(*abilities: str) -> Callable[[Check], Check]:
    """Marks a check that is left out where a mode lacks one of these."""

    def mark(check: Check) -> Check:
        check.needs = frozenset(abilities)  # type: ignore[attr-defined]
        return check

    return mark


def cases(modes: Sequence[type[Mode]], checks: Sequence[Check]) -> list[tuple[type[Mode], Check]]:
    """Every check with every mode that can do it."""
    return [
        (mode, check) for mode in modes for check in checks if not getattr(check, "needs", frozenset()) & mode.lacks
    ]


def same(mine: Any, wanted: Any, dtype: str) -> None:
    """Equal, as far as the dtype goes; and of this dtype and the oracle's shape."""
    assert mine.dtype.name == dtype
    assert mine.shape == np.shape(wanted)
    np.testing.assert_allclose(wide(mine), wide(wanted), rtol=DIGITS.get(dtype, 0), atol=0)


def values(rank: int, dtype: str, shape: tuple[int, ...] = (2, 3)) -> Array:
    """A rank's input, small enough to be exact in every dtype; negative where there is a sign, and fractions."""
    numbers = np.arange(np.prod(shape)).reshape(shape) % 6 + rank
    if dtype == "bool":
        return numbers % 2 == 0
    if "complex" in dtype:
        numbers = numbers + 1j * numbers[::-1]
    return (numbers if "uint" in dtype else (numbers - 3) * (0.5 if "float" in dtype else 1)).astype(dtype_of(dtype))


def folded(op: Any, dtype: str, arrays: Sequence[Array]) -> Array:
    """The closed form: in float64; for integers cut towards zero, and modulo what they hold; or and and for bool."""
    total = FOLD[op](np.stack([wide(each) for each in arrays]))
    return total != 0 if dtype == "bool" else total if "float" in dtype else total.astype(np.int64).astype(dtype)


def ours() -> tuple[int, int]:
    """(rank, number of ranks)."""
    return workbench.rank(), workbench.size()


def share(rows: int, n: int, rank: int) -> slice:
    """The rows that a rank keeps of a reducescatter."""
    counts = [rows // n + (r < rows % n) for r in range(n)]
    return slice(sum(counts[:rank]), sum(counts[: rank + 1]))


# --- allreduce ----------------------------------------------------------------------------------------


def allreduce_is_the_closed_form(mode: Mode) -> None:
    """Every op on every dtype for which it is defined gives the same as numpy does with all ranks' arrays."""
    rank, n = ours()
    each = [(op, dtype) for op in FOLD for dtype in mode.dtypes if (op, dtype) != (Average, "bool")]
    made = mode.run(
        lambda hvd, *xs: [hvd.allreduce(x, op=op) for (op, _), x in zip(each, xs, strict=True)],
        *[values(rank, dtype) for _, dtype in each],
    )
    for result, (op, dtype) in zip(made, each, strict=True):
        same(result, folded(op, dtype, [values(r, dtype) for r in range(n)]), dtype)


def average_is_the_default(mode: Mode) -> None:
    """Without an op the average; an average of bool is refused with a text that says what there is instead."""
    rank, n = ours()
    (made,) = mode.run(lambda hvd, x: [hvd.allreduce(x)], np.full(3, rank, np.float32))
    same(made, np.full(3, (n - 1) / 2), "float32")
    if "bool" not in mode.lacks:
        assert "Use op=Sum (or), Product (and)" in mode.error(lambda hvd, x: [hvd.allreduce(x)], np.array([True]))


def factors_multiply_before_and_after(mode: Mode) -> None:
    """``prescale_factor`` comes before the reduction and ``postscale_factor`` after it; integers are cut each time."""
    rank, n = ours()
    each = [(op, "float32") for op in (Sum, Average, Max)] + [(Sum, "float16"), (Sum, "int32")]
    options = {"prescale_factor": 0.5, "postscale_factor": 4.0}
    made = mode.run(
        lambda hvd, *xs: [hvd.allreduce(x, op=op, **options) for (op, _), x in zip(each, xs, strict=True)],
        *[values(rank, dtype) for _, dtype in each],
    )
    for result, (op, dtype) in zip(made, each, strict=True):
        halves = [wide(values(r, dtype)) * 0.5 for r in range(n)]
        cut = [np.trunc(half) for half in halves] if dtype == "int32" else halves
        same(result, 4 * folded(op, dtype, cut), dtype)


def factors_are_of_float32_or_float64(mode: Mode) -> None:
    """Half precision is multiplied in float32, integers in float64, and rounded at once: bit for bit."""
    rank, n = ours()
    factor = 0.1915194503788923
    for dtype, inner in (("float16", np.float32), ("bfloat16", np.float32), ("int32", np.float64)):
        if dtype not in mode.dtypes:
            continue
        x = np.arange(-100, 100).astype(dtype_of(dtype))
        before = (x.astype(inner) * inner(factor)).astype(x.dtype)
        total = x.copy()
        for _ in range(n - 1):
            before, total = before + (x.astype(inner) * inner(factor)).astype(x.dtype), total + x
        wanted = before, (total.astype(inner) * inner(factor)).astype(x.dtype)
        made = mode.run(
            lambda hvd, x: [
                hvd.allreduce(x, op=Sum, prescale_factor=factor),
                hvd.allreduce(x, op=Sum, postscale_factor=factor),
            ],
            x,
        )
        for result, exact in zip(made, wanted, strict=True):
            np.testing.assert_array_equal(wide(result), wide(exact), err_msg=f"rank {rank}, {dtype}")


def scalars_and_nothing_travel(mode: Mode) -> None:
    """Tensors without a dimension, and without an element, are reduced, broadcast, gathered and scattered."""
    rank, n = ours()
    shapes = [(), (0,), (1,), (0, 3), (2, 0)]
    arrays = [np.full(shape, rank, np.float32) for shape in shapes]
    reduced = mode.run(lambda hvd, *xs: [hvd.allreduce(x, op=Sum) for x in xs], *arrays)
    sent = mode.run(lambda hvd, *xs: [hvd.broadcast(x, n - 1) for x in xs], *arrays)
    for shape, total, last in zip(shapes, reduced, sent, strict=True):
        same(total, np.full(shape, n * (n - 1) / 2), "float32")
        same(last, np.full(shape, n - 1), "float32")
    gathered, scattered = mode.run(
        lambda hvd, *xs: [hvd.allgather(xs[0]), hvd.reducescatter(xs[1], op=Sum)], arrays[3], arrays[3]
    )
    assert gathered.shape == scattered.shape == (0, 3)


def what_has_no_rows_is_refused(mode: Mode) -> None:
    """A scalar has no rows to gather or to scatter: the text says what to give instead."""
    for verb in ("allgather", "reducescatter", "alltoall"):
        text = mode.error(lambda hvd, x, verb=verb: [getattr(hvd, verb)(x)], np.ones((), np.float32))
        assert "needs at least one dimension" in text


def adasum_is_its_formula(mode: Mode) -> None:
    """For two ranks: ``(1 - a·b / 2|a|²) a + (1 - a·b / 2|b|²) b``; of three it is refused, of integers as well."""
    rank, n = ours()
    inputs = [np.cos(np.arange(6.0).reshape(2, 3) + r).astype(np.float32) for r in range(n)]
    if n == 2:
        (made,) = mode.run(lambda hvd, x: [hvd.allreduce(x, op=Adasum)], inputs[rank])
        np.testing.assert_allclose(made, adasum(*inputs), rtol=1e-5)
    elif n & (n - 1):
        assert "non-power of 2" in mode.error(lambda hvd, x: [hvd.allreduce(x, op=Adasum)], inputs[rank])
    assert "floating-point" in mode.error(lambda hvd, x: [hvd.allreduce(x, op=Adasum)], np.ones(2, np.int32))


def adasum(a: Array, b: Array) -> Array:
    """The formula, in float64."""
    a, b = wide(a), wide(b)
    dot = (a * b).sum()
    return (1 - dot / (2 * (a * a).sum())) * a + (1 - dot / (2 * (b * b).sum())) * b


def a_group_is_as_its_members(mode: Mode) -> None:
    """Grouped allreduce and allgather give what the single verbs give, for tensors of several dtypes and shapes."""
    rank, n = ours()
    made = [("float32", (2, 3)), ("int32", (4,)), ("float16", (1,)), ("float32", (3, 0))]
    arrays = [values(rank, dtype, shape) for dtype, shape in made]
    reduced = mode.run(lambda hvd, *xs: hvd.grouped_allreduce(xs, op=Sum), *arrays)
    gathered = mode.run(lambda hvd, *xs: hvd.grouped_allgather(xs, name="a group"), *arrays)
    for i, (dtype, shape) in enumerate(made):
        theirs = [values(r, dtype, shape) for r in range(n)]
        same(reduced[i], folded(Sum, dtype, theirs), dtype)
        same(gathered[i], np.concatenate([wide(each) for each in theirs]), dtype)
    assert mode.run(lambda hvd: hvd.grouped_allreduce([])) == mode.run(lambda hvd: hvd.grouped_allgather([])) == []


@needs("compression")
def compression_goes_both_ways(mode: Mode) -> None:
    """What fp16 and bf16 hold exactly arrives exactly, in the dtype that it had; integers are left alone."""
    rank, n = ours()
    for name in ("fp16", "bf16"):
        short = getattr(mode.hvd.Compression, name)
        made = mode.run(
            lambda hvd, *xs, short=short: [hvd.allreduce(x, op=Sum, compression=short) for x in xs],
            *[values(rank, dtype) for dtype in ("float32", "int32")],
        )
        for result, dtype in zip(made, ("float32", "int32"), strict=True):
            same(result, folded(Sum, dtype, [values(r, dtype) for r in range(n)]), dtype)
        # 1 + 2⁻¹² is too long for both: what travelled was short.
        (made,) = mode.run(
            lambda hvd, x, short=short: [hvd.allreduce(x, op=Max, compression=short)], np.float32([1 + 2**-12])
        )
        assert made.tolist() == [1.0]


# --- the other verbs ----------------------------------------------------------------------------------


def allgather_is_concatenation(mode: Mode) -> None:
    """Of every dtype: the ranks' rows, one below the other."""
    rank, n = ours()
    made = mode.run(lambda hvd, *xs: [hvd.allgather(x) for x in xs], *[values(rank, dtype) for dtype in mode.moved])
    for result, dtype in zip(made, mode.moved, strict=True):
        same(result, np.concatenate([values(r, dtype) for r in range(n)]), dtype)


@needs("unknown")
def allgather_takes_other_rows_from_each(mode: Mode) -> None:
    """The first dimension may differ, and be 0; in a group each tensor's own."""
    rank, n = ours()

    def mine(r: int) -> list[Array]:
        return [values(r, "float32", (r, 2)), values(r, "int32", (n - 1 - r,)), values(r, "float32", (2 * r + 1, 1))]

    made = mode.run(lambda hvd, *xs: [hvd.allgather(x, name=f"rows{i}") for i, x in enumerate(xs)], *mine(rank))
    made += mode.run(lambda hvd, *xs: hvd.grouped_allgather(xs), *mine(rank))
    for i, result in enumerate(made):
        same(result, np.concatenate([mine(r)[i % 3] for r in range(n)]), ("float32", "int32", "float32")[i % 3])


def broadcast_is_the_root_s(mode: Mode) -> None:
    """From each root, of every dtype, every rank gets the root's tensor; an unknown root is refused."""
    rank, n = ours()
    arrays = [values(rank, dtype) for dtype in mode.moved]
    for root in range(n):
        made = mode.run(lambda hvd, *xs, root=root: [hvd.broadcast(x, root) for x in xs], *arrays)
        for result, dtype in zip(made, mode.moved, strict=True):
            same(result, values(root, dtype), dtype)
    assert f"root rank {n} does not take part" in mode.error(lambda hvd, x: [hvd.broadcast(x, n)], arrays[0])


def alltoall_is_the_transpose(mode: Mode) -> None:
    """Without splits rank i gets the i-th part of every rank's rows, of every dtype; 0 rows are possible."""
    rank, n = ours()
    shapes = dict.fromkeys(mode.moved, (2 * n, 2))
    made = mode.run(
        lambda hvd, *xs: [hvd.alltoall(x) for x in xs],
        *[values(rank, dtype, shape) for dtype, shape in shapes.items()],
        np.empty((0, 2), np.float32),
    )
    for result, (dtype, shape) in zip(made, shapes.items(), strict=False):
        theirs = [values(r, dtype, shape) for r in range(n)]
        same(result, np.concatenate([each[2 * rank : 2 * rank + 2] for each in theirs]), dtype)
    assert made[-1].shape == (0, 2)


@needs("alltoall", "unknown")
def alltoall_without_splits_takes_other_rows_from_each(mode: Mode) -> None:
    """Each rank cuts its own rows evenly; they need not be as many as another's."""
    rank, n = ours()
    theirs = [values(r, "float32", ((r + 1) * n, 2)) for r in range(n)]
    (made,) = mode.run(lambda hvd, x: [hvd.alltoall(x)], theirs[rank])
    same(
        made, np.concatenate([each[(r + 1) * rank : (r + 1) * (rank + 1)] for r, each in enumerate(theirs)]), "float32"
    )


@needs("alltoall", "unknown")
def alltoall_sends_where_splits_say(mode: Mode) -> None:
    """With splits every rank gets its rows and how many came from each; splits that do not fit are refused."""
    rank, n = ours()
    table = np.array([[r + 2 * to for to in range(n)] for r in range(n)])
    rows = [values(r, "float32", (int(table[r].sum()), 2)) for r in range(n)]
    starts = [int(table[r][:rank].sum()) for r in range(n)]
    received, counts = mode.run(lambda hvd, x: list(hvd.alltoall(x, [int(each) for each in table[rank]])), rows[rank])
    same(received, np.concatenate([rows[r][starts[r] : starts[r] + table[r][rank]] for r in range(n)]), "float32")
    same(counts, table[:, rank], "int32")
    assert "do not match" in mode.error(lambda hvd, x: list(hvd.alltoall(x, [7] * n)), rows[rank])


def reducescatter_is_a_part_of_allreduce(mode: Mode) -> None:
    """This rank's rows of the reduced tensor; the first ranks get one more where they do not come out even."""
    rank, n = ours()
    each = [(op, dtype) for op in (Sum, Average, Max) for dtype in mode.dtypes if dtype != "bool"]
    for rows in (n, 2 * n + 1, max(1, n - 1)):
        made = mode.run(
            lambda hvd, *xs: [hvd.reducescatter(x, op=op) for (op, _), x in zip(each, xs, strict=True)],
            *[values(rank, dtype, (rows, 2)) for _, dtype in each],
        )
        for result, (op, dtype) in zip(made, each, strict=True):
            whole = folded(op, dtype, [values(r, dtype, (rows, 2)) for r in range(n)])
            same(result, whole[share(rows, n, rank)], dtype)


def reducescatter_in_groups_with_factors(mode: Mode) -> None:
    """The factors multiply before and after; a group's members are scattered each by itself."""
    rank, n = ours()
    shapes = [(n + 1, 2), (2 * n,)]
    made = mode.run(
        lambda hvd, *xs: [
            *hvd.grouped_reducescatter(xs, op=Sum),
            hvd.reducescatter(xs[0], op=Sum, prescale_factor=0.5, postscale_factor=4.0),
        ],
        *[values(rank, "float32", shape) for shape in shapes],
    )
    for i, shape in enumerate([*shapes, shapes[0]]):
        whole = sum(values(r, "float32", shape) for r in range(n)) * (2 if i == 2 else 1)
        same(made[i], whole[share(shape[0], n, rank)], "float32")


# --- who takes part -----------------------------------------------------------------------------------


@contextmanager
def process_set(*ranks: int) -> Iterator[Any]:
    """A process set, for a while."""
    made = workbench.add_process_set(list(ranks))
    yield made
    workbench.barrier()
    workbench.remove_process_set(made)


def a_process_set_is_a_world_of_its_own(mode: Mode) -> None:
    """The verbs reduce over its members; a rank outside gets an error that says so, and the job goes on."""
    rank, n = ours()
    for ranks in ([0], [n - 1], list(range(n))[::-1][:2]):
        if sorted(ranks) == list(range(n)):
            continue  # that is everybody
        with process_set(*ranks) as some:
            mine = np.full((2, 2), rank, np.float32)
            if rank not in ranks:
                text = mode.error(lambda hvd, x, some=some: [hvd.allreduce(x, process_set=some)], mine)
                assert f"Rank {rank} does not belong to" in text
                continue
            made = mode.run(
                lambda hvd, x, some=some: [
                    hvd.allreduce(x, op=Sum, process_set=some),
                    hvd.allgather(x, process_set=some),
                    hvd.broadcast(x, max(some.ranks), process_set=some),
                    hvd.reducescatter(x, op=Sum, process_set=some),
                ],
                mine,
            )
            same(made[0], np.full((2, 2), sum(ranks)), "float32")
            same(made[1], np.repeat(sorted(ranks), 2)[:, None] * np.ones(2), "float32")
            same(made[2], np.full((2, 2), max(ranks)), "float32")
            same(made[3], np.full((2 // len(ranks), 2), sum(ranks)), "float32")
    everybody_is_in_step(mode)


def a_rank_may_have_more_to_do(mode: Mode) -> None:
    """Ranks that have joined count as zeros, an average still divides by all; join tells who was last."""
    rank, n = ours()
    for step in range(n - rank):
        there = n - step  # ranks 0 … n - 1 - step
        total, mean = mode.run(lambda hvd, x: [hvd.allreduce(x, op=Sum), hvd.allreduce(x)], np.float32([1.0, 2.0]))
        same(total, np.array([there, 2 * there]), "float32")
        same(mean, np.array([there / n, 2 * there / n]), "float32")
    assert mode.hvd.join() == 0
    everybody_is_in_step(mode)


def everybody_is_in_step(mode: Mode) -> None:
    """The next collectives are right, those without a name too."""
    n = workbench.size()
    made = mode.run(lambda hvd, x: [hvd.allreduce(x, op=Sum), hvd.allgather(x)], np.ones(2, np.float32))
    assert [each.tolist() for each in made] == [[n, n], [1] * 2 * n]


# --- errors -------------------------------------------------------------------------------------------


def a_mismatch_is_said_to_all(mode: Mode) -> None:
    """Another shape, dtype or root on one rank: the same text on all, with each one's, and the job goes on."""
    rank, n = ours()
    if n == 1:
        return
    odd = rank == n - 1
    cases: list[tuple[Program, Array, str, list[str]]] = [
        (
            lambda hvd, x: [hvd.allreduce(x, name="m")],
            np.ones((3, 2) if odd else (2, 3), np.float32),
            "Mismatched allreduce tensor shapes",
            ["[2, 3]", "[3, 2]"],
        ),
        (
            lambda hvd, x: [hvd.allreduce(x, name="m")],
            np.ones(4, np.int32 if odd else np.float32),
            "Mismatched data types",
            ["float32", "int32"],
        ),
        (
            lambda hvd, x: [hvd.allgather(x, name="m")],
            np.ones((2, 4 if odd else 3), np.float32),
            "Mismatched allgather tensor shapes",
            ["3", "4"],
        ),
        (
            lambda hvd, x: [hvd.broadcast(x, int(odd), name="m")],
            np.ones(2, np.float32),
            "Mismatched broadcast root ranks",
            ["0", "1"],
        ),
    ]
    for program, array, sentence, (usual, other) in cases:
        text = mode.error(program, array)
        said = ours_of(text, sentence)
        assert len(set(allgather_object(said))) == 1
        by_rank = {int(r): value for ranks, value in said[1:] for r in ranks.split(",")}
        assert sorted(by_rank) == list(range(n))
        assert all((other if r == n - 1 else usual) in value for r, value in by_rank.items())
        everybody_is_in_step(mode)


def ours_of(text: str, sentence: str) -> tuple[Any, ...]:
    """Our words in a framework's error: the first sentence, and the value of each rank."""
    assert sentence in text
    text = text[text.index(sentence) :]
    return text.split("\n")[0].split("\\n")[0], *re.findall(r"^\s*ranks? ([\d, ]+): (.*)$", text, re.MULTILINE)


def a_dtype_that_cannot_travel_is_refused(mode: Mode) -> None:
    """A complex tensor ends with a text that lists what can travel, and nothing is out of step."""
    if mode.name != "mxnet":
        assert "take dtype complex64" in mode.error(lambda hvd, x: [hvd.allreduce(x)], np.ones(2, np.complex64))
    everybody_is_in_step(mode)


def unnamed_ones_are_in_step_after_a_caught_error(mode: Mode) -> None:
    """One rank alone calls a collective, all catch the error; then unnamed tensors of each kind meet their own."""
    rank, n = ours()
    if n == 1:
        return
    if rank == 0:
        mode.error(lambda hvd, x: [hvd.allreduce(x, op=Sum)], np.ones(3, np.float32))
    else:
        mode.error(lambda hvd, x: [hvd.allgather(x, name="next")], np.ones(2, np.float32))
    for value in (1, 10, 100):
        made = mode.run(
            lambda hvd, x, y: [hvd.allreduce(x, op=Sum), *hvd.grouped_allreduce([x, y], op=Sum)],
            *(np.full(2, value * k, np.float32) for k in (1, 2)),
        )
        assert [each.tolist() for each in made] == [[n * value * k] * 2 for k in (1, 1, 2)]
    everybody_is_in_step(mode)


# --- derivatives --------------------------------------------------------------------------------------


def weight(rank: int, *shape: int) -> Array:
    """What a rank's loss multiplies a result with: its gradient there."""
    return np.random.default_rng([rank, *shape]).normal(size=shape).astype(np.float32)


def close(mine: Array, wanted: Array) -> None:
    """As far as float32 goes."""
    assert mine.dtype == np.float32
    assert mine.shape == wanted.shape
    np.testing.assert_allclose(mine, wanted, rtol=1e-5, atol=1e-6)


@needs("gradients")
def allreduce_has_a_derivative(mode: Mode) -> None:
    """The allreduce of what comes from behind, with the same op and factors; of a group, of each."""
    rank, n = ours()
    total, x = sum(weight(r, 2, 3) for r in range(n)), weight(rank + 9, 2, 3)
    programs: list[tuple[Program, Any]] = [
        (lambda hvd, x: [hvd.allreduce(x, op=Sum)], total),
        (lambda hvd, x: [hvd.allreduce(x)], total / n),
        (lambda hvd, x: [hvd.allreduce(x, op=Sum, prescale_factor=0.5, postscale_factor=3.0)], 1.5 * total),
    ]
    for program, wanted in programs:
        (grad,) = mode.gradients(program, [x], [weight(rank, 2, 3)])
        close(grad, wanted)
    grads = mode.gradients(
        lambda hvd, *xs: hvd.grouped_allreduce(xs, op=Sum), [x, x[0]], [weight(rank, 2, 3), weight(rank, 3)]
    )
    close(grads[0], total)
    close(grads[1], sum(weight(r, 3) for r in range(n)))


@needs("gradients")
def compression_has_a_derivative(mode: Mode) -> None:
    """The gradient flows through the casts, in the input's dtype; whole numbers stay exact."""
    rank, n = ours()
    for name in ("fp16", "bf16"):
        short = getattr(mode.hvd.Compression, name)
        (grad,) = mode.gradients(
            lambda hvd, x, short=short: [hvd.allreduce(x, op=Sum, compression=short)],
            [np.full(3, rank, np.float32)],
            [np.full(3, rank + 1, np.float32)],
        )
        close(grad, np.full(3, n * (n + 1) / 2))


@needs("gradients")
def allgather_has_a_derivative(mode: Mode) -> None:
    """This rank's rows of the average of what comes from behind."""
    rank, n = ours()
    whole = sum(weight(r, 2 * n, 3) for r in range(n)) / n
    (grad,) = mode.gradients(lambda hvd, x: [hvd.allgather(x)], [weight(rank, 2, 3)], [weight(rank, 2 * n, 3)])
    close(grad, whole[2 * rank : 2 * rank + 2])


@needs("gradients", "unknown")
def allgather_of_other_rows_has_a_derivative(mode: Mode) -> None:
    """Also where each rank has its own number of rows, and none; in a group each tensor's own."""
    rank, n = ours()
    counts = [[2 * r for r in range(n)], [n - r for r in range(n)]]
    xs = [weight(rank, each[rank], 2) for each in counts]
    ws = [[weight(r + i, sum(each), 2) for r in range(n)] for i, each in enumerate(counts)]
    alone = [mode.gradients(lambda hvd, x: [hvd.allgather(x)], [x], [w[rank]])[0] for x, w in zip(xs, ws, strict=True)]
    group = mode.gradients(lambda hvd, *ts: hvd.grouped_allgather(ts), xs, [w[rank] for w in ws])
    for i, grads in enumerate(zip(alone, group, strict=True)):
        start = sum(counts[i][:rank])
        for grad in grads:
            close(grad, (sum(ws[i]) / n)[start : start + counts[i][rank]])


@needs("gradients")
def broadcast_has_a_derivative(mode: Mode) -> None:
    """The average of what comes from behind on the root, and exactly zero elsewhere, even where that is not finite."""
    rank, n = ours()
    for root in range(n):
        ws = [weight(r, 4) for r in range(n)]
        (grad,) = mode.gradients(lambda hvd, x, root=root: [hvd.broadcast(x, root)], [weight(rank, 4)], [ws[rank]])
        close(grad, sum(ws) / n if rank == root else np.zeros(4))
    (grad,) = mode.gradients(lambda hvd, x: [hvd.broadcast(x, 0)], [weight(rank, 2)], [np.float32([np.inf, 1])])
    assert grad.tolist() == ([np.inf, 1] if rank == 0 else [0, 0])


@needs("gradients", "alltoall")
def alltoall_has_a_derivative(mode: Mode) -> None:
    """Every row's gradient comes back to where the row came from."""
    rank, n = ours()
    ws = [weight(r, 2 * n, 2) for r in range(n)]
    (grad,) = mode.gradients(lambda hvd, x: [hvd.alltoall(x)], [weight(rank, 2 * n, 2)], [ws[rank]])
    close(grad, np.concatenate([w[2 * rank : 2 * rank + 2] for w in ws]))


@needs("gradients", "alltoall", "unknown")
def alltoall_of_other_rows_has_a_derivative(mode: Mode) -> None:
    """Also with splits, and where the ranks have different numbers of rows without."""
    rank, n = ours()
    for table, splits in (
        ([[(r + to) % 3 for to in range(n)] for r in range(n)], True),
        ([[r + 1] * n for r in range(n)], False),
    ):
        received = [sum(table[r][to] for r in range(n)) for to in range(n)]
        back = []
        for to in range(n):
            start = sum(table[r][to] for r in range(rank))
            back.append(weight(to, received[to], 2)[start : start + table[rank][to]])
        (grad,) = mode.gradients(
            lambda hvd, x, mine=table[rank], splits=splits: [hvd.alltoall(x, mine)[0] if splits else hvd.alltoall(x)],
            [weight(rank, sum(table[rank]), 2)],
            [weight(rank, received[rank], 2)],
        )
        close(grad, np.concatenate(back))


@needs("gradients")
def reducescatter_has_a_derivative(mode: Mode) -> None:
    """The ranks' gradients one below the other; times the number of ranks for Sum. Rows are uneven."""
    rank, n = ours()
    rows = 2 * n if "unknown" in mode.lacks else 2 * n + 1
    counts = [len(range(rows)[share(rows, n, r)]) for r in range(n)]
    gathered = np.concatenate([weight(r, counts[r], 3) for r in range(n)])
    for op, factor in ((Average, 1), (Sum, n)):
        x, w = weight(9, rows, 3), weight(rank, counts[rank], 3)
        (grad,) = mode.gradients(lambda hvd, x, op=op: [hvd.reducescatter(x, op=op)], [x], [w])
        close(grad, factor * gathered)
        for grad in mode.gradients(lambda hvd, *xs, op=op: hvd.grouped_reducescatter(xs, op=op), [x, x], [w, 2 * w]):
            close(grad, factor * gathered)
            gathered = 2 * gathered
        gathered = gathered / 4


@needs("gradients")
def an_op_without_derivative_says_so(mode: Mode) -> None:
    """Of Min, Max, Product and Adasum there is none: an error on every rank, and nothing wrong."""
    rank, n = ours()
    for op in (Min, Max, Product, *([] if n & (n - 1) else [Adasum])):
        with pytest.raises(Exception, match="has no gradient here"):  # in a graph it is the framework's
            mode.gradients(lambda hvd, x, op=op: [hvd.allreduce(x, op=op)], [weight(rank, 2)], [weight(rank, 2)])
    everybody_is_in_step(mode)


# --- objects ------------------------------------------------------------------------------------------


@needs("objects")
def objects_travel(mode: Mode) -> None:
    """Any object from a root to all, also None and an empty one, and from all to all."""
    rank, n = ours()
    for root, one in ((0, {"epoch": [1, "two"]}), (n - 1, None), (0, b"")):
        assert mode.hvd.broadcast_object(one if rank == root else "another", root_rank=root) == one
    assert mode.hvd.allgather_object("x" * rank, name="texts") == ["x" * r for r in range(n)]


VERBS: list[Check] = [
    each for name, each in list(globals().items())
    if callable(each) and getattr(each, "__annotations__", {}) == {"mode": "Mode", "return": "None"}
]  # fmt: skip

__all__ = ["VERBS", "Check", "adasum", "cases", "ours", "process_set", "same", "values", "weight"]
