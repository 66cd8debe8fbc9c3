"""torch.distributed over the job's ranks: each verb against its closed form, torch's own trainings, and blame."""

from __future__ import annotations

import copy
import gc
import random
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from all_ranks import wait_for_all
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import workbench.torch as hvd
from workbench import fingerprint
from workbench.cluster.who_has import describe
from workbench.errors import DeadlineError, MismatchError, MissingRanksError, UnsupportedTensorError, WaitTimeoutError
from workbench.job.context import HOLDER

pytestmark = [
    pytest.mark.processes("torch has one default group in a process"),
    pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning"),  # scripts use the older names
]
OTHERS = (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int8, torch.uint8)


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    """The default group: that of the job."""
    import workbench.torch.distributed  # noqa: F401 - registers the backend

    store = dist.HashStore()
    dist.init_process_group("workbench", store=store, rank=hvd.rank(), world_size=hvd.size())
    yield
    dist.destroy_process_group()
    assert hvd.is_initialized(), "the job was there before the group"


def mine(dtype: torch.dtype = torch.float64, shape: tuple[int, ...] = (2, 3)) -> torch.Tensor:
    """This rank's numbers: rank + 1."""
    return torch.full(shape, hvd.rank() + 1, dtype=dtype)


def same(found: torch.Tensor, wanted: float | list[float] | torch.Tensor) -> None:
    """Is each number as it should be?"""
    expected = torch.as_tensor(wanted, dtype=found.dtype).expand(found.shape)
    assert torch.equal(found, expected), (found, expected)


# --- the verbs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, *OTHERS, torch.complex64])
def test_sums(dtype: torch.dtype, n: int) -> None:
    """Of every dtype, in place, also of what has gaps; the same object comes back."""
    total = n * (n + 1) / 2
    tensor = mine(dtype)
    dist.all_reduce(tensor)
    same(tensor, total)
    wide = torch.zeros(4, 6, dtype=dtype)
    part = wide[:, ::2]
    part += hvd.rank() + 1
    dist.all_reduce(part)
    same(part, total)
    same(wide[:, 1::2], 0)


@pytest.mark.parametrize(
    ("op", "wanted"),
    [
        (dist.ReduceOp.AVG, lambda n: (n + 1) / 2),
        (dist.ReduceOp.MIN, lambda n: 1),
        (dist.ReduceOp.MAX, lambda n: n),
        (dist.ReduceOp.PRODUCT, lambda n: torch.arange(1, n + 1).prod()),
        (dist._make_nccl_premul_sum(2.0), lambda n: n * (n + 1)),
    ],
)
def test_other_reductions(op: Any, wanted: Callable[[int], float], n: int) -> None:
    """All have the result; with reduce() the root alone, and the others' tensors stay as they are."""
    tensor, other = mine(), mine()
    dist.all_reduce(tensor, op)
    same(tensor, wanted(n))
    dist.reduce(other, n - 1, op)
    same(other, wanted(n) if hvd.rank() == n - 1 else hvd.rank() + 1)


def test_bits(n: int) -> None:
    """Of all ranks, bit for bit."""
    for op, wanted in ((dist.ReduceOp.BOR, 2**n - 1), (dist.ReduceOp.BXOR, 2**n - 1), (dist.ReduceOp.BAND, 0)):
        tensor = torch.tensor([1 << hvd.rank()] * 3)
        dist.all_reduce(tensor, op)
        same(tensor, wanted if n > 1 else 1)


def test_sparse(n: int) -> None:
    """Values of one place add up, and each rank has its own number of them. Nothing else is done to them."""
    rank = hvd.rank()
    places = torch.arange(rank + 1).unsqueeze(0)
    tensor = torch.sparse_coo_tensor(places, torch.ones(rank + 1), (n,), check_invariants=True)
    dist.all_reduce(tensor)
    same(tensor.to_dense(), [float(n - i) for i in range(n)])
    with pytest.raises(ValueError, match="SUM and AVG alone"):
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)


