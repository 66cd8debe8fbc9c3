"""``workbench run --watch``: torch's own groups, over Gloo or NCCL, and an engine that is told of each call.

The transport stays as it is. Each call is announced to our engine, without data, and goes on to torch's group. So
rank 0 says what can never be complete in the same words as for the workbench's own groups. In a training that repeats
itself nobody waits for its answers, and calls are told together, or when one of them takes long.

A call on a CPU ends when torch's does, or with the engine's error, in the script's own line. Where the main thread
waits in C++, in DDP or for a GPU, no exception reaches it: the process ends, with the error's text.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch._C._distributed_c10d as raw
import torch.distributed as dist

from workbench.core.handle import Handle
from workbench.core.messages import Kind, ReduceOp, Request
from workbench.core.pending import Entry
from workbench.core.verbs import MESSAGE, verb
from workbench.job import api
from workbench.job.context import HOLDER
from workbench.job.entries import KnownRequests
from workbench.runtime.events import Overdue
from workbench.torch.distributed.buckets import called_by_ddp
from workbench.torch.distributed.calls import opaque, with_options
from workbench.torch.distributed.group import ProcessGroup
from workbench.torch.distributed.joining import place
from workbench.torch.distributed.reductions import reduction
from workbench.torch.distributed.verdict import Call, Watch, WatchedWork
from workbench.torch.distributed.works import WaitsOfTorch
from workbench.torch.tensors import dtype_name

Tensor = torch.Tensor
c10d: Any = dist.distributed_c10d


def _calls(
    method: str, kind: Kind, tensors: int = 1, what: str = "", options: type | None = None, fields: tuple[str, ...] = ()
) -> Callable[..., Any]:
    """A method of torch's groups, announced as ``kind``, with its name if that is not the verb's; as ``call()``."""

    @opaque
    def call(self: Watched, *args: Any, **named: Any) -> Any:
        if options:
            args = with_options(args, named, options, fields, tensors)
        given = args[tensors - 1]
        return self._watch(kind, given if isinstance(given, list) else [given], args, method, what)

    return call


class Watched(ProcessGroup):
    """One of torch's groups, ``inner``, of whose calls the engine is told."""

    def __init__(self, inner: Any, *args: Any) -> None:
        super().__init__(*args)
        self._inner, self._set, self._watching = inner, self._members.process_set_id or 0, HOLDER.get().part(Watch)
        self._known, self._sent = KnownRequests(), set[Any]()  # requests of calls; messages of which there was one

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return str(self._inner.name())

    @property
    def _device_types(self) -> list[torch.device]:
        return list(self._inner._device_types)

    def _get_backend(self, device: torch.device) -> Any:
        return self._inner._get_backend(device)

    def set_timeout(self, timeout: timedelta) -> None:
        super().set_timeout(timeout)
        self._inner.set_timeout(timeout)

    def shutdown(self) -> None:
        self._watching.announce()
        self._inner.shutdown()
        self._leave()

    abort = shutdown  # what Gloo has begun goes on until it ends by itself, or the process

    allreduce = _calls("allreduce", Kind.ALLREDUCE, 1, "", raw.AllreduceOptions, ("reduceOp",))
    allreduce_coalesced = _calls("allreduce_coalesced", Kind.ALLREDUCE)
    reduce = _calls("reduce", Kind.ALLREDUCE, 1, ".reduce", raw.ReduceOptions, ("rootRank", "reduceOp"))
    broadcast = _calls("broadcast", Kind.BROADCAST, 1, "", raw.BroadcastOptions, ("rootRank",))
    scatter = _calls("scatter", Kind.BROADCAST, 1, ".scatter")  # of the outputs, which each rank has
    gather = _calls("gather", Kind.BROADCAST, 2, ".gather", raw.GatherOptions, ("rootRank",))
    allgather = _calls("allgather", Kind.ALLGATHER, 2, "", raw.AllgatherOptions)
    allgather_coalesced = _calls("allgather_coalesced", Kind.ALLGATHER, 2)
    all_gather_single = _allgather_base = _calls("_allgather_base", Kind.ALLGATHER, 2)
    allgather_into_tensor_coalesced = _calls("allgather_into_tensor_coalesced", Kind.ALLGATHER, 2)
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter = _calls("reduce_scatter", Kind.REDUCESCATTER, 2, "", raw.ReduceScatterOptions, ("reduceOp",))
    reduce_scatter_single = _reduce_scatter_base = _calls("_reduce_scatter_base", Kind.REDUCESCATTER, 2)
    reduce_scatter_tensor_coalesced = _calls("reduce_scatter_tensor_coalesced", Kind.REDUCESCATTER, 2)
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base = _calls("alltoall_base", Kind.ALLTOALL, 2)

    @opaque
    def alltoall(self, *args: Any) -> Any:
        return self._watch(Kind.ALLTOALL, [args[1]], args, "alltoall")

    @opaque
    def barrier(self, opts: Any = None) -> Any:
        return self._watch(Kind.BARRIER, [[]], [opts] if opts else [], "barrier")

    @opaque
    def send(self, tensors: list[Tensor], dest: int, tag: int) -> Any:
        sent = self._message_request(tensors[0], self._mine, dest, tag)
        return self._call([sent], lambda: self._inner.send(tensors, dest, tag), tensors)

    @opaque
    def recv(self, tensors: list[Tensor], source: int, tag: int) -> Any:
        asked = self._message_request(tensors[0], source, self._mine, tag)
        return self._call([asked], lambda: self._inner.recv(tensors, source, tag), tensors, source)

    @opaque
    def recv_anysource(self, tensors: list[Tensor], tag: int) -> Any:
        """A question to rank 0, who sends it, whose answer comes from torch; then rank 0 is told of the message."""
        name, inner = f"source.{self._message_name(-1, self._mine, tag)}", self._inner.recv_anysource(tensors, tag)
        how: dict[str, Any] = {"splits": (self._label, tag), "process_set": self._set, "absent": True}
        asked = Request(name, Kind.SOURCE, ranks=(self._ranks[self._mine],), **how)

        def received() -> None:
            request = self._message_request(tensors[0], inner.source_rank(), self._mine, tag)
            api.submit([Entry(request, None, None, Handle(request.name))])
            HOLDER.get().engine.report(Overdue(api.rank(), self._set, name, 0.0))  # if it has not answered

        work = self._call([asked], lambda: inner, tensors, then=received)
        work.source_rank = work._source_rank = inner.source_rank
        return work

    def _watch(self, kind: Kind, given: Sequence[Any], args: Sequence[Any], method: str, what: str = "") -> Any:
        requests = [self._request(kind, each, args, what) for each in given]
        result = args[0] if args and isinstance(args[0], list) else [*args[:1]]
        return self._call(requests, partial(getattr(self._inner, method), *args), result)

    def _call(
        self, requests: list[Request], begin: Callable[[], Any], result: Any, source: int = -1, then: Any = None
    ) -> Any:
        """Announce a call, and ``begin`` torch's; ``then`` is called when it is over. The rest is the work's."""
        call = Call(self._watching, self._name, requests)
        call.then = then
        message = verb(requests[0].kind) is MESSAGE
        alone = message or then is not None  # not of the group's round
        known = self._numbers.repeats and not alone
        self._watching.begins(call, known)
        if message:
            known = (
                about := (requests[0].ranks, requests[0].dtype, requests[0].shape, requests[0].splits)
            ) in self._sent
            self._sent.add(about)
        if not (known or then):
            self._watching.agree(call)
        inner = begin()
        if inner is None or not _on_cpu(result):  # None: of several calls, which torch begins together later
            call.work = inner and weakref.ref(inner)
            call.end.finish()
            return inner
        if known and not message and called_by_ddp():
            call.work = lambda: inner
            HOLDER.get().part(WaitsOfTorch).add(call, call.stack)
            return inner
        call.work = weakref.ref(inner)
        work = WatchedWork(inner, call, result, source)
        if alone:  # Gloo breaks a connection where a message is waited for in vain
            call.listen()
        return work

    def _request(self, kind: Kind, given: Any, args: Sequence[Any], what: str) -> Request:
        """What the ranks must agree in: of a tensor, or of a list that stands for one; of a barrier, an empty one."""
        parts, one, opts = given if isinstance(given, list) else [given], verb(kind), (args or [None])[-1]
        op: Any = getattr(opts, "reduceOp", dist.ReduceOp.SUM) if one.reduces else None
        root = self._ranks[opts.rootRank] if one.rooted else -1
        # What may differ between ranks must not decide about their numbers.
        forms = tuple([(part.dtype, () if one.splits else part.shape) for part in parts])
        call, sizes = (kind, what, root, op and op.op, forms), _sizes(args, len(self._ranks)) if one.splits else ()
        number = self._numbers.next(call)
        if (request := self._known.get((number, call, sizes))) is None:
            fields: dict[str, Any] = {"root": root, "process_set": self._set, "absent": True, "splits": sizes}
            if op is not None:
                how = reduction(op, parts[0].dtype)
                fields["op"], what = how.op or ReduceOp.SUM, what + how.name
            if parts:
                count = sum(part.numel() for part in parts)
                flat = (1, count) if kind is Kind.ALLGATHER else (count,)
                as_it_is = one.rooted or kind is Kind.ALLREDUCE
                fields |= {"dtype": dtype_name(parts[0]), "shape": tuple(parts[0].shape) if as_it_is else flat}
            request = Request(f"{kind.value}.{self._title}.{number}{what}", kind, **fields)
            self._known.remember((number, call, sizes), request)
        return request

    def _message_request(self, tensor: Tensor, source: int, dest: int, tag: int) -> Request:
        pair = self._ranks[source], self._ranks[dest]
        about: dict[str, Any] = {"dtype": dtype_name(tensor), "shape": (tensor.numel(),), "splits": (self._label, tag)}
        name = f"send.{self._message_name(source, dest, tag)}"
        return Request(name, Kind.SEND, process_set=self._set, root=pair[0], ranks=pair, absent=True, **about)


