"""Checksums of states, the table of ranks, and both in a plain process. No ranks are started here."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import workbench
from workbench import fingerprint, who_has
from workbench.cluster.who_has import describe as in_words
from workbench.common.table import RankTable
from workbench.errors import LaunchError, NotInitializedError
from workbench.observe.values.leaves import as_array, describe, digest, digest_all, largest_difference, leaves

TORCH_DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


@given(st.binary(min_size=8, max_size=8), st.binary(min_size=8, max_size=8))
def test_a_checksum_is_the_same_exactly_for_the_same_bits(one: bytes, other: bytes) -> None:
    """Of any two arrays of float32, NaN and minus zero among them."""
    arrays = [np.frombuffer(bits, np.float32) for bits in (one, other)]
    assert (digest(arrays[0]) == digest(arrays[1])) == (one == other)


def test_dtype_and_shape_count() -> None:
    """The same bytes in another dtype or shape are another thing."""
    zeros = [np.zeros(4, np.float32), np.zeros((2, 2), np.float32), np.zeros(4, np.int32), np.zeros(2, np.float64)]
    assert len({digest(each) for each in zeros}) == len(zeros)


@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
def test_torch_tensors_of_every_dtype_and_layout(dtype: torch.dtype) -> None:
    """A tensor, its copy and its transpose twice have one checksum; one other number gives another."""
    tensor = torch.arange(6).remainder(2).to(dtype).reshape(2, 3)
    other = tensor.clone()
    assert digest(other.T.contiguous().T) == digest(tensor)
    other[1, 2] = 0
    assert digest(other) != digest(tensor)
    assert digest(torch.tensor(1, dtype=dtype)) != digest(torch.tensor(0, dtype=dtype))
    assert describe(tensor) == f"{str(dtype).removeprefix('torch.')} (2, 3)"


def test_parameters_and_sparse_tensors_are_arrays() -> None:
    """What requires a gradient, and what is sparse, is read as well; empty and scalar tensors, too."""
    assert as_array(torch.nn.Parameter(torch.ones(2))) is not None
    dense = torch.eye(3)
    assert np.array_equal(as_array(dense.to_sparse()), dense.numpy())  # type: ignore[arg-type]
    assert digest(torch.empty(0)) == digest(np.empty(0, np.float32))
    assert digest(torch.tensor(2.0)) == digest(np.array(2.0, np.float32))


def test_what_is_no_number_counts_by_its_type() -> None:
    """Two objects whose ``repr`` holds their addresses are alike, for they are so on every rank."""
    assert digest(object()) == digest(object())
    assert digest(lambda: 0) == digest(lambda: 1)
    assert digest("a") != digest("b")
    assert digest(0.1) != digest(0.2)
    assert digest(np.array([object()])) == digest(np.array([object()]))


def test_order_counts_only_among_leaves() -> None:
    """Leaves keep the tree's order; the checksum of all does not depend on it."""
    one, other = OrderedDict(b=1, a=[2, 3]), OrderedDict(a=[2, 3], b=1)
    assert list(leaves(one)) == ["b", "a.0", "a.1"]
    digests = [{path: digest(leaf) for path, leaf in leaves(tree).items()} for tree in (one, other)]
    assert digest_all(digests[0]) == digest_all(digests[1])
    assert digest_all(digests[0]) != digest_all({**digests[0], "b": digest(2)})


@given(st.lists(st.floats(width=32), min_size=1, max_size=5), st.lists(st.floats(width=32), min_size=5, max_size=5))
def test_largest_difference_is_numpy_s(one: list[float], other: list[float]) -> None:
    """The maximum of |a − b|, where equal numbers, infinities and NaNs among them, count 0."""
    a, b = np.array(one, np.float32), np.array(other[: len(one)], np.float32)
    with np.errstate(invalid="ignore"):
        far = np.abs(a.astype(np.float64) - b.astype(np.float64))
    expected = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, far).max()
    assert largest_difference(a, b) == pytest.approx(expected, nan_ok=True)


# --- in a plain process -------------------------------------------------------------------------------


