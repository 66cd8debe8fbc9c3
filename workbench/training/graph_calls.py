"""Functions that a framework's graphs call on the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from workbench.errors import WorkbenchError
from workbench.job.context import HOLDER
from workbench.runtime.faults.blocked_threads import called_at, users_line
from workbench.runtime.faults.sigint import INTERRUPTS


@dataclass
class GraphCalls:
    """Between a framework's graphs and the host: functions that its runtime calls, on threads of its own.

    Args:
        library: the framework's folder, where the Python frames lie of a thread that runs a graph.

    Attributes:
        error: what the last failing one raised. The framework makes another error of it, with this one's text.
    """

    library: str = ""
    error: BaseException | None = None

    def function(
        self, function: Callable[..., Any], line: str | None = None, more: Callable[[], bool] = lambda: False
    ) -> Callable[..., Any]:
        """``function``, for the graph: it runs as this rank, and what it raises is remembered.

        Args:
            line: where the user's code put it into the graph; by default the caller's line.
            more: asked when it waits: may the graph submit other tensors meanwhile?
        """
        context, line = HOLDER.own(), users_line() if line is None else line
        INTERRUPTS.install()

        def run(*args: Any) -> Any:
            try:
                with HOLDER.as_rank(context), INTERRUPTS.interruptible(), called_at(line, self.library, more):
                    return function(*args)
            except BaseException as error:
                self.error = error
                raise

        return run

    @contextmanager
    def own_errors(self, *foreign: type[BaseException]) -> Iterator[None]:
        """Within the block, the framework's error is the one that our function raised."""
        self.error = None
        try:
            yield
        except foreign as error:
            if self.error is None or isinstance(error, WorkbenchError):  # ours already, from no graph
                raise
            raise self.error from None