def test_gathered(n: int) -> None:
    """Into a list, into one tensor, of several at once, to one rank, and of any objects."""
    lists = [torch.empty(2, 3, dtype=torch.float64) for _ in range(n)]
    dist.all_gather(lists, mine())
    for rank, each in enumerate(lists):
        same(each, rank + 1)
    whole = torch.empty(n * 2, 3, dtype=torch.float64)
    dist.all_gather_into_tensor(whole, mine())
    same(whole.view(n, -1).t(), [rank + 1.0 for rank in range(n)])
    several = [[torch.empty(1), torch.empty(2)] for _ in range(n)]
    dist.all_gather_coalesced(several, [torch.full((1,), float(hvd.rank())), torch.full((2,), 10.0 * hvd.rank())])
    assert [[each.tolist() for each in theirs] for theirs in several] == [
        [[float(rank)], [10.0 * rank] * 2] for rank in range(n)
    ]
    places = [torch.empty(2, 3, dtype=torch.float64) for _ in range(n)] if hvd.rank() == 0 else None
    dist.gather(mine(), places, dst=0)
    for rank, each in enumerate(places or ()):
        same(each, rank + 1)
    objects: list[Any] = [None] * n
    dist.all_gather_object(objects, {"rank": hvd.rank()})
    assert objects == [{"rank": rank} for rank in range(n)]


def test_scattered(n: int) -> None:
    """Reduced, in equal and in unequal parts, and from one rank."""
    total = n * (n + 1) / 2
    out = torch.empty(2, dtype=torch.float64)
    dist.reduce_scatter_tensor(out, mine(shape=(2 * n,)))
    same(out, total)
    unequal = torch.empty(hvd.rank() + 1, dtype=torch.float64)
    dist.reduce_scatter(unequal, [mine(shape=(length + 1,)) for length in range(n)])
    same(unequal, total)
    parts = [torch.full((3,), float(rank)) for rank in range(n)] if hvd.rank() == n - 1 else None
    dist.scatter(got := torch.empty(3), parts, src=n - 1)
    same(got, hvd.rank())


def test_exchanged(n: int) -> None:
    """By equal rows, to other memory, with gaps, and the same; by unequal rows, and by lists of tensors."""
    rank = hvd.rank()
    for width in (1, 1 << 19):
        memory = np.zeros(n * width + 1, np.float32)  # of two tensors, a number apart
        given = torch.from_numpy(memory[1:]).copy_((torch.arange(float(n)) + 10 * rank).repeat_interleave(width))
        for out in (torch.empty(n * width), torch.empty(n * width, 2)[:, 0], torch.from_numpy(memory[:-1])):
            dist.all_to_all_single(out, given)
            same(out.view(n, width).t()[-1], [10.0 * other + rank for other in range(n)])
    rows, got = torch.full((sum(range(1, n + 1)), 2), float(rank)), torch.empty(n * (rank + 1), 2)
    dist.all_to_all_single(got, rows, [rank + 1] * n, list(range(1, n + 1)))
    same(got.view(n, -1).t(), [float(other) for other in range(n)])
    places = [torch.empty(2) for _ in range(n)]
    dist.all_to_all(places, [torch.full((2,), float(10 * rank + other)) for other in range(n)])
    assert [each[0].item() for each in places] == [10.0 * other + rank for other in range(n)]


def test_sizes_of_their_own(n: int) -> None:
    """Rank 0's calls are alike again and again, and another's are not: they belong together still."""
    dice = random.Random(1)
    for _ in range(150):
        some = [dice.randrange(1, 9) if rank else 1 for rank in range(n)]  # each rank sends so many to itself
        splits = [some[hvd.rank()] if rank == hvd.rank() else 1 for rank in range(n)]
        out = torch.empty(sum(splits))
        dist.all_to_all_single(out, torch.full((sum(splits),), float(hvd.rank())), splits, splits)
        same(out, [float(rank) for rank, count in enumerate(splits) for _ in range(count)])
    dist.barrier()


