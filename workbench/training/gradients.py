"""When does which gradient travel? Shared by all frameworks; knows names and entries, but no tensors.

A gradient is submitted as soon as it is ready, while the rest of backward still runs: communication hides
behind computation. All but the last of a step are submitted with the hint that more is to come, so that
neighbours are announced and fused together.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

from workbench.runtime.handle import Handle
from workbench.runtime.pending import Entry

Submit = Callable[[list[Entry], bool], list[Handle]]

TOO_MANY_PASSES = (
    "Gradients were computed more than backward_passes_per_step times before call to step(). "
    "Increase backward_passes_per_step to accumulate gradients locally."
)


class GradientReducer:
    """The gradients of one training step, from ready to reduced.

    Args:
        names: one per gradient, in a fixed order that is the same on every rank.
        make_entry: makes the entry for (name, group, group size), from the gradient as it is now.
        submit: hands entries to the engine; the flag says that more is to come.
        passes: backward passes per step; the gradient travels after the last.
        groups: names that are submitted together, when the last of them is ready; the others go one by one.

    Example:
        >>> from workbench.runtime.messages import Kind, Request
        >>> def make_entry(name, group, size):
        ...     return Entry(Request(name, Kind.ALLREDUCE), None, None, Handle(name))
        >>> def submit(entries, more):
        ...     print([entry.request.name for entry in entries], "more" if more else "last")
        ...     return [entry.handle for entry in entries]
        >>> reducer = GradientReducer(["w", "b"], make_entry, submit)
        >>> reducer.ready("b"); reducer.ready("w")
        ['b'] more
        ['w'] last
    """

    def __init__(
        self,
        names: Sequence[str],
        make_entry: Callable[[str, str, int], Entry],
        submit: Submit,
        passes: int = 1,
        groups: Sequence[Sequence[str]] = (),
    ) -> None:
        if passes < 1:
            raise ValueError(f"backward_passes_per_step={passes}: there is at least one.")
        self._make_entry, self._submit, self.passes = make_entry, submit, passes
        self._names = dict.fromkeys(names)
        self._buckets: dict[str, tuple[str, ...]] = {name: tuple(group) for group in groups for name in group}
        self._left: dict[str, int] = {}
        self._ready: set[str] = set()
        self._handles: dict[str, Handle] = {}
        self._promised = False  # the last submission said that more is to come

    @property
    def in_flight(self) -> bool:
        """True between the first submission of a step and :meth:`finish`."""
        return bool(self._handles)

    def add(self, name: str) -> None:
        """Take one more gradient in; nothing if it is known."""
        self._names[name] = None

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
        bucket = self._buckets.get(name, (name,))
        if self._ready.issuperset(bucket):
            self._send(bucket, more=len(self._handles) + len(bucket) < len(self._names))

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
                bucket = self._buckets.get(rest[0], (rest[0],))
                rest = [name for name in rest if name not in bucket]
                self._send(bucket, more=bool(rest))
            if self._promised:
                self._submit([], False)  # nothing follows after all
            return {name: handle.wait() for name, handle in self._handles.items()}
        finally:
            self._handles, self._left, self._ready, self._promised = {}, {}, set(), False

    def _send(self, bucket: Sequence[str], more: bool) -> None:
        group, size = (_group_name(bucket), len(bucket)) if len(bucket) > 1 else ("", 0)
        entries = [self._make_entry(name, group, size) for name in bucket]
        self._handles.update(zip(bucket, self._submit(entries, more), strict=True))
        self._promised = more


def _group_name(bucket: Sequence[str]) -> str:
    """Equal on two ranks only if all the members are."""
    return f"group.{bucket[0]}.{zlib.crc32('/'.join(bucket).encode()):08x}"
