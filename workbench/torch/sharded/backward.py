"""When gradients are sent and waited for: hooks on parameters, the end of each backward pass, and what ``step()`` does.

A flat array of gradients is sent when its last gradient is ready, and at the end of the backward pass whatever is left.
So each rank sends each array once in every backward pass, whichever parameters it has used: none waits for ever. What
comes back is added to this rank's part, so any number of passes may be made before a step, in the same memory.
"""

from __future__ import annotations

import warnings
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from workbench.errors import CollectiveError
from workbench.job.context import HOLDER
from workbench.torch.hooks import Arrivals, Hook, take_over
from workbench.torch.sharded.flat_parameter import FlatParameter
from workbench.torch.sharded.resharded import get_grad, mark_grad_sharded, set_grad

_IN_FLIGHT = 1  # arrays whose reduction goes on while the next is filled: two in memory
# So long, in all, a pass waits for arrays in flight before it fills more memory. Not for ever: a rank that has not used
# one of their parameters sends them at the end of its pass, and may need this one to come to that.
_PATIENCE_S = 1.0
_MOMENT_S = 0.05  # who waits for longer at a time is taken for blocked, and the ranks for waiting for each other
_BROKEN = (
    "An error has interrupted a backward pass, and only a part of its gradients was computed. Call "
    "optimizer.zero_grad() on all "
    "ranks, then do the step again."
)
_WITHIN = "step() within a backward pass (in a hook, say): call it when backward() has returned."
_DROPPED = (
    "A cell has failed since the last backward pass. The ranks may have made different progress, so the old gradients "
    "are dropped."
)
_KEPT = (
    "A cell has failed since gradients were added up within no_sync(), and the ranks may have made different progress. "
    "Call optimizer.zero_grad() on all ranks, then do the step again."
)


def nothing(*_: Any) -> None:
    """What happens where nobody is to be told."""


