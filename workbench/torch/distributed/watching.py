"""``workbench run --watch``: torch's own groups, over Gloo or NCCL, and an engine that is told of each call.

The transport stays as it is. Each call is announced to our engine, without data, and goes on to torch's group. So
rank 0 says what can never be complete in the same words as for the workbench's own groups. In a training that repeats
itself nobody waits for its answers, and announcements travel together, some times a second.

A call on a CPU ends when torch's does, or with the engine's error, in the script's own line. Where the main thread
waits in C++, in DDP's ``backward()`` or for a GPU, no exception reaches it: the process ends, with the error's text.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch._C._distributed_c10d as raw
import torch.distributed as dist

from workbench import config
from workbench.common.user_line import place_of, stack_of
from workbench.common.waiting import Owner
from workbench.core.handle import Handle
from workbench.core.messages import Kind, ReduceOp, Request
from workbench.core.pending import Entry
from workbench.core.verbs import MESSAGE, verb
from workbench.errors import CollectiveError, WaitTimeoutError
from workbench.job import api, report
from workbench.job.context import HOLDER
from workbench.job.entries import KnownRequests
from workbench.runtime.faults.stall import main_stack
from workbench.torch.distributed.calls import opaque, with_options
from workbench.torch.distributed.group import ProcessGroup
from workbench.torch.distributed.joining import place
from workbench.torch.distributed.reductions import reduction
from workbench.torch.distributed.works import WaitsOfTorch, Work
from workbench.torch.tensors import dtype_name

_KEPT = 20  # calls of a rank, for the page
_MOMENT_S = 0.05
_VERDICT_S = 2.0  # after an error of torch's: until rank 0 has said what is behind it
_UNHEARD_S = 1.0  # then the process ends, for its main thread waits where no exception comes
_NO_LIMIT = timedelta(0)

Tensor = torch.Tensor
Over = Callable[[BaseException | None], None]
c10d: Any = dist.distributed_c10d


class Call:
    """One call, for the page. ``end`` is done when torch's ``work`` is, or with an error."""

    def __init__(self, group: str, requests: Sequence[Request], owner: Owner) -> None:
        self._group, self._requests, self._began, self._took = group, requests, time.time(), 0.0
        self._stack = stack_of(sys._getframe(1))
        self.work: Callable[[], Any] | None = None  # a weak reference, for it keeps tensors
        self.end = Handle(requests[0].name)
        self.end.owner, self.end.request = owner, requests[0]
        self.end.add_done_callback(self._ended)

    def _ended(self, _: Handle) -> None:
        self._took = time.time() - self._began

    def over(self) -> bool:
        """Also where nobody has waited for it."""
        return self.end.poll() or bool(self.work and ((work := self.work()) is None or work.is_completed()))

    def line(self) -> str:
        """Of the script."""
        return place_of(self._stack)

    def as_data(self) -> dict[str, Any]:
        error = self.end.error
        return {
            "call": self.end.name,
            "group": self._group,
            "tensors": ", ".join(f"{each.dtype} {list(each.shape)}" for each in self._requests if each.dtype),
            "line": self.line(),
            "began": self._began,
            "took": self._took,
            "state": type(error).__name__ if error else "done" if self.over() else "waits",
        }


