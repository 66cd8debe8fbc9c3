"""NCCL: the data plane between GPUs.

NCCL's calls queue a kernel on our stream and return; but the first call of each kind connects the ranks, and then it
blocks until all have come. So one worker thread makes all calls, while the engine keeps its deadline and hears from
rank 0; if a rank is lost meanwhile, ``abort`` ends the call and the kernels.

The ranks connect by NCCL's unique id, 128 bytes that the first of them creates. It is broadcast over the host's
backend, whatever that is: no MPI is needed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from workbench.collectives.ring import part
from workbench.core.backend.base import Array, Backend, Reduction, Traffic
from workbench.core.backend.memory import PrivateMemory
from workbench.errors import DeadlineError, LaunchError, PeerLostError
from workbench.transport.background import CallThread, background
from workbench.transport.gpu.device import Gpu, address
from workbench.transport.gpu.staged import StagedCollectives
from workbench.transport.links import LinkCollectives

T = TypeVar("T")
_ID_BYTES = 128
_ABORT_S = 10.0
_OPS = {"sum": "SUM", "average": "SUM", "product": "PROD", "min": "MIN", "max": "MAX"}
_BOOL_OPS = {"sum": "MAX", "product": "MIN", "min": "MIN", "max": "MAX"}
_DTYPES = {
    **{name: name.upper() for name in ("int8", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64")},
    "bool": "UINT8",
}


class Nccl:
    """The library as one rank uses it: one thread for all calls, and the communicators made with it.

    Args:
        gpu: this rank's.
        timeout_s: deadline of a call.
        connect_timeout_s: deadline for the ranks to connect.
    """

    def __init__(self, gpu: Gpu, timeout_s: float, connect_timeout_s: float) -> None:
        from cupy.cuda import nccl

        self.library: Any = nccl
        self.gpu, self._timeout_s, self._connect_timeout_s = gpu, timeout_s, connect_timeout_s
        self._worker = CallThread("workbench-nccl", begin=gpu.device.use)
        self._communicators: list[Any] = []
        gpu.watchers.append(self.check)

    def call(self, function: Callable[[], T], timeout_s: float | None = None) -> T:
        """``function()`` on the thread that makes all calls."""
        return self._worker.call(function, self.gpu.tick, timeout_s or self._timeout_s)

    def connect(self, host: Backend) -> Any:
        """A communicator of the ranks that ``host`` connects. All of them call it.

        Raises:
            LaunchError: NCCL could not connect them.
        """
        number, problem = np.zeros(_ID_BYTES, np.uint8), ""
        if host.rank == 0:
            try:
                number[:] = np.frombuffer(self.library.get_unique_id(), np.uint8)
            except Exception as error:  # noqa: BLE001 - the others wait for the number
                problem = str(error)
        host.collectives.broadcast(number, 0)
        if not number.any():
            raise LaunchError(
                f"NCCL made no unique id for the ranks to connect by. {problem or 'See the first of them'}."
            )
        try:
            begin = lambda: self.library.NcclCommunicator(host.size, number.tobytes(), host.rank)  # noqa: E731
            made = self.call(begin, self._connect_timeout_s)
        except DeadlineError:
            raise DeadlineError(
                f"NCCL: not all {host.size} ranks connected within {self._connect_timeout_s:g} s "
                "(WORKBENCH_INIT_TIMEOUT_S). NCCL_DEBUG=INFO shows more."
            ) from None
        except self.library.NcclError as error:
            raise LaunchError(
                f"NCCL cannot connect rank {host.rank} of {host.size} with the others: {error}. NCCL_DEBUG=INFO shows "
                "more; WORKBENCH_GPU_OPERATIONS=staged works without NCCL."
            ) from None
        self._communicators.append(made)
        return made

    def check(self) -> None:
        """Has something gone wrong on a GPU since the call returned?

        Raises:
            PeerLostError: NCCL says so.
        """
        for communicator in self._communicators:
            try:
                communicator.check_async_error()
            except self.library.NcclError as error:
                raise PeerLostError(f"NCCL lost the connection to another rank's GPU: {error}.") from None

    def leave(self, communicator: Any) -> None:
        """Give a communicator back, which its ranks do at the same point, when our stream is done with it."""
        self.gpu.finish()
        self.call(communicator.destroy)
        self._communicators.remove(communicator)  # not before: one that hangs there is aborted in the end

    def close(self, clean: bool) -> None:
        """Give all back; not ``clean``: end what hangs in them."""
        try:
            if clean:
                self.gpu.end()
                while self._communicators:
                    self.call(self._communicators[-1].destroy, _ABORT_S)
                    self._communicators.pop()
        finally:
            self.gpu.watchers.remove(self.check)
            for communicator in self._communicators:
                with contextlib.suppress(Exception):  # it is in pieces already
                    background(communicator.abort).result(_ABORT_S)
            self._communicators.clear()
            self._worker.end()


class NcclLink:
    """A Link of NCCL's sends and receives: by it our ring runs between GPUs."""

    def __init__(self, nccl: Nccl, communicator: Any, rank: int, size: int) -> None:
        self._nccl, self.communicator, self.rank, self.size = nccl, communicator, rank, size

    def sendrecv(self, send: Array | None, dest: int, recv: Array | None, source: int) -> None:
        """Both in one group, or two ranks that send to each other would wait for each other for ever.

        It returns when both are queued on our stream; what is queued behind them finds ``recv`` filled.
        """
        library, stream = self._nccl.library, self._nccl.gpu.stream.ptr

        def both() -> None:
            if send is not None and send.nbytes:
                self.communicator.send(address(send), send.nbytes, library.NCCL_INT8, dest, stream)
            if recv is not None and recv.nbytes:
                self.communicator.recv(address(recv), recv.nbytes, library.NCCL_INT8, source, stream)

        self._nccl.call(lambda: grouped(library, both))


