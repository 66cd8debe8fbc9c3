"""Any object from one rank to all, and from all to all: pickled, as an array of bytes."""

from __future__ import annotations

import functools
import pickle
from typing import Any

import numpy as np

from workbench.core.messages import Kind
from workbench.job import api
from workbench.job.process_sets import ProcessSet, global_process_set


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The root's object on every rank; anything that cloudpickle accepts, also functions and classes of a notebook.

    Args:
        obj: looked at on the root only.
        root_rank: who sends.
        name: the same on every rank.
        process_set: who takes part.

    Example:
        >>> api.run_threads(2, lambda: broadcast_object({"epoch": 3 + api.rank()}))
        [{'epoch': 3}, {'epoch': 3}]
    """
    name = name or api.auto_name(Kind.BROADCAST, process_set)
    data = np.frombuffer(_dumps(obj), np.uint8) if api.rank() == root_rank else np.empty(0, np.uint8)
    length = int(api.broadcast(np.array([len(data)]), root_rank, f"object.{name}.length", process_set)[0])
    source = data if api.rank() == root_rank else np.empty(length, np.uint8)
    received = api.broadcast(source, root_rank, f"object.{name}", process_set)
    return obj if api.rank() == root_rank else _loads(received)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Every rank's object, by rank.

    Example:
        >>> api.run_threads(2, lambda: allgather_object(f"I am {api.rank()}"))
        [['I am 0', 'I am 1'], ['I am 0', 'I am 1']]
    """
    name = name or api.auto_name(Kind.ALLGATHER, process_set)
    data = np.frombuffer(_dumps(obj), np.uint8)
    lengths = api.allgather(np.array([len(data)]), f"object.{name}.length", process_set)
    everything = api.allgather(data, f"object.{name}", process_set)
    return [_loads(piece) for piece in np.split(everything, np.cumsum(lengths)[:-1])]


def _dumps(obj: Any) -> bytes:
    """By cloudpickle, or without it by pickle, which takes no functions and classes of a notebook."""
    try:
        import cloudpickle
    except ImportError:
        return pickle.dumps(obj)
    return cloudpickle.dumps(obj)  # type: ignore[no-any-return]


def _loads(data: Any) -> Any:
    return pickle.loads(data.data)


broadcast_state = functools.partial(broadcast_object, name="elastic")
"""Of elastic states. By a name of its own: ranks may have numbered different numbers of unnamed tensors by then."""