class Watch(Owner):
    """What is known of this rank's calls; torch finishes their handles.

    Attributes:
        calls: the last ones.
        verdict: why the job cannot go on.
    """

    def __init__(self) -> None:
        self.calls = deque[Call](maxlen=_KEPT)
        self.verdict: CollectiveError | None = None
        self._heard, self._lock, self._context = threading.Event(), threading.Lock(), HOLDER.get()
        self._writing = threading.Lock()  # the main thread may end meanwhile, and write its part
        self._context.unfinished.add(self._write)
        atexit.register(self._at_exit)

    def long_wait(self, handle: Any, waiter: threading.Lock, timeout_s: float) -> bool:
        return self._context.engine.waits.long_wait(handle.request, waiter, timeout_s)

    def check(self) -> None:
        """Raise the verdict, if there is one."""
        if self.verdict:
            self._heard.set()
            raise self.verdict

    def agree(self, call: Call, entry: Entry) -> None:
        """Wait a moment for the other ranks, before torch begins a call unlike those of the steps before.

        Where ranks differ, Gloo adds numbers of unlike tensors, or ends the process without a word. The last rank to
        come has the answer at once; torch keeps the others waiting anyhow, when their moment is over.
        """
        try:
            entry.handle.wait(_MOMENT_S)
        except WaitTimeoutError:
            pass
        except CollectiveError as error:
            self.failed(call, error)
        self.check()

    def failed(self, call: Call, error: BaseException) -> None:
        """The call ends with an error. The first of the engine's ends all: after it no transport is in order."""
        with self._lock:
            if first := self.verdict is None and isinstance(error, CollectiveError):
                waits = next((each for each in reversed(self.calls) if not each.over()), call)
                here, page = f"Rank {api.rank()}: {waits.line()}.", config.watch_folder().removesuffix(".ranks")
                self.verdict = type(error)(f"{error}\n{here}\nThe last calls of all ranks are in {page}.")
        for each in (call, *self.calls) if self.verdict else (call,):
            each.end.finish(error=None if each.over() else self.verdict or error)
        if first:
            threading.Thread(target=self._end_unheard, name="workbench-watch", daemon=True).start()
            self._write()

    def explain(self, call: Call, entries: Sequence[Entry], error: BaseException) -> None:
        """torch's call has failed, and names no rank: a moment later the engine does."""
        until = time.monotonic() + _VERDICT_S
        while not (ours := next(filter(None, (entry.handle.error for entry in entries)), None)):
            try:
                api.submit([])
            except CollectiveError as closed:
                ours = closed
            if ours or time.monotonic() > until:
                break
            time.sleep(_MOMENT_S)
        self.failed(call, ours or error)

    def _write(self) -> None:
        found = {"calls": [each.as_data() for each in list(self.calls)], "stack": main_stack()}
        found |= {"error": str(self.verdict)} if self.verdict else {}
        with self._writing:
            report.write(self._context, False, config.watch_folder(), found | {"environment": config.shown_variables()})

    def _end_unheard(self) -> None:
        if not self._heard.wait(_UNHEARD_S):
            self._say(f"It ends rank {self._context.rank}, whose main thread waits in C++:\n{main_stack()}")
            self._context.script_raised(str(self.verdict))
            api.shutdown()
            os._exit(1)

    def _at_exit(self) -> None:
        """Leave the job, and end where a call has failed: torch's threads would wait for it for ever."""
        error = getattr(sys, "last_value", None)
        if isinstance(error, RuntimeError) and self.calls and not (self.verdict or self.calls[-1].end.poll()):
            self.explain(self.calls[-1], [], error)  # torch's own, raised where only torch waited
        self._say()
        api.shutdown()
        self._say()
        if self.verdict:
            sys.stdout.flush()
            os._exit(1)

    def _say(self, more: str = "") -> None:
        if self.verdict and not self._heard.is_set():
            self._heard.set()
            print(f"{more}\n{type(self.verdict).__name__}: {self.verdict}".lstrip(), file=sys.stderr, flush=True)


class WatchedWork(Work):
    """Waits in torch for a moment, and then in Python, where the engine's error ends it; ``over`` hears of the end."""

    def __init__(self, inner: Any, watch: Watch, over: Over, end: Handle, result: Any, source: int) -> None:
        super().__init__([end], result, source=source)
        self._inner, self._watch, self._over, self._listens = inner, watch, over, False

    def listen(self) -> None:
        """Let another thread tell when torch's call is over."""
        if self._listens:
            return
        self._listens = True
        try:
            future = self._inner.get_future()
        except RuntimeError:  # Gloo's messages have none
            threading.Thread(target=lambda: self._over(_error_of(self._inner.wait)), daemon=True).start()
        else:
            future.add_done_callback(lambda done: self._over(_error_of(done.value)))

    def wait(self, timeout: timedelta = _NO_LIMIT) -> bool:
        if not self._listens:
            try:
                self._inner.wait(min(timeout or timedelta.max, timedelta(seconds=_MOMENT_S)))
                self._over(None)
            except RuntimeError:  # not yet, or it has failed
                self.listen()
        try:
            return super().wait(timeout)
        finally:
            self._watch.check()

    def is_completed(self) -> bool:
        return super().is_completed() or (not self._listens and self._inner.is_completed())

    def get_future(self) -> torch.futures.Future[Any]:
        """torch's own, for one of Python's would cost DDP more than all else here."""
        HOLDER.get().part(WaitsOfTorch).add(self)
        future: torch.futures.Future[Any] = self._inner.get_future()
        return future


def _error_of(function: Callable[[], object]) -> BaseException | None:
    try:
        function()
    except Exception as error:  # noqa: BLE001 - it is raised where the call is waited for
        return error
    return None


