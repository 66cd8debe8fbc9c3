"""What survives a failure: states that are saved, restored, and made equal on all ranks. See :mod:`workbench.elastic`.

Source of names and semantics: Horovod 0.28 (``horovod/common/elastic.py``).
"""

from __future__ import annotations

import copy
import queue
from collections.abc import Callable, Iterable
from enum import IntFlag
from typing import TYPE_CHECKING, Any


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818 - no error, and scripts know it by Horovod's name
    """The ranks of this job change; raised by a commit, on all ranks at once.

    Args:
        skip_sync: ranks only leave, so those that stay are equal already.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("Ranks leave this job." if skip_sync else "Ranks join this job.")
        self.skip_sync = skip_sync


class HostUpdate(IntFlag):
    """What happened to the hosts of a job; Horovod's numbers."""

    REMOVED = 1
    ADDED = 2


class State:
    """What survives a reset. A subclass says how to save, restore and sync it.

    Args:
        bcast_object: gives rank 0's object to every rank.
        get_rank: this rank.
    """

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int]) -> None:
        self._bcast_object, self._rank = bcast_object, get_rank
        self._host_messages: queue.SimpleQueue[tuple[float, int]] = queue.SimpleQueue()
        self._last_updated_timestamp = 0.0
        self._reset_callbacks: list[Callable[[], Any]] = []
        self.commits = 0

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], Any]]) -> None:
        """Call these after every reset, in this order; for a learning rate that follows the number of ranks."""
        self._reset_callbacks.extend(callbacks)

    def forget_host_updates(self) -> None:
        """The job is about to begin anew, and will know of all changes until then. Later ones are kept."""
        self._host_messages = queue.SimpleQueue()

    def on_reset(self) -> None:
        """The job has begun anew, perhaps with other ranks."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_leave(self) -> None:
        """This process leaves the job, after a commit; the others go on, or leave as well."""

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Take a message about the hosts; the next :meth:`check_host_updates` looks at it. From any thread.

        Args:
            timestamp: later than that of the message before; anything else counts as known.
            update_res: one or both of :class:`HostUpdate`.
        """
        self._host_messages.put((timestamp, update_res))

    def commit(self) -> None:
        """Save everything, then :meth:`check_host_updates`. All ranks call it at the same point of the training.

        A failure costs what came after the last commit, a commit costs a copy of the state: choose how often.
        After ``optimizer.step()`` is the right place: gradients are no part of the state.

        Raises:
            HostsUpdatedInterrupt: ranks join or leave.
        """
        self.save()
        self.commits += 1
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raise on all ranks at once if rank 0 has heard of other hosts. A collective.

        Raises:
            HostsUpdatedInterrupt: it has.
        """
        before = latest = self._last_updated_timestamp
        update = 0
        while not self._host_messages.empty():
            timestamp, what = self._host_messages.get()
            if timestamp > latest:
                latest, update = timestamp, update | what
        # Rank 0's knowledge decides: ranks that hear of it one step apart would not stop at the same step.
        before, latest, update = self._as_rank_0_knows(before, latest, update)
        self._last_updated_timestamp = latest
        if latest > before:
            raise HostsUpdatedInterrupt(skip_sync=update == HostUpdate.REMOVED)

    def _as_rank_0_knows(self, before: float, latest: float, update: int) -> tuple[float, float, int]:
        return self._bcast_object((before, latest, update))  # type: ignore[no-any-return]

    def save(self) -> None:
        """Keep a copy of everything as it is now."""
        raise NotImplementedError

    def restore(self) -> None:
        """Go back to the last copy."""
        raise NotImplementedError

    def sync(self) -> None:
        """Give every rank what rank 0 has now, and save it."""
        raise NotImplementedError

    def reset(self) -> None:
        """Fit what depends on rank and size to the new job."""

    def begin_exact(self, shards: int | None, seed: int) -> None:
        """Train so that the bits do not depend on the number of ranks; see :mod:`workbench.elastic.exact`.

        Raises:
            ValueError: this kind of state cannot.
        """
        raise ValueError(
            f"run(exact=True) needs a workbench.torch.elastic.TorchState with model and optimizer. This state is a "
            f"{type(self).__name__}."
        )

    def settle(self) -> None:
        """The training function has returned, on all ranks."""


class ObjectState(State):
    """Plain Python objects; each keyword is an attribute.

    Args:
        bcast_object, get_rank: see :class:`State`.
        kwargs: names and values. Copies are deep: a list that grew is restored to its committed length.

    Raises:
        ValueError: a name that State has itself, such as ``sync``.

    Example:
        >>> state = ObjectState(lambda obj: obj, lambda: 0, step=1, losses=[0.5])
        >>> state.commit()
        >>> state.step = 2
        >>> state.losses.append(0.4)
        >>> state.restore()
        >>> state.step, state.losses
        (1, [0.5])
    """

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int], **kwargs: Any) -> None:
        super().__init__(bcast_object, get_rank)
        self._names = tuple(kwargs)
        self._add(kwargs)
        self._saved: dict[str, Any] = copy.deepcopy(kwargs)

    def save(self) -> None:
        """Keep a deep copy; what two attributes share they share in the copy, too."""
        self._saved = copy.deepcopy(self._values())

    def restore(self) -> None:
        """Go back to the last copy, which stays whole: it can be restored any number of times."""
        self._set(copy.deepcopy(self._saved))

    def sync(self) -> None:
        """Rank 0's values as they are now, on every rank, and saved."""
        if self._names:
            self._set(self._bcast_object(self._values()))
        self.save()

    def _add(self, values: dict[str, Any]) -> None:
        """Make attributes of them, unless one would hide a method."""
        taken = [name for name in values if hasattr(self, name)]
        if taken:
            raise ValueError(f"{taken[0]!r} is a name of {type(self).__name__} itself: give the attribute another one.")
        self._set(values)

    def _values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._names}

    def _set(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self, name, value)

    if TYPE_CHECKING:  # the attributes are the caller's

        def __getattr__(self, name: str) -> Any: ...


__all__ = ["HostUpdate", "HostsUpdatedInterrupt", "ObjectState", "State"]
