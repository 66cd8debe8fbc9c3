"""What survives a failure: states that are saved, restored, and made equal on all ranks. See :mod:`workbench.elastic`.

Source of names and semantics: Horovod 0.28 (``horovod/common/elastic.py``).
"""

from __future__ import annotations

import copy
import os
import queue
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import IntFlag
from typing import TYPE_CHECKING, Any

from workbench.elastic.checkpoint import Checkpoints, Notice
from workbench.elastic.checkpoint_values import NUMPY, ArrayKind, encode
from workbench.errors import CheckpointError
from workbench.job import api
from workbench.job.context import HOLDER, Passing


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
    """The state that survives a reset. A subclass defines how to save, restore and sync it.

    Args:
        bcast_object: gives rank 0's object to every rank.
        get_rank: this rank.
    """

    _array_kinds: Sequence[ArrayKind] = (NUMPY,)
    """The arrays that a checkpoint of it may hold."""

    _may_be_hidden: Sequence[str] = ("checkpoint", "finish")
    """What Horovod's states do not have: an attribute may take the name, for no loop of ours needs it."""

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int]) -> None:
        self._checkpoints: Checkpoints | None = None
        self._bcast_object, self._rank = bcast_object, get_rank
        self._host_messages: queue.SimpleQueue[tuple[float, int]] = queue.SimpleQueue()
        self._last_updated_timestamp = 0.0
        self._reset_callbacks: list[Callable[[], Any]] = []
        self._commits = 0

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], Any]]) -> None:
        """Call these after every reset, in this order; for a learning rate that follows the number of ranks."""
        self._reset_callbacks.extend(callbacks)

    def _forget_host_updates(self) -> None:
        """The job is about to begin anew, and will know of all changes until then. Later ones are kept."""
        self._host_messages = queue.SimpleQueue()

    def on_reset(self) -> None:
        """The job has begun anew, perhaps with other ranks."""
        if self._checkpoints is not None:
            self._checkpoints.cut_short()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def _on_leave(self) -> None:
        """This process leaves the job, after a commit; the others go on, or leave as well.

        They may be all that there are: the commit is being written, and the process stays until it is.
        """
        if self._checkpoints is not None:
            self._checkpoints.leave()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Take a message about the hosts; the next :meth:`check_host_updates` looks at it. From any thread.

        Args:
            timestamp: later than that of the message before; anything else counts as known.
            update_res: one or both of :class:`HostUpdate`.
        """
        self._host_messages.put((timestamp, update_res))

    def commit(self) -> None:
        """Save everything, then :meth:`check_host_updates`. All ranks call it at the same point of the training.

        With :meth:`checkpoint`, what is saved is also handed to the thread that writes, if it is time.

        A failure costs what came after the last commit, a commit costs a copy of the state: choose how often.
        After ``optimizer.step()`` is the right place: gradients are no part of the state.

        Raises:
            HostsUpdatedInterrupt: ranks join or leave.
            CheckpointError: checkpoints could not be written, several times in a row.
        """
        self.save()
        self._commits += 1
        if context := HOLDER.find():
            context.part(Passing).passes("in commit")
        self._exchange_notice(self._notice)

    def check_host_updates(self) -> None:
        """Raise on all ranks at once if rank 0 has heard of other hosts. A collective.

        Raises:
            HostsUpdatedInterrupt: it has.
        """
        self._exchange_notice(lambda leaving: None)

    def _exchange_notice(self, notice_of: Callable[[bool], Notice | None]) -> None:
        """Rank 0's word to all, about hosts and about checkpoints; it depends on whether ranks are to leave."""
        before = latest = self._last_updated_timestamp
        update = 0
        while not self._host_messages.empty():
            timestamp, what = self._host_messages.get()
            if timestamp > latest:
                latest, update = timestamp, update | what
        # Rank 0's knowledge decides: ranks that hear of it one step apart would not stop at the same step.
        notice = notice_of(bool(update & HostUpdate.REMOVED))
        before, latest, update, notice = self._as_rank_0_knows(before, latest, update, notice)
        self._last_updated_timestamp = latest
        if notice is not None and self._checkpoints is not None:
            self._checkpoints.receive(notice, self._rank(), self._lent)
        if latest > before:
            raise HostsUpdatedInterrupt(skip_sync=update == HostUpdate.REMOVED)

    def _as_rank_0_knows(
        self, before: float, latest: float, update: int, notice: Notice | None
    ) -> tuple[float, float, int, Notice | None]:
        return self._bcast_object((before, latest, update, notice))  # type: ignore[no-any-return]

    def checkpoint(self, folder: str | os.PathLike[str], every: int = 1, keep: int = 2) -> Checkpoints:
        """Write commits to ``folder`` during the training, and continue from the newest one there, if any.

        Every rank calls it, before the training function. Rank 0 reads it at the first sync, so any number of ranks can
        continue from a checkpoint of any number. Details: :mod:`workbench.elastic.checkpoint`.

        Args:
            folder: all ranks see the same one. A training has one of its own.
            every: how many commits from one checkpoint to the next. A commit while one is still being written does not
                wait: the first commit after that is written.
            keep: how many complete checkpoints are kept. While one is written, space for one more is needed.

        Returns:
            What writes: ``newest`` is the number of the last whole one, ``wait()`` waits for what is being written.

        Raises:
            CheckpointError: nothing can be written there, or an attribute is not plain; the text names it.

        Example:
            >>> import tempfile
            >>> def train(folder, steps):
            ...     state = ObjectState(lambda obj: obj, lambda: 0, step=0)
            ...     _ = state.checkpoint(folder, every=10)
            ...     state.sync()  # as hvd.elastic.run does at the beginning, and finish() at the end
            ...     print("from step", state.step)
            ...     while state.step < steps:
            ...         state.step += 1
            ...         state.commit()
            ...     state.finish()
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     train(folder, steps=15)
            ...     train(folder, steps=20)
            from step 0
            from step 15
        """
        checkpoints = Checkpoints(folder, every, keep, self._array_kinds)
        checkpoints.refuse_unless_plain(self._copies())
        self._checkpoints = checkpoints
        return checkpoints

    def finish(self) -> None:
        """The training has ended: write the last commit, if it is in no checkpoint, and wait for the disk.

        All ranks call it; ``hvd.elastic.run`` does. Without :meth:`checkpoint` it does nothing.

        Raises:
            CheckpointError: it could not be written; on all ranks.
        """
        self._finish()

    def _finish(self) -> None:
        if self._checkpoints is None:
            return
        self._exchange_notice(lambda leaving: self._notice(leaving, last=True))
        self._checkpoints.wait()
        problem = self._bcast_object(self._checkpoints.problem())
        self._checkpoints.close()
        if problem:
            raise CheckpointError(problem)

    def _resume(self) -> None:
        """Go on from the newest checkpoint, on rank 0, before its first sync. Every ``sync`` begins with it.

        Raises:
            CheckpointError: the folder is in use, its checkpoints are damaged, or they are of another training. All
                ranks raise it.
        """
        if self._checkpoints is None:
            return
        problem = ""
        if self._rank() == 0:
            try:
                self._go_on(self._checkpoints)
            except CheckpointError as error:
                problem = str(error)
        if problem := self._bcast_object(problem):
            raise CheckpointError(problem)

    def _go_on(self, checkpoints: Checkpoints) -> None:
        values = checkpoints.first_look()
        if values is None:
            return
        wrong = self._differences(values)
        if not wrong:
            try:
                self._take(values)
                return
            except Exception as error:  # noqa: BLE001 - what a framework's load_state_dict() raises
                wrong = [f"{type(error).__name__}: {error}"]
        raise CheckpointError(
            f"The checkpoint in {checkpoints.folder} belongs to another training: {'; '.join(wrong[:5])}. Give this "
            "training its own folder."
        )

    def _notice(self, leaving: bool, last: bool = False) -> Notice | None:
        """What rank 0 says of checkpoints at this commit."""
        if self._checkpoints is None or self._rank() != 0:
            return None
        return self._checkpoints.notice(self._commits, api.size() if api.is_initialized() else 1, leaving, last)

    def _differences(self, values: dict[str, Any]) -> list[str]:
        """Where a checkpoint does not fit this state: its attributes, and the arrays of what has a fixed shape."""
        mine = self._copies()
        wrong = [f"it lacks {name!r}" for name in mine if name not in values]
        wrong += [f"it has {name!r}" for name in values if name not in mine]
        if wrong:
            return wrong
        both = []
        for each in (mine, values):
            arrays = encode({name: each[name] for name in self._of_fixed_shape()}, self._array_kinds)[1]
            both.append(
                {array.name: f"{array.about['dtype']}, shape {tuple(array.about['shape'])}" for array in arrays}
            )
        ours, theirs = both
        wrong = [f"{name} ({ours[name]}) is missing" for name in ours if name not in theirs]
        wrong += [f"{name} ({theirs[name]}) is not of this model" for name in theirs if name not in ours]
        pairs = ((name, theirs[name], ours[name]) for name in ours if name in theirs)
        return wrong + [f"{name} is {its} there and {here} here" for name, its, here in pairs if its != here]

    def _copies(self) -> dict[str, Any]:
        """The last commit by attribute, of plain values and arrays."""
        raise CheckpointError(f"{type(self).__name__} has no checkpoints: write _copies() and _take(values) for it.")

    def _lent(self) -> dict[str, Any]:
        """As :meth:`_copies`, for a thread that reads them for a while: no later commit may overwrite them."""
        return self._copies()

    def _take(self, values: dict[str, Any]) -> None:
        """Let such values be the last commit, and go back to it."""
        raise NotImplementedError

    def _of_fixed_shape(self) -> Sequence[str]:
        """Attributes whose arrays have the same names and shapes in every run, such as a model."""
        return ()

    def save(self) -> None:
        """Keep a copy of everything as it is now."""
        raise NotImplementedError

    def restore(self) -> None:
        """Go back to the last copy."""
        raise NotImplementedError

    def sync(self) -> None:
        """Give every rank the present values of rank 0, and save them."""
        raise NotImplementedError

    def reset(self) -> None:
        """Adapt everything that depends on rank and size to the new job."""

    def _begin_exact(self, shards: int | None, seed: int) -> None:
        """Train so that the bits do not depend on the number of ranks; see :mod:`workbench.elastic.exact`.

        Raises:
            ValueError: this kind of state cannot.
        """
        raise ValueError(
            f"run(exact=True) needs a workbench.torch.elastic.TorchState with model and optimizer. This state is a "
            f"{type(self).__name__}."
        )

    def _settle(self) -> None:
        """The training function has returned, on all ranks."""

    def _own_errors(self) -> AbstractContextManager[None]:
        """Within it, a framework's error that one of ours has caused is that one."""
        return nullcontext()


