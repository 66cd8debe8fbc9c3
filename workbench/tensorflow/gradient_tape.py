"""``GradientTape`` with gradients averaged over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from workbench.job.api import Average, ReduceOp
from workbench.job.process_sets import ProcessSet, global_process_set
from workbench.job.requests import OrderOfUse
from workbench.tf.tensors import BRIDGE, Compression, as_it_is
from workbench.training.bridge import TensorReducer, names_among, names_of
from workbench.training.compression import Compressor


class DistributedGradientTape(tf.GradientTape):  # type: ignore[misc]  # untyped
    """A ``tf.GradientTape`` whose ``gradient()`` is averaged over all ranks.

    Args:
        gradtape: the tape; both have one state from now on.
        device_dense, device_sparse: ignored; accepted for Horovod compatibility.
        compression: ``Compression.none``, ``.fp16`` or ``.bf16``.
        sparse_as_dense: turn IndexedSlices into dense tensors first; otherwise all ranks' rows are gathered.
        op: Average (default), Sum or Adasum.
        gradient_predivide_factor: divide by it before the sum and multiply after.
        num_groups, groups: ignored; accepted for Horovod compatibility: all gradients are sent together anyway.
        process_set: the ranks to average over.
        scale_local_gradients: divide gradients that stay local by the number of ranks.

    Example:
        >>> import workbench.tensorflow as hvd
        >>> hvd.init()
        >>> w = tf.Variable(3.0)
        >>> with tf.GradientTape() as tape:
        ...     loss = w * w
        >>> tape = hvd.DistributedGradientTape(tape)
        >>> float(tape.gradient(loss, w))
        6.0
        >>> hvd.shutdown()
    """

    def __init__(
        self,
        gradtape: Any,
        device_dense: str = "",
        device_sparse: str = "",
        compression: Compressor = Compression.none,
        sparse_as_dense: bool = False,
        op: ReduceOp = Average,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        groups: Any = None,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
    ) -> None:
        self.__dict__ = gradtape.__dict__
        self._local: list[Any] = []
        self._reducer = TensorReducer(
            BRIDGE,
            compression,
            sparse_as_dense,
            scale_local_gradients,
            order=None,
            op=op,
            predivide=gradient_predivide_factor,
            process_set=process_set,
        )

    def register_local_source(self, source: Any) -> None:
        """The gradient of this variable stays on this rank."""
        self._local.append(source)

    @as_it_is
    def gradient(self, target: Any, sources: Any, output_gradients: Any = None, *args: Any, **kwargs: Any) -> Any:
        """As the tape's, reduced over the ranks.

        Args:
            target, sources, output_gradients, args, kwargs: as ``tf.GradientTape.gradient`` has them.
        """
        kwargs.pop("use_generic_names", None)  # of Horovod's own: names by the place in the list
        gradients = super().gradient(target, sources, output_gradients, *args, **kwargs)
        flat, variables = tf.nest.flatten(gradients), tf.nest.flatten(sources)
        names = names_of(variables)
        self._reducer.keep_local(names_among(names, variables, self._local))
        self._reducer.order = _order_of(variables)
        return tf.nest.pack_sequence_as(gradients, self._reducer(flat, names, variables)[0])

    def get_local_and_global_gradients(
        self, target: Any, sources: Any, output_gradients: Any = None, **kwargs: Any
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """As :meth:`gradient`, in two lists of pairs (source, gradient): the local sources', and the reduced ones.

        Args:
            target, sources, output_gradients, kwargs: as there.
        """
        variables = tf.nest.flatten(sources)
        made = self.gradient(target, variables, output_gradients, **kwargs)
        local = {id(each) for each in self._local}
        pairs = list(zip(variables, made, strict=True))
        return [each for each in pairs if id(each[0]) in local], [each for each in pairs if id(each[0]) not in local]


def _order_of(variables: Sequence[Any]) -> OrderOfUse | None:
    """A tape is made in each step; what tells two models apart is their variables, which TensorFlow numbers."""
    ids = [str(getattr(getattr(each, "_value", each), "_unique_id", "")) for each in variables]
    numbers = [each.rpartition("_")[2] for each in ids]
    return OrderOfUse(tuple(map(int, numbers))) if all(map(str.isdigit, numbers)) else None


def PartialDistributedGradientTape(  # noqa: N802 - Horovod's name
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compressor = Compression.none,
    sparse_as_dense: bool = False,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> DistributedGradientTape:
    """A :class:`DistributedGradientTape` that leaves the variables of some layers alone.

    Args:
        local_layers: a Keras layer, or several; the other arguments as there.
    """
    tape = DistributedGradientTape(
        gradtape, device_dense, device_sparse, compression, sparse_as_dense, op, gradient_predivide_factor,
        num_groups, groups, process_set, scale_local_gradients,
    )  # fmt: skip
    for layer in local_layers if isinstance(local_layers, (list, tuple, set)) else filter(None, [local_layers]):
        for variable in layer.trainable_weights:
            tape.register_local_source(variable)
    return tape