def test_alone_it_is_one_line() -> None:
    """Without ranks and without ``init()``: one line, no word about agreement, true."""
    model = torch.nn.Linear(2, 1)
    found = fingerprint(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert found
    assert len(str(found).splitlines()) == 2
    assert found.table.column("rank") == ["0"]
    assert (found.first, found.largest) == ("", (0.0,))
    with torch.no_grad():
        model.bias.add_(1)
    assert fingerprint(model).table.column("weights") != found.table.column("weights")
    assert "<td>0</td>" in found._repr_html_()


def test_on_ranks_before_init_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that has not met the others would say that all agree; it is told to call ``init()``."""
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "2")
    with pytest.raises(NotInitializedError, match=r"init\(\)"):
        fingerprint({"w": np.ones(2)})


def test_in_threads_the_odd_rank_is_found() -> None:
    """Rank 2 of 4 has another number: false on all of them."""

    def check() -> tuple[bool, str, tuple[float, ...], list[str]]:
        found = fingerprint({"w": np.array([1.0 + (workbench.rank() == 2)]), "b": np.zeros(2)})
        return bool(found), found.first, found.largest, list(found.table.below)

    said = workbench.run_threads(4, check)
    assert said == [said[0]] * 4
    assert said[0][:3] == (False, "w", (0.0, 0.0, 1.0, 0.0))
    assert said[0][3][:2] == ["agree", "NO"]


# --- who_has without engines --------------------------------------------------------------------------


def test_without_a_cluster_it_says_how_to_start_one() -> None:
    """And what is no name is refused."""
    with pytest.raises(LaunchError, match=r"cluster\.up\(\)"):
        who_has("x")
    with pytest.raises(ValueError, match="not a name"):
        who_has("x[0]")


class Rude:
    def __repr__(self) -> str:
        raise RuntimeError("not now")


class Shapeless:
    shape, dtype = 3, "float32"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, ("int", "", "", "3")),
        ("text", ("str", "", "", "'text'")),
        (np.arange(3), ("numpy.ndarray", "(3,)", "int64", "[0, 1, 2]")),
        (np.float32(2), ("numpy.float32", "()", "float32", "2.0")),
        (torch.ones(2, dtype=torch.bfloat16), ("torch.Tensor", "(2,)", "bfloat16", "[1.0, 1.0]")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_in_words(value: Any, expected: tuple[str, ...]) -> None:
    """Type, shape, dtype and a short value."""
    assert in_words(value) == expected


def test_large_and_rude_values() -> None:
    """Of many numbers a checksum, of a model that of its state, of a gigabyte its size; a failing ``repr`` is told."""
    array = np.arange(100.0)
    assert in_words(array)[3] == f"checksum {digest(array)[:8]}"
    model = torch.nn.Linear(2, 1)
    assert in_words(model)[3].startswith("checksum ")
    assert in_words(np.broadcast_to(np.zeros(1, np.uint8), (1 << 30,)))[3] == "1024 MiB"
    assert "Rude" in in_words(Rude())[3]
    assert in_words(Shapeless()) == (f"{__name__}.Shapeless", "", "", "(TypeError when looked at)")
    assert len(in_words(list(range(10**5)))[3]) < 100
    assert in_words(torch.nn.Linear)[3].startswith("<class")


# --- the table ----------------------------------------------------------------------------------------


def test_html_is_escaped_and_columns_are_found() -> None:
    """Text with angle brackets stays text in a notebook; a column comes by its name, without the line below."""
    table = RankTable(("rank", "a<b"), (("0", "<i>"), ("1", "&")), ("agree", "NO"), ("A foot.",))
    assert table.column("a<b") == ["<i>", "&"]
    html = table._repr_html_()
    assert "<th>a&lt;b</th>" in html
    assert "<td>&lt;i&gt;</td>" in html
    assert "<td>NO</td>" in html
    assert "A foot." in html
    assert str(table).splitlines() == [" rank  a<b", "    0  <i>", "    1  &", "agree  NO", "A foot."]