def test_broadcast_and_barriers(n: int) -> None:
    """From each rank; and objects."""
    for root in range(n):
        tensor = mine()
        dist.broadcast(tensor, root)
        same(tensor, root + 1)
    objects = [f"of {hvd.rank()}"]
    dist.broadcast_object_list(objects, n - 1)
    assert objects == [f"of {n - 1}"]
    dist.barrier()
    dist.distributed_c10d._get_default_group().monitored_barrier(timedelta(seconds=60))


def test_empty(n: int) -> None:
    """Nothing moves, and nobody waits."""
    for shape in ((0,), (0, 3)):
        dist.all_reduce(torch.empty(shape))
        dist.broadcast(torch.empty(shape), 0)
        dist.all_gather([torch.empty(shape) for _ in range(n)], torch.empty(shape))


# --- work in flight -----------------------------------------------------------------------------------


def test_many_in_flight(n: int) -> None:
    """They end in any order of waits; a future goes on when its collective has ended."""
    tensors = [torch.full((5,), float(i + hvd.rank())) for i in range(300)]
    works = [dist.all_reduce(each, async_op=True) for each in tensors]
    doubled = works[0].get_future().then(lambda done: done.value()[0] * 2)
    for work in reversed(works):
        assert work.wait()
        assert work.is_completed()
    for i, each in enumerate(tensors):
        same(each, n * i + n * (n - 1) / 2)
    same(doubled.wait(), n * (n - 1))


@pytest.mark.ranks(2)
def test_a_wait_has_a_deadline(n: int) -> None:
    """On the rank that waits; the collective goes on, and is waited for again."""
    tensor = mine()
    if hvd.rank() == 0:
        work = dist.all_reduce(tensor, async_op=True)
        with pytest.raises(WaitTimeoutError):
            work.wait(timedelta(milliseconds=50))
        wait_for_all()
        work.wait()
    else:
        wait_for_all()
        dist.all_reduce(tensor)
    same(tensor, n * (n + 1) / 2)


@pytest.mark.ranks(2)
def test_a_call_has_a_deadline(n: int) -> None:
    """After a group's or a call's timeout it fails on all ranks that wait, and the late one is named."""
    late, text = hvd.rank() == n - 1, rf"has waited for rank {n - 1}, longer than the timeout of 0.2 s"
    options = dist.AllreduceOptions()
    options.timeout = timedelta(seconds=0.2)
    for call in (
        lambda: dist.group.WORLD.allreduce([mine()], options).wait(),
        lambda: dist.monitored_barrier(timeout=timedelta(seconds=0.2)),
    ):
        if not late:
            with pytest.raises(DeadlineError, match=text):
                call()
        wait_for_all()
    group = dist.new_group(timeout=timedelta(seconds=0.2))
    if not late:
        with pytest.raises(DeadlineError, match=r"'source\..* longer than the timeout of 0.2 s"):
            dist.recv(mine(), group=group)
    wait_for_all()
    with pytest.raises(MissingRanksError, match="wait for each other"):  # the late one has not heard of it
        dist.all_reduce(mine())
    wait_for_all()
    tensor = mine()
    dist.all_reduce(tensor)
    same(tensor, n * (n + 1) / 2)


def test_called_as_methods(n: int) -> None:
    """``group.allreduce(tensor, op)``, with what the options hold as arguments, by place or by name."""
    group: Any = dist.group.WORLD
    tensor, given = mine(), mine()
    group.allreduce(tensor).wait()
    same(tensor, n * (n + 1) / 2)
    group.allreduce([given], op=dist.ReduceOp.MAX, timeout=timedelta(seconds=50)).wait()
    same(given, n)
    group.reduce(given, 0, dist.ReduceOp.SUM).wait()
    same(given, n * n if hvd.rank() == 0 else n)
    group.broadcast(given, root=0).wait()
    same(given, n * n)
    rows = [torch.zeros(2, 3, dtype=torch.float64) for _ in range(n)]
    group.allgather(rows, mine()).wait()
    same(torch.stack(rows)[:, 0, 0], [i + 1.0 for i in range(n)])
    gathered = [torch.zeros_like(row) for row in rows] if hvd.rank() == 0 else []
    group.gather(gathered, mine(), 0).wait()
    assert all(torch.equal(got, row) for got, row in zip(gathered, rows, strict=False))
    group.scatter(tensor, rows if hvd.rank() == 0 else [], 0).wait()
    same(tensor, hvd.rank() + 1)
    group.reduce_scatter(tensor, rows, dist.ReduceOp.SUM).wait()
    same(tensor, n * (hvd.rank() + 1))
    group.barrier(timeout=timedelta(seconds=50)).wait()


