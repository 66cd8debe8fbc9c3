"""The Spark job behind a job: tasks that offer a slot each, until the ranks have ended.

::

    driver:  run ── ExecutorRegistry ── SparkSlots ── Spark's scheduler
                        ║                        │
    node:          executor.serve  ◄──  task of a stage (all at once, if it is a barrier stage)
                        └── agent ── ranks
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from workbench.errors import LaunchError, RankFailedError, WorkbenchError
from workbench.executors.executor import About, Invitation, serve
from workbench.executors.registry import ExecutorRegistry
from workbench.spark import session
from workbench.spark.shipping import shipped

_END_S = 30.0
_REASON_S = 10.0
_NOTICED_S = 2.0
_GPU = "gpu"
_SHOWN = 3  # lost tasks in a message


def offer(invitation: Invitation, barrier: bool, index: int, _: Iterable[Any]) -> Iterator[str]:
    """What each task does: serve, and say why that has ended.

    Spark starts a barrier stage again when it has lost a task. That repeats no ranks behind the user's back: the new
    tasks only offer slots, and a job of fixed size takes none after its start.

    Args:
        invitation: where to go. It travels in Spark's messages: ``spark.authenticate`` says who may read them,
            ``spark.network.crypto.enabled`` encrypts them.
        barrier: is it a task of a barrier stage?
        index: the task's number in its stage.
    """
    from pyspark import BarrierTaskContext, TaskContext

    context: Any = BarrierTaskContext.get() if barrier else TaskContext.get()
    gpus = context.resources().get(_GPU)
    attempt = context.attemptNumber()
    label = f"task {index}" + (f", attempt {attempt}" if attempt else "")
    yield serve(invitation, About(label, tuple(gpus.addresses) if gpus else ()))


class SparkSlots:
    """``n`` Spark tasks as one Spark job, on a thread of its own; within the block it runs.

    Args:
        sc: the SparkContext.
        n: how many.
        board: where they check in.
        barrier: all at once, or each for itself, and again when it is lost.
        title: what Spark's own pages call it.
    """

    def __init__(self, sc: Any, n: int, board: ExecutorRegistry, barrier: bool, title: str) -> None:
        self._sc, self._n, self._board, self._title = sc, n, board, title
        self._offer, self._barrier = shipped(__name__, "offer", board.invitation, barrier), barrier
        self._tag = f"workbench-{secrets.token_hex(8)}"
        self._over = self._cancelled = False
        self._failure = ""

    def __enter__(self) -> SparkSlots:
        from pyspark import InheritableThread

        self._thread = InheritableThread(target=self._run, name="workbench-spark", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._over = True
        self._board.close()
        if kind is not None:
            self._cancel()
        self._thread.join(_END_S)
        if self._thread.is_alive():
            self._cancel()
            self._thread.join(_END_S)

    def failure(self) -> str:
        """Why Spark's job ended before ours; "" while it runs."""
        return self._failure

    def lost(self, error: WorkbenchError) -> str:
        """Which task was lost, and why, in Spark's own words; "" if none was.

        Args:
            error: by which the job has ended. Of a lost task it may be known before the task's own connection ends.
        """
        wait_s = 0.0 if isinstance(error, RankFailedError) else _NOTICED_S
        session.until_true(lambda: self._board.lost() or self._failure, wait_s)
        gone = self._board.lost()
        if not gone and not self._failure:
            return ""
        tasks = session.until_true(lambda: session.lost_tasks(self._sc, self._tag) or self._failure, _REASON_S)
        if isinstance(tasks, list):
            more = f", and {len(tasks) - _SHOWN} more" if len(tasks) > _SHOWN else ""
            return f"Spark lost {'; '.join(tasks[:_SHOWN])}{more}."
        who = f" ({', '.join(gone)} went away)" if gone else ""
        return f"Spark's job ended before its ranks{who}: {self._failure or 'no reason is known'}."

    def _run(self) -> None:
        sc = self._sc
        sc.addJobTag(self._tag)  # and no job group: that is the user's, who may cancel it
        sc.setInterruptOnCancel(True)
        if not sc.getLocalProperty("spark.job.description"):
            sc.setJobDescription(self._title)
        try:
            rows = sc.range(0, self._n, numSlices=self._n)
            rows = rows.barrier() if self._barrier else rows
            told = rows.mapPartitionsWithIndex(self._offer).collect()
        except Exception as error:  # noqa: BLE001 - of Spark, py4j or a task: all of them end the job
            self._failure = "" if self._over else reason(error)
        else:
            self._failure = "" if self._over else f"its tasks ended ({', '.join(sorted(set(told)))})"

    def _cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            with contextlib.suppress(Exception):  # the SparkContext may be stopped, and then nothing is left to cancel
                self._sc.cancelJobsWithTag(self._tag)


def reason(error: BaseException) -> str:
    """Why a Spark job failed, in a line."""
    java: Callable[[], Any] | None = getattr(getattr(error, "java_exception", None), "getMessage", None)
    text = session.first_line(str(java()) if java else str(error) or type(error).__name__)
    if "No module named" in text:
        text += (
            ". The tasks' Python needs the same packages as the driver's: set PYSPARK_PYTHON on the driver to choose it"
        )
    return text.rstrip(". ")


def check_n(n: int, what: str) -> int:
    """A number of ranks.

    Raises:
        LaunchError: it is less than 1.
    """
    if n < 1:
        raise LaunchError(f"{what}={n}: a job has at least 1 rank.")
    return n
