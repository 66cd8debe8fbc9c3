"""The whole idea in one file: several processes train one PyTorch model.

``python examples/nano.py 2`` starts two. Every *rank* is a process with a copy of the model and a part of the data.
The ranks average their gradients, so all take the same step and their copies stay equal. The way of a gradient::

     gradient ready (9) -> submit (8) -> Request (4) ---+
                                                        v   on rank 0
                                     serve (7) -> Coordinator (6) -> fuse (5)
                                                        |
     step (9) <- .grad <- unpack (5) <- ring (3) <------+   the same batch on every rank
                                        Link (2)

Read the ten parts in their order; each uses only those before it. Every wait has a deadline, and an error names the
rank that did not come, has ended, or disagrees. ``workbench/core/`` has the same parts; what is faster is around it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import select
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import numpy as np
import torch

DEADLINE_S = 30.0  # for so long a rank waits for another one
WINDOW_S = 0.0005  # for so long a tensor waits for others to travel with


class RankError(RuntimeError):
    """A rank did not come, has ended, or does not agree with the others. The text names it."""


# --- 1. Meet: a socket to every other rank --------------------------------------------------------------
def meet(rank: int, others: Sequence[int], place: str, deadline_s: float) -> dict[int, socket.socket]:
    """Return a socket to each of the others. Of two ranks the lower one listens at a file, the higher one connects."""
    until, found = time.monotonic() + deadline_s, dict[int, socket.socket]()
    with contextlib.ExitStack() as stack:
        listeners = {other: stack.enter_context(socket.socket(socket.AF_UNIX)) for other in others if other > rank}
        for other, listener in listeners.items():
            listener.bind(f"{place}{rank}-{other}")
            listener.listen()
            listener.settimeout(deadline_s)
        for other in others:
            try:
                if other > rank:
                    found[other], _ = listeners[other].accept()
                    continue
                found[other] = socket.socket(socket.AF_UNIX)
                while found[other].connect_ex(f"{place}{other}-{rank}") != 0:  # it does not listen yet
                    if time.monotonic() > until:
                        raise TimeoutError
                    time.sleep(0.01)
            except TimeoutError:
                raise RankError(f"rank {other} did not come: rank {rank} has waited {deadline_s:g} s.") from None
    return found


# --- 2. Link: arrays from one rank to another -----------------------------------------------------------
class Link:
    """Messages between any two ranks: the bytes of arrays of one dimension, which lie in one piece."""

    def __init__(self, rank: int, size: int, folder: str, deadline_s: float = DEADLINE_S) -> None:
        self.rank, self.size, self._deadline_s = rank, size, deadline_s
        self._sockets = meet(rank, [other for other in range(size) if other != rank], f"{folder}/data", deadline_s)
        for sock in self._sockets.values():
            sock.setblocking(False)

    def sendrecv(self, send: np.ndarray | None, dest: int, recv: np.ndarray | None, source: int) -> None:
        """Send one array and receive another at the same time; ``None`` leaves that half out."""
        # At the same time: if all ranks first sent, all would wait until somebody receives.
        out = memoryview(b"") if send is None else send.view(np.uint8).data
        into = memoryview(b"") if recv is None else recv.view(np.uint8).data
        while out or into:
            other = source if into else dest
            readers, writers = [self._sockets[source]] if into else [], [self._sockets[dest]] if out else []
            readable, writable, _ = select.select(readers, writers, [], self._deadline_s)
            if not readable and not writable:
                raise RankError(f"rank {self.rank} has waited {self._deadline_s:g} s for rank {other}.")
            try:
                if readable:
                    count = self._sockets[source].recv_into(into)
                    into = into[count:]
                    if count == 0:
                        raise ConnectionResetError
                if writable:
                    other = dest
                    out = out[self._sockets[dest].send(out) :]
            except ConnectionError:
                raise RankError(f"rank {other} has ended amid a transfer.") from None

    def close(self) -> None:
        """Whoever waits for this rank gets an error."""
        for sock in self._sockets.values():
            sock.close()


# --- 3. Collectives: what all ranks do together ---------------------------------------------------------
def ring_allreduce(link: Link, array: np.ndarray, combine: Callable[..., Any] = np.add) -> None:
    """Sum an array of K bytes over n ranks, in place. Each sends 2(n - 1) messages, 2(n - 1)/n · K bytes in all.

    The array is cut into n chunks. Each rank sends to its right neighbour and receives from its left one.
    Reduce-scatter, n - 1 steps: add the chunk that arrives to your own, and send on the sum. In the end rank r has the
    whole sum of chunk r + 1. Allgather, n - 1 steps: these sums go once round the ring.
    """
    n, rank = link.size, link.rank
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = np.array_split(array, n)  # views of the array; the first is the longest
    arrived = np.empty_like(chunks[0])
    for step in range(n - 1):
        mine = chunks[(rank - step - 1) % n]
        link.sendrecv(chunks[(rank - step) % n], right, arrived[: len(mine)], left)
        combine(mine, arrived[: len(mine)], out=mine)
    for step in range(n - 1):
        link.sendrecv(chunks[(rank + 1 - step) % n], right, chunks[(rank - step) % n], left)


def broadcast(link: Link, array: np.ndarray, root: int = 0) -> None:
    """Copy the array of ``root`` to all, once round the ring: n - 1 messages of K bytes, one after the other."""
    n, behind = link.size, (link.rank - root) % link.size
    if behind > 0:
        link.sendrecv(None, 0, array, (link.rank - 1) % n)
    if behind < n - 1:
        link.sendrecv(array, (link.rank + 1) % n, None, 0)


# --- 4. Request: what a rank announces ------------------------------------------------------------------
class Request(NamedTuple):
    """What rank 0 is to know of a tensor. The values stay where they are."""

    verb: str  # sum, average, broadcast (of rank 0's values), shutdown
    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int


def hear(connection: Connection, who: str) -> Any:
    """What the other end says next. An error that it says is raised, and so is its end."""
    try:
        message = connection.recv()
    except (EOFError, OSError):
        raise RankError(f"{who} has ended before the others were done.") from None
    if isinstance(message, RankError):
        raise message
    return message


# --- 5. Fusion: small tensors travel together -----------------------------------------------------------
def fuse(requests: Iterable[Request], limit_bytes: int = 8 << 20) -> list[list[Request]]:
    """Cut a list into batches, each of one verb and dtype. A batch of several has at most ``limit_bytes``.

    A message takes some time however short it is, so one long message is faster than many short ones.
    """
    batches: list[list[Request]] = []
    for request in requests:
        last = batches[-1] if batches else []
        alike = {(one.verb, one.dtype) for one in last} == {(request.verb, request.dtype)}
        if alike and sum(one.nbytes for one in [*last, request]) <= limit_bytes:
            last.append(request)
        else:
            batches.append([request])
    return batches


def pack(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Put all values into one array. A single array is not copied: the ring works where it lies."""
    if len(arrays) == 1 and arrays[0].flags.c_contiguous:
        return arrays[0].reshape(-1)
    return np.concatenate([array.reshape(-1) for array in arrays])