def test_events_of_torch_s_profiler(n: int) -> None:
    """Each call is one event, from its begin to its end, with the shapes of what this rank gives."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
        dist.all_reduce(torch.ones(3, 4))
        dist.all_gather([torch.ones(2) for _ in range(n)], torch.ones(2), async_op=True).wait()
        dist.all_gather_into_tensor(torch.ones(5 * n), torch.ones(5))
    events = [each for each in profiler.events() if each.name.startswith("workbench:")]
    assert [(each.name, each.input_shapes, each.is_async) for each in events] == [
        ("workbench:all_reduce", [[3, 4]], True),
        ("workbench:all_gather", [[2]], True),
        ("workbench:all_gather_into_tensor", [[5]], True),
    ]


def test_what_follows_may_wait(n: int) -> None:
    """A callback begins a collective and waits for it, as PowerSGD's hook does."""

    def again(done: Any) -> torch.Tensor:
        return dist.all_reduce(done.value()[0], async_op=True).get_future().wait()[0]

    first = dist.all_reduce(torch.ones(2), async_op=True).get_future()
    same(first.then(again).wait(), float(n * n))


def test_numbers_that_are_negated_where_they_are_read(n: int) -> None:
    """Their memory has others; results are not lost."""
    tensor = torch.tensor([1 + 2j]).conj().imag
    assert tensor.is_neg()
    dist.all_reduce(tensor)
    same(tensor, -2.0 * n)
    other = torch._neg_view(torch.zeros(2) + hvd.rank())
    dist.broadcast(other, n - 1)
    same(other, 1.0 - n)


def test_in_inference_mode(n: int) -> None:
    """Results are copied by another thread, which is in no mode."""
    with torch.inference_mode():
        for _ in range(30):
            wide = torch.ones(2, 3)
            dist.all_reduce(wide[:, 0])
            parts = [torch.zeros(4) for _ in range(n)]
            dist.all_gather(parts, torch.ones(4))
            assert wide[:, 0].tolist() == [n, n]
            assert all(each.tolist() == [1.0] * 4 for each in parts)


# --- messages -----------------------------------------------------------------------------------------


@pytest.mark.ranks(2)
def test_messages(n: int) -> None:
    """Round a ring into another shape, to itself, by tags in another order, from any rank, more than a pipe holds."""
    rank, right, left = hvd.rank(), (hvd.rank() + 1) % n, (hvd.rank() - 1) % n
    got, own = torch.empty(3, 1), torch.empty(1, requires_grad=True)
    sent = torch.full((3,), float(rank))
    ends = [(dist.irecv, own, rank), (dist.isend, sent[0], rank), (dist.isend, sent, right), (dist.irecv, got, left)]
    for work in dist.batch_isend_irecv([dist.P2POp(*end) for end in ends]):
        work.wait()
    same(got, left)
    same(own, rank)
    with pytest.raises(ValueError, match=r"irecv\(\) can never come"):
        dist.isend(own, rank).wait()
    if rank == 0:
        for work in [dist.isend(torch.tensor([float(tag)]), 1, tag=tag) for tag in (1, 2)]:
            work.wait()
    if rank == 1:
        for tag in (2, 1):
            one = torch.empty(1)
            dist.recv(one, 0, tag=tag)
            same(one, tag)
    if rank:
        dist.send(torch.full((1 << 18,), float(rank)), 0, tag=9)
    else:
        big = torch.empty(n - 1, 1 << 18)
        sources = [dist.recv(row, tag=9) for row in big]
        assert sorted(sources) == list(range(1, n))
        for source, row in zip(sources, big, strict=True):
            same(row, source)