def _calls(
    method: str, kind: Kind, tensors: int = 1, what: str = "", options: type | None = None, fields: tuple[str, ...] = ()
) -> Callable[..., Any]:
    """A method of torch's groups, announced as ``kind``, with its name if that is not the verb's."""

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
        self._inner, self._set = inner, self._members.process_set_id or 0

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
        """Rank 0 is told when it is known who has sent it."""
        name, inner = f"source.{self._message_name(-1, self._mine, tag)}", self._inner.recv_anysource(tensors, tag)

        def received() -> None:
            request = self._message_request(tensors[0], inner.source_rank(), self._mine, tag)
            api.submit([Entry(request, None, None, Handle(request.name))])

        asked = [Request(name, Kind.SOURCE, process_set=self._set)]
        work = self._call(asked, lambda: inner, tensors, then=received)
        work.source_rank = work._source_rank = inner.source_rank
        return work

    def _watch(self, kind: Kind, given: Sequence[Any], args: Sequence[Any], method: str, what: str = "") -> Any:
        requests = [self._request(kind, each, args[-1] if args else None, what) for each in given]
        result = args[0] if args and isinstance(args[0], list) else [*args[:1]]
        return self._call(requests, partial(getattr(self._inner, method), *args), result)

    def _call(
        self, requests: list[Request], begin: Callable[[], Any], result: Any, source: int = -1, then: Any = None
    ) -> Any:
        """Announce a call, and ``begin`` torch's; ``then`` is called when it is over. The rest is the work's."""
        watch = HOLDER.get().part(Watch)
        watch.check()
        call = Call(self._name, requests, watch)
        watch.calls.append(call)
        message, from_any = verb(requests[0].kind) is MESSAGE, requests[0].kind is Kind.SOURCE
        entries = [] if from_any else [Entry(each, None, None, Handle(each.name)) for each in requests]
        for entry in entries:
            entry.handle.add_done_callback(lambda handle: watch.failed(call, handle.error) if handle.error else None)
        api.submit_when_free(entries)
        if not (self._numbers.repeats or message):
            for entry in entries:
                watch.agree(call, entry)
        inner = begin()
        call.work = inner and weakref.ref(inner)
        if inner is None or not _on_cpu(result):  # None: of several calls, which torch begins together later
            call.end.finish()
            return inner

        def over(error: BaseException | None) -> None:
            if error is None:
                if then:
                    then()
                call.end.finish()
            else:
                threading.Thread(target=watch.explain, args=(call, entries, error), daemon=True).start()

        work = WatchedWork(inner, watch, over, call.end, result, source)
        if message or from_any:  # Gloo breaks a connection where a message is waited for in vain
            work.listen()
        return work

    def _request(self, kind: Kind, given: Any, opts: Any, what: str) -> Request:
        """What the ranks must agree in: of a tensor, or of a list that stands for one; of a barrier, an empty one."""
        parts, one, known = given if isinstance(given, list) else [given], verb(kind), HOLDER.get().part(KnownRequests)
        op: Any = getattr(opts, "reduceOp", dist.ReduceOp.SUM) if one.reduces else None
        root = self._ranks[opts.rootRank] if one.rooted else -1
        call = (kind, what, root, op and op.op, *((part.dtype, part.shape) for part in parts))
        number = self._next_name(call)
        if (request := known.get((number, call))) is None:
            fields: dict[str, Any] = {"root": root, "process_set": self._set, "absent": True}
            if op is not None:
                how = reduction(op, parts[0].dtype)
                fields["op"], what = how.op or ReduceOp.SUM, what + how.name
            if parts:
                count = sum(part.numel() for part in parts)
                flat = (1, count) if kind is Kind.ALLGATHER else (count,)
                as_it_is = one.rooted or kind is Kind.ALLREDUCE or (kind is Kind.ALLTOALL and given is parts[0])
                fields |= {"dtype": dtype_name(parts[0]), "shape": tuple(parts[0].shape) if as_it_is else flat}
            request = Request(f"{kind.value}.{number}{what}", kind, **fields)
            known.remember((number, call), request)
        return request

    def _message_request(self, tensor: Tensor, source: int, dest: int, tag: int) -> Request:
        pair = self._ranks[source], self._ranks[dest]
        about: dict[str, Any] = {"dtype": dtype_name(tensor), "shape": (tensor.numel(),), "splits": (self._label, tag)}
        name = f"send.{self._message_name(source, dest, tag)}"
        return Request(name, Kind.SEND, process_set=self._set, root=pair[0], ranks=pair, absent=True, **about)


def _on_cpu(result: Any) -> bool:
    while isinstance(result, list) and result:
        result = result[0]
    device = result if isinstance(result, torch.device) else getattr(result, "device", None)
    return device is None or torch.device(device).type == "cpu"


def watch(inner: Any, asked: Any) -> Any:
    """Put a watched group into torch's tables, in the place of the one that it has made of what it was ``asked``."""
    if isinstance(inner, ProcessGroup):
        return inner
    name, world = asked.group_name, c10d._world
    watched = Watched(inner, name, *place(asked))
    HOLDER.get().part(Watch)  # a rank that calls nothing writes its part, too
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
