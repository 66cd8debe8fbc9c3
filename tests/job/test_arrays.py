"""Arrays of numpy's own, whatever they look like in memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as npst
import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workbench.core.messages import Kind
from workbench.core.verbs import MOVED, REDUCED, VERBS
from workbench.errors import UnsupportedTensorError
from workbench.job import api

Array = np.ndarray[Any, Any]
N = 2


def _dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name)) if hasattr(ml_dtypes, name) else np.dtype(name)


THERE = [name for name in sorted(MOVED) if hasattr(ml_dtypes, name) or not name.startswith("float8")]
SENT = [each for name in THERE for each in {_dtype_of(name), _dtype_of(name).newbyteorder()}]
"""Those that some verb takes, in both byte orders."""
NOT_SENT = [
    *(np.dtype(name) for name in ("longdouble", "clongdouble", "M8[ns]", ">m8[s]", "O", "U3", "S2", "V4")),
    np.dtype([("a", "<f4"), ("b", ">i2")]),
    np.dtype(ml_dtypes.int4),
]


def _laid_out(values: Array, layout: str) -> Array:
    """The same values, otherwise in memory."""
    if layout == "fortran":
        return np.asarray(values, order="F")
    if layout == "backwards":
        return np.ascontiguousarray(values[::-1])[::-1]
    if layout == "every other one":
        wide = np.repeat(values, 2, axis=0)
        return wide[::2]
    if layout == "unaligned":
        raw = np.zeros(values.nbytes + 1, np.uint8)
        raw[1:] = np.frombuffer(values.tobytes(), np.uint8)
        return np.ndarray(values.shape, values.dtype, raw.data, 1)
    if layout == "repeated":  # one row in memory stands for all
        return np.broadcast_to(values[:1], values.shape)
    if layout == "read-only":
        values.flags.writeable = False
    return values.view(np.matrix) if layout == "matrix" else values


LAYOUTS = ("plain", "fortran", "backwards", "every other one", "unaligned", "repeated", "read-only", "matrix")


@st.composite
def arrays(draw: st.DrawFn) -> Array:
    """An array of a dtype that can be sent, of at least one dimension; values so small that every sum is exact."""
    dtype, layout = draw(st.sampled_from(SENT)), draw(st.sampled_from(LAYOUTS))
    shape = draw(npst.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4))
    shape = (shape[0] // N * N, *shape[1:])
    if layout == "matrix":
        shape = (shape[0], int(np.prod(shape[1:])))
    if dtype.kind == "b":
        numbers = draw(npst.arrays(bool, shape))
    else:
        numbers = draw(npst.arrays(np.int8, shape, elements=st.integers(0, 3)))
    return _laid_out(numbers.astype(dtype.newbyteorder("=")).astype(dtype), layout)


def _every_verb(array: Array) -> dict[Kind, Any]:
    """What each verb makes of it, or why it does not."""
    verbs: dict[Kind, Callable[[], Any]] = {
        Kind.ALLREDUCE: lambda: api.allreduce(array, op=api.Sum),
        Kind.ALLGATHER: lambda: api.allgather(array),
        Kind.BROADCAST: lambda: api.broadcast(array, 0),
        Kind.ALLTOALL: lambda: api.alltoall(array)[0],
        Kind.REDUCESCATTER: lambda: api.reducescatter(array, op=api.Sum),
    }
    assert verbs.keys() == {kind for kind, verb in VERBS.items() if verb.moves}
    found = {}
    for kind, call in verbs.items():
        try:
            found[kind] = call()
        except UnsupportedTensorError as error:
            found[kind] = error
    return found


def _expected(array: Array, rank: int) -> dict[Kind, Array]:
    """The same by numpy alone, where both ranks have this array."""
    plain = np.array(array, array.dtype.newbyteorder("="), subok=False)
    total = plain if plain.dtype.kind == "b" else (plain + plain).astype(plain.dtype)
    mine = slice(rank * (len(plain) // N), (rank + 1) * (len(plain) // N))
    return {
        Kind.ALLREDUCE: total,
        Kind.ALLGATHER: np.concatenate([plain, plain]),
        Kind.BROADCAST: plain,
        Kind.ALLTOALL: np.concatenate([plain[mine], plain[mine]]),
        Kind.REDUCESCATTER: total[mine],
    }


@given(arrays())
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
def test_every_array_gives_numpys_values_or_is_refused(array: Array) -> None:
    """Each verb makes what numpy makes of the values, in native byte order, or refuses a dtype."""
    for rank, found in enumerate(api.run_threads(N, lambda: _every_verb(array))):
        for kind, expected in _expected(array, rank).items():
            made = found[kind]
            if array.dtype.newbyteorder("=").name not in VERBS[kind].dtypes:
                assert isinstance(made, UnsupportedTensorError), (kind, array.dtype, made)
                continue
            assert type(made) is np.ndarray, (kind, made)
            assert (made.dtype, made.shape) == (expected.dtype, expected.shape), kind
            assert made.tobytes() == expected.tobytes(), (kind, array, made)


@pytest.mark.parametrize("one", ["<", ">"])
def test_ranks_may_have_unlike_byte_orders(one: str) -> None:
    """What counts is the values: rank 0 sends one byte order, rank 1 the other."""

    def run() -> list[Any]:
        mine = np.array([500 + api.rank()], f"{one}i4" if api.rank() else ">i4")
        return [api.allreduce(mine, op=api.Sum)[0], *api.allgather(mine), api.broadcast(mine, 1)[0]]

    assert api.run_threads(N, run) == [[1001, 500, 501, 501]] * N


@pytest.mark.parametrize("dtype", NOT_SENT, ids=str)
def test_what_has_no_values_to_send_is_refused(dtype: np.dtype[Any]) -> None:
    """Every verb refuses a dtype that has other values than a machine's numbers, and names it."""
    found = api.run_threads(N, lambda: _every_verb(np.zeros((N, 1), dtype)))
    assert all(isinstance(made, UnsupportedTensorError) and dtype.name in str(made) for made in found[0].values())


