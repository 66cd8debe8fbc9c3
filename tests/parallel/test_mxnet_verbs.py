"""The verbs on MXNet's arrays against closed forms. Run by ``make legacy-test``; skipped where MXNet is missing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

mx = pytest.importorskip("mxnet")

import workbench.mxnet as hvd  # noqa: E402 - only where MXNet is
from workbench.errors import MismatchError  # noqa: E402

DTYPES = ["uint8", "int8", "int32", "int64", "float16", "float32", "float64"]


def tensor(values: Any, dtype: str = "float32") -> Any:
    """An ``mx.nd`` array."""
    return mx.nd.array(values, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_allreduce(dtype: str, rank: int, n: int) -> None:
    """Sum, Min and Max are those of all ranks' values, in the array's own dtype; the input stays as it was."""
    mine = tensor([rank, rank + 1, 5], dtype)
    ranks = np.arange(n)
    for op, fold in ((hvd.Sum, np.sum), (hvd.Min, np.min), (hvd.Max, np.max)):
        result = hvd.allreduce(mine, op=op, name="x", priority=-1)
        assert result.dtype == np.dtype(dtype)
        assert result.asnumpy().tolist() == [fold(ranks), fold(ranks + 1), fold(np.full(n, 5))]
    assert mine.asnumpy().tolist() == [rank, rank + 1, 5]


def test_average_is_the_default(rank: int, n: int) -> None:
    """Neither word means Average; ``average=False`` means Sum; both words are refused."""
    mine = tensor([rank, 2.0])
    assert hvd.allreduce(mine).asnumpy().tolist() == [(n - 1) / 2, 2.0]
    assert hvd.allreduce(mine, True).asnumpy().tolist() == [(n - 1) / 2, 2.0]
    assert hvd.allreduce(mine, average=False).asnumpy().tolist() == [n * (n - 1) / 2, 2.0 * n]
    with pytest.raises(ValueError, match="supersedes"):
        hvd.allreduce(mine, average=True, op=hvd.Sum)


def test_factors(n: int) -> None:
    """``prescale_factor`` and ``postscale_factor`` multiply before and after the sum."""
    result = hvd.allreduce(tensor([2.0, 4.0]), False, None, 0, 0.5, 3.0)
    assert result.asnumpy().tolist() == [3.0 * n, 6.0 * n]


def test_in_place(rank: int, n: int) -> None:
    """The verbs with ``_`` change the array itself, a part of another one too, and return it."""
    whole = tensor([[9.0, 9.0], [rank, rank]])
    part = whole[1:]
    assert hvd.allreduce_(part, average=False) is part
    assert whole.asnumpy().tolist() == [[9.0, 9.0], [n * (n - 1) / 2] * 2]
    mine = tensor([rank])
    assert hvd.broadcast_(mine, root_rank=n - 1) is mine
    assert mine.asnumpy().tolist() == [n - 1]


def test_groups(rank: int, n: int) -> None:
    """Grouped verbs give what the single ones give, for arrays of several shapes and dtypes; no array is no work."""
    group = [tensor([rank, 1.0]), tensor([[rank]], "int32"), tensor([1.0], "float64")]
    total = n * (n - 1) / 2
    results = hvd.grouped_allreduce(group, average=False, name="group")
    assert [each.asnumpy().tolist() for each in results] == [[total, n], [[total]], [n]]
    assert [each.dtype for each in results] == [each.dtype for each in group]
    gathered = hvd.grouped_allgather(group)
    assert [each.shape for each in gathered] == [(2 * n,), (n, 1), (n,)]
    scattered = hvd.grouped_reducescatter([tensor(np.arange(n)), tensor(np.ones(n))], op=hvd.Sum)
    assert [each.asnumpy().tolist() for each in scattered] == [[rank * n], [n]]
    same = hvd.grouped_allreduce_(group, average=False)
    assert all(one is other for one, other in zip(same, group, strict=True))
    assert group[1].asnumpy().tolist() == [[total]]
    assert hvd.grouped_allreduce([]) == hvd.grouped_allgather([]) == hvd.grouped_reducescatter([]) == []


def test_allgather(rank: int, n: int) -> None:
    """Rows of all ranks one below the other, in the order of ranks, of as many as each has, none too."""
    result = hvd.allgather(tensor(np.full((rank, 2), rank)), name="rows")
    assert result.asnumpy().tolist() == [[r, r] for r in range(n) for _ in range(r)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_broadcast(dtype: str, rank: int, n: int) -> None:
    """Every rank gets the root's values in a new array."""
    mine = tensor([rank, 7], dtype)
    assert hvd.broadcast(mine, n - 1, name="b").asnumpy().tolist() == [n - 1, 7]
    assert mine.asnumpy().tolist() == [rank, 7]


def test_alltoall(rank: int, n: int) -> None:
    """Row i goes to rank i; with splits the numbers of rows received come back as int32, and may be none."""
    result = hvd.alltoall(tensor(np.arange(n) + 10 * rank))
    assert result.asnumpy().tolist() == [rank + 10 * r for r in range(n)]
    splits = [0] * (n - 1) + [2]  # all to the last
    for given in (splits, tensor(splits, "int32")):
        rows, counts = hvd.alltoall(tensor([[rank, 0], [rank, 1]]), splits=given)
        last = rank == n - 1
        assert rows.asnumpy().tolist() == ([[r, i] for r in range(n) for i in range(2)] if last else [])
        assert counts.dtype == np.int32
        assert counts.asnumpy().tolist() == [2 if last else 0] * n


