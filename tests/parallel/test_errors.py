"""What goes wrong is said on every rank, with the value of each rank, and the next collective works."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from all_ranks import wait_for_all
from thorough import diagonal

import workbench.torch as hvd
from workbench.errors import (
    DuplicateNameError,
    MismatchError,
    MissingRanksError,
    NotInitializedError,
    RankFailedError,
    ShutDownError,
    UnsupportedTensorError,
)
from workbench.job.context import HOLDER

WAIT_S = 20.0  # a collective that ought to fail must not hang instead


def values_in(text: str) -> dict[int, str]:
    """The value of each rank from the lines ``rank 0: value`` and ``ranks 1, 2: value`` of an error text."""
    found = {}
    for ranks, value in re.findall(r"^\s*ranks? ([\d, ]+): (.*)$", text, re.MULTILINE):
        found.update({int(rank): value for rank in ranks.split(",")})
    return found


def works(n: int) -> None:
    """All ranks are in step: named and unnamed collectives of every verb give the closed form."""
    tensor = torch.full((n,), float(hvd.rank()))
    handles = [hvd.allreduce_async(tensor, op=hvd.Sum), hvd.allreduce_async(tensor, op=hvd.Sum, name="after")]
    for handle in handles:
        assert handle.wait(WAIT_S).tolist() == [n * (n - 1) / 2] * n
    assert hvd.allgather_async(tensor[:1]).wait(WAIT_S).tolist() == list(range(n))
    assert hvd.broadcast_async(tensor, n - 1).wait(WAIT_S).tolist() == [n - 1] * n
    assert hvd.alltoall_async(tensor).wait(WAIT_S).tolist() == list(range(n))
    assert hvd.reducescatter_async(tensor, op=hvd.Max).wait(WAIT_S).tolist() == [n - 1]
    hvd.grouped_allreduce([tensor, tensor])


# --- the ranks disagree -------------------------------------------------------------------------------

# What each rank submits, given (am I the odd one, my rank); what its value in the error contains; the sentence.
Submit = Callable[[bool, int], Any]
f32 = torch.float32
MISMATCHES: dict[str, tuple[Submit, Callable[[bool, int], str], str]] = {
    "allreduce shape": (
        lambda odd, rank: hvd.allreduce_async(torch.ones(2 + odd, 3), name="m"),
        lambda odd, rank: f"[{2 + odd}, 3]",
        r"Mismatched allreduce tensor shapes: One rank sent a tensor of shape",
    ),
    "allreduce shape, the same size": (
        lambda odd, rank: hvd.allreduce_async(torch.ones(*((3, 2) if odd else (2, 3))), name="m"),
        lambda odd, rank: "[3, 2]" if odd else "[2, 3]",
        r"Mismatched allreduce tensor shapes",
    ),
    "allreduce dimensions": (
        lambda odd, rank: hvd.allreduce_async(torch.ones(()) if odd else torch.ones(1), name="m"),
        lambda odd, rank: "[]" if odd else "[1]",
        r"Mismatched allreduce tensor shapes",
    ),
    "allreduce, another shape on every rank": (
        lambda odd, rank: hvd.allreduce_async(torch.ones(rank + 1), name="m"),
        lambda odd, rank: f"[{rank + 1}]",
        r"Mismatched allreduce tensor shapes",
    ),
    "allreduce dtype": (
        lambda odd, rank: hvd.allreduce_async(torch.ones(4, dtype=torch.int32 if odd else f32), name="m"),
        lambda odd, rank: "int32" if odd else "float32",
        r"Mismatched data types: One rank had type (float|int)32, but another rank had type",
    ),
    "allreduce dtype of the same width": (
        lambda odd, rank: hvd.allreduce_async(torch.ones(4, dtype=torch.bfloat16 if odd else torch.float16), name="m"),
        lambda odd, rank: "bfloat16" if odd else "float16",
        r"Mismatched data types",
    ),
    "allreduce op": (
        lambda odd, rank: hvd.allreduce_async(torch.ones(4), op=hvd.Max if odd else hvd.Sum, name="m"),
        lambda odd, rank: "max" if odd else "sum",
        r"Mismatched reduction operation",
    ),
    "allreduce Average and Sum": (
        lambda odd, rank: hvd.allreduce_async(torch.ones(4), average=odd, name="m"),
        lambda odd, rank: "average" if odd else "sum",
        r"Mismatched reduction operation",
    ),
    "allreduce prescale": (
        lambda odd, rank: hvd.allreduce_async(torch.ones(4), prescale_factor=2.0 if odd else 1.0, name="m"),
        lambda odd, rank: "[2.0, 1.0]" if odd else "[1.0, 1.0]",
        r"Mismatched prescale and/or postscale factors",
    ),
    "allreduce postscale": (
        lambda odd, rank: hvd.allreduce_async(torch.ones(4), postscale_factor=2.0 if odd else 1.0, name="m"),
        lambda odd, rank: "[1.0, 2.0]" if odd else "[1.0, 1.0]",
        r"Mismatched prescale and/or postscale factors",
    ),
    "in place shape": (
        lambda odd, rank: hvd.allreduce_async_(torch.ones(2 + odd), name="m"),
        lambda odd, rank: f"[{2 + odd}]",
        r"Mismatched allreduce tensor shapes",
    ),
    "allgather trailing shape": (
        lambda odd, rank: hvd.allgather_async(torch.ones(2, 3 + odd), name="m"),
        lambda odd, rank: f"{3 + odd}",
        r"Mismatched allgather tensor shapes",
    ),
    "allgather dimensions": (
        lambda odd, rank: hvd.allgather_async(torch.ones(2, 3) if odd else torch.ones(2), name="m"),
        lambda odd, rank: "3" if odd else "",
        r"Mismatched allgather tensor shapes",
    ),
    "allgather dtype": (
        lambda odd, rank: hvd.allgather_async(torch.ones(4, dtype=torch.float64 if odd else f32), name="m"),
        lambda odd, rank: "float64" if odd else "float32",
        r"Mismatched data types",
    ),
    "broadcast root": (
        lambda odd, rank: hvd.broadcast_async(torch.ones(4), 1 if odd else 0, name="m"),
        lambda odd, rank: "1" if odd else "0",
        r"Mismatched broadcast root ranks: One rank specified root rank [01], but another rank specified root rank",
    ),
    "broadcast shape": (
        lambda odd, rank: hvd.broadcast_async(torch.ones(4 + odd), 0, name="m"),
        lambda odd, rank: f"[{4 + odd}]",
        r"Mismatched broadcast tensor shapes",
    ),
    "broadcast dtype": (
        lambda odd, rank: hvd.broadcast_async(torch.ones(4, dtype=torch.int64 if odd else f32), 0, name="m"),
        lambda odd, rank: "int64" if odd else "float32",
        r"Mismatched data types",
    ),
    "alltoall trailing shape": (
        lambda odd, rank: hvd.alltoall_async(torch.ones(hvd.size(), 3 + odd), name="m"),
        lambda odd, rank: f"{3 + odd}",
        r"Mismatched alltoall tensor shapes",
    ),
    "reducescatter shape": (
        lambda odd, rank: hvd.reducescatter_async(torch.ones(4 + odd), name="m"),
        lambda odd, rank: f"[{4 + odd}]",
        r"Mismatched reducescatter tensor shapes",
    ),
    "reducescatter op": (
        lambda odd, rank: hvd.reducescatter_async(torch.ones(4), op=hvd.Min if odd else hvd.Sum, name="m"),
        lambda odd, rank: "min" if odd else "sum",
        r"Mismatched reduction operation",
    ),
    "verb": (
        lambda odd, rank: (hvd.allgather_async if odd else hvd.allreduce_async)(torch.ones(4), name="m"),
        lambda odd, rank: "allgather" if odd else "allreduce",
        r"Mismatched operations: One rank did an \w+, but another rank did an",
    ),
}  # fmt: skip


@pytest.mark.ranks(2)
@pytest.mark.parametrize(("what", "who"), diagonal(MISMATCHES, ["rank 0", "last rank"]))
def test_mismatch(what: str, who: str, rank: int, n: int) -> None:
    """One rank that differs is a MismatchError on all ranks, in Horovod's words and with the value of each rank."""
    submit, shown, sentence = MISMATCHES[what]
    odd = 0 if who == "rank 0" else n - 1
    handle = submit(rank == odd, rank)
    with pytest.raises(MismatchError, match=sentence) as caught:
        handle.wait(WAIT_S)
    text = str(caught.value)
    assert isinstance(caught.value, hvd.HorovodInternalError)
    values = values_in(text)
    assert sorted(values) == list(range(n)), text
    assert all(shown(r == odd, r) in values[r] for r in range(n)), text
    assert all(values[r] != values[odd] for r in range(n) if r != odd), text
    assert hvd.allgather_object(text) == [text] * n
    assert re.search(r"'\w+\.m'", text), text
    works(n)