def _sizes(args: Sequence[Any], n: int) -> tuple[int, ...]:
    """Of an alltoall, how many numbers go to each rank, and how many are to come from each."""
    if isinstance(args[1], list):
        return tuple(each.numel() for each in (*args[1], *args[0]))
    found = []
    for tensor, rows in ((args[1], args[3]), (args[0], args[2])):
        width = tensor.numel() // max(1, tensor.shape[0])
        found += [each * width for each in rows] or [tensor.numel() // n] * n
    return tuple(found)


def _on_cpu(result: Any) -> bool:
    while isinstance(result, list) and result:
        result = result[0]
    device = result if isinstance(result, torch.device) else getattr(result, "device", None)
    return device is None or torch.device(device).type == "cpu"


def meet(asked: Any) -> Any:
    """Have a group's ranks meet before torch does, which waits for half an hour; None for who has no part in it."""
    ranks, tag = asked.global_ranks_in_group, getattr(asked, "pg_tag", None)
    if ranks and (dist.get_rank() not in ranks or (tag and c10d._find_pg_by_ranks_and_tag(tag, ranks))):
        return None
    placed = place(asked)
    watching, name = HOLDER.get().part(Watch), f"barrier.new_group.{asked.group_name}"
    call = Call(watching, asked.group_name, [Request(name, Kind.BARRIER, process_set=placed[0].process_set_id or 0)])
    watching.begins(call, known=False)
    watching.agree(call, None)
    call.end.finish()
    return placed


def watch(inner: Any, asked: Any, placed: Any) -> Any:
    """Put a watched group into torch's tables, in the place of the one that it has made of what it was ``asked``."""
    name, world = asked.group_name, c10d._world
    watched = Watched(inner, name, *placed)
    watched._set_group_name(name)
    watched._set_group_desc(inner.group_desc)
    for device, backend in c10d.BackendConfig(c10d.Backend(asked.backend)).get_device_backend_map().items():
        kind = c10d.Backend.backend_type_map.get(backend, c10d.ProcessGroup.BackendType.CUSTOM)
        watched._set_default_backend(kind)
        watched._register_backend(torch.device(device), kind, inner._get_backend(torch.device(device)))
    for table in (world.pg_map, world.pg_names, world.pg_backend_config, world.pg_to_tag):
        table[watched] = table.pop(inner)
    for groups in world.tags_to_pg.values():
        groups[:] = [watched if each is inner else each for each in groups]
    c10d._unregister_process_group(name)
    c10d._register_process_group(name, watched)
    return watched
