"""Process sets: several at once, over the life of jobs, and with DistributedOptimizer."""

from __future__ import annotations

import copy
import pickle
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import workbench.torch as hvd


@pytest.fixture
def begin_again() -> Iterator[Callable[..., None]]:
    """Ends the job and begins another; after the test a plain one runs again."""

    def again(**options: Any) -> None:
        hvd.shutdown()
        hvd.init(**options)

    yield again
    again()


def removed(*sets: hvd.ProcessSet) -> bool:
    """Take the sets away again, on every rank."""
    return all(map(hvd.remove_process_set, sets))


def calls_in(one: hvd.ProcessSet, base: float) -> Iterator[tuple[Callable[..., Any], torch.Tensor, torch.Tensor, Any]]:
    """(verb, this rank's tensor, the right result, options): each verb once; rank r of all sends 10·r + base."""
    size, me = one.size(), one.rank()
    values = 10 * torch.tensor(one.ranks, dtype=torch.float64) + base
    own, root = values[me], one.ranks[int(base) % size]
    yield hvd.allreduce_async, own.repeat(3), values.sum().repeat(3), {"op": hvd.Sum}
    yield hvd.allreduce_async, own.repeat(2), values.mean().repeat(2), {}
    yield hvd.allgather_async, own.repeat(me + 1), values.repeat_interleave(torch.arange(1, 1 + size)), {}
    yield hvd.broadcast_async, own.repeat(2), torch.full((2,), 10.0 * root + base).double(), {"root_rank": root}
    yield hvd.alltoall_async, own.repeat(size), values, {}
    yield hvd.reducescatter_async, own.repeat(size), values.sum().view(1), {"op": hvd.Sum}


