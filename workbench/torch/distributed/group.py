"""A process group of torch.distributed whose collectives are the workbench's.

Each call becomes one entry of the engine for each tensor, see :func:`workbench.job.api.entry`, and a
:class:`~workbench.torch.distributed.works.Work`. Tensors without gaps are read and written where they are.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable, Sequence
from datetime import timedelta
from functools import cached_property, partial
from math import prod
from typing import Any
from weakref import WeakValueDictionary
from zlib import crc32

import numpy as np
import torch
import torch._C._distributed_c10d as c10d
import torch.distributed as dist

from workbench.common.text import by_rank
from workbench.core.handle import Handle
from workbench.core.messages import Kind
from workbench.core.verbs import verb
from workbench.errors import DeadlineError
from workbench.job import api
from workbench.job.context import HOLDER
from workbench.job.process_sets import ProcessSet
from workbench.torch.distributed.buckets import called_by_ddp, share
from workbench.torch.distributed.call_numbers import CallNumbers
from workbench.torch.distributed.calls import call, for_the_cpu
from workbench.torch.distributed.reductions import reduction
from workbench.torch.distributed.works import FromAnySource, OwnMessage, Work
from workbench.torch.tensors import dtype_name, tensor_of, view

Tensor = torch.Tensor
Ends = list[Callable[[], object]]
"""What is still to be done when all collectives of a call have ended."""

_Base: Any = dist.ProcessGroup  # its types are for those who call a group, with further forms of each call


class ProcessGroup(_Base):  # type: ignore[misc]
    """See ``torch.distributed.ProcessGroup``.

    Args:
        name: torch's, the same on all its ranks.
        members: the ranks, as a process set of the running job.
        timeout: deadline of a collective, where its caller names none.
        leave: called by :meth:`shutdown`.

    Attributes:
        others: torch's groups of the same ranks, by the kind of device whose tensors they take.
    """

    def __init__(
        self, name: str, members: ProcessSet, timeout: timedelta, leave: Callable[[], None] = lambda: None
    ) -> None:
        self._name, self._members, self._timeout, self._leave = name, members, timeout, leave
        self._ranks = members.ranks or []
        self._mine = self._ranks.index(api.rank())
        super().__init__(self._mine, len(self._ranks))
        self.others: dict[str, dist.ProcessGroup] = {}
        self._since, self._numbers = "", CallNumbers()
        self._label = int(name) if name.isdecimal() else crc32(name.encode())  # of messages; a mesh's groups have names
        self._messages = Counter[tuple[int, int, int]]()  # so many by (source, dest, tag)
        self._from_any = WeakValueDictionary[int, FromAnySource]()  # by tag, the last
        self._own = defaultdict[int, deque[OwnMessage]](deque)  # halves of messages to itself, by tag

    def rank(self) -> int:
        return self._mine

    def size(self) -> int:
        return len(self._ranks)

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return "workbench"

    @property
    def group_name(self) -> str:
        return self._name

    @cached_property
    def _title(self) -> str:
        """In names of calls: the group's number, and what users call it, such as a dimension of a mesh."""
        named = self.group_desc not in ("default_pg", "undefined")
        return f"{self._name}:{self.group_desc}" if named else self._name

    @property
    def _device_types(self) -> list[torch.device]:  # torch.distributed.checkpoint looks for a CPU
        return [torch.device(kind) for kind in ("cpu", *self.others)]

    def _get_backend(self, device: torch.device) -> Any:
        other: Any = self.others.get(torch.device(device).type)
        return self if other is None else other._get_backend(device)

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    def shutdown(self) -> None:
        self._leave()

    abort = shutdown

    # --- one tensor -----------------------------------------------------------------------------------

    def _begin(
        self,
        kind: Kind,
        tensor: Tensor,
        opts: Any,
        into: Tensor | None = None,
        deliver: Callable[[Any], None] | None = None,
        what: str = "",
        **fields: Any,
    ) -> Handle:
        """Submit one tensor.

        Args:
            kind, tensor: the verb, and what this rank gives, see :func:`_dense`.
            opts: torch's; they say whether the call waits.
            into: where the result goes, without gaps; None: into new memory, for ``deliver``.
            deliver: gets the result, see :meth:`_came`.
            what: a part of the name, where the request does not say all in which ranks must agree.
            fields: of the request.
        """
        source = view(tensor)
        target = source if into is tensor else None if into is None else view(into)
        # What may differ between ranks, such as the splits, must not decide about their numbers.
        shape = tensor.shape[1:] if verb(kind).ragged else tensor.shape
        entry = api.entry(
            kind,
            source,
            self._next_name((kind, tensor.dtype, shape, what, fields.get("op"), fields.get("root"))) + what,
            target=target,
            convert=deliver or (lambda found: None),
            process_set=self._members,
            dtype=dtype_name(tensor),
            **fields,
        )
        return api.submit_when_free([entry], opts is not None and not opts.asyncOp)[0]

    def _came(self, expected: Sequence[int], found: tuple[Any, Any]) -> None:
        """An alltoall's result, and how many rows each rank has sent: raise where they are not as expected."""
        if (sent := found[1].tolist()) != list(expected):
            pairs = zip(self._ranks, sent, expected, strict=True)
            told = by_rank({rank: f"sent {n}, and {m} expected" for rank, n, m in pairs})
            lines = [f"Rank {api.rank()} was sent other sizes than it expects:", *told]
            raise ValueError("\n".join([*lines, "Give tensors and splits that fit each other on all ranks."]))

    def _next_name(self, call: Hashable) -> str:
        since = self._count()
        return f"{self._title}.{since}{self._numbers.next(call)}"

    def _count(self) -> str:
        """All ranks count anew after a failure."""
        since = HOLDER.get().names.since(self._members.process_set_id or 0)
        if since != self._since:
            self._since, self._numbers = since, CallNumbers()
            self._messages.clear()
            self._own.clear()
        return since

    def _work(self, handles: list[Handle], result: Any, ends: Ends, opts: Any) -> Work:
        limit = getattr(opts, "timeout", None)
        limit = limit if limit is not None and limit > timedelta(0) else self._timeout
        return Work(handles, result, _together(ends), limit)

    # --- each rank has all results --------------------------------------------------------------------

    @call("all_reduce", c10d.AllreduceOptions, ("reduceOp",))
    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> Work:
        handles, ends = list[Handle](), Ends()
        by_ddp = called_by_ddp()
        for tensor in tensors:
            if by_ddp:
                share(tensor)
            self._allreduce(tensor, tensor, opts, handles, ends)
        work = self._work(handles, tensors, ends, opts)
        work.followed = not by_ddp
        return work

    @for_the_cpu(1)
    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> Work:
        return self.allreduce(tensors, opts)

    def _allreduce(
        self, tensor: Tensor, into: Tensor | None, opts: Any, handles: list[Handle], ends: Ends, what: str = ""
    ) -> None:
        """Reduce ``tensor`` into ``into``; None: this rank does not want the result."""
        if tensor.is_sparse:
            return self._allreduce_sparse(tensor, into, opts, handles, ends)
        how = reduction(opts.reduceOp if opts else dist.ReduceOp.SUM, tensor.dtype)
        dense = _dense(tensor) if into is tensor else _copy(tensor)
        if how.op is None:
            rows = dense.new_empty((self.size(), dense.numel()))
            handle = self._begin(Kind.ALLGATHER, dense.view(1, -1), opts, rows, what=what + how.name)
            ends.append(lambda: dense.view(-1).copy_(how.of_rows(rows)))
        else:
            if how.factor is not None:
                dense.mul_(how.factor)
            numbers = torch.view_as_real(dense) if dense.is_complex() else dense
            handle = self._begin(Kind.ALLREDUCE, numbers, opts, numbers, what=what + how.name, op=how.op)
        handles.append(handle)
        if into is not None and dense is not into:
            ends.append(partial(into.copy_, dense))

    def _allreduce_sparse(
        self, tensor: Tensor, into: Tensor | None, opts: Any, handles: list[Handle], ends: Ends
    ) -> None:
        """Gather the places and the values of all ranks; what has one place adds up."""
        how = reduction(opts.reduceOp if opts else dist.ReduceOp.SUM, tensor.dtype)
        if how.name or how.op not in (api.Sum, api.Average):
            raise ValueError("Of sparse tensors there are SUM and AVG alone. Call to_dense() first.")
        mine, found = tensor.coalesce(), dict[str, Tensor]()

        def keep(what: str, like: Tensor, rows: Any) -> None:
            found[what] = tensor_of(rows, like)

        def add_up(into: Tensor) -> None:
            places = found["places"].t().contiguous()
            whole = torch.sparse_coo_tensor(places, found["values"], tensor.shape, check_invariants=True).coalesce()
            into.copy_(whole / self.size() if how.op is api.Average else whole)

        for what, part in (("places", _dense(mine.indices().t())), ("values", _dense(mine.values()))):
            handles.append(self._begin(Kind.ALLGATHER, part, opts, deliver=partial(keep, what, part)))
        ends += [] if into is None else [partial(add_up, into)]

    @call("broadcast", c10d.BroadcastOptions, ("rootRank",))
    def broadcast(self, tensors: list[Tensor], opts: Any) -> Work:
        handles, ends = list[Handle](), Ends()
        for tensor in tensors:
            dense = _dense(tensor)
            handles.append(self._begin(Kind.BROADCAST, dense, opts, dense, root=self._ranks[opts.rootRank]))
            ends += [] if dense is tensor else [partial(tensor.copy_, dense)]
        return self._work(handles, tensors, ends, opts)

    @for_the_cpu(2)
    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Work:
        return self.all_gather_single_coalesced([output], [tensor], opts)

    _allgather_base = all_gather_single

    @call("all_gather_into_tensor", tensors=2)
    def all_gather_single_coalesced(self, outputs: list[Tensor], tensors: list[Tensor], opts: Any = None) -> Work:
        handles, ends = list[Handle](), Ends()
        for output, tensor in zip(outputs, tensors, strict=True):
            _check(output, self.size(), [tensor], "all_gather_single")
            dense = _dense(output)
            rows = dense.view(self.size(), -1)
            handles.append(self._begin(Kind.ALLGATHER, _dense(tensor).view(1, -1), opts, rows))
            ends += [] if dense is output else [partial(output.copy_, dense)]
        return self._work(handles, outputs, ends, opts)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    @call("all_gather", c10d.AllgatherOptions, tensors=2)
    def allgather(self, outputs: list[list[Tensor]], tensors: list[Tensor], opts: Any = None) -> Work:
        handles, ends = list[Handle](), Ends()
        for theirs, tensor in zip(outputs, tensors, strict=True):
            rows = tensor.new_empty((self.size(), tensor.numel()))
            _check(rows, self.size(), theirs, "all_gather")
            handles.append(self._begin(Kind.ALLGATHER, _dense(tensor).view(1, -1), opts, rows))
            ends += [partial(out.copy_, row.view(out.shape)) for out, row in zip(theirs, rows, strict=True)]
        return self._work(handles, outputs, ends, opts)

    @for_the_cpu(2)
    def allgather_coalesced(self, outputs: list[list[Tensor]], tensors: list[Tensor], opts: Any = None) -> Work:
        """As :meth:`allgather`, with one list for each rank in place of one for each tensor."""
        return self.allgather([[theirs[i] for theirs in outputs] for i in range(len(tensors))], tensors, opts)

    @call("barrier", c10d.BarrierOptions, tensors=0)
    def barrier(self, opts: Any = None) -> Work:
        entry = api.entry(Kind.BARRIER, None, self._next_name(Kind.BARRIER), process_set=self._members)
        return self._work(api.submit_when_free([entry], opts is None or not opts.asyncOp), [], [], opts)

    def monitored_barrier(self, timeout: timedelta | float | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier with a deadline; the error names all ranks that have not come."""
        options = c10d.BarrierOptions()
        if timeout is not None:
            limit = timedelta(seconds=timeout) if isinstance(timeout, (int, float)) else timeout
            options.timeout = max(limit, timedelta(milliseconds=1))
        try:
            self.barrier(options).wait()
        except DeadlineError as error:
            raise DeadlineError(f"Rank {self._mine} timed out in monitoredBarrier: {error}") from None

    # --- some ranks have them -------------------------------------------------------------------------

    @call("reduce", c10d.ReduceOptions, ("rootRank", "reduceOp"))
    def reduce(self, tensors: list[Tensor], opts: Any) -> Work:
        """An allreduce of which the root alone keeps the result: the others' tensors stay as they are."""
        handles, ends = list[Handle](), Ends()
        root = opts.rootRank
        for tensor in tensors:
            into = tensor if root == self._mine else None
            given = tensor if tensor.is_sparse else _copy(tensor)
            self._allreduce(given, into, opts, handles, ends, f".reduce.to{root}")
        return self._work(handles, tensors, ends, opts)

    @for_the_cpu(2)
    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Work:
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    _reduce_scatter_base = reduce_scatter_single

    @call("reduce_scatter_tensor", tensors=2)
    def reduce_scatter_single_coalesced(self, outputs: list[Tensor], tensors: list[Tensor], opts: Any = None) -> Work:
        handles, ends = list[Handle](), Ends()
        for output, tensor in zip(outputs, tensors, strict=True):
            _check(tensor, self.size(), [output], "reduce_scatter_single")
            rows = _dense(tensor).view(self.size(), -1)
            self._reduce_scatter(output, rows, [output.numel()] * self.size(), opts, handles, ends)
        return self._work(handles, outputs, ends, opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    @call("reduce_scatter", c10d.ReduceScatterOptions, ("reduceOp",), tensors=2)
    def reduce_scatter(self, outputs: list[Tensor], tensors: list[list[Tensor]], opts: Any = None) -> Work:
        handles, ends = list[Handle](), Ends()
        for output, parts in zip(outputs, tensors, strict=True):
            _check(parts[self._mine], 1, [output], "reduce_scatter")
            whole = torch.cat([part.reshape(-1) for part in parts])
            self._reduce_scatter(output, whole, [part.numel() for part in parts], opts, handles, ends)
        return self._work(handles, outputs, ends, opts)

    def _reduce_scatter(
        self, output: Tensor, whole: Tensor, lengths: list[int], opts: Any, handles: list[Handle], ends: Ends
    ) -> None:
        how = reduction(opts.reduceOp if opts else dist.ReduceOp.SUM, whole.dtype)
        if how.op is None or how.factor is not None or whole.is_complex() or len(set(lengths)) > 1:
            together = _copy(whole)
            self._allreduce(together, together, opts, handles, ends)
            ends.append(partial(output.copy_, together.view(-1).split(lengths)[self._mine].view(output.shape)))
            return
        rows = whole.view(self.size(), -1)
        mine = _dense(output)
        handles.append(self._begin(Kind.REDUCESCATTER, rows, opts, mine.view(1, -1), op=how.op))
        ends += [] if mine is output else [partial(output.copy_, mine)]

    @call("all_to_all_single", tensors=2)
    def all_to_all_single(
        self, output: Tensor, tensor: Tensor, output_splits: list[int], input_splits: list[int], opts: Any = None
    ) -> Work:
        n = self.size()
        splits = tuple(input_splits) or (len(tensor) // n,) * n
        expected = tuple(output_splits) or (len(output) // n,) * n
        shape = (sum(expected), *tensor.shape[1:])
        if output.dtype != tensor.dtype or shape[0] != len(output) or output.numel() != prod(shape):
            raise ValueError(
                f"all_to_all_single: {list(expected)} rows of {list(shape[1:])} and {tensor.dtype} do not make "
                f"{list(output.shape)} of {output.dtype}. Give splits that fit, or as many rows as {n} ranks divide."
            )
        given, dense, came = _dense(tensor), _dense(output), partial(self._came, expected)
        if np.may_share_memory(view(given), view(dense)):  # one rank would write what another one reads
            dense = _copy(output)
        handle = self._begin(Kind.ALLTOALL, given, opts, dense.view(shape), came, splits=splits)
        return self._work([handle], [output], [] if dense is output else [partial(output.copy_, dense)], opts)

    alltoall_base = all_to_all_single

    @call("all_to_all", c10d.AllToAllOptions, tensors=2)
    def alltoall(self, outputs: list[Tensor], tensors: list[Tensor], opts: Any = None) -> Work:
        everybody = range(self.size())
        return self._exchange(dict(zip(everybody, outputs, strict=True)), dict(enumerate(tensors)), outputs, opts)

    @call("scatter", c10d.ScatterOptions, ("rootRank",), tensors=2)
    def scatter(self, outputs: list[Tensor], tensors: list[list[Tensor]], opts: Any) -> Work:
        parts = dict(enumerate(tensors[0])) if opts.rootRank == self._mine else {}
        return self._exchange({opts.rootRank: outputs[0]}, parts, outputs, opts, f".scatter.from{opts.rootRank}")

    @call("gather", c10d.GatherOptions, ("rootRank",), tensors=2)
    def gather(self, outputs: list[list[Tensor]], tensors: list[Tensor], opts: Any) -> Work:
        places = dict(enumerate(outputs[0])) if opts.rootRank == self._mine else {}
        return self._exchange(places, {opts.rootRank: tensors[0]}, outputs, opts, f".gather.to{opts.rootRank}")

    def _exchange(
        self, places: dict[int, Tensor], parts: dict[int, Tensor], result: Any, opts: Any, what: str = ""
    ) -> Work:
        """An alltoall: each rank gives ``parts`` by their receiver, and has ``places`` by their sender."""

        def lengths(tensors: dict[int, Tensor]) -> tuple[int, ...]:
            return tuple(tensors[rank].numel() if rank in tensors else 0 for rank in range(self.size()))

        given = [parts[rank].reshape(-1) for rank in sorted(parts)]
        flat = torch.cat(given) if given else next(iter(places.values())).new_empty(0)
        expected, splits = lengths(places), lengths(parts)
        found = flat.new_empty(sum(expected))
        begin = self._begin(Kind.ALLTOALL, flat, opts, found, partial(self._came, expected), what, splits=splits)
        pieces = found.split(expected)
        ends: Ends = [partial(place.copy_, pieces[rank].view(place.shape)) for rank, place in places.items()]
        return self._work([begin], result, ends, opts)

    # --- messages between two ranks -------------------------------------------------------------------

    @call("send")
    def send(self, tensors: list[Tensor], dest: int, tag: int) -> Work:
        if dest == self._mine:
            return OwnMessage(tensors[0], dest, True, self._halves(tag))
        return self._message(tensors[0], self._mine, dest, tag)

    @call("recv")
    def recv(self, tensors: list[Tensor], source: int, tag: int) -> Work:
        """Behind a message from any rank that waits yet: what comes first is for that one."""
        if source == self._mine:
            return OwnMessage(tensors[0], source, False, self._halves(tag))
        before = self._from_any.get(tag)
        if before is None:
            return self._message(tensors[0], source, self._mine, tag)
        receive = partial(self._message, tensors[0], source, self._mine, tag)
        return FromAnySource(before.question, lambda _: receive(), self._timeout, before)

    def _halves(self, tag: int) -> deque[OwnMessage]:
        self._count()
        return self._own[tag]

    @call("recvAnySource")
    def recv_anysource(self, tensors: list[Tensor], tag: int) -> Work:
        """Ask who sends the next message with this tag; then receive it from there."""
        name = self._message_name(-1, self._mine, tag)
        mine, told = (self._ranks[self._mine],), (self._label, tag)
        entry = api.entry(Kind.SOURCE, None, name, process_set=self._members, ranks=mine, splits=told)
        (question,) = api.submit([entry])

        def receive(rank: int) -> Work:
            return self._message(tensors[0], self._ranks.index(rank), self._mine, tag)

        self._from_any[tag] = message = FromAnySource(question, receive, self._timeout)
        return message

    def _message(self, tensor: Tensor, source: int, dest: int, tag: int) -> Work:
        pair, sends = (self._ranks[source], self._ranks[dest]), source == self._mine
        dense = _dense(tensor)
        array = view(dense.view(-1))  # only the number of elements must agree: torch's pipelines send [] to [1]
        entry = api.entry(
            Kind.SEND,
            array if sends else None,
            self._message_name(source, dest, tag),
            shape=(tensor.numel(),),
            target=array,
            splits=(self._label, tag),
            process_set=self._members,
            root=pair[0],
            ranks=pair,
            dtype=dtype_name(tensor),
        )
        ends: Ends = [] if sends or dense is tensor else [partial(tensor.copy_, dense)]
        return Work(api.submit([entry]), [tensor], _together(ends), self._timeout, source)

    def _message_name(self, source: int, dest: int, tag: int) -> str:
        since, sender = self._count(), "any" if source < 0 else source
        self._messages[source, dest, tag] += 1
        return f"{self._title}.{since}{sender}to{dest}.{tag}.{self._messages[source, dest, tag]}"


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format).resolve_conj().resolve_neg()


def _dense(tensor: Tensor) -> Tensor:
    """The tensor itself where its memory has its numbers, one behind the other; else a copy."""
    return tensor if tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg()) else _copy(tensor)


def _check(gathered: Tensor, n: int, parts: Sequence[Tensor], what: str) -> None:
    """Raise where tensors do not fit each other: what is told before anything is sent breaks nothing.

    Raises:
        ValueError: another dtype, or ``gathered`` has not ``n`` times as many numbers as each part.
    """
    for part in parts:
        if part.dtype != gathered.dtype or n * part.numel() != gathered.numel():
            raise ValueError(
                f"{what}: {n} parts like {list(part.shape)} of {part.dtype} do not make {list(gathered.shape)} of "
                f"{gathered.dtype}. Give tensors of one dtype whose sizes fit."
            )


def _together(ends: Ends) -> Callable[[], None] | None:
    if not ends:
        return None

    def finish() -> None:
        with torch.inference_mode():  # the caller may be in it, and this thread is not
            for each in ends:
                each()

    return finish
