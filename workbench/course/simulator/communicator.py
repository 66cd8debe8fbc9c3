"""A communicator with mpi4py's signatures, over three primitives: post a send, post a receive, finish them.

A learner's function that is written for ``comm`` runs on both kinds, and on ``MPI.COMM_WORLD`` itself::

    simulator.Comm      ranks as threads of one process, on a virtual clock; a deadlock is found at once
    judging.real_ranks  PolledComm over mpi4py: every wait has a deadline

The lower-case verbs take any object, the upper-case ones arrays, as mpi4py's do. The collectives are made of messages
here, the simplest algorithm that is not wasteful: trees of log2(n) rounds, so their messages can be counted and drawn.
"""

from __future__ import annotations

import pickle
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.course.simulator.collective_calls import collective

Array = NDArray[Any]
ANY = -(1 << 20)
"""Any source, any tag; no number that one comes to by counting. mpi4py's own constants mean the same."""
_INSIDE = 1 << 20  # tags of the collectives' own messages begin here


def add(a: Any, b: Any) -> Any:
    """The usual reduction."""
    return a + b


class Pending(ABC):
    """A message in flight; as mpi4py's ``Request``."""

    @abstractmethod
    def wait(self) -> Any:
        """Wait; return the object that was received, or None."""

    @abstractmethod
    def test(self) -> tuple[bool, Any]:
        """Is it done? And what was received."""

    Wait, Test = wait, test