@pytest.mark.ranks(2)
def test_mismatch_amid_others(rank: int, n: int) -> None:
    """Of many tensors in flight only the one that does not match fails."""
    handles = [
        hvd.allreduce_async(torch.full((3 + (rank == 1 and i == 5),), 1.0), op=hvd.Sum, name=f"t{i}") for i in range(10)
    ]
    for i, handle in enumerate(handles):
        if i == 5:
            with pytest.raises(MismatchError, match=r"allreduce\.t5"):
                handle.wait(WAIT_S)
        else:
            assert handle.wait(WAIT_S).tolist() == [n] * 3
    works(n)


@pytest.mark.ranks(2)
def test_mismatch_after_agreement(rank: int, n: int) -> None:
    """A name that matched for many rounds, so that its negotiation is remembered, can still mismatch and recover."""
    for i in range(12):
        odd = i in (5, 6, 9) and rank == i % n
        handle = hvd.allreduce_async(torch.ones(3 + odd), op=hvd.Sum, name="remembered")
        if i in (5, 6, 9):
            with pytest.raises(MismatchError, match="tensor shapes"):
                handle.wait(WAIT_S)
        else:
            assert handle.wait(WAIT_S).tolist() == [n] * 3


@pytest.mark.ranks(2)
def test_mismatch_in_a_group_fails_the_group(rank: int, n: int) -> None:
    """A group runs as a whole or not at all: one member that does not match fails all members, and no input changes."""
    tensors = [torch.ones(2), torch.ones(3 + rank), torch.ones(4)]
    handle = hvd.grouped_allreduce_async_(tensors, op=hvd.Sum, name="group")
    for member in handle.members:
        with pytest.raises(MismatchError, match="group_1of3"):
            member.wait(WAIT_S)
    assert all((tensor == 1).all() for tensor in tensors)
    works(n)


