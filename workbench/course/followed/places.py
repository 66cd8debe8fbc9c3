"""The way of a gradient: the functions that it passes, named and not numbered, so that the code can change.

Each place also says which tensors one of its calls is about, from the call's own variables. So a trace can tell the
calls for one gradient from those for all others.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pkgutil import resolve_name
from types import FunctionType
from typing import Any

Variables = dict[str, Any]
STEP = "optimizer.step()"
"""What the last place is about: all gradients."""

STOPS = {
    "hook": "backward has finished the gradient, and it is handed over",
    "announcement": "rank 0 is told that this rank has it",
    "response": "rank 0 has heard all ranks, and decides",
    "reduction": "the ranks' gradients become one",
    "step": "the result is in .grad, and the weights change",
}
"""The five stops, in their order, and what happens there."""

PHASES = dict(zip(STOPS, ("submit", "wait", "negotiate", "reduce", "unpack"), strict=True))
"""By stop, the phase of the timeline that begins there; see :mod:`workbench.observe.tracks`."""


@dataclass(frozen=True)
class TracedFunction:
    """A function on the way.

    Args:
        stop: one of :data:`STOPS`.
        path: ``module:Class.function``.
        about: from the variables of a call, the tensors' names; None: of a function that knows no names, whose calls
            are about what their caller is about.
        first: of several calls the first one counts; else the last: all others have led to it.
    """

    stop: str
    path: str
    about: Callable[[Variables], Iterable[str]] | None
    first: bool = False

    @property
    def name(self) -> str:
        return self.path.partition(":")[2]

    @property
    def function(self) -> FunctionType:
        """The function itself, without what decorates it.

        Raises:
            AttributeError, ImportError: it is gone, or has moved.
        """
        found = inspect.unwrap(resolve_name(self.path))
        assert isinstance(found, FunctionType), f"{self.path} is no function"
        return found


def _named(*variables: str) -> Callable[[Variables], Iterable[str]]:
    """The names are in these variables: a name, a key, something with a name, or a list of such."""
    return lambda values: [name for one in variables for name in _names(values.get(one))]


def _names(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, (list, tuple)):
        return [name for one in value for name in _names(one)]
    if isinstance(value, dict):
        return [name for one in (*value, *value.values()) for name in _names(one)]
    return next(
        (_names(found) for each in ("request", "name") if (found := getattr(value, each, None)) is not None), []
    )


_HOOKS, _GRADIENTS = "workbench.torch.optimizer.gradient_hooks", "workbench.torch.gradients"
_ENGINE, _COORDINATOR = "workbench.core.engine", "workbench.core.coordinator"

PLACES = (
    TracedFunction("hook", f"{_HOOKS}:Hook.__call__", _named("self")),
    TracedFunction("hook", f"{_HOOKS}:GradientHooks.ready", _named("name")),
    TracedFunction("hook", f"{_GRADIENTS}.dense:DenseGradients.ready", _named("name")),
    TracedFunction("hook", f"{_GRADIENTS}.bucket:GradBucket.take", _named("name"), first=True),
    TracedFunction("hook", f"{_GRADIENTS}.dense:DenseGradients._send", _named("group")),
    TracedFunction("hook", "workbench.core.pending:PendingTable.add", _named("entries")),
    TracedFunction("announcement", f"{_ENGINE}:Engine._announce", _named("item")),
    TracedFunction("announcement", "workbench.runtime.steady.cache:CachingAnnouncer.announce", _named("entries")),
    TracedFunction("response", f"{_COORDINATOR}:CountingCoordinator._announce", _named("request")),
    TracedFunction("response", f"{_COORDINATOR}:CountingCoordinator._complete", _named("key")),
    TracedFunction("response", "workbench.core.agreement:respond", _named("requests")),
    TracedFunction("response", "workbench.runtime.steady.steady_state:SteadyCoordinator._advance", _named("responses")),
    TracedFunction("reduction", f"{_ENGINE}:Engine._execute", _named("batch")),
    TracedFunction("reduction", "workbench.core.execute:_allreduce", _named("response")),
    TracedFunction("reduction", "workbench.transport.shm.collectives:ShmCollectives.allreduce", None),
    TracedFunction("reduction", "workbench.collectives.shared_memory:reduce_across", None),
    TracedFunction("step", "workbench.core.pending:Entry.deliver", _named("self")),
    TracedFunction("step", f"{_GRADIENTS}.dense:DenseGradients.finish", _named("handles")),
    TracedFunction("step", f"{_GRADIENTS}.grads:Grads.store", _named("reduced")),
    TracedFunction("step", "workbench.torch.optimizer.distributed:DistributedOptimizer.step", lambda values: [STEP]),
)
"""In the order in which they are told."""
