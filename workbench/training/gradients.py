"""When does which gradient travel? Shared by all frameworks; knows names and entries, but no tensors.

A gradient is submitted as soon as it is ready, while the rest of backward still runs: communication hides
behind computation.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from workbench.runtime.handle import Handle
from workbench.runtime.pending import Entry


class Submit(Protocol):
    """Hands entries to the engine; see :meth:`workbench.runtime.engine.Engine.submit`."""

    def __call__(self, entries: list[Entry], at_once: bool = False) -> list[Handle]:
        """Their handles."""


TOO_MANY_PASSES = (
    "Gradients were computed more than backward_passes_per_step times before call to step(). "
    "Increase backward_passes_per_step to accumulate gradients locally."
)


class GradientReducer:
    """The gradients of one training step, from ready to reduced.

    Args:
        names: one per gradient, in a fixed order that is the same on every rank.
        make_entries: makes an entry for each of some names, or one for all of them, from the gradients as they are.
        submit: hands entries to the engine.
        passes: backward passes per step; the gradient travels after the last.
        groups: names that are submitted together, when the last of them is ready; the others go one by one.

    Example:
        >>> from workbench.runtime.messages import Kind, Request
        >>> def make_entries(names):
        ...     return [Entry(Request(name, Kind.ALLREDUCE), None, None, Handle(name)) for name in names]
        >>> def submit(entries, at_once):
        ...     print([entry.request.name for entry in entries])
        ...     return [entry.handle for entry in entries]
        >>> reducer = GradientReducer(["w", "b"], make_entries, submit)
        >>> reducer.ready("b"); reducer.ready("w")
        ['b']
        ['w']
    """

    def __init__(
        self,
        names: Sequence[str],
        make_entries: Callable[[Sequence[str]], list[Entry]],
        submit: Submit,
        passes: int = 1,
        groups: Sequence[Sequence[str]] = (),
    ) -> None:
        if passes < 1:
            raise ValueError(f"backward_passes_per_step={passes}: there is at least one.")
        self._make_entries, self._submit, self.passes = make_entries, submit, passes
        self._names = dict.fromkeys(names)
        self._groups: dict[str, tuple[str, ...]] = {}
        self.regroup(groups)
        self._left: dict[str, int] = {}
        self._ready: set[str] = set()
        self._handles: dict[str, Handle] = {}

    @property
    def in_flight(self) -> bool:
        """True between the first submission of a step and :meth:`finish`."""
        return bool(self._handles)

    def add(self, name: str) -> None:
        """Take one more gradient in; nothing if it is known."""
        self._names[name] = None

    def regroup(self, groups: Sequence[Sequence[str]]) -> None:
        """Submit these together from the next step on."""
        self._groups = {name: tuple(group) for group in groups for name in group}

    def ready(self, name: str) -> None:
        """A backward pass has finished this gradient.

        Raises:
            AssertionError: it has been submitted in this step already.
        """
        if name in self._handles:
            raise AssertionError(TOO_MANY_PASSES)
        self._left[name] = self._left.get(name, self.passes) - 1
        if self._left[name] > 0:
            return
        self._ready.add(name)
        bucket = self._groups.get(name, (name,))
        if self._ready.issuperset(bucket):
            self._send(bucket)

    def finish(self, names: Sequence[str] | None = None) -> dict[str, Any]:
        """Submit what was not ready (of ``names``, default all), wait for everything, and begin the next step.

        Every rank submits every gradient in every step, so a parameter that one rank did not use cannot make
        the others wait.

        Returns:
            Each handle's result, by name.

        Raises:
            CollectiveError: a reduction failed. The step is over for all gradients.
        """
        try:
            rest = [name for name in (self._names if names is None else names) if name not in self._handles]
            while rest:
                bucket = self._groups.get(rest[0], (rest[0],))
                rest = [name for name in rest if name not in bucket]
                self._send(bucket)
            results = {handle: handle.wait() for handle in dict.fromkeys(self._handles.values())}  # a bucket has one
            return {name: results[handle] for name, handle in self._handles.items()}
        finally:
            self._handles, self._left, self._ready = {}, {}, set()

    def _send(self, bucket: Sequence[str]) -> None:
        entries = self._make_entries(bucket)
        as_one = len(entries) < len(bucket)
        handles = self._submit(entries, as_one)  # nothing is to be packed with it, so nothing is waited for
        self._handles.update(zip(bucket, handles * len(bucket) if as_one else handles, strict=True))


def group_fields(names: Sequence[str]) -> dict[str, Any]:
    """What the requests of a group have in common; its name is equal on two ranks only if all the members are."""
    if len(names) < 2:
        return {}
    return {"group": f"group.{names[0]}.{zlib.crc32('/'.join(names).encode()):08x}", "group_size": len(names)}
