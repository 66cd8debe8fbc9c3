"""Run a function on ranks that are threads of this process, with the whole runtime, as a cell of a notebook.

So an exercise meets the workbench's own errors, without any engines, within a second: a rank whose function has
returned is idle, as after the end of a cell, and whoever waits for it is told.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import workbench
from workbench.config import changed_environment
from workbench.course.judging.compare import about, compared, difference
from workbench.course.judging.task import Case
from workbench.course.simulator.communicator import copied
from workbench.course.simulator.deadline import LOOP, MOST_TIMES, Halt, Patience, halt
from workbench.errors import CollectiveError, WorkbenchError
from workbench.job.context import HOLDER, Context

DEADLINE_S = 6.0
_QUICK = {
    "WORKBENCH_FAILED_RANK_GRACE_S": "0.25",
    "WORKBENCH_SHUTDOWN_TIMEOUT_S": "2",
    "WORKBENCH_HEARTBEAT_S": "0.1",
}


def as_ranks_do(
    cases: Callable[[], Sequence[Case]],
    expected: Callable[[Case], Sequence[Any]],
    names: Sequence[str] = (),
    likely: Callable[[Case], Iterable[tuple[Sequence[Any], str]]] | None = None,
) -> list[Callable[[Callable[..., Any]], str]]:
    """Properties for a PlainTask whose function is ``f(hvd, …)``: it runs, and its results are what is expected.

    Args:
        cases: from the smallest to the largest.
        expected: of a case, by rank.
        names: of the result, or of its items if it has several.
        likely: of a case, what else one may return, and why; a wrong result that is one of them is told so.
    """
    found: list[tuple[Case, list[Any]]] = []

    def runs(function: Callable[..., Any]) -> str:
        found.clear()
        for case in cases():
            try:
                found.append((case, on_ranks(function, case.inputs)))
            except WorkbenchError as error:
                return f"{about(case)}: {type(error).__name__}: {_without_guess(str(error))}"
        return ""

    def right(function: Callable[..., Any]) -> str:
        for case, results in found:
            if wrong := difference(results, expected(case), names):
                known = likely(case) if likely else ()
                why = next((f"{words}; " for other, words in known if not compared(results, other)), "")
                return f"{about(case)}: {why}{wrong}"
        return ""

    return [runs, right]


def _without_guess(text: str) -> str:
    """An error as a card shows it: what the workbench takes for the likely cause is left for the learner to find."""
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("Likely "))


def on_ranks(
    function: Callable[..., Any], inputs: Sequence[tuple[Any, ...]], deadline_s: float = DEADLINE_S
) -> list[Any]:
    """Call ``function(hvd, *inputs[rank])`` on every rank; ``hvd`` is the workbench.

    Args:
        function: the learner's.
        inputs: by rank; each gets a copy.
        deadline_s: a rank that still runs then is stopped, see :class:`Patience`.

    Returns:
        The results by rank.

    Raises:
        Exception: what a rank raised: its own mistake rather than what the others raised because of it.
        WorkbenchError: a collective failed, and the function has caught the error.

    Example:
        >>> on_ranks(lambda hvd, x: float(hvd.allreduce(x, op=hvd.Sum)), [(1,), (2,), (3,)])
        [6.0, 6.0, 6.0]
    """
    n = len(inputs)
    cells, over = _Cells(function, [tuple(map(copied, one)) for one in inputs], Patience(deadline_s)), threading.Event()
    threading.Thread(target=cells.watch, args=(over,), daemon=True).start()
    try:
        with changed_environment(**_QUICK):
            workbench.run_threads(n, cells.run, timeout_s=MOST_TIMES * deadline_s + 2)
    finally:
        over.set()
    if cells.errors:
        cells.patience.forget_unfinished()
        raise cells.cause()
    return [cells.results[rank] for rank in range(n)]


class _Cells:
    """One cell on every rank."""

    def __init__(self, function: Callable[..., Any], inputs: Sequence[tuple[Any, ...]], patience: Patience) -> None:
        self.function, self.inputs, self.patience = function, inputs, patience
        self.results: dict[int, Any] = {}
        self.errors: dict[int, BaseException] = {}
        self._running: dict[int, tuple[int, Context]] = {}  # by rank, its thread
        self._ended = threading.Barrier(len(inputs))

    def run(self) -> None:
        context = HOLDER.get()
        rank = context.rank
        context.cell_begins()
        self._running[rank] = threading.get_ident(), context
        try:
            self.results[rank] = self.function(workbench, *self.inputs[rank])
            self._running.pop(rank, None)
        except BaseException as error:  # noqa: BLE001 - raised by on_ranks()
            self._running.pop(rank, None)
            self.errors[rank] = self._named(error, rank)
            context.cell_raised(traceback.format_exc())
        else:
            self._caught(rank, context)
        context.cell_ends()
        with suppress(threading.BrokenBarrierError):
            self._ended.wait(DEADLINE_S)  # idle, but there: a rank that leaves would be another story

    def _caught(self, rank: int, context: Context) -> None:
        if context.engine.failures:
            self.errors[rank] = WorkbenchError(
                f"A collective failed on rank {rank}, and the function caught the error and went on. Its cause is "
                "still there: find out which rank did not come."
            )

    def _named(self, error: BaseException, rank: int) -> BaseException:
        if isinstance(error, Halt):
            return WorkbenchError(f"Rank {rank} {self.patience.late(LOOP)}")
        error.rank = rank  # type: ignore[attr-defined]
        return error

    def watch(self, over: threading.Event) -> None:
        """Stop who still runs when it takes too long; who waits for it is told by the runtime then."""
        if self.patience.wait(over.wait):
            return
        busy = [ident for ident, context in list(self._running.values()) if not context.waits._waiting]
        for ident in busy:
            halt(ident)

    def cause(self) -> BaseException:
        """The lowest rank's own mistake, else what the lowest rank was told."""
        return min(self.errors.items(), key=lambda item: (isinstance(item[1], CollectiveError), item[0]))[1]