def grouped(library: Any, calls: Callable[[], None]) -> None:
    """Make NCCL's calls as one: none waits for another."""
    library.groupStart()
    try:
        calls()
    finally:
        library.groupEnd()


def nccl_backend(nccl: Nccl, host: Backend, of_set: bool = False) -> Backend:
    """The backend of the same ranks for arrays on GPUs, with a communicator of its own. All of them call it.

    Args:
        nccl: the library.
        host: connects the same ranks for arrays on the host.
        of_set: they are a process set.
    """
    communicator = nccl.connect(host)

    def subset(ranks: Sequence[int]) -> Backend:
        return nccl_backend(nccl, host.life.subset(ranks), of_set=True)

    def leave(clean: bool) -> None:
        nccl.leave(communicator)
        host.life.close(clean)

    collectives = NcclCollectives(nccl, communicator, host)
    life = nccl.gpu.life(subset, leave if of_set else nccl.close)
    _connect_now(collectives, nccl.gpu)
    return Backend("NCCL", host.rank, host.ranks, collectives, PrivateMemory(nccl.gpu.empty), life, nccl.gpu)


def _connect_now(collectives: NcclCollectives, gpu: Gpu) -> None:
    """NCCL's first call connects the ranks: what is wrong between them shows here, and not amid training."""
    with gpu.using([], []):
        collectives.allreduce(gpu.empty((1,), "float32", None), Reduction("sum", "float32"))
    gpu.finish()