def unpack(packed: np.ndarray, arrays: Sequence[np.ndarray]) -> None:
    """Copy the values back to where they were."""
    ends = np.cumsum([array.size for array in arrays])
    for array, values in zip(arrays, np.split(packed, ends[:-1]), strict=True):
        array[...] = values.reshape(array.shape)


# --- 6. Coordinator: the same order on all ranks --------------------------------------------------------
class Coordinator:
    """Ranks submit in any order. A tensor is ready when all ranks have announced it, and then all reduce it.

    There are no sockets, threads or clocks in here: it is told what happens and when, and decides.
    """

    def __init__(self, size: int, deadline_s: float = DEADLINE_S) -> None:
        self._size, self._deadline_s = size, deadline_s
        self._announced: dict[str, tuple[float, dict[int, Request]]] = {}  # name -> since when, rank -> request
        self.ready: list[Request] = []

    def take(self, rank: int, request: Request, now: float) -> None:
        """A rank has announced a tensor. It is an error if the ranks want different things of it."""
        _, requests = self._announced.setdefault(request.name, (now, {}))
        requests[rank] = request
        if len(requests) == self._size:
            del self._announced[request.name]
            if len(set(requests.values())) > 1:
                said = [f"rank {each}: {one.verb} {one.dtype} {one.shape}" for each, one in sorted(requests.items())]
                raise RankError(f"The ranks do not agree about {request.name!r}. {'; '.join(said)}.")
            self.ready.append(request)

    def check(self, now: float) -> None:
        """It is an error if a tensor has waited for some ranks for too long."""
        for name, (since, requests) in self._announced.items():
            if now - since >= self._deadline_s:
                missing = ", ".join(f"rank {rank}" for rank in range(self._size) if rank not in requests)
                raise RankError(f"{missing} did not submit {name!r} within {self._deadline_s:g} s.")