@pytest.mark.ranks(2)
def test_mismatch_leaves_the_memory_alone(rank: int, n: int) -> None:
    """A tensor that was to be reduced in place is as it was."""
    tensor = torch.full((2 + (rank == 0),), float(rank))
    with pytest.raises(MismatchError):
        hvd.allreduce_async_(tensor, name="untouched").wait(WAIT_S)
    assert (tensor == rank).all()


# --- one rank is wrong --------------------------------------------------------------------------------


SPARSE = torch.sparse_coo_tensor([[0, 1]], [1.0, 1.0], (3,), check_invariants=True)


size = hvd.size


def square() -> torch.Tensor:
    """Two rows for each rank."""
    return torch.ones(2 * size(), 2)


# Calls that cannot be made, the error, and the words that say what to do.
REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "transposed": (lambda: hvd.allreduce(torch.ones(2, 3).t()), ValueError, r"contiguous.*\.contiguous\(\)"),
    "strided": (lambda: hvd.allgather(torch.ones(4)[::2]), ValueError, r"contiguous.*\.contiguous\(\)"),
    "expanded in place": (lambda: hvd.allreduce_(torch.ones(1).expand(3)), ValueError, r"\.contiguous\(\)"),
    "channels_last": (
        lambda: hvd.allreduce_(torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last)),
        ValueError,
        r"\.contiguous\(\)",
    ),
    "complex64": (
        lambda: hvd.allreduce(torch.ones(2, dtype=torch.complex64)),
        UnsupportedTensorError,
        r"allreduce does not take dtype complex64.*Convert it to one of.*float32.*broadcast.* take it",
    ),
    "bits8 allgather": (
        lambda: hvd.allgather(torch.empty(2, dtype=torch.bits8)),
        UnsupportedTensorError,
        "bits8 cannot be sent",
    ),
    "sparse": (lambda: hvd.allreduce(SPARSE), ValueError, r"to_dense\(\)"),
    "no tensor": (lambda: hvd.allreduce([1.0, 2.0]), TypeError, r"torch\.Tensor.*list"),
    "average of bool": (
        lambda: hvd.allreduce(torch.ones(2, dtype=torch.bool)),
        UnsupportedTensorError,
        r"average of bool.*op=Sum",
    ),
    "root too large": (lambda: hvd.broadcast(torch.ones(2), size()), ValueError, r"root rank \d+ does not.*[Rr]anks"),
    "root negative": (lambda: hvd.broadcast_(torch.ones(2), -1), ValueError, r"root rank -1 does not"),
    "root of parameters": (
        lambda: hvd.broadcast_parameters({"w": torch.ones(2)}, root_rank=size()),
        ValueError,
        r"root rank \d+ does not",
    ),
    "uneven rows": (lambda: hvd.alltoall(torch.ones(2 * size() + 1)), ValueError, r"cannot be split evenly.*splits="),
    "splits too few": (
        lambda: hvd.alltoall(square(), [2 * size()] + [0] * size()),
        ValueError,
        r"splits .* do not match",
    ),
    "splits too large": (
        lambda: hvd.alltoall(square(), [3] * size()),
        ValueError,
        r"splits .* do not match 2?\d+ rows",
    ),
    "splits too small": (lambda: hvd.alltoall(square(), [1] * size()), ValueError, r"splits .* do not match"),
    "splits negative": (
        lambda: hvd.alltoall(square(), [2 * size() + 1, *[0] * (size() - 2), -1][-size() :]),
        ValueError,
        r"splits .* do not match",
    ),
    "splits of int64": (
        lambda: hvd.alltoall(square(), torch.tensor([2] * size())),
        ValueError,
        r"int32.*splits\.to\(torch\.int32\)",
    ),
    "allgather of 0-d": (lambda: hvd.allgather(torch.ones(())), ValueError, r"at least one dimension.*\(1,\)"),
    "alltoall of 0-d": (lambda: hvd.alltoall(torch.ones(())), ValueError, r"at least one dimension.*\(1,\)"),
    "reducescatter of 0-d": (lambda: hvd.reducescatter(torch.ones(())), ValueError, r"at least one dimension.*\(1,\)"),
    "member of a group": (
        lambda: hvd.grouped_allreduce([torch.ones(2), torch.ones(2, dtype=torch.complex64)]),
        UnsupportedTensorError,
        "allreduce does not take dtype complex64",
    ),
    "strided member of a group": (
        lambda: hvd.grouped_allreduce([torch.ones(2), torch.ones(4)[::2]]),
        ValueError,
        r"\.contiguous\(\)",
    ),
}


