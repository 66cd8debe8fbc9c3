"""Every error that the workbench raises, in one tree.

::

    WorkbenchError (RuntimeError)
    ├── NotInitializedError (also ValueError)   a verb was called before init()
    ├── LaunchError                             the job could not be started: MPI vendor, mpiexec, rendezvous
    ├── DataNotFoundError (also FileNotFoundError)  a data set is not on this machine
    ├── DuplicateNameError (also ValueError)    one name twice in flight on this rank
    ├── UnsupportedTensorError (also ValueError, TypeError)  dtype, layout or memory that cannot be sent
    ├── CheckpointError                         a checkpoint cannot be written, read or continued from
    ├── WaitTimeoutError (also TimeoutError)    a wait(timeout_s) on this rank ended before its collective
    └── CollectiveError                         a collective failed, with the same text on every rank
        ├── MismatchError                       the ranks do not agree about one tensor
        ├── MissingRanksError                   a rank will not submit this tensor: it is idle, or is blocked itself
        │   ├── RankFailedError                 … it raised an exception; its traceback is in the text
        │   └── ShutDownError                   … it has left the job
        ├── PeerLostError                       a rank died or sends no heartbeat any more
        └── DeadlineError (also TimeoutError)   a collective, or the start of the job, reached its deadline

The coordinator (rank 0) detects the errors below ``CollectiveError`` and sends their class and text to
every rank concerned. So all of these ranks raise the same error, and the job can go on.
"""

from __future__ import annotations


class WorkbenchError(RuntimeError):
    """Base of all errors of this package."""


class NotInitializedError(WorkbenchError, ValueError):
    """A verb was called before ``init()`` or after ``shutdown()``."""


class LaunchError(WorkbenchError):
    """The job could not be started; the text says what to change."""


class DataNotFoundError(WorkbenchError, FileNotFoundError):
    """A data set is not on this machine; the text says the ways to get it."""


class DuplicateNameError(WorkbenchError, ValueError):
    """The same name was submitted twice before the first had finished."""


class UnsupportedTensorError(WorkbenchError, ValueError, TypeError):
    """A tensor whose dtype, layout or memory cannot be moved."""


class CheckpointError(WorkbenchError):
    """A checkpoint cannot be written, read or continued from; the text names the file or attribute."""


class WaitTimeoutError(WorkbenchError, TimeoutError):
    """``wait(timeout_s)`` ended on this rank alone; the collective goes on and its handle stays valid."""


class CollectiveError(WorkbenchError):
    """A collective failed. Every rank in it gets the same class and text."""


class MismatchError(CollectiveError):
    """Ranks submitted different shapes, dtypes, ops, roots or devices under one name."""


class MissingRanksError(CollectiveError):
    """A rank never submits this tensor, so the collective can never complete."""


class RankFailedError(MissingRanksError):
    """A rank raised an exception, so the collective can never complete."""


class PeerLostError(CollectiveError):
    """A rank died or fell silent."""


class ShutDownError(MissingRanksError):
    """A rank has left the job, so the collective can never complete."""


class DeadlineError(CollectiveError, TimeoutError):
    """A collective, or the start of the job, reached its deadline."""


TRAVELLING: dict[str, type[CollectiveError]] = {
    kind.__name__: kind
    for kind in (
        CollectiveError,
        MismatchError,
        MissingRanksError,
        RankFailedError,
        PeerLostError,
        ShutDownError,
        DeadlineError,
    )
}


def from_wire(kind: str, text: str) -> CollectiveError:
    """Rebuild an error that travelled in a Response as (class name, text)."""
    return TRAVELLING.get(kind, CollectiveError)(text)


__all__ = [
    "CheckpointError",
    "CollectiveError",
    "DataNotFoundError",
    "DeadlineError",
    "DuplicateNameError",
    "LaunchError",
    "MismatchError",
    "MissingRanksError",
    "NotInitializedError",
    "PeerLostError",
    "RankFailedError",
    "ShutDownError",
    "UnsupportedTensorError",
    "WaitTimeoutError",
    "WorkbenchError",
]


def __dir__() -> list[str]:
    return sorted(__all__)