# --- 7. Server: a thread on rank 0 between the ranks and the coordinator ---------------------------------
def serve(rank_of: dict[Connection, int], coordinator: Coordinator) -> None:
    """Receive what ranks announce, and send all ranks the same decisions: batches, or why the job has failed."""
    over = False
    while not over:
        decisions: list[Any] = []
        try:
            readable = wait([*rank_of], WINDOW_S if coordinator.ready else 0.1)
            for connection in readable:
                rank = rank_of[connection]
                coordinator.take(rank, hear(connection, f"rank {rank}"), time.monotonic())
            coordinator.check(time.monotonic())
            if not readable:  # nothing more has come within the window
                decisions, coordinator.ready = fuse(coordinator.ready), []
        except RankError as error:  # the first that is heard of: others follow from it
            decisions = [error]
        for decision in decisions:
            for connection in rank_of:
                with contextlib.suppress(OSError):  # that rank has ended
                    connection.send(decision)
            over = isinstance(decision, RankError) or decision[0].verb == "shutdown"


# --- 8. Engine: announces what is submitted; its thread does what was decided -----------------------------
class Engine:
    """This rank's part of a job. The ranks of a job meet in a folder, which is new and only their user's."""

    def __init__(self, rank: int, size: int, folder: str, deadline_s: float = DEADLINE_S) -> None:
        self.rank, self.size, self._deadline_s = rank, size, deadline_s
        self._link = Link(rank, size, folder, deadline_s)  # from here on all ranks are there
        sockets = meet(rank, [0] if rank else range(1, size), f"{folder}/control", deadline_s)
        connections = {other: Connection(sock.detach()) for other, sock in sockets.items()}
        self._rank_0 = connections.get(0)
        if rank == 0:
            self._rank_0, connections[0] = multiprocessing.Pipe()  # rank 0 announces as the others do
            rank_of = {connection: other for other, connection in connections.items()}
            threading.Thread(target=serve, args=(rank_of, Coordinator(size, deadline_s)), daemon=True).start()
        self._pending: dict[str, tuple[np.ndarray, Future[np.ndarray]]] = {}
        self._lock, self._failure = threading.Lock(), ""
        threading.Thread(target=self._run, daemon=True).start()

    def submit(self, verb: str, array: np.ndarray, name: str) -> Future[np.ndarray]:
        """Announce an array and return at once. ``result()`` of what is returned waits until it is changed in place.

        All ranks submit the same names with the same verb, shape and dtype, in any order.
        """
        future: Future[np.ndarray] = Future()
        with self._lock:
            if self._failure:
                raise RankError(self._failure)
            if name in self._pending:
                raise ValueError(f"{name!r} is under way: wait for its result() before you submit it again.")
            self._pending[name] = array, future  # before it is announced, for the decision may come at once
            with contextlib.suppress(OSError):  # rank 0 has ended: the thread finds that out, too
                self._rank_0.send(Request(verb, name, array.shape, array.dtype.name, array.nbytes))
        return future

    def _run(self) -> None:
        """The thread. The deadlines are here, so every ``result()`` has an end."""
        try:
            while (batch := self._decision())[0].verb != "shutdown":
                self._execute(batch)
            self._pending.pop("shutdown")[1].set_result(np.empty(0))
            raise RankError("The job is over: all ranks have closed their engines.")
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody may wait for ever
            with self._lock:
                self._failure = str(error) if isinstance(error, RankError) else f"rank {self.rank}: {error!r}"
            self._link.close()
            for _, future in self._pending.values():
                future.set_exception(RankError(self._failure))

    def _decision(self) -> Any:
        """What rank 0 has decided next. It decides within the deadline, if only that some rank is late."""
        somebody_waits = bool(self._pending)
        while not self._rank_0.poll(2 * self._deadline_s):
            if somebody_waits:
                raise RankError(f"rank 0 has not answered for {2 * self._deadline_s:g} s.")
            somebody_waits = bool(self._pending)
        return hear(self._rank_0, "rank 0")

    def _execute(self, batch: list[Request]) -> None:
        arrays = [self._pending[request.name][0] for request in batch]
        packed = pack(arrays)
        collective: Callable[..., None] = broadcast if batch[0].verb == "broadcast" else ring_allreduce
        try:
            collective(self._link, packed)
        except RankError as error:
            with self._lock, contextlib.suppress(OSError):
                self._rank_0.send(error)
            while True:  # until rank 0 says what went wrong first
                self._decision()
        if batch[0].verb == "average":
            packed /= self.size
        unpack(packed, arrays)
        for request in batch:
            array, future = self._pending.pop(request.name)
            future.set_result(array)

    def close(self) -> None:
        """Leave the job, all ranks together."""
        self.submit("shutdown", np.empty(0), "shutdown").result()