@pytest.mark.parametrize("what", [pytest.param(what, id=what.replace(" ", "_")) for what in REFUSED])
def test_refused_on_one_rank(what: str, rank: int, n: int) -> None:
    """A call that cannot be made raises at once, with the cure, where it is made; the others do not notice.

    The ranks stay in step: a refused call does not use up a number, else every unnamed collective after it would
    wait for ever.
    """
    call, kind, text = REFUSED[what]
    if what == "uneven rows" and n == 1:
        pytest.skip("one rank takes any number of rows")
    if rank == n - 1:
        with pytest.raises(kind, match=re.compile(text, re.DOTALL)):
            call()
    works(n)


def test_duplicate_name(rank: int, n: int) -> None:
    """A name that is in flight already is a ValueError at once, where it is used; the first one still completes."""
    tensor = torch.ones(3)
    if rank == 0:
        first = hvd.allreduce_async(tensor, op=hvd.Sum, name="twice")
        if n > 1:  # else the first may be done by now
            for _ in range(2):
                with pytest.raises(DuplicateNameError, match=r"'allreduce\.twice' is already in flight.*another name"):
                    hvd.allreduce_async(tensor, op=hvd.Sum, name="twice")
            with pytest.raises(ValueError, match=r"allreduce\.twice"):
                hvd.allreduce(tensor, name="twice")
            other = hvd.allreduce_async(tensor, op=hvd.Sum, name="other")
        else:
            other = hvd.allreduce_async(tensor, op=hvd.Sum, name="other")
    hvd.barrier()
    if rank != 0:
        first = hvd.allreduce_async(tensor, op=hvd.Sum, name="twice")
        other = hvd.allreduce_async(tensor, op=hvd.Sum, name="other")
    assert first.wait(WAIT_S).tolist() == other.wait(WAIT_S).tolist() == [n] * 3
    assert hvd.allreduce_async(tensor, op=hvd.Sum, name="twice").wait(WAIT_S).tolist() == [n] * 3
    works(n)


