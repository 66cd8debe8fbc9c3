"""The one way of a gradient: a hook hands it to a source, the source to the engine; ``step()`` asks the source back.

::

    backward ──► Hook ──► GradientHooks.ready ──► source.ready ──► engine
    optimizer.step() ──► source.step ──► source.reduce: results are in .grad ──► the wrapped optimizer steps
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol


class GradientSource(Protocol):
    """The gradients of an optimizer, of one kind."""

    @property
    def in_flight(self) -> bool:
        """True between the first submission of a step and its end."""

    def ready(self, name: str, keep: bool) -> None:
        """Backward has finished a gradient.

        Args:
            name: of the parameter.
            keep: it stays on this rank: a later pass adds to it, see ``no_sync()``.
        """

    def reduce(self, names: Sequence[str], unsharded: bool = False) -> None:
        """Wait until each ``.grad`` is what the wrapped optimizer is to step with. All ranks call it.

        Args:
            names: of all gradients, also those that this rank has not.
            unsharded: also where other ranks step with a part of it: somebody looks at them, or clips them.

        Raises:
            CollectiveError: a reduction failed.
        """

    def step(self, update: Callable[[], Any], names: Sequence[str] | None) -> Any:
        """A step of the wrapped optimizer, as these gradients need it.

        Args:
            update: makes it.
            names: what is to be reduced before; None: it is reduced already, or will be within ``update``.

        Returns:
            What ``update`` has returned.
        """

    def abandon(self) -> None:
        """A step was broken off: wait for what is in flight, whatever becomes of it, and forget it."""

    def restart(self) -> bool:
        """A cell has failed, and not all ranks may have come as far: what they remember in common begins anew.

        Returns:
            True if a step had begun, which is abandoned.
        """