@pytest.mark.ranks(2)
def test_messages_come_in_the_order_of_the_receives(n: int) -> None:
    """Also where one asks for any sender, and those behind it name theirs before it is known."""
    found = [torch.zeros(1) for _ in range(4)]
    if hvd.rank() == 0:
        works = [dist.irecv(each, source) for each, source in zip(found, (None, 1, None, 1), strict=True)]
        dist.send(torch.ones(1), 1, tag=5)  # all four wait
        for work in reversed(works):
            work.wait()
        assert [each.item() for each in found] == [1, 2, 3, 4]
        assert [work.source_rank() for work in works] == [1, 1, 1, 1]
    elif hvd.rank() == 1:
        dist.recv(found[0], 0, tag=5)
        for number in range(1, 5):
            dist.send(torch.tensor([float(number)]), 0)


# --- groups -------------------------------------------------------------------------------------------


@pytest.mark.ranks(2)
def test_groups(n: int) -> None:
    """Of some ranks, several of the same ranks, made and destroyed in a loop; others are not asked."""
    for _ in range(20):
        some = dist.new_group(range(n - 1))
        if hvd.rank() < n - 1:
            tensor = mine()
            dist.all_reduce(tensor, group=some)
            same(tensor, (n - 1) * n / 2)
            dist.destroy_process_group(some)
    one, other = dist.new_group([0, n - 1]), dist.new_group([0, n - 1])
    if hvd.rank() in (0, n - 1):
        first, second = mine(), mine()
        works = [dist.all_reduce(first, group=one, async_op=True), dist.all_reduce(second, group=other, async_op=True)]
        for work in works[:: 1 if hvd.rank() else -1]:
            work.wait()
        same(first, n + 1)
        same(second, n + 1)


# --- torch's own trainings ----------------------------------------------------------------------------


def model() -> nn.Module:
    """The same on each rank, in float64."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 4)).double()


def train(module: nn.Module, x: torch.Tensor, steps: int = 4) -> None:
    """Some steps of SGD with momentum."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        module(x).square().mean().backward()
        optimizer.step()


def whole(parameter: torch.Tensor) -> torch.Tensor:
    """A parameter, put together from its shards."""
    full = getattr(parameter, "full_tensor", None)
    return full() if full else parameter


def assert_equal(module: nn.Module, serial: nn.Module) -> None:
    """Up to the rounding of another order of sums."""
    for found, wanted in zip(module.parameters(), serial.parameters(), strict=True):
        torch.testing.assert_close(whole(found).detach(), wanted.detach(), rtol=0, atol=1e-12)