@pytest.mark.ranks(2)
def test_duplicate_name_in_a_group(rank: int, n: int) -> None:
    """A group of which one name is in flight is refused as a whole: none of its members is left waiting."""
    tensor = torch.ones(3)
    if rank == 0:
        first = hvd.allreduce_async(tensor, op=hvd.Sum, name="g_1of2")
        with pytest.raises(DuplicateNameError, match="g_1of2"):
            hvd.grouped_allreduce_async([tensor, tensor], name="g")
    hvd.barrier()
    if rank != 0:
        first = hvd.allreduce_async(tensor, op=hvd.Sum, name="g_1of2")
    assert first.wait(WAIT_S).tolist() == [n] * 3
    assert [t.tolist() for t in hvd.grouped_allreduce_async([tensor, tensor], op=hvd.Sum, name="g").wait(WAIT_S)] == [
        [n] * 3
    ] * 2
    works(n)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", ["given", None])
def test_a_rank_that_raised_and_goes_on(name: str | None, rank: int, n: int) -> None:
    """A cell that raised on one rank ends the others' wait with its traceback; the cells after it work.

    What a notebook's hooks do around cells, done by hand. Rank 1
    raised before its collective, so it has used fewer numbers for unnamed tensors than the others.
    """
    job = HOLDER.get()
    job.cell_begins()
    if rank == 1:
        job.cell_raised("Traceback: the cell of rank 1")
    else:
        with pytest.raises(RankFailedError, match="the cell of rank 1") as caught:
            hvd.allreduce_async(torch.ones(2), name=name).wait(WAIT_S)
        assert "Rank 1 raised" in str(caught.value)
    wait_for_all()
    job.cell_begins()
    works(n)


@pytest.mark.ranks(2)
def test_another_order_of_two_waits(rank: int, n: int) -> None:
    """Each rank waits for what the other would submit next: an error on all that says so, and the ranks go on."""
    for name in ["b", "a"] if rank == 1 else ["a", "b"]:
        handle = hvd.allreduce_async(torch.ones(2), name=name)
        with pytest.raises(MissingRanksError, match="wait for each other"):
            handle.wait(WAIT_S)
        hvd.barrier()
    works(n)


def test_arguments_of_another_kind(rank: int, n: int) -> None:
    """Each is named at the call, on every rank; NumPy's numbers are numbers, and the next collective works."""
    ones = torch.ones(2)
    one: Any = 1
    text: Any = "2"
    two: Any = np.float32(2)
    wrong = [
        (lambda: hvd.allreduce(ones, op=one), "op must be one of Average, .*, and is 1"),
        (lambda: hvd.reducescatter(torch.ones(n), op=one), "op must be one of Average"),
        (lambda: hvd.broadcast(ones, root_rank=text), "root_rank must be a whole number, and is '2'"),
        (lambda: hvd.allreduce(ones, prescale_factor=text), "prescale_factor must be a number"),
    ]
    for call, words in wrong:
        with pytest.raises(TypeError, match=words):
            call()
    assert hvd.allreduce(ones, prescale_factor=two, postscale_factor=two, op=hvd.Sum).tolist() == [4.0 * n] * 2
    first: Any = np.argmin([1.0, 2.0])
    assert hvd.broadcast(ones + rank, root_rank=first).tolist() == [1.0, 1.0]
    assert hvd.broadcast_object([rank], root_rank=first) == [0]
    works(n)


