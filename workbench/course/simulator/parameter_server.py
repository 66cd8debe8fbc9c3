"""Three algorithms that train one model on several workers: a ring, a synchronous and an asynchronous parameter server.

All three are functions over ``comm``, and run in the simulator as well as on real ranks. Bytes on the wire for weights
of K bytes and W workers, in each direction:

    ring            2(W - 1)/W · K per step on every link
    synchronous     W · K per step on the server's link, K on a worker's
    asynchronous    W · (K + 8) per W gradients on the server's link, K + 8 on that of a worker of average speed

Adding takes no time, on a server or on a rank: links alone are counted. The servers stand here to be compared. To
train, use the ring.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from workbench.collectives.ring import ring_allreduce
from workbench.course.simulator import Comm
from workbench.course.simulator.communicator import Array, Communicator

SERVER = 0
"""The rank of the server; worker i is rank i + 1 then. In the ring, worker i is rank i."""


@dataclass(frozen=True)
class Plan:
    """What is to be trained.

    Args:
        start: the first weights, one-dimensional, the same on every rank.
        gradient: of (weights, worker, step), the mean over the worker's samples of its step.
        steps: how many; an asynchronous server takes as many gradients as there are in these steps.
        lr: learning rate, of the mean over all workers' gradients.
        momentum: the part of the last change that is kept in the next.
        seconds: by worker, what a gradient takes in the simulator; without it, no time. Real ranks take their own.
    """

    start: Array
    gradient: Callable[[Array, int, int], Array]
    steps: int
    lr: float
    momentum: float = 0.0
    seconds: Sequence[float] = ()


@dataclass
class History:
    """The weights after each update, recorded by the rank that updates them.

    Attributes:
        weights: after the update.
        times: of the update, in seconds since the beginning: virtual ones in the simulator.
        workers: whose gradient it was; -1: everybody's.
        staleness: how many updates had been made since that worker got its weights.
    """

    begun: float
    weights: list[Array] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    workers: list[int] = field(default_factory=list)
    staleness: list[int] = field(default_factory=list)

    def add(self, comm: Communicator, weights: Array, worker: int = -1, staleness: int = 0) -> None:
        self.weights.append(weights)
        self.times.append(clock(comm) - self.begun)
        self.workers.append(worker)
        self.staleness.append(staleness)


class _CommLink:
    """A communicator as a Link, so that the package's own ring runs on it."""

    def __init__(self, comm: Communicator) -> None:
        self._comm, self.rank, self.size = comm, comm.rank, comm.size

    def sendrecv(self, send: Array | None, dest: int, recv: Array | None, source: int) -> None:
        received = self._comm.sendrecv(send, dest=dest, source=source)
        if recv is not None:
            recv[...] = received


def ring(comm: Communicator, plan: Plan) -> History:
    """Every rank is a worker and has the weights; a ring allreduce adds up the gradients.

    Example:
        >>> from workbench.course.simulator import simulate
        >>> to_zero = Plan(np.ones(4), lambda weights, worker, step: weights, steps=2, lr=0.5)
        >>> [history.weights[-1].tolist() for history in simulate(2, ring, to_zero).results]
        [[0.25, 0.25, 0.25, 0.25], [0.25, 0.25, 0.25, 0.25]]
    """
    weights, velocity, history = plan.start, np.zeros_like(plan.start), History(clock(comm))
    for step in range(plan.steps):
        gradient = computed(comm, plan, weights, comm.rank, step)
        total = np.array(gradient)
        ring_allreduce(_CommLink(comm), total)
        velocity = plan.momentum * velocity + total / comm.size
        weights = weights - plan.lr * velocity
        history.add(comm, weights)
    return history


def synchronous(comm: Communicator, plan: Plan) -> History | None:
    """Rank 0 has the weights. In each step every worker gets them, and the server waits for every gradient.

    Example:
        >>> from workbench.course.simulator import simulate
        >>> to_zero = Plan(np.ones(4), lambda weights, worker, step: weights, steps=2, lr=0.5)
        >>> run = simulate(3, synchronous, to_zero)
        >>> run.results[0].weights[-1].tolist(), run.sent()
        ([0.25, 0.25, 0.25, 0.25], [(4, 128), (2, 64), (2, 64)])
    """
    if comm.rank != SERVER:
        for step in range(plan.steps):
            weights = comm.recv(source=SERVER)
            comm.send(computed(comm, plan, weights, comm.rank - 1, step), dest=SERVER)
        return None
    weights, velocity, history = plan.start, 0.0, History(clock(comm))
    for _ in range(plan.steps):
        for worker in range(1, comm.size):
            comm.send(weights, dest=worker)
        total = sum(comm.recv(source=worker) for worker in range(1, comm.size))
        velocity = plan.momentum * velocity + total / (comm.size - 1)
        weights = weights - plan.lr * velocity
        history.add(comm, weights)
    return history


def asynchronous(comm: Communicator, plan: Plan) -> History | None:
    """Rank 0 has the weights. Whoever brings a gradient changes them at once, and gets the new ones.

    Meanwhile the other workers compute with what they got before: their gradients are *stale*.

    Example:
        >>> from workbench.course.simulator import simulate
        >>> to_zero = Plan(np.ones(4), lambda weights, worker, step: weights, steps=2, lr=0.5, seconds=(0.001, 0.009))
        >>> history = simulate(3, asynchronous, to_zero).results[0]
        >>> history.workers, history.staleness
        ([0, 0, 0, 1], [0, 0, 0, 3])
    """
    if comm.rank == SERVER:
        return serve(comm, plan)
    work(comm, plan)
    return None


def work(comm: Communicator, plan: Plan) -> None:
    """A worker: a gradient for every set of weights, until none comes."""
    me = np.array([comm.rank])
    weights, step = plan.start, 0
    while weights is not None:
        comm.send([computed(comm, plan, weights, comm.rank - 1, step), me], dest=SERVER)
        weights, step = comm.recv(source=SERVER), step + 1


def serve(comm: Communicator, plan: Plan) -> History:
    """The server: every gradient changes the weights as it comes."""
    workers, weights, velocity, history = comm.size - 1, plan.start, 0.0, History(clock(comm))
    updates, asked = workers * plan.steps, workers  # each worker begins without being asked
    has = [0] * comm.size  # by rank: the update after which it got its weights
    for update in range(updates):
        gradient, (rank,) = comm.recv()  # from anybody
        velocity = plan.momentum * velocity + gradient / workers
        weights = weights - plan.lr * velocity
        history.add(comm, weights, int(rank) - 1, update - has[rank])
        has[rank] = update + 1
        comm.send(weights if asked < updates else None, dest=int(rank))
        asked += 1
    return history


def computed(comm: Communicator, plan: Plan, weights: Array, worker: int, step: int) -> Array:
    """A worker's gradient. In the simulator it takes ``plan.seconds``; on a real rank it has taken what it takes."""
    gradient = plan.gradient(weights, worker, step)
    if isinstance(comm, Comm) and plan.seconds:
        comm.compute(plan.seconds[worker], "gradient")
    return gradient


def clock(comm: Communicator) -> float:
    """Seconds: of the virtual clock in the simulator, else of the machine's."""
    return comm.now if isinstance(comm, Comm) else time.perf_counter()
