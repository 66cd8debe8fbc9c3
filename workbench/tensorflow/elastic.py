"""Elastic training with TensorFlow: ``hvd.elastic.run``, ``TensorFlowState`` and ``TensorFlowKerasState``.

The loop, and which error leads where, is in :mod:`workbench.elastic`. An error within a graph reaches Python as one of
TensorFlow's; :func:`run` makes ours of it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from workbench import elastic as core
from workbench.elastic import HostsUpdatedInterrupt as HostsUpdatedInterrupt
from workbench.elastic import ObjectState
from workbench.job import api
from workbench.job.objects import broadcast_state
from workbench.tf.functions import broadcast_variables
from workbench.tf.tensors import own_errors

run = core.framework_run(own_errors)


class TensorFlowState(ObjectState):
    """Variables, and plain objects beside them.

    Args:
        variables: a list of ``tf.Variable`` or Keras variables; in a graph of TensorFlow 1 all global ones by default.
        session: of TensorFlow 1, to read and set them with.
        kwargs: names and values of what else survives.
    """

    def __init__(self, variables: Any = None, session: Any = None, **kwargs: Any) -> None:
        self._variables = list(variables if variables is not None else tf.compat.v1.global_variables())
        self._session = session
        self._kept: list[Any] = []
        if session is not None:
            self._places = [tf.compat.v1.placeholder(each.dtype.base_dtype, each.shape) for each in self._variables]
            self._assign = [
                tf.compat.v1.assign(each, place) for each, place in zip(self._variables, self._places, strict=True)
            ]
            self._broadcast = broadcast_variables(self._variables, 0)
        super().__init__(broadcast_state, api.rank, **kwargs)
        self.save()

    def save(self) -> None:
        """Keep a copy of the variables, and of the rest."""
        if self._session is not None:
            self._kept = self._session.run(self._variables)
        else:
            self._kept = [each.numpy().copy() for each in self._variables]
        super().save()

    def restore(self) -> None:
        """Set the variables to the last copy, and the rest too."""
        if self._session is not None:
            self._session.run(self._assign, dict(zip(self._places, self._kept, strict=True)))
        else:
            for variable, value in zip(self._variables, self._kept, strict=True):
                variable.assign(value)
        super().restore()

    def sync(self) -> None:
        """Rank 0's variables and objects on every rank, and saved."""
        self._resume()
        if self._session is not None:
            self._session.run(self._broadcast)
        elif self._variables:
            broadcast_variables(self._variables, 0)
        super().sync()

    def _copies(self) -> dict[str, Any]:
        return {"variables": self._kept, **super()._copies()}

    def _take(self, values: dict[str, Any]) -> None:
        self._kept = values["variables"]
        super()._take(values)

    def _of_fixed_shape(self) -> Sequence[str]:
        return ("variables",)


def TensorFlowKerasState(model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> Any:  # noqa: N802
    """A Keras model, its optimizer, and plain objects beside them; see :class:`workbench.keras.elastic.KerasState`."""
    from workbench.keras.elastic import KerasState

    return KerasState(model, optimizer, **kwargs)