class Metres(np.ndarray):  # type: ignore[type-arg]
    """Values with a unit, as astropy has them: arithmetic of their own."""

    def __array_ufunc__(self, *args: Any, **options: Any) -> Any:
        raise TypeError("metres are not added to feet")


@pytest.mark.parametrize("array", [np.ma.masked_array([[1.0], [2.0]], [[True], [False]]), np.ones((2, 1)).view(Metres)])
def test_an_array_that_says_more_than_its_values_is_refused(array: Array) -> None:
    """A mask, or a unit, would be lost without a word: every verb refuses, and says what to send instead."""
    found = api.run_threads(N, lambda: _every_verb(array))
    assert all(isinstance(made, UnsupportedTensorError) for made in found[0].values())
    assert "filled" in str(found[0][Kind.ALLREDUCE]) or "np.asarray" in str(found[0][Kind.ALLREDUCE])


def test_a_file_in_memory_is_sent_and_stays_as_it_is(tmp_path: Path) -> None:
    """A memory-mapped file of the other byte order, opened for reading, as astronomers have them."""
    np.array([1.0, 2.0], ">f8").tofile(tmp_path / "values")
    array = np.memmap(tmp_path / "values", ">f8", "r")
    assert api.run_threads(N, lambda: api.allreduce(array, op=api.Sum).tolist()) == [[2.0, 4.0]] * N
    assert array.tolist() == [1.0, 2.0]


def test_a_verb_that_only_moves_takes_more() -> None:
    """Reductions take what they can add up; the error says which verbs take the dtype as it is."""
    assert REDUCED < MOVED
    with pytest.raises(UnsupportedTensorError, match=r"allreduce.*uint32[\s\S]*allgather, alltoall and broadcast"):
        api.run_threads(1, lambda: api.allreduce(np.ones(1, np.uint32)))