UNNAMED: dict[str, Callable[[hvd.ProcessSet], Any]] = {
    "allreduce": lambda everybody: hvd.allreduce(torch.ones(3)),
    "allreduce of a process set": lambda everybody: hvd.allreduce(torch.ones(3), process_set=everybody),
    "group": lambda everybody: hvd.grouped_allreduce([torch.ones(3), torch.ones(2)]),
    "object": lambda everybody: hvd.allgather_object("x", process_set=everybody),
    "barrier": lambda everybody: hvd.barrier(),
}


@pytest.mark.ranks(2)
@pytest.mark.parametrize("extra", UNNAMED)
def test_unnamed_tensors_after_an_error_that_all_caught(extra: str, rank: int, n: int) -> None:
    """Each meets its own, in every process set, though one rank alone has called a collective before."""
    sets = [hvd.global_process_set, hvd.ProcessSet(range(n - 1)), hvd.ProcessSet([n - 1, 0])]
    added = [hvd.add_process_set(one) for one in sets[1:] if 1 < len(one.ranks or ()) < n]
    mine = [one for one in (sets[0], *added) if one.included()]
    call = UNNAMED[extra] if rank == 0 else lambda everybody: hvd.allreduce(torch.ones(3), name="next")
    with pytest.raises(MissingRanksError):
        call(mine[-1])
    for _ in range(2):
        handles = [
            (each, v, hvd.allreduce_async(torch.full((3,), v), op=hvd.Sum, process_set=each))
            for v in (1.0, 10.0, 100.0)
            for each in mine
        ]
        for each, v, handle in handles:
            assert handle.wait(WAIT_S).tolist() == [v * (each.size() or 0)] * 3
        hvd.barrier()
    works(n)
    for one in added:
        hvd.remove_process_set(one)


@pytest.mark.ranks(2)
def test_unnamed_tensors_in_flight_amid_an_error_that_all_caught(rank: int, n: int) -> None:
    """Rank 0 calls one more than the others, who have begun theirs: these fail, and the next ones meet."""
    if rank == 0:
        with pytest.raises(MismatchError):
            hvd.allreduce(torch.ones(3), op=hvd.Average)
    sums = []
    for _ in range(3):
        sums.append([])
        for handle in [hvd.allreduce_async(torch.full((3,), v), op=hvd.Sum) for v in (1.0, 10.0, 100.0)]:
            try:
                sums[-1].append(handle.wait(WAIT_S)[0].item())
            except (MismatchError, MissingRanksError) as error:
                sums[-1].append(type(error))
    assert sums[0] == [MissingRanksError if rank == 0 else MismatchError, MissingRanksError, MissingRanksError]
    assert sums[1:] == [[1.0 * n, 10.0 * n, 100.0 * n]] * 2


@pytest.mark.ranks(2)
@pytest.mark.parametrize("how", ["idle", "another name"])
def test_a_rank_that_never_comes(how: str, rank: int, n: int) -> None:
    """A collective that one rank does not call, or calls by another name, is an error on all that wait."""
    job = HOLDER.get()
    job.cell_begins()
    mine = {"idle": None, "another name": "other"}[how] if rank == 1 else "a"
    if mine is None:
        job.cell_ends()
    else:
        handle = hvd.allreduce_async(torch.ones(2), name=mine)
        with pytest.raises(MissingRanksError) as caught:
            handle.wait(WAIT_S)
        text = str(caught.value)
        assert re.search(r"rank.* \d.*: waiting in test_errors.py, line \d+: handle.wait", text), text
        assert ("if rank == 0" if how == "idle" else "wait for each other") in text
    wait_for_all()
    job.cell_begins()
    works(n)