class ObjectState(State):
    """Plain Python objects; each keyword is an attribute.

    Args:
        bcast_object, get_rank: see :class:`State`.
        kwargs: names and values. Copies are deep: a list that grew is restored to its committed length.

    Raises:
        ValueError: a name that Horovod's State has itself, such as ``sync``.

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
        self._saved: dict[str, Any] = copy.deepcopy(kwargs)
        self._add(kwargs)

    def save(self) -> None:
        """Keep a deep copy; what two attributes share they share in the copy, too."""
        self._saved = copy.deepcopy(self._values())

    def restore(self) -> None:
        """Go back to the last copy, which stays whole: it can be restored any number of times."""
        self._set(copy.deepcopy(self._saved))

    def sync(self) -> None:
        """Rank 0's values as they are now, on every rank, and saved."""
        self._resume()
        if self._names:
            self._set(self._bcast_object(self._values()))
        self.save()

    def _copies(self) -> dict[str, Any]:
        return self._saved

    def _take(self, values: dict[str, Any]) -> None:
        self._saved = {name: values[name] for name in self._names}
        self.restore()

    def _add(self, values: dict[str, Any]) -> None:
        """Make attributes of them, unless one would hide a method."""
        taken = [name for name in values if name not in self._may_be_hidden and hasattr(self, name)]
        if taken:
            raise ValueError(f"{taken[0]!r} is used by {type(self).__name__} itself: give the attribute another name.")
        self._set(values)

    def _values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._names}

    def _set(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self, name, value)

    if TYPE_CHECKING:  # the attributes are the caller's

        def __getattr__(self, name: str) -> Any: ...
