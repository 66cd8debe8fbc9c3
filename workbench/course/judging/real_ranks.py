"""A learner's function on real ranks: mpi4py behind the same signatures, and a deadline on every wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from workbench.common.backoff import Backoff
from workbench.course.simulator.communicator import Array, Communicator, Pending
from workbench.errors import DeadlineError
from workbench.runtime.faults.blocked_threads import users_line

DEADLINE_S = 10.0
_FIRST_NAP_S, _LONGEST_NAP_S = 1e-5, 1e-3


class PolledComm(Communicator):
    """An mpi4py communicator whose waits end.

    Args:
        comm: mpi4py's; no other thread may use it. A message may be left in it after an error.
        deadline_s: of one wait.
    """

    def __init__(self, comm: Any, deadline_s: float = DEADLINE_S) -> None:
        self.comm, self.rank, self.size, self._deadline_s = comm, comm.rank, comm.size, deadline_s
        self._asked: list[tuple[int, int, list[Any]]] = []  # receives of objects that nothing has come for

    def post_send(self, data: Any, dest: int, tag: int, verb: str) -> Pending:
        send = self.comm.Isend if verb[0].isupper() else self.comm.isend
        return _Polled(self, send(data, dest=dest, tag=tag).test, f"{verb}(dest={dest})")

    def post_recv(self, buffer: Array | None, source: int, tag: int, verb: str) -> Pending:
        from mpi4py import MPI

        source, tag = (MPI.ANY_SOURCE if source < 0 else source), (MPI.ANY_TAG if tag < 0 else tag)
        if buffer is not None:
            return _Polled(self, self.comm.Irecv(buffer, source=source, tag=tag).test, f"{verb}(source={source})")

        received: list[Any] = []
        self._asked.append((source, tag, received))

        def take() -> tuple[bool, Any]:
            self._serve()
            return (True, received[0]) if received else (False, None)

        return _Polled(self, take, f"{verb}(source={source})")

    def _serve(self) -> None:
        """Messages go to receives in the order in which these were posted, whoever is waited for first."""
        left = []
        for source, tag, received in self._asked:
            message = self.comm.improbe(source=source, tag=tag)
            if message is None:
                left.append((source, tag, received))
            else:
                received.append(message.recv())
        self._asked = left

    def finish(self, pending: Sequence[Pending], verb: str) -> list[Any]:
        return wait_all(self.rank, pending, self._deadline_s)


class _Polled(Pending):
    """Something that can be asked whether it is done."""

    def __init__(self, comm: Any, ask: Callable[[], tuple[bool, Any]], what: str) -> None:
        self._comm, self._ask, self.what, self._done = comm, ask, what, False
        self._value: Any = None

    def test(self) -> tuple[bool, Any]:
        if not self._done:
            self._done, self._value = self._ask()
        return self._done, self._value

    def wait(self) -> Any:
        return self._comm.finish([self], "wait")[0]

    Wait, Test = wait, test


def wait_all(rank: int, pending: Sequence[Any], deadline_s: float) -> list[Any]:
    """Wait for all, asking ever more seldom.

    Raises:
        DeadlineError: it takes too long.
    """
    backoff = Backoff(deadline_s, _FIRST_NAP_S, _LONGEST_NAP_S)
    while sum(one.test()[0] for one in pending) < len(pending):  # asks all of them, so that all get on
        if not backoff.pause():
            left = " and ".join(one.what for one in pending if not one.test()[0])
            where = users_line()
            raise DeadlineError(f"Rank {rank} waited in {left} for {deadline_s:g} s{f' ({where})' if where else ''}.")
    return [one.test()[1] for one in pending]


class ClusterRanks:
    """The ranks of a running cluster.

    Args:
        cluster: :class:`workbench.cluster.cluster.Cluster`.
    """

    def __init__(self, cluster: Any) -> None:
        self._cluster, self.n, self.name = cluster, cluster.n, f"{cluster.n} MPI ranks"

    def run(
        self, function: Callable[..., Any], inputs: Sequence[tuple[Any, ...]], deadline_s: float = DEADLINE_S
    ) -> Any:
        """Run it on all ranks and return their results; afterwards the engines answer again, whatever it did.

        Raises:
            DeadlineError: a rank waited for too long.
        """
        # By value, with what it uses of the notebook's own names: the engines do not know them.
        import cloudpickle  # not at the top: a browser has no engines, and needs none of it

        answer = self._cluster.view.apply_async(run_here, cloudpickle.dumps(function), list(inputs), deadline_s)
        try:
            results = answer.get(2 * deadline_s + 10)
        except Exception as error:  # noqa: BLE001 - of whatever class, it is the learner's
            if not answer.done():
                self._cluster.rescue(quiet=True)
                raise DeadlineError(f"It did not end on {self.name} within {2 * deadline_s + 10:g} s.") from None
            raise _first(error) from None
        return results


def run_here(function: bytes, inputs: Sequence[tuple[Any, ...]], deadline_s: float) -> Any:
    """On one engine: the pickled function, with a copy of its own of MPI.COMM_WORLD."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD.Dup()
    import cloudpickle

    return cloudpickle.loads(function)(PolledComm(comm, deadline_s), *inputs[comm.rank])


def _first(error: Exception) -> Exception:
    """What the lowest rank raised, instead of ipyparallel's collection of it."""
    elist = getattr(error, "elist", None)
    if not elist:
        return error
    name, text = elist[0][0], elist[0][1]
    return DeadlineError(text) if name == "DeadlineError" else RuntimeError(f"{name}: {text}")