@pytest.mark.processes("shows where the main thread of each rank stands")
@pytest.mark.ranks(2)
def test_the_stall_report_shows_where_every_rank_stands(
    rank: int, n: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the time for a warning rank 0 says who is missed, and shows each rank's main thread."""
    hvd.shutdown()
    monkeypatch.setenv("WORKBENCH_STALL_WARNING_S", "0.5")
    hvd.init()
    try:
        with caplog.at_level(logging.WARNING, "workbench"):
            if rank == n - 1:
                this_rank_is_busy_elsewhere(3.0)
            assert hvd.allreduce_async(torch.ones(2), op=hvd.Sum, name="late").wait(WAIT_S).tolist() == [n] * 2
            hvd.barrier()
    finally:
        hvd.shutdown()
        monkeypatch.undo()
        hvd.init()
    if rank == 0:
        assert f"{n - 1}: [allreduce.late]" in caplog.text
        busy = caplog.text.split(f"Rank {n - 1} stands at:")[1].split("Rank ")[0]
        assert "this_rank_is_busy_elsewhere" in busy
        assert "in wait" in caplog.text.split("Rank 0 stands at:")[1].split("Rank ")[0]


def this_rank_is_busy_elsewhere(seconds: float) -> None:
    """What the report must show."""
    time.sleep(seconds)


# --- not initialised ----------------------------------------------------------------------------------


@pytest.mark.processes("shutdown() and init() are of the whole process")
def test_nothing_works_without_init(rank: int, n: int) -> None:
    """Between shutdown() and init() every function says so, as a ValueError too; is_initialized() just tells."""
    tensor = torch.ones(4)
    calls: list[Callable[[], Any]] = [
        *(hvd.rank, hvd.size, hvd.local_rank, hvd.local_size, hvd.cross_rank, hvd.cross_size, hvd.barrier, hvd.join),
        lambda: hvd.allreduce(tensor),
        lambda: hvd.allreduce_async(tensor, name="x"),
        lambda: hvd.allreduce_(tensor),
        lambda: hvd.grouped_allreduce([tensor, tensor]),
        lambda: hvd.allgather(tensor),
        lambda: hvd.broadcast(tensor, 0),
        lambda: hvd.broadcast_(tensor, 0),
        lambda: hvd.alltoall(tensor),
        lambda: hvd.reducescatter(tensor),
        lambda: hvd.broadcast_parameters({"w": tensor}, 0),
        lambda: hvd.broadcast_object(1),
        lambda: hvd.allgather_object(1),
    ]
    hvd.shutdown()
    try:
        assert not hvd.is_initialized()
        for i, call in enumerate(calls):
            with pytest.raises(NotInitializedError, match=r"init\(\)") as caught:
                call()
            assert isinstance(caught.value, ValueError), i
    finally:
        hvd.init()
    assert hvd.is_initialized()
    assert (hvd.rank(), hvd.size()) == (rank, n)
    works(n)


@pytest.mark.processes("shutdown() and init() are of the whole process")
def test_a_handle_outlives_the_job(rank: int, n: int) -> None:
    """A finished handle keeps its result after shutdown()."""
    handle = hvd.allreduce_async(torch.ones(2), op=hvd.Sum)
    handle.wait(WAIT_S)
    hvd.shutdown()
    try:
        assert hvd.poll(handle)
        assert hvd.synchronize(handle).tolist() == [n] * 2
    finally:
        hvd.init()


@pytest.mark.processes("shutdown() and init() are of the whole process")
@pytest.mark.ranks(2)
def test_shutdown_in_flight(rank: int, n: int) -> None:
    """What is in flight when a rank leaves ends with ShutDownError, on the ranks that wait and on the one that left."""
    handle = hvd.allreduce_async(torch.ones(2), name=f"only here {rank}")
    hvd.barrier()
    hvd.shutdown()
    try:
        with pytest.raises(ShutDownError, match="has left the job"):
            handle.wait(WAIT_S)
    finally:
        hvd.init()
    works(n)


def test_numpy_arrays_are_checked_too(n: int) -> None:
    """The numpy verbs refuse what cannot be sent with the same words."""
    import workbench

    for array in (np.ones(2, np.complex64), np.array(["text"]), np.array([object()]), np.ones(2, "datetime64[s]")):
        with pytest.raises(UnsupportedTensorError, match="allreduce does not take dtype"):
            workbench.allreduce(array)
    works(n)