class Communicator(ABC):
    """What a learner's function gets as ``comm``.

    Attributes:
        rank, size: this rank, and how many there are.
    """

    rank: int
    size: int
    _within = ""  # the collective that the caller is in: its messages have this name

    def _begins(self, call: str) -> None:  # noqa: B027 - real ranks have nobody who could compare
        """A collective begins; ``call`` says it in words that must be equal on all ranks."""

    def Get_rank(self) -> int:
        """As ``rank``."""
        return self.rank

    def Get_size(self) -> int:
        """As ``size``."""
        return self.size

    def compute(self, seconds: float, label: str = "") -> None:  # noqa: B027
        """Stands for computing. In the simulator it takes so long; on real ranks computing itself does."""

    # --- what each kind brings ------------------------------------------------------------------------

    @abstractmethod
    def post_send(self, data: Any, dest: int, tag: int, verb: str) -> Pending:
        """Begin to send an array or an object."""

    @abstractmethod
    def post_recv(self, buffer: Array | None, source: int, tag: int, verb: str) -> Pending:
        """Begin to receive: into ``buffer``, or an object if there is none."""

    @abstractmethod
    def finish(self, pending: Sequence[Pending], verb: str) -> list[Any]:
        """Wait for all of them; return what was received."""

    # --- messages -------------------------------------------------------------------------------------

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Send an object; returns when it may be changed again."""
        self.finish([self.post_send(copied(obj), self._rank(dest), tag, "send")], "send")

    def recv(self, buf: Any = None, source: int = ANY, tag: int = ANY, status: Any = None) -> Any:
        """Receive an object."""
        return self.finish([self.post_recv(None, self._source(source), tag, "recv")], "recv")[0]

    def sendrecv(
        self,
        sendobj: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = ANY,
        recvtag: int = ANY,
        status: Any = None,
    ) -> Any:
        """Send one object and receive another at the same time."""
        out = self.post_send(copied(sendobj), self._rank(dest), sendtag, "sendrecv")
        return self.finish([out, self.post_recv(None, self._source(source), recvtag, "sendrecv")], "sendrecv")[1]

    def isend(self, obj: Any, dest: int, tag: int = 0) -> Pending:
        """Begin to send an object."""
        return self.post_send(copied(obj), self._rank(dest), tag, "isend")

    def irecv(self, buf: Any = None, source: int = ANY, tag: int = ANY) -> Pending:
        """Begin to receive an object."""
        return self.post_recv(None, self._source(source), tag, "irecv")

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        """Send an array."""
        self.finish([self.post_send(array_of(buf), self._rank(dest), tag, "Send")], "Send")

    def Recv(self, buf: Any, source: int = ANY, tag: int = ANY, status: Any = None) -> None:
        """Receive into an array."""
        self.finish([self.post_recv(array_of(buf), self._source(source), tag, "Recv")], "Recv")

    def Sendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = ANY,
        recvtag: int = ANY,
        status: Any = None,
    ) -> None:
        """Send one array and receive into another at the same time."""
        keep_apart(sendbuf, recvbuf, "Sendrecv")
        out = self.post_send(array_of(sendbuf), self._rank(dest), sendtag, "Sendrecv")
        self.finish([out, self.post_recv(array_of(recvbuf), self._source(source), recvtag, "Sendrecv")], "Sendrecv")

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> Pending:
        """Begin to send an array, which must not change before ``wait()``."""
        return self.post_send(array_of(buf), self._rank(dest), tag, "Isend")

    def Irecv(self, buf: Any, source: int = ANY, tag: int = ANY) -> Pending:
        """Begin to receive into an array, which is filled by ``wait()``."""
        return self.post_recv(array_of(buf), self._source(source), tag, "Irecv")

    # --- collectives: n ranks, ceil(log2 n) rounds ----------------------------------------------------

    @collective
    def bcast(self, obj: Any, root: int = 0) -> Any:
        """The root's object on every rank: a binomial tree, n - 1 messages."""
        root = self._rank(root)
        place, step = (self.rank - root) % self.size, 1
        while step < self.size:
            if place < step and place + step < self.size:
                self._pass_on(obj, (self.rank + step) % self.size, "bcast")
            elif step <= place < 2 * step:
                obj = self._take((self.rank - step) % self.size, "bcast")
            step *= 2
        return obj

    @collective
    def reduce(self, sendobj: Any, op: Callable[[Any, Any], Any] = add, root: int = 0) -> Any:
        """The reduction of all ranks' objects on the root, None elsewhere: the mirrored tree, n - 1 messages."""
        root = self._rank(root)
        place, step, total = (self.rank - root) % self.size, 1, copied(sendobj)
        while step < self.size:
            if place % (2 * step) == step:
                self._pass_on(total, (self.rank - step) % self.size, "reduce")
                return None
            if place % (2 * step) == 0 and place + step < self.size:
                total = op(total, self._take((self.rank + step) % self.size, "reduce"))
            step *= 2
        return total

    @collective
    def allreduce(self, sendobj: Any, op: Callable[[Any, Any], Any] = add) -> Any:
        """The reduction on every rank: reduce, then bcast."""
        return self.bcast(self.reduce(sendobj, op))

    @collective
    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        """The list of all ranks' objects on the root, None elsewhere."""
        found = self.reduce({self.rank: sendobj}, lambda a, b: {**a, **b}, root)
        return None if found is None else [found[rank] for rank in range(self.size)]

    @collective
    def allgather(self, sendobj: Any) -> list[Any]:
        """The list of all ranks' objects on every rank."""
        return self.bcast(self.gather(sendobj))  # type: ignore[no-any-return]

    @collective
    def scatter(self, sendobj: Sequence[Any] | None, root: int = 0) -> Any:
        """Rank i gets item i of the root's list: one message from the root to each."""
        if self.rank != self._rank(root):
            return self._take(root, "scatter")
        if sendobj is None or len(sendobj) != self.size:
            raise ValueError(f"scatter() on the root needs a list of {self.size} items, one for each rank.")
        others = [rank for rank in range(self.size) if rank != root]
        out = [self.post_send(copied(sendobj[rank]), rank, _INSIDE, "scatter") for rank in others]
        self.finish(out, "scatter")
        return sendobj[root]

    @collective
    def alltoall(self, sendobj: Sequence[Any]) -> list[Any]:
        """Item j of rank i's list goes to place i of rank j's: n - 1 steps, each a sendrecv."""
        got = [copied(sendobj[self.rank])] * self.size
        for step in range(1, self.size):
            to, source = (self.rank + step) % self.size, (self.rank - step) % self.size
            out = self.post_send(copied(sendobj[to]), to, _INSIDE, "alltoall")
            got[source] = self.finish([out, self.post_recv(None, source, _INSIDE, "alltoall")], "alltoall")[1]
        return got

    @collective
    def barrier(self) -> None:
        """No rank goes on before all have come."""
        self.allreduce(0)

    @collective
    def Bcast(self, buf: Any, root: int = 0) -> None:
        """As bcast, in place."""
        array = array_of(buf)
        array[...] = self.bcast(array, root)

    @collective
    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Callable[[Any, Any], Any] = add) -> None:
        """As allreduce, into ``recvbuf``; ``sendbuf`` may be ``MPI.IN_PLACE``."""
        keep_apart(sendbuf, recvbuf, "Allreduce")
        target = array_of(recvbuf)
        source = target if not isinstance(sendbuf, (np.ndarray, list, tuple)) else array_of(sendbuf)
        target[...] = self.allreduce(source, op)

    Barrier = barrier

    def _pass_on(self, obj: Any, dest: int, verb: str) -> None:
        verb = self._within or verb
        self.finish([self.post_send(copied(obj), dest, _INSIDE, verb)], verb)

    def _take(self, source: int, verb: str) -> Any:
        verb = self._within or verb
        return self.finish([self.post_recv(None, source, _INSIDE, verb)], verb)[0]

    def _rank(self, rank: int) -> int:
        if not 0 <= rank < self.size:
            raise ValueError(f"Rank {self.rank}: there is no rank {rank} among {self.size}. In a ring: % comm.size.")
        return int(rank)

    def _source(self, rank: int) -> int:
        mpi = sys.modules.get("mpi4py.MPI")  # only who has imported it can mean its constant
        return ANY if rank in (ANY, getattr(mpi, "ANY_SOURCE", ANY)) else self._rank(rank)