def test_trains_as_one_process(n: int) -> None:
    """DDP and fully_shard on a part of the batch each, tensor parallel on all of it."""
    torch.manual_seed(2)
    x = torch.randn(4 * n, 8, dtype=torch.float64)
    serial, start = model(), model()
    train(serial, x)
    replicated = nn.parallel.DistributedDataParallel(copy.deepcopy(start))
    train(replicated, x[hvd.rank() :: n])
    assert_equal(replicated.module, serial)
    sharded = copy.deepcopy(start)
    for layer in (sharded[0], sharded[2], sharded):
        fully_shard(layer)
    train(sharded, x[hvd.rank() :: n])
    assert_equal(sharded, serial)
    cut = copy.deepcopy(start)
    parallelize_module(cut, init_device_mesh("cpu", (n,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})
    train(cut, x)
    assert_equal(cut, serial)
    state = hvd.elastic.TorchState(sharded, torch.optim.SGD(sharded.parameters(), lr=0.1))
    with pytest.raises(ValueError, match=r"parameters are DTensors.*Train with DDP, or without exact=True"):
        hvd.elastic.run(exact=True)(lambda _: None)(state)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("views", [False, True])
def test_buckets_of_ddp_are_reduced_where_they_lie(views: bool, n: int) -> None:
    """They are in memory that all ranks reach, from the first step on and as long as the model lives."""
    shared: Any = HOLDER.get().sets.everybody.shared
    if not any(shared.addresses):
        pytest.skip("no shared memory here")
    torch.manual_seed(2)
    x = torch.randn(4 * n, 300, dtype=torch.float64)
    serial = nn.Sequential(nn.Linear(300, 300), nn.Tanh(), nn.Linear(300, 2)).double()
    replicated = nn.parallel.DistributedDataParallel(copy.deepcopy(serial), gradient_as_bucket_view=views)
    train(serial, x)
    train(replicated, x[hvd.rank() :: n])
    assert_equal(replicated.module, serial)
    lent = shared._node.own._lends
    gradients = sum(each.nbytes for each in serial.parameters())
    assert any(each.lives() and each.nbytes == gradients for each in lent.values())
    del replicated
    gc.collect()
    while any(each.lives() for each in lent.values()):  # a thread may have the last of them for a tenth of a second
        time.sleep(0.01)


@pytest.mark.ranks(2)
def test_shards_in_a_fingerprint(n: int) -> None:
    """Ranks with unlike shards of one tensor agree; one that has another value of the same shard does not."""
    tensor = torch.arange(4.0 * n).reshape(2 * n, 2)
    cut = distribute_tensor(tensor, init_device_mesh("cpu", (n,)), [Shard(0)])
    twice = distribute_tensor(tensor, init_device_mesh("cpu", (n, 1)), [Replicate(), Shard(1)])
    assert not torch.equal(cut.to_local(), tensor[: 2 * n])
    assert fingerprint({"cut": cut, "twice": twice})
    assert describe(cut)[1:] == (f"({2 * n}, 2)", "float32", f"{cut.to_local().tolist()}, shard {hvd.rank()}")
    twice.to_local().add_(hvd.rank() == n - 1)
    found = fingerprint({"cut": cut, "twice": twice})
    assert (found.agree, found.first, found.largest) == (False, "twice", (0.0,) * (n - 1) + (1.0,))
    some = distribute_tensor(tensor, DeviceMesh("cpu", [0]), [Replicate()])
    assert fingerprint({"some": some}), "a rank that is not in its mesh has nothing to differ in"


def test_compiled(n: int) -> None:
    """torch.compile keeps what DDP does, and equals the serial model; it sees nothing of our Python."""
    x = torch.randn(4 * n, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    serial = model()
    replicated = nn.parallel.DistributedDataParallel(copy.deepcopy(serial))
    train(serial, x)
    train(torch.compile(replicated, backend="eager"), x[hvd.rank() :: n])  # type: ignore[arg-type]
    assert_equal(replicated.module, serial)


@pytest.mark.ranks(2)
def test_buckets_leave_room_in_shared_memory(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where /dev/shm is small, as in a container, a DataLoader's workers have it for themselves."""
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1 << 20))
    replicated = nn.parallel.DistributedDataParallel(nn.Linear(600, 600))
    replicated(torch.ones(1, 600)).sum().backward()
    shared: Any = HOLDER.get().sets.everybody.shared
    own = getattr(getattr(shared, "_node", None), "own", None)
    assert not own or all(each.nbytes < 600 * 600 * 4 for each in own._lends.values() if each.lives())


# --- what goes wrong ----------------------------------------------------------------------------------


def test_tensors_that_are_not_on_the_cpu(n: int) -> None:
    """They are refused before anything is sent, with what to do."""
    for call in (
        lambda: dist.all_reduce(torch.ones(2, device="meta")),
        lambda: dist.all_gather([torch.ones(2, device="meta") for _ in range(n)], torch.ones(2)),
        lambda: dist.recv(torch.ones(2, device="meta"), 0 if hvd.rank() else n - 1),
    ):
        with pytest.raises(UnsupportedTensorError, match=r"is on meta, .* takes those on the CPU"):
            call()
    tensor = mine()
    dist.all_reduce(tensor)
    same(tensor, n * (n + 1) / 2)


@pytest.mark.ranks(2)
def test_groups_have_names(n: int) -> None:
    """Errors show a group's description: that of a mesh's dimension "tp" is "mesh_tp"."""
    with pytest.raises(MismatchError, match=r"in 'allreduce\.\d+:mesh_tp\."):
        dist.all_reduce(torch.ones(2 + hvd.rank()), group=dist.new_group(group_desc="mesh_tp"))
    wait_for_all()


@pytest.mark.ranks(2)
def test_ranks_that_disagree(n: int) -> None:
    """Another shape, another verb at the same place: all are told, and the next call is right."""
    odd = hvd.rank() == n - 1
    ends = dist.new_group([0, n - 1], group_desc="ends")
    with pytest.raises(MismatchError, match=r"Mismatched allreduce tensor shapes"):
        dist.all_reduce(torch.ones(2 + odd))
    if hvd.rank() in (0, n - 1):
        with pytest.raises(MismatchError, match=r"in 'allreduce\.\d+:ends\."):
            dist.all_reduce(torch.ones(2 + odd), group=ends)
    with pytest.raises(MismatchError, match=r"One rank did an allreduce, but another rank did an? broadcast"):
        dist.broadcast(torch.ones(2), 0) if odd else dist.all_reduce(torch.ones(2))
    tensor = mine()
    dist.all_reduce(tensor)
    same(tensor, n * (n + 1) / 2)


def test_sizes_that_do_not_fit(n: int) -> None:
    """They are refused before anything is sent, and so are dtypes that would be converted."""
    for call in (
        lambda: dist.all_gather_into_tensor(torch.zeros(3 * n), torch.ones(2)),
        lambda: dist.all_gather([torch.zeros(3) for _ in range(n)], torch.ones(2)),
        lambda: dist.reduce_scatter_tensor(torch.zeros(1, dtype=torch.int32), torch.ones(n)),
        lambda: dist.all_to_all_single(torch.zeros(n + 1), torch.ones(n)),
    ):
        with pytest.raises(ValueError, match=r"do not make|divide|split|expects"):
            call()
    test_sums(torch.float32, n)


@pytest.mark.ranks(2)
def test_ranks_that_expect_other_sizes(n: int) -> None:
    """What comes is not what was asked for: an error, where it would stand at a neighbour's place."""
    wrong = [torch.zeros(3) for _ in range(n)] if hvd.rank() == 0 else None
    if hvd.rank() == 0:
        with pytest.raises(ValueError, match=r"rank 0: sent 2, and 3 expected\n"):
            dist.gather(torch.zeros(2), wrong)
    else:
        dist.gather(torch.zeros(4 if hvd.rank() == 1 else 3), None)
    with pytest.raises(MissingRanksError, match="wait for each other"):
        dist.all_reduce(torch.ones(2, dtype=torch.int64), dist.ReduceOp.BOR if hvd.rank() else dist.ReduceOp.BXOR)


@pytest.mark.ranks(2)
def test_ranks_that_name_other_roots(n: int) -> None:
    """Each learns which: where one rank alone has a result, the others would go on without a word."""
    root, x = int(hvd.rank() > 0), torch.ones(2)
    lists = [torch.ones(2) for _ in range(n)] if hvd.rank() < 2 else None
    for call in (
        lambda: dist.reduce(x, root),
        lambda: dist.gather(x, lists, root),
        lambda: dist.scatter(x, lists, root),
    ):
        with pytest.raises(MissingRanksError, match=rf"\.(to|from){1 - root}' in test_torch_distributed.py"):
            call()


@pytest.mark.ranks(2)
def test_a_circle_of_messages(n: int) -> None:
    """Each sends first, and none receives: the text has every rank's line."""
    if hvd.rank() > 1:  # a barrier with these two never ends either
        with pytest.raises(MissingRanksError):
            dist.barrier()
        return
    with pytest.raises(MissingRanksError, match=r"rank 1: .*test_torch_distributed.py, line \d+: dist.send") as caught:
        dist.send(torch.ones(2), 1 - hvd.rank(), tag=5)
    assert "rank 0:" in str(caught.value)