# --- 9. DistributedOptimizer: gradients leave while backward goes on --------------------------------------
def broadcast_parameters(engine: Engine, named: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Give all ranks the values of rank 0, so that they begin with the same model."""
    futures = [engine.submit("broadcast", tensor.detach().numpy(), f"parameter {name}") for name, tensor in named]
    for future in futures:
        future.result()


class DistributedOptimizer:
    """Wraps an optimizer, so that it steps with the average of all ranks' gradients."""

    def __init__(self, engine: Engine, optimizer: torch.optim.Optimizer, named: Iterable[tuple[str, Any]]) -> None:
        self._engine, self._optimizer, self.zero_grad = engine, optimizer, optimizer.zero_grad
        self._names = {parameter: name for name, parameter in named if parameter.requires_grad}
        self._futures: dict[torch.nn.Parameter, Future[np.ndarray]] = {}
        for parameter in self._names:
            parameter.register_post_accumulate_grad_hook(self._ready)

    def _ready(self, parameter: torch.nn.Parameter) -> None:
        """Backward calls this hook when a gradient is complete, and goes on. The average replaces it in ``.grad``."""
        name = f"gradient {self._names[parameter]}"
        self._futures[parameter] = self._engine.submit("average", parameter.grad.numpy(), name)

    def step(self) -> None:
        """Wait for all averages, then step.

        What has no gradient here may have one on another rank, which waits for ours: so we submit zeros. What has none
        on any rank keeps none, as in one process: a sum says how many ranks have one.
        """
        mine = np.array([parameter in self._futures for parameter in self._names], np.float32)
        counts = self._engine.submit("sum", mine, "how many ranks have each gradient")
        for parameter in self._names.keys() - self._futures.keys():
            parameter.grad = torch.zeros_like(parameter)
            self._ready(parameter)
        for parameter, count in zip(self._names, counts.result(), strict=True):
            self._futures.pop(parameter).result()
            if count == 0:
                parameter.grad = None
        self._optimizer.step()


# --- 10. Run: a process for each rank ---------------------------------------------------------------------
def run(function: Callable[..., Any], size: int, *args: Any, deadline_s: float = DEADLINE_S) -> list[Any]:
    """Call ``function(engine, *args)`` in as many new processes; return what it returned, by rank.

    If a rank raises or is killed, the others are ended, and the error says which one it was.
    """
    with tempfile.TemporaryDirectory(prefix="nano-") as folder:
        torch.multiprocessing.spawn(_one_rank, (function, args, size, folder, deadline_s), nprocs=size)
        return [torch.load(f"{folder}/result{rank}", weights_only=False) for rank in range(size)]


def _one_rank(rank: int, function: Callable[..., Any], args: Any, size: int, folder: str, deadline_s: float) -> None:
    engine = Engine(rank, size, folder, deadline_s)
    torch.save(function(engine, *args), f"{folder}/result{rank}")
    engine.close()


def train(engine: Engine, steps: int = 20) -> list[float]:
    """Train a small network on made-up rows, each rank on its share; return the loss of all rows, by step."""
    torch.manual_seed(engine.rank)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    broadcast_parameters(engine, model.named_parameters())
    optimizer = DistributedOptimizer(engine, torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    x = torch.randn(240, 8, generator=torch.Generator().manual_seed(0))[engine.rank :: engine.size]
    y, losses = x.sum(1, keepdim=True).sin(), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(engine.submit("average", loss.detach().numpy(), "loss").result()))
    return losses


if __name__ == "__main__":
    for step, loss in enumerate(run(train, size=int(sys.argv[1]) if sys.argv[1:] else 2)[0]):
        print(f"step {step:2}: loss {loss:.6f}")