def test_alltoall_refuses_as_horovod_does(n: int) -> None:
    """What does not fit, and splits of another dtype, are MXNet's error, which is a RuntimeError, and a ValueError."""
    for rows, splits in ((n + 1, None), (n - 1, [1] * n), (n, tensor([1] * n, "float32"))):
        if (rows, splits) == (n + 1, None) and n == 1:
            continue
        for error in (mx.base.MXNetError, RuntimeError, ValueError):
            with pytest.raises(error, match="splits"):
                hvd.alltoall(tensor([0.0] * rows), splits)
    with pytest.raises(mx.base.MXNetError, match="root"):
        hvd.broadcast(tensor([0.0]), root_rank=n)


def test_reducescatter(rank: int, n: int) -> None:
    """Each rank keeps its rows of the sum; where there are fewer rows than ranks, the last get none."""
    whole = np.arange(2.0 * (n + 1)).reshape(n + 1, 2)
    mine = np.array_split(whole * n, n)[rank]
    assert hvd.reducescatter(tensor(whole), op=hvd.Sum, name="s").asnumpy().tolist() == mine.tolist()
    assert hvd.reducescatter(tensor([4.0])).asnumpy().tolist() == ([4.0] if rank == 0 else [])


def test_numpy_arrays_of_mxnet_stay_what_they_are(rank: int, n: int) -> None:
    """An ``mx.np`` array, even one without dimensions, gives an ``mx.np`` array."""
    result = hvd.allreduce(mx.np.array(rank, dtype="float32"), op=hvd.Sum)
    assert type(result) is mx.np.ndarray
    assert (result.shape, float(result)) == ((), n * (n - 1) / 2)
    mine = mx.np.array([[rank, 1.0]])
    assert hvd.broadcast_(mine, 0).tolist() == [[0.0, 1.0]]
    assert type(hvd.allgather(mine)) is mx.np.ndarray


def test_what_is_being_computed_is_waited_for(n: int) -> None:
    """An array whose computation is under way travels with its final values, and later computations see the result."""
    x = mx.nd.ones((300, 300))
    for _ in range(20):
        x = mx.nd.dot(x, mx.nd.ones((300, 300))) / 300
    hvd.allreduce_(x, average=False)
    assert (x + 1).asnumpy().tolist() == np.full((300, 300), n + 1.0).tolist()
    later = x * 2  # may still be read when x is written
    hvd.allreduce_(x, average=False)
    assert later.asnumpy()[0, 0] == 2 * n
    assert x.asnumpy()[0, 0] == n * n


def test_objects(rank: int, n: int) -> None:
    """Objects travel as they do for every framework, with MXNet's arrays in them."""
    assert hvd.broadcast_object({"epoch": rank}, root_rank=n - 1) == {"epoch": n - 1}
    gathered = hvd.allgather_object(("rank", mx.nd.array([rank])))
    assert [(word, array.asscalar()) for word, array in gathered] == [("rank", r) for r in range(n)]


@pytest.mark.ranks(2)
def test_some_of_the_ranks(rank: int, n: int) -> None:
    """A process set's average is over its members only."""
    some = hvd.add_process_set(range(1, n))
    if some.included():
        assert hvd.allreduce(tensor([rank]), process_set=some).asscalar() == n / 2
        assert hvd.broadcast(tensor([rank]), 1, process_set=some).asscalar() == 1
        assert hvd.allgather(tensor([rank]), process_set=some).asnumpy().tolist() == list(range(1, n))
    assert hvd.remove_process_set(some)


@pytest.mark.ranks(2)
def test_other_names_on_other_ranks_are_an_error(rank: int, n: int) -> None:
    """Ranks that wait for each other under different names are told so instead of hanging; the next verb works."""
    with pytest.raises(hvd.HorovodInternalError, match="mine") as caught:
        hvd.allreduce(tensor([1.0]), name=f"mine{rank}")
    assert any(f"mine{other}" in str(caught.value) for other in range(n) if other != rank)
    assert hvd.allreduce(tensor([1.0]), average=False, name="after").asscalar() == n


@pytest.mark.ranks(2)
def test_other_shapes_on_other_ranks_are_an_error(rank: int, n: int) -> None:
    """Every rank sees every rank's shape, the array stays as it was, and the next verb works."""
    mine = tensor(np.full(2 + (rank == 0), rank))
    with pytest.raises(MismatchError) as caught:
        hvd.allreduce_(mine, name="shapes")
    assert "[3]" in str(caught.value)
    assert "[2]" in str(caught.value)
    assert mine.asnumpy().tolist() == [rank] * len(mine)
    assert hvd.allreduce(tensor([1.0]), average=False, name="after").asscalar() == n


def test_what_cannot_travel_is_refused() -> None:
    """A sparse array, or numpy's, is refused at once, with what to do about it."""
    with pytest.raises(TypeError, match="tostype"):
        hvd.allreduce(mx.nd.sparse.zeros("row_sparse", (2, 2)))
    with pytest.raises(TypeError, match="ndarray"):
        hvd.allreduce(np.ones(2))
    with pytest.raises(ValueError, match="root rank"):
        hvd.broadcast(tensor([1.0]), root_rank=hvd.size())
