"""The same start on every rank: broadcast of variables, eagerly, in a graph, and in TensorFlow 1's ways."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from workbench.job import objects
from workbench.job.process_sets import ProcessSet, global_process_set
from workbench.tf.ops import broadcast_
from workbench.tf.tensors import as_it_is
from workbench.training.bridge import TensorReducer
from workbench.training.step_count import note_broadcast


@as_it_is
def broadcast_variables(
    variables: Sequence[Any], root_rank: int, process_set: ProcessSet = global_process_set, inplace: bool = False
) -> Any:
    """Give every rank the root's values of these variables: the same ones in the same order on every rank.

    Args:
        variables: ``tf.Variable`` or Keras variables, as many as there are: they are sent together.
        root_rank: who has the right values.
        process_set: who takes part.
        inplace: ignored; accepted for Horovod compatibility.

    Returns:
        In a graph of TensorFlow 1, the op that does it; else nothing.

    Example:
        >>> import workbench.tensorflow as hvd
        >>> hvd.init()
        >>> hvd.broadcast_variables([tf.Variable([1.0])], root_rank=0)
        >>> hvd.shutdown()
    """
    assigned = broadcast_(variables, root_rank, process_set=process_set)
    if not tf.executing_eagerly():
        return tf.group(*[getattr(each, "op", each) for each in assigned])
    note_broadcast()
    return None


def broadcast_global_variables(root_rank: int) -> Any:
    """TensorFlow 1: the op that gives every rank the root's values of all global variables.

    Raises:
        RuntimeError: in eager mode, which has no global variables.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "broadcast_global_variables() does not support eager execution: there are no global variables. "
            "Call broadcast_variables(model.variables, root_rank=0)."
        )
    # By name, as in a checkpoint: a rank may have made them in another order.
    return broadcast_variables(sorted(tf.compat.v1.global_variables(), key=lambda each: each.name), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]  # untyped
    """TensorFlow 1: broadcasts all global variables when a session begins, restored from a checkpoint or not.

    Args:
        root_rank: who has the right values.
        device: ignored; accepted for Horovod compatibility.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self._root_rank, self._op = root_rank, None

    def begin(self) -> None:
        """The graph is complete, and not yet final."""
        if self._op is None or self._op.graph != tf.compat.v1.get_default_graph():
            self._op = broadcast_global_variables(self._root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """The variables have their first values."""
        session.run(self._op)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The root's object on every rank, as :func:`workbench.job.objects.broadcast_object`; needs no session."""
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Callable[[Any], Any]:
    """A function of an object that does :func:`broadcast_object`."""
    return lambda obj: objects.broadcast_object(obj, root_rank, name, process_set)


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Every rank's object, by rank."""
    return objects.allgather_object(obj, name, process_set)


class Aggregation:
    """How far the passes of a step are; Horovod's optimizers have it as ``_agg_helper``, and suites read it.

    Args:
        reducer: the optimizer's.
    """

    def __init__(self, reducer: TensorReducer) -> None:
        self._reducer, self.backward_passes_per_step = reducer, reducer.passes

    @property
    def counter(self) -> Any:
        """A tensor: how many passes have been added up since the last step."""
        return tf.constant(self._reducer.passed)