@pytest.mark.ranks(4)
@pytest.mark.timeout(200)
@pytest.mark.parametrize("rounds", [15, pytest.param(500, marks=pytest.mark.slow)])
def test_sets_that_overlap_work_at_the_same_time(
    rounds: int, rank: int, n: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two disjoint sets, one that overlaps both, and all ranks at once, in any order: no hang, the right values."""
    sets = [hvd.add_process_set(ranks) for ranks in ([0, 1], [2, 3], [1, 2, 3])]
    mine = [(i, one) for i, one in enumerate([*sets, hvd.global_process_set]) if one.included()]
    shuffle = random.Random(rank).shuffle
    started = time.monotonic()
    for step in range(rounds):
        shuffle(mine)
        handles = []
        for i, one in mine:  # under the same names in all sets
            for k, (verb, tensor, wanted, options) in enumerate(calls_in(one, step + i)):
                handles.append((verb(tensor, name=f"k{k}", process_set=one, **options), wanted))
        shuffle(handles)
        for handle, wanted in handles:
            assert torch.allclose(handle.wait(30), wanted, rtol=1e-12), step
    with capsys.disabled():
        print(f"\n{rounds} rounds in overlapping process sets on {n} ranks: {time.monotonic() - started:.1f} s")
    assert removed(*sets)


@pytest.mark.ranks(3)
def test_what_a_set_says_of_itself(rank: int, n: int) -> None:
    """Number, members, size and rank, before it is registered, while it is, and afterwards; on members and others."""
    one = hvd.ProcessSet(ranks_or_comm=[n - 1, 0, 0])
    assert (one.mpi_comm, hvd.ProcessSet.mpi_comm, hvd.global_process_set.mpi_comm) == (None, None, None)
    members = sorted({0, n - 1})
    assert (one.ranks, one.process_set_id) == (members, None)
    assert (one.included(), one.size(), one.rank()) == (None, None, None)
    assert hvd.add_process_set(one) is one
    assert one.process_set_id > 0
    assert one.included() is (rank in members)
    assert one.size() == 2, "a rank outside knows the size, too: it divides work by it"
    assert one.rank() == (members.index(rank) if rank in members else None)
    assert str(one) == f"ProcessSet(process_set_id={one.process_set_id}, ranks={members}, mpi_comm=None)"
    for again in (one, members):
        with pytest.raises(ValueError, match="duplicate process set"):
            hvd.add_process_set(again)
    assert removed(one)
    assert (one.process_set_id, one.size()) == (None, None)
    assert not removed(one)


@pytest.mark.processes("shutdown() and init() are of the whole process")
def test_all_ranks_are_always_a_set(n: int, begin_again: Callable[..., None]) -> None:
    """The global set is number 0 of every job and of none, and cannot be removed."""
    everybody = hvd.global_process_set
    for _ in range(2):
        assert (everybody.process_set_id, everybody.ranks, everybody.size()) == (0, list(range(n)), n)
        assert hvd.remove_process_set(everybody) is False
        begin_again()
    hvd.shutdown()
    assert (everybody.process_set_id, everybody.ranks) == (0, None)


@pytest.mark.processes("shutdown() and init() are of the whole process")
@pytest.mark.ranks(2)
def test_a_set_belongs_to_its_job(rank: int, n: int, begin_again: Callable[..., None]) -> None:
    """shutdown() forgets all sets; they can be given to the next init(), or added again, as they are."""
    sets = [hvd.ProcessSet([0]), hvd.ProcessSet([n - 1])]
    for how in ("init", "init", "add", "init"):
        hvd.shutdown()
        assert [each.process_set_id for each in sets] == [None, None]
        hvd.init(process_sets=sets if how == "init" else "dynamic")
        if how == "add":
            assert [each.included() for each in sets] == [None, None]
            for each in sets:
                hvd.add_process_set(each)
        assert [each.process_set_id for each in sets] == [1, 2]
        own = sets[0] if rank == 0 else sets[1]
        if rank in (0, n - 1):
            assert hvd.allreduce(torch.tensor([1.0]), op=hvd.Sum, process_set=own).item() == 1.0
        with pytest.raises(ValueError, match="duplicate"):
            hvd.add_process_set(sets[0])
    begin_again()
    with pytest.raises(ValueError, match="is not registered"):
        hvd.allreduce(torch.ones(1), process_set=sets[0])


@pytest.fixture
def world() -> Any:
    """MPI's communicator of all ranks, if MPI connects them."""
    if not hvd.mpi_enabled():
        pytest.skip("the ranks did not meet over MPI")
    return pytest.importorskip("mpi4py.MPI").COMM_WORLD


@pytest.mark.processes("shutdown() and init() are of the whole process")
@pytest.mark.ranks(2)
def test_each_rank_gives_the_communicator_that_it_is_in(
    rank: int, n: int, world: Any, begin_again: Callable[..., None]
) -> None:
    """Sets that a Split made, another on each rank, are all registered on all ranks, under the same numbers."""
    parts = [list(range(0, n, 2)), list(range(1, n, 2))]
    mine, last = hvd.ProcessSet(world.Split(rank % 2, rank)), hvd.ProcessSet(range(1, n))
    begin_again(comm=world, process_sets=[mine, *([last] if n > 2 else [])])
    assert mine.ranks == parts[rank % 2]
    assert [hvd.ProcessSet(part).process_set_id for part in parts] == [1, 2]
    assert (mine.process_set_id, mine.size(), mine.rank()) == (1 + rank % 2, len(parts[rank % 2]), rank // 2)
    assert n == 2 or last.process_set_id == 3
    total = hvd.allreduce(torch.tensor([rank]), op=hvd.Sum, process_set=mine)
    assert total.item() == sum(parts[rank % 2])
    mine.mpi_comm.Free()


@pytest.mark.processes("shutdown() and init() are of the whole process")
@pytest.mark.ranks(2)
def test_a_communicator_of_some_ranks_only(rank: int, n: int, world: Any, begin_again: Callable[..., None]) -> None:
    """A rank outside has MPI's null communicator; it learns of the set, but its own object means nothing."""
    few = world.Split(0 if rank else pytest.importorskip("mpi4py.MPI").UNDEFINED, rank)
    mine = hvd.ProcessSet(few)
    begin_again(comm=world, process_sets=[mine])
    assert hvd.ProcessSet(range(1, n)).process_set_id == 1
    assert mine.process_set_id == (1 if rank else None)
    if rank:
        few.Free()


@pytest.mark.processes("shutdown() and init() are of the whole process")
@pytest.mark.ranks(2)
def test_a_set_counts_ranks_as_the_job_does(rank: int, n: int, world: Any, begin_again: Callable[..., None]) -> None:
    """In a job over another communicator, a set given as one has that job's numbers: with init() and later."""
    upside_down, alone = world.Split(0, -rank), world.Split(rank == 0, rank)
    begin_again(comm=upside_down, process_sets=[hvd.ProcessSet(alone)])
    assert hvd.rank() == n - 1 - rank
    assert hvd.ProcessSet([n - 1]).process_set_id is not None  # rank 0 of the world
    assert hvd.remove_process_set(hvd.ProcessSet([n - 1]))
    if n > 2:
        assert hvd.remove_process_set(hvd.ProcessSet(range(n - 1)))
        pair = world.Create_group(world.group.Incl([0, 1])) if rank < 2 else None
        both = hvd.add_process_set(hvd.ProcessSet(pair or [n - 2, n - 1]))
        assert both.ranks == [n - 2, n - 1]
    for comm in (upside_down, alone):
        comm.Free()


@pytest.mark.processes("shutdown() and init() are of the whole process")
@pytest.mark.ranks(2)
@pytest.mark.parametrize("what", ["unknown", "twice", "everybody", "empty"])
def test_init_refuses_a_set_and_leaves_no_job_behind(
    what: str, rank: int, n: int, begin_again: Callable[..., None]
) -> None:
    """What one rank gives wrongly, all ranks refuse, with its number; none is initialised then, and init() works."""
    wrong = {
        "unknown": [hvd.ProcessSet([0, n])],
        "twice": [hvd.ProcessSet([0]), hvd.ProcessSet([0])],
        "everybody": [hvd.ProcessSet(range(n))],
        "empty": [hvd.ProcessSet([])],
    }[what]
    right = hvd.ProcessSet([n - 1])
    hvd.shutdown()
    for _ in range(2):
        with pytest.raises(ValueError, match=rf"(?s)process set.*rank {n - 1}"):
            hvd.init(process_sets=wrong if rank == n - 1 else [right])
        assert not hvd.is_initialized()
        assert right.process_set_id is None
    hvd.init(process_sets=[right])
    assert right.process_set_id == 1
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == n


@pytest.mark.processes("shutdown() and init() are of the whole process")
@pytest.mark.ranks(2)
def test_a_set_travels(n: int, begin_again: Callable[..., None]) -> None:
    """Pickled or copied, a set means the same ranks, and the global one all of them."""
    one = hvd.add_process_set([0])
    for other in (pickle.loads(pickle.dumps(one)), copy.deepcopy(one)):
        assert (other.process_set_id, other.ranks) == (one.process_set_id, [0])
    assert pickle.loads(pickle.dumps(hvd.global_process_set)).size() == n


@pytest.mark.ranks(2)
def test_what_is_refused(rank: int, n: int) -> None:
    """Unknown ranks, none at all, other ranks on every rank, and a collective of a set without this rank."""
    for wrong in ([], [n], [-1]):
        with pytest.raises(ValueError, match="needs ranks between"):
            hvd.add_process_set(wrong)
    last = hvd.add_process_set([n - 1])
    if rank == 0:
        with pytest.raises(ValueError, match=r"Rank 0 does not belong to ProcessSet"):
            hvd.allreduce(torch.ones(1), process_set=last)
    else:
        assert rank != n - 1 or hvd.allreduce(torch.ones(1), process_set=last).item() == 1.0
    assert removed(last)


@pytest.mark.ranks(4)
def test_two_halves_train_two_models(rank: int, n: int) -> None:
    """Each half has an optimizer over its own set, with the same names: each equals the run of its half alone."""
    halves = [hvd.add_process_set([0, 1]), hvd.add_process_set([2, 3])]
    mine = halves[rank // 2]
    torch.manual_seed(rank // 2)
    model = nn.Linear(3, 2).double()
    serial = copy.deepcopy(model)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), process_set=mine
    )
    reference = torch.optim.SGD(serial.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(5)
    for _ in range(10):
        whole = torch.randn(4, 3, generator=generator, dtype=torch.float64)
        half = whole[2 * (rank // 2) : 2 * (rank // 2) + 2]
        for net, one, rows in ((model, optimizer, whole[rank : rank + 1]), (serial, reference, half)):
            one.zero_grad()
            net(rows).square().mean().backward()
            one.step()
        assert torch.allclose(model.weight, serial.weight, rtol=0, atol=1e-12)
    assert removed(*halves)


@pytest.mark.ranks(2)
def test_a_rank_outside_trains_on_its_own(rank: int, n: int) -> None:
    """An optimizer over a set leaves a rank that is not in it alone; a set that is not registered is refused."""
    with pytest.raises(ValueError, match="is not registered"):
        hvd.DistributedOptimizer(
            torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0), process_set=hvd.ProcessSet([n - 1])
        )
    few = hvd.add_process_set([0])
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), process_set=few)
    model(torch.tensor([[float(rank + 1)]])).sum().backward()
    optimizer.step()
    assert model.weight.item() == -(rank + 1)
    assert removed(few)


@pytest.mark.processes("shutdown() and init() are of the whole process")
@pytest.mark.ranks(2)
def test_an_optimizer_of_an_earlier_job_gives_way(rank: int, n: int, begin_again: Callable[..., None]) -> None:
    """Its set is gone with its job: it says so, and a new optimizer for the same model trains with all ranks."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    old = hvd.DistributedOptimizer(inner, process_set=hvd.add_process_set(range(n - 1)))
    begin_again()
    with pytest.raises(ValueError, match="is not registered"):
        old.abandon_step()
    optimizer = hvd.DistributedOptimizer(inner)
    model(torch.tensor([[float(rank)]])).sum().backward()
    optimizer.step()
    assert model.weight.item() == -(n - 1) / 2


def test_what_makes_no_set_is_a_value_error() -> None:
    """Neither ranks nor a communicator, and a number that the caller gives it, as Horovod's suite tries."""
    for wrong in (5, None, "ab", [0.5]):
        with pytest.raises(ValueError, match="made from ranks, or from an MPI communicator"):
            hvd.ProcessSet(wrong)
    with pytest.raises(ValueError, match="chooses the number of a process set"):
        hvd.ProcessSet([0]).process_set_id = 10