class Backward:
    """The backward passes over the parameters of some flat arrays.

    Args:
        flats: in the order in which they are sent where several are left.
        completed: is told of an array of which all gradients of this pass are ready.
        ended: is told of the end of a pass, by number; None: of all, for they were broken off.

    Attributes:
        keeping: gradients stay on this rank; see ``no_sync()``.
        arrivals: of gradients.
        replaced: another optimizer has taken the parameters over.
        owner: a weak reference to whoever steps.
    """

    owner: Callable[[], Any] = nothing

    def __init__(
        self,
        flats: Sequence[FlatParameter],
        completed: Callable[[FlatParameter], None] = nothing,
        ended: Callable[[int | None], None] = nothing,
    ) -> None:
        self.flats: list[FlatParameter] = []
        self.keeping = False
        self.arrivals = Arrivals()
        self.replaced = False
        self._completed = completed
        self._ended = ended
        self._flat_of: dict[str, FlatParameter] = {}
        self._hooks: dict[str, Hook] = {}
        self._flying: deque[FlatParameter] = deque()
        self._open: dict[int, _Pass] = {}  # by torch's number; several if one runs within another
        self._patience_s = _PATIENCE_S
        self._passes = 0
        self._kept = False
        self._failures = failures()
        self.add(flats)

    def add(self, flats: Sequence[FlatParameter]) -> None:
        self.flats += flats
        self._flat_of |= {name: flat for flat in flats for name in flat.params}
        self.watch()

    def watch(self) -> list[FlatParameter]:
        """Set hooks on parameters that were frozen until now; their arrays, in which these have not been sent."""
        new = {name: flat for name, flat in self._flat_of.items() if name not in self._hooks and name in flat.trained}
        for name, flat in new.items():
            take_over(flat.params[name])
            self._hooks[name] = _Hook(self, name, flat.params[name])
        return list(dict.fromkeys(new.values()))

    # --- amid a backward pass -------------------------------------------------------------------------

    def touch(self) -> None:
        """Something happens in a backward pass: if it is a new one, begin it."""
        now = torch._C._current_graph_task_id()
        if now in self._open:
            return
        self._forget_failed_cell()
        if any(each.broken for each in self._open.values()):
            raise RuntimeError(_BROKEN)
        self._patience_s = _PATIENCE_S
        self.watch()
        end = _End(self._end, now)
        unsent = {flat: set(flat.trained) & self._hooks.keys() for flat in self.flats if flat.trained}
        self._open[now] = _Pass(unsent, weakref.ref(end))
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(end)

    def ready(self, name: str) -> None:
        flat = self._flat_of[name]
        new = get_grad(flat.params[name])
        self.touch()
        set_grad(flat.params[name], new)  # what touch() drops is older
        del new  # or its memory would be held while the array is sent
        if not self.keeping:
            flat.take(name)
        unsent = self._open[torch._C._current_graph_task_id()].unsent
        waiting = unsent.get(flat, set())
        waiting.discard(name)
        if not waiting and flat in unsent:
            self._complete(flat, unsent)

    def lend(self, name: str) -> torch.Tensor | None:
        """No place: a gradient's array is there only while it is filled."""
        return None

    def is_complete(self, flat: FlatParameter) -> bool:
        """Have all gradients come of this pass, and of that in which it runs?"""
        return not any(flat in each.unsent for each in self._open.values())

    def _complete(self, flat: FlatParameter, unsent: dict[FlatParameter, set[str]]) -> None:
        del unsent[flat]
        if not self.keeping:
            self._send(flat)
        self._completed(flat)

    def _send(self, flat: FlatParameter) -> None:
        for name in flat.params:  # also what stayed in .grad within no_sync()
            flat.take(name)
        flat.send()
        self._flying.append(flat)
        while len(self._flying) > _IN_FLIGHT:
            moment = min(_MOMENT_S, self._patience_s)
            if self._flying[0].finish(moment):
                self._flying.popleft()
            elif moment:
                self._patience_s -= moment
            else:
                break

    def _end(self, which: int) -> None:
        if which not in self._open:  # it was dropped within
            return
        unsent = self._open[which].unsent
        for flat in list(unsent):
            self._complete(flat, unsent)
        del self._open[which]
        self._kept = self.keeping
        self._passes += not self.keeping
        self._ended(which)

    # --- between passes -------------------------------------------------------------------------------

    def finish(self) -> None:
        """Before a step: send what has not been sent, and wait for all.

        Raises:
            CollectiveError: a reduction failed.
            RuntimeError: a backward pass was broken off, or goes on.
        """
        if torch._C._current_graph_task_id() != -1:
            raise RuntimeError(_WITHIN)
        if self._open:
            raise RuntimeError(_BROKEN)
        new = self.watch()
        params = [flat.params[name] for flat in self.flats for name in flat.trained]
        self.arrivals.check({param: get_grad(param) for param in params})
        rest = self.flats if self._kept or not self._passes else new
        self._passes = 0
        self._kept = False
        for flat in rest:
            if flat.trained:
                self._send(flat)
        self._flying.clear()
        for flat in self.flats:
            flat.finish()

    @property
    def begun(self) -> bool:
        """Has there been a backward pass since the last step?"""
        return self._passes > 0 or self._kept

    def drop(self) -> None:
        """Drop all gradients. What is in flight is waited for, and may have failed."""
        for flat in self.flats:
            with suppress(CollectiveError):
                flat.finish()
            flat.forget()
        self._flying.clear()
        self._open = {}
        self._passes = 0
        self._kept = False
        self._failures = failures()
        self._ended(None)

    def give_way(self) -> None:
        for hook in self._hooks.values():
            hook.remove()
        self.replaced = True

    def _forget_failed_cell(self) -> None:
        """After a cell that failed, the ranks may have sent unlike parts of a step: it is given up."""
        if self._failures == failures():
            return
        if self._kept:  # what is new cannot be told from it any more
            raise RuntimeError(_KEPT)
        if self.begun or self._open or any(flat.sent for flat in self.flats):
            warnings.warn(_DROPPED, stacklevel=2)
        self.drop()


class _Hook(Hook):
    """Another optimizer that takes a parameter over finds its ``.grad`` as any."""

    def remove(self) -> None:
        super().remove()
        if (param := self._param()) is not None:
            mark_grad_sharded(param, False)


@dataclass
class _Pass:
    """A backward pass that has begun.

    Args:
        unsent: arrays, with the names of parameters whose gradients are still to come.
        end: a weak reference to what torch calls at its end.
    """

    unsent: dict[FlatParameter, set[str]]
    end: Callable[[], Any]

    @property
    def broken(self) -> bool:
        """Has an error ended it? torch then frees what was to be called at its end."""
        return self.end() is None


class _End:
    """What torch calls at the end of a pass."""

    def __init__(self, end: Callable[[int], None], which: int) -> None:
        self._end = end
        self._which = which

    def __call__(self) -> None:
        self._end(self._which)


def failures() -> int:
    """Of cells and collectives, until now."""
    context = HOLDER.find()
    return context.failures if context else 0
