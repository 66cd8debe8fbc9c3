"""Checkpoints of an elastic state: written beside the training, whole or not at all, for any number of ranks.

::

    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, step=0)
    state.checkpoint("checkpoints", every=100)      # each 100th commit is written
    train(state)                                    # goes on from the newest whole one, if there is any

What a commit does. The committed copy is in memory anyway, and nothing changes it. A thread writes it; the training
goes on. Rank 0 decides at which commit, and its word travels in the broadcast that a commit has in any case, so all
ranks write the same one. Each writes its share (:mod:`workbench.elastic.checkpoint_files`); rank 0 then looks for the
shares of the others in the folder and writes the manifest. No rank waits for another one's disk.

While one is being written, no other begins: what is due is written at the first commit after it. So memory holds one
copy more at most, and a slow disk makes checkpoints rare, not the training slow.

On what is not equal on all ranks (statistics of batch normalization), rank 0's value counts, as in a sync. Rank 0
compares checksums of its own copy with the others', and writes the pieces that differ itself.

What fails is a warning, and is tried again some seconds later. After :data:`LIMIT` failures in a row a commit raises
:class:`~workbench.errors.CheckpointError` on all ranks; so does the end of ``run``, if the last one cannot be written.
The last whole checkpoint stays: older ones are deleted only after a newer one is on the disk.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.elastic.checkpoint_files import DamagedError, complete, directory_of, numbers, read_complete
from workbench.elastic.checkpoint_lock import FolderLock
from workbench.elastic.checkpoint_values import NUMPY, ArrayKind, encode
from workbench.elastic.checkpoint_write import Attempt, prune, write
from workbench.errors import CheckpointError

LIMIT = 5
"""So many checkpoints in a row that could not be written end the training."""

RETRY_S = 10.0
"""After a failure, the next one begins no sooner."""

LOCK_S = 15.0
"""How long a job that starts waits for the one before to end."""

LEAVE_S = 20.0
"""How long a rank that is to leave waits for the disk; who asks it to leave often kills it after 30 s."""

_LOG = logging.getLogger("workbench")
_ADVICE = {
    errno.ENOSPC: "Make room there, or keep fewer checkpoints.",
    errno.EDQUOT: "Your quota is used up: delete something, or keep fewer checkpoints.",
    errno.ENOENT: "The folder is gone: create it again, or mount its file system.",
    errno.EACCES: "Give this user the right to write there.",
    errno.EPERM: "Give this user the right to write there.",
    errno.EROFS: "The file system is read-only: mount it writable, or give another folder.",
}


@dataclass(frozen=True)
class Notice:
    """What rank 0 tells all ranks at a commit.

    Attributes:
        newest: the number of the last checkpoint that is whole.
        attempt: the one that all ranks begin to write now.
        problem: why rank 0 gives up; all ranks raise it.
        last: there is no commit, for the training has ended.
    """

    newest: int | None
    attempt: Attempt | None = None
    problem: str = ""
    last: bool = False


class Checkpoints:
    """Writes and finds the checkpoints of one state; made by :meth:`workbench.elastic.State.checkpoint`.

    Args:
        folder: all ranks see the same one. It is made if it is missing.
        every: how many commits from one checkpoint to the next.
        keep: how many complete ones are kept. Where the disk has no room for one more, the oldest goes before the next
            is written, if another is left.
        kinds: the arrays that the state may hold.
        patience_s: how long rank 0 waits for other ranks' parts, from when they last grew.

    Attributes:
        newest: the number of the last one that this rank knows to be whole and on the disk.
        postponed: how often one was due while the one before was still being written.

    Raises:
        CheckpointError: nothing can be written there.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        every: int = 1,
        keep: int = 2,
        kinds: Sequence[ArrayKind] = (NUMPY,),
        patience_s: float = 120.0,
    ) -> None:
        if every < 1 or keep < 1:
            raise ValueError(f"every={every}, keep={keep}: both are at least 1")
        self.folder, self._every, self._keep, self._kinds = Path(folder).absolute(), every, keep, tuple(kinds)
        self.newest: int | None = None
        self.postponed, self._patience_s = 0, patience_s
        self._since = self._failures = self._last_number = 0
        self._problem, self._warned, self._retry_at = "", "", 0.0
        self._full = False  # was the disk?
        self._thread: threading.Thread | None = None
        self._cut_short = threading.Event()
        self._lock = FolderLock(self.folder)
        self._looked = False
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            raise CheckpointError(f"No checkpoints can be written: {explained(error)}") from error

    # --- at a commit ----------------------------------------------------------------------------------

    def notice(self, commit: int, size: int, leaving: bool = False, last: bool = False) -> Notice:
        """Rank 0's word to all ranks at a commit, itself too.

        Args:
            commit: how many commits there have been.
            size: the number of ranks.
            leaving: some ranks will leave now, or all of them: this commit is due.
            last: the training ends: what has not been written is due.
        """
        if last:
            self.wait()
            due = self._since > 0 or bool(self._problem)
        else:
            due = leaving or (self._since + 1 >= self._every and time.monotonic() >= self._retry_at)
        if leaving and self._thread is not None:
            self._thread.join(LEAVE_S)
        if self._failures >= LIMIT:
            return Notice(self.newest, problem=f"{self._failures} checkpoints in a row failed. {self._problem}")
        if due and self.busy():
            self.postponed += 1
        if not due or self.busy():
            return Notice(self.newest, last=last)
        self._last_number = max(self._last_number, *self._numbers()) + 1
        return Notice(self.newest, Attempt(self._last_number, commit, size, secrets.token_hex(4)), last=last)

    def receive(self, notice: Notice, rank: int, values: Callable[[], Mapping[str, Any]]) -> None:
        """Do what rank 0 said. Every rank calls it.

        Args:
            notice: rank 0's word.
            rank: this one.
            values: gives the committed copy, which nobody changes any more.

        Raises:
            CheckpointError: rank 0 has given up.
        """
        problem = self._problem
        if problem and problem != self._warned:
            _LOG.warning("checkpoint: %s Training continues; the last complete checkpoint is kept.", problem)
        self._warned = problem
        if notice.problem:
            raise CheckpointError(notice.problem)
        if notice.newest is not None:
            self.newest = notice.newest
        self._since, self._looked = self._since + (not notice.last), True
        if notice.attempt is not None:
            self._since, self._cut_short = 0, threading.Event()
            rest = (rank, values(), self._cut_short, self._thread)
            self._thread = threading.Thread(
                target=self._write, args=(notice.attempt, *rest), name="checkpoint", daemon=True
            )
            self._thread.start()

    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def wait(self, timeout_s: float = 600.0) -> None:
        """Until what is being written is on the disk; on rank 0, until it is whole.

        Raises:
            CheckpointError: it is still not after ``timeout_s``.
        """
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                raise CheckpointError(f"{self.folder}: after {timeout_s:g} s a checkpoint is still being written.")

    def problem(self) -> str:
        """Why the last attempt failed; empty if it did not."""
        return self._problem

    def cut_short(self) -> None:
        """The ranks change: wait no longer for parts than a moment, for who should write them may be gone."""
        self._cut_short.set()

    def leave(self) -> None:
        """This rank leaves the job: stay until what it is writing is on the disk, as long as a grace period allows."""
        try:
            self.wait(LEAVE_S)
        except CheckpointError as error:
            _LOG.warning("checkpoint: %s This rank leaves.", error)
        if self._problem:
            _LOG.warning("checkpoint: %s", self._problem)
        self.close()

    def close(self) -> None:
        """Let another job have the folder."""
        self._lock.release()

    def _numbers(self) -> list[int]:
        try:
            return numbers(self.folder) or [0]
        except OSError:
            return [0]  # the writer will say what is wrong with the folder

    def _write(
        self,
        attempt: Attempt,
        rank: int,
        values: Mapping[str, Any],
        cut_short: threading.Event,
        before: threading.Thread | None,
    ) -> None:
        try:
            if before is not None:
                before.join(self._patience_s)  # of a rank 0 before this one, or of a rank that is slow
            if rank == 0:
                self._lock.take(LOCK_S)
                # What was given up goes now. On a disk that was full, the oldest one makes room for this one.
                prune(self.folder, max(1, self._keep - 1) if self._full else self._keep, attempt.number)
            write(self.folder, attempt, rank, values, self._kinds, self._patience_s, cut_short)
        except Exception as error:  # noqa: BLE001 - whatever it is, the training must not end by it
            where = f"on rank {rank}, {socket.gethostname()}"
            self._problem = f"Checkpoint {attempt.number} failed {where}: {explained(error)}"
            self._full |= any(os.strerror(code) in str(error) for code in (errno.ENOSPC, errno.EDQUOT))
            if not cut_short.is_set():  # else it is the ranks that changed, and not the disk
                self._failures += 1
                self._retry_at = time.monotonic() + RETRY_S
            return
        self._problem, self._failures, self._retry_at = "", 0, 0.0
        if rank == 0:
            self.newest = attempt.number
            prune(self.folder, self._keep, attempt.number)

    # --- at the start ---------------------------------------------------------------------------------

    def first_look(self) -> dict[str, Any] | None:
        """The values of the newest whole checkpoint, for rank 0; None if there is none, and from the second call on.

        Raises:
            CheckpointError: another job writes there, or there are checkpoints and all of them are damaged.
        """
        if self._looked:
            return None
        self._looked = True
        try:
            self._lock.take(LOCK_S)
            found = newest_complete(self.folder, self._kinds)
        except OSError as error:
            raise CheckpointError(f"No checkpoint can be read: {explained(error)}") from error
        if found is None:
            return None
        values, manifest = found
        self.newest = manifest["number"]
        _LOG.info("checkpoint: continuing from %s", directory_of(self.folder, manifest["number"]))
        return values

    def refuse_unless_plain(self, values: Mapping[str, Any]) -> None:
        """Raise a CheckpointError that names what could not be written."""
        encode(values, self._kinds)