class NcclCollectives:
    """NCCL's collectives, and our algorithms over its sends where it has none.

    Our own ring: int16 and uint16, which NCCL lacks, and the minimum and maximum of floats, for NCCL's passes over a
    NaN, which must not be hidden. On the host: Adasum, whose factors the CPU computes.

    Args:
        nccl: the library.
        communicator: of the ranks.
        host: connects the same ranks for arrays on the host.
    """

    def __init__(self, nccl: Nccl, communicator: Any, host: Backend) -> None:
        self._nccl, self._communicator, self._gpu = nccl, communicator, nccl.gpu
        self._rank, self._size = host.rank, host.size
        self._ring = LinkCollectives(NcclLink(nccl, communicator, host.rank, host.size))
        self._on_host = StagedCollectives(host, nccl.gpu)

    def allreduce(
        self, array: Array, reduction: Reduction, offsets: Sequence[int] = (), source: Array | None = None
    ) -> Traffic:
        """``ncclAllReduce``; a mean of floats is NCCL's own. NCCL does not tell what it sent: then counts are 0."""
        if source is not None:
            array[...] = source
        if reduction.op == "adasum":
            return self._on_host.allreduce(array, reduction)
        plain = reduction.prescale == reduction.postscale == 1.0
        if plain and reduction.op == "average" and "float" in reduction.dtype and reduction.divisor == self._size:
            self._reduce_all(array, self._dtype(reduction.dtype), self._nccl.library.NCCL_AVG)
            return Traffic()
        op = self._op(reduction)
        if op is None:
            return self._ring.allreduce(array, reduction)
        reduction.before(array)
        self._reduce_all(array, self._dtype(reduction.dtype), op)
        reduction.after(array)
        return Traffic()

    def _reduce_all(self, array: Array, dtype: int, op: int) -> None:
        at, length = address(array), len(array)
        self._call(lambda c, stream: c.allReduce(at, at, length, dtype, op, stream), length)

    def allgather(self, array: Array, lengths: Sequence[int]) -> Traffic:
        """``ncclAllGather``; where lengths differ a broadcast of each part, as one group."""
        byte, starts = self._nccl.library.NCCL_INT8, self._starts(array, lengths)
        if len(set(lengths)) == 1:
            mine, nbytes = starts[self._rank], lengths[0] * array.itemsize
            self._call(lambda c, stream: c.allGather(mine, address(array), nbytes, byte, stream), nbytes)
            return Traffic()

        def each(c: Any, stream: int) -> None:
            for root, (at, length) in enumerate(zip(starts, lengths, strict=True)):
                if length:
                    c.broadcast(at, at, length * array.itemsize, byte, root, stream)

        self._call(each, sum(lengths))
        return Traffic()

    def broadcast(self, array: Array, root: int, source: Array | None = None) -> Traffic:
        at, nbytes, byte = address(array), array.nbytes, self._nccl.library.NCCL_INT8
        given = at if source is None else address(source)
        self._call(lambda c, stream: c.broadcast(given, at, nbytes, byte, root, stream), nbytes)
        return Traffic()

    def alltoall(self, send: Array, send_lengths: Sequence[int], recv: Array, recv_lengths: Sequence[int]) -> Traffic:
        """A send and a receive for each rank, as one group."""
        byte = self._nccl.library.NCCL_INT8
        out = list(zip(self._starts(send, send_lengths), send_lengths, strict=True))
        back = list(zip(self._starts(recv, recv_lengths), recv_lengths, strict=True))

        def each(c: Any, stream: int) -> None:
            for peer in range(self._size):
                (source, sent), (target, received) = out[peer], back[peer]
                if sent:
                    c.send(source, int(sent) * send.itemsize, byte, peer, stream)
                if received:
                    c.recv(target, int(received) * recv.itemsize, byte, peer, stream)

        self._call(each, send.nbytes + recv.nbytes)
        return Traffic()

    def reducescatter(
        self, array: Array, lengths: Sequence[int], reduction: Reduction, offsets: Sequence[int] = ()
    ) -> Traffic:
        """``ncclReduceScatter``; where lengths differ a reduction to each rank, as one group."""
        op = self._op(reduction)
        if op is None:
            return self._ring.reducescatter(array, lengths, reduction)
        reduction.before(array)
        dtype, starts = self._dtype(reduction.dtype), self._starts(array, lengths)
        mine, length = starts[self._rank], lengths[self._rank]
        if len(set(lengths)) == 1:
            self._call(lambda c, stream: c.reduceScatter(address(array), mine, length, dtype, op, stream), length)
        else:

            def each(c: Any, stream: int) -> None:
                for root, (at, count) in enumerate(zip(starts, lengths, strict=True)):
                    if count:
                        c.reduce(at, at, count, dtype, op, root, stream)

            self._call(each, sum(lengths))
        reduction.after(part(array, lengths, self._rank))
        return Traffic()

    def _call(self, calls: Callable[[Any, int], None], size: int) -> None:
        """Queue on our stream what ``calls(communicator, stream)`` does, as one group; of nothing, nothing."""
        if size:
            stream = self._gpu.stream.ptr
            self._nccl.call(lambda: grouped(self._nccl.library, lambda: calls(self._communicator, stream)))

    def _starts(self, array: Array, lengths: Sequence[int]) -> list[int]:
        """The address of each rank's part."""
        ends = np.cumsum(lengths)
        return [address(array) + int(end - n) * array.itemsize for n, end in zip(lengths, ends, strict=True)]

    def _dtype(self, dtype: str) -> int:
        return int(getattr(self._nccl.library, f"NCCL_{_DTYPES[dtype]}"))

    def _op(self, reduction: Reduction) -> int | None:
        """NCCL's number of a reduction; None for one that NCCL cannot do, or not as we mean it."""
        hides_nan = reduction.op in ("min", "max") and "float" in reduction.dtype
        if reduction.dtype not in _DTYPES or hides_nan:
            return None
        names = _BOOL_OPS if reduction.dtype == "bool" else _OPS
        return int(getattr(self._nccl.library, f"NCCL_{names[reduction.op]}"))