def keep_apart(sendbuf: Any, recvbuf: Any, verb: str) -> None:
    """Refuse what MPI leaves undefined.

    Raises:
        ValueError: both lie in the same memory.
    """
    if isinstance(sendbuf, np.ndarray) and isinstance(recvbuf, np.ndarray) and np.may_share_memory(sendbuf, recvbuf):
        raise ValueError(
            f"{verb}: what is sent and what is received must not lie in the same memory. Use another array."
        )


def copied(obj: Any) -> Any:
    """The object as another rank would get it: a copy, by pickle where it has to be."""
    if obj is None or isinstance(obj, (bool, int, float, complex, str, bytes)):
        return obj
    if isinstance(obj, np.ndarray) and obj.dtype != object:
        return obj.copy()
    return pickle.loads(pickle.dumps(obj))


def array_of(buf: Any) -> Array:
    """The array of a buffer as mpi4py takes it: an array, or a list that begins with one.

    Raises:
        TypeError: it is none, or not contiguous.
    """
    array = buf[0] if isinstance(buf, (list, tuple)) and buf and isinstance(buf[0], np.ndarray) else buf
    if not isinstance(array, np.ndarray) or array.dtype == object:
        raise TypeError(
            f"Upper-case verbs (Send, Recv, …) take numpy arrays, not {type(buf).__name__}. The lower-case ones take "
            "any object."
        )
    if not array.flags.c_contiguous:
        raise TypeError("The array must be contiguous: use np.ascontiguousarray(), or a slice along the first axis.")
    return array


def nbytes(obj: Any) -> int:
    """Bytes that an object has on the wire: an array's elements, else its pickle."""
    if isinstance(obj, np.ndarray):
        return obj.nbytes
    if isinstance(obj, (float, np.generic)):
        return max(8, obj.nbytes) if isinstance(obj, np.generic) else 8
    if isinstance(obj, (list, tuple)) and obj and all(isinstance(item, np.ndarray) for item in obj):
        return sum(item.nbytes for item in obj)
    return len(pickle.dumps(obj, pickle.HIGHEST_PROTOCOL))
