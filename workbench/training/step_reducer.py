"""When which gradient is submitted, and when its result is waited for. Shared by all frameworks; knows no tensors.

A gradient is submitted as soon as all of its group (its bucket) are ready, while the rest of backward still runs:
communication overlaps computation.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from workbench.core.handle import Handle
from workbench.core.pending import Entry
from workbench.errors import CollectiveError

TOO_MANY_PASSES = (
    "Gradients were computed more than backward_passes_per_step times before call to step(). "
    "Increase backward_passes_per_step to accumulate gradients locally, or call all but the last backward() within "
    "optimizer.no_sync(). If one backward() did it: checkpoint(use_reentrant=True) computes the gradient of a "
    "parameter that several parts share more than once; use_reentrant=False does not."
)


class GradientSource(Protocol):
    """A framework's gradients, by name."""

    def prepare(self, name: str | None) -> None:
        """Nothing of this step is in flight yet, so groups may still change. A name: its gradient comes next."""

    def group_of(self, name: str) -> Sequence[str]:
        """The names that are submitted together with this one, itself included."""

    def take(self, name: str) -> bool:
        """A backward pass has finished this gradient; False if it is not for the reducer, being sparse."""

    def entries(self, names: Sequence[str]) -> list[Entry] | Entry:
        """An entry for each name of a group, or one for all, from the gradients as they are now."""


class Submit(Protocol):
    """Hands entries to the engine: :func:`workbench.job.entries.submit`."""

    def __call__(self, entries: list[Entry], at_once: bool = False) -> list[Handle]: ...


class GradientReducer:
    """The gradients of one training step, from ready to reduced.

    Args:
        names: one per gradient, in a fixed order that is the same on every rank.
        source: the gradients themselves.
        submit: hands entries to the engine.
        passes: backward passes per step; a gradient is submitted after the last.

    Example:
        >>> from workbench.core.messages import Kind, Request
        >>> class Source:
        ...     def prepare(self, name): pass
        ...     def group_of(self, name): return [name]
        ...     def take(self, name): return True
        ...     def entries(self, names):
        ...         return [Entry(Request(name, Kind.ALLREDUCE), None, None, Handle(name)) for name in names]
        >>> def submit(entries, at_once=False):
        ...     print([entry.request.name for entry in entries])
        ...     return [entry.handle for entry in entries]
        >>> reducer = GradientReducer(["w", "b"], Source(), submit)
        >>> reducer.ready("b"); reducer.ready("w")
        ['b']
        ['w']
    """

    def __init__(self, names: Sequence[str], source: GradientSource, submit: Submit, passes: int = 1) -> None:
        if passes < 1:
            raise ValueError(f"backward_passes_per_step={passes}: must be ≥ 1.")
        self._source, self._submit, self.passes = source, submit, passes
        self._names = dict.fromkeys(names)
        self.forget()

    @property
    def begun(self) -> bool:
        """True between the first gradient of a step and :meth:`finish`."""
        return bool(self._left)

    @property
    def in_flight(self) -> bool:
        """True between the first submission of a step and :meth:`finish`."""
        return bool(self._handles)

    def add(self, name: str) -> None:
        """Take one more gradient in; nothing if it is known."""
        self._names[name] = None

    def ready(self, name: str) -> None:
        """A backward pass has finished this gradient. The last one of a group submits the group.

        Raises:
            AssertionError: it has been submitted in this step already.
        """
        self.check_not_sent(name)
        if not self.in_flight:
            self._source.prepare(name)
        if not self._source.take(name):
            return
        self._left[name] = self._left.get(name, self.passes) - 1
        if self._left[name] > 0:
            return
        self._ready.add(name)
        group = self._source.group_of(name)
        if all(each in self._ready for each in reversed(group)):  # the last of a group is the last to come
            self._send(group)

    def check_not_sent(self, name: str) -> None:
        """Raise an AssertionError if this gradient has been submitted in this step: backward has added to it since."""
        if name in self._handles:
            raise AssertionError(TOO_MANY_PASSES)

    def finish(self, names: Sequence[str] | None = None) -> dict[str, Any]:
        """Submit what was not ready (of ``names``, default all), wait for all results, by name, and begin a new step.

        Every rank submits every gradient in every step, so a parameter that one rank did not use cannot make
        the others wait.

        Raises:
            CollectiveError: a reduction failed. The step is over for all gradients, and none is in flight.
        """
        handles = self.hand_over(names)
        results = wait_for_all(dict.fromkeys(handles.values()))  # a bucket has one
        return {name: results[handle] for name, handle in handles.items()}

    def hand_over(self, names: Sequence[str] | None = None) -> dict[str, Handle]:
        """As :meth:`finish`, without waiting; the handles by name."""
        try:
            rest = [name for name in (self._names if names is None else names) if name not in self._handles]
            if rest and not self.in_flight:
                self._source.prepare(None)
            for name in rest:
                if name not in self._handles:  # its group may have been submitted for another one
                    self._send(self._source.group_of(name))
            return self._handles
        finally:
            self.forget()

    def forget(self) -> None:
        """Begin the next step, whatever has become of this one."""
        self._left: dict[str, int] = {}
        self._ready: set[str] = set()
        self._handles: dict[str, Handle] = {}

    def _send(self, group: Sequence[str]) -> None:
        made = self._source.entries(group)
        if isinstance(made, Entry):  # a bucket: nothing is to be packed with it, so nothing is waited for
            (handle,) = self._submit([made], at_once=True)
            self._handles |= dict.fromkeys(group, handle)
        else:
            self._handles |= zip(group, self._submit(made), strict=True)


def wait_for_all(handles: Iterable[Handle]) -> dict[Handle, Any]:
    """The result of each.

    Raises:
        CollectiveError: the first one's that failed. The others are done by then: the memory of each is free.
    """
    results, failed = dict[Handle, Any](), list[CollectiveError]()
    for handle in handles:
        try:
            results[handle] = handle.wait()
        except CollectiveError as error:
            failed.append(error)
    if failed:
        raise failed[0]
    return results


def group_fields(names: Sequence[str]) -> dict[str, Any]:
    """What the requests of a group have in common; its name is equal on two ranks only if all the members are."""
    if len(names) < 2:
        return {}
    return {"group": f"group.{names[0]}.{zlib.crc32('/'.join(names).encode()):08x}", "group_size": len(names)}


__all__ = ["GradientReducer", "GradientSource", "Submit", "group_fields", "wait_for_all"]