def newest_complete(folder: Path, kinds: Sequence[ArrayKind]) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The values and the manifest of the newest checkpoint that can be read; None if none was ever finished.

    Raises:
        CheckpointError: there are some, and all of them are damaged.
    """
    wrong = []
    finished = complete(folder)
    for number in reversed(numbers(folder)):
        if number not in finished:
            _LOG.warning("checkpoint: %s is incomplete: it is skipped.", directory_of(folder, number))
            continue
        try:
            return read_complete(directory_of(folder, number), kinds)
        except DamagedError as error:
            _LOG.warning("checkpoint: %s The previous one is used.", error)
            wrong.append(str(error))
    if wrong:
        raise CheckpointError(
            f"No checkpoint in {folder} is complete. To begin from the start, give another folder. " + " ".join(wrong)
        )
    return None


def read_checkpoint(folder: str | os.PathLike[str], kinds: Sequence[ArrayKind] = (NUMPY,)) -> dict[str, Any]:
    """What the newest whole checkpoint holds, by attribute; without a job, on one process. Nothing is locked.

    Args:
        folder: as given to :meth:`~workbench.elastic.State.checkpoint`.
        kinds: the arrays that it may hold.

    Returns:
        Plain attributes as they were, and of the others their ``state_dict()``.

    Raises:
        CheckpointError: there is none, or all are damaged.

    Example:
        >>> import tempfile
        >>> from workbench.elastic import ObjectState
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     state = ObjectState(lambda obj: obj, lambda: 0, step=7)
        ...     _ = state.checkpoint(folder)
        ...     state.commit()
        ...     state.finish()
        ...     read_checkpoint(folder)
        {'step': 7}
    """
    try:
        found = newest_complete(Path(folder).absolute(), kinds)
    except OSError as error:
        raise CheckpointError(f"No checkpoint can be read: {explained(error)}") from error
    if found is None:
        raise CheckpointError(f"There is no finished checkpoint in {Path(folder).absolute()}.")
    return found[0]


def explained(error: Exception) -> str:
    """An error as one sentence, with what to do about it where that is known."""
    if not isinstance(error, OSError):
        return str(error) if isinstance(error, CheckpointError) else f"{type(error).__name__}: {error}."
    where = f" ({error.filename})" if error.filename else ""
    return f"{error.strerror or error}{where}. {_ADVICE.get(error.errno or 0, '')}".rstrip()
