"""Batch normalisation with the statistics of all ranks' batches, as if one rank had them all.

The formulas are those of :mod:`workbench.torch.sync_batch_norm`: every rank sends (m, mean, Σ (x - mean)²) per
channel, and the whole follows from the parts without losing digits::

    M = Σ m_r        mean = Σ m_r·mean_r / M        var = Σ (s_r + m_r·(mean_r - mean)²) / M

One collective forward and one backward: a sum of a table with a row for each rank, of which each rank fills its own.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from workbench.job import api
from workbench.job.api import Sum
from workbench.tf.verbs import allreduce

_KERAS_3 = hasattr(tf.keras, "ops")  # TensorFlow 2.15 has no tf.keras.__version__


class SyncBatchNormalization(tf.keras.layers.BatchNormalization):  # type: ignore[misc]  # untyped
    """``keras.layers.BatchNormalization`` over all ranks; the batches may differ in size.

    In inference, and in a world of one, it is the plain layer, and that is what it says it is: a saved model holds a
    ``BatchNormalization`` and loads anywhere (so does ``clone_model``: the clone is the plain one).

    Args:
        fused: ignored; accepted for Horovod compatibility; it must be false.
        kwargs: as ``keras.layers.BatchNormalization`` has them.

    Raises:
        ValueError: ``fused=True``, or renorm; in training on several ranks, a mask.

    Example:
        >>> import workbench.tensorflow as hvd
        >>> hvd.init()
        >>> layer = hvd.SyncBatchNormalization(epsilon=0.0)
        >>> layer(tf.constant([[1.0], [3.0]]), training=True).numpy().tolist()
        [[-1.0], [1.0]]
        >>> hvd.shutdown()
    """

    supports_jit = False

    def __init__(self, fused: bool = False, **kwargs: Any) -> None:
        if fused in (True, None) or kwargs.get("renorm"):
            raise ValueError("SyncBatchNormalization does not support fused=True nor renorm.")
        # Keras 2 has its fused kernel, too, which knows of no other ranks.
        super().__init__(**kwargs if _KERAS_3 else kwargs | {"fused": False})
        self.supports_jit = False  # XLA cannot talk to other ranks

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return tf.keras.layers.BatchNormalization  # type: ignore[no-any-return]

    def _moments(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Keras asks for mean and variance here, in training only.

        Keras 3 with (inputs, mask), Keras 2 with (inputs, axes, keep_dims=…, mask=…).
        """
        if api.size() == 1:
            return super()._moments(inputs, *args, **kwargs)
        axes, more = (self._reduction_axes, args) if _KERAS_3 else (args[0], args[2:])
        if any(each is not None for each in (*more, kwargs.get("mask"))):
            raise ValueError("SyncBatchNormalization does not support masks on several ranks.")
        moments = self._of_all_ranks(inputs, axes)
        if kwargs.get("keep_dims"):
            shape = [1 if each in axes else -1 for each in range(inputs.shape.rank)]
            return tuple(tf.reshape(each, shape) for each in moments)
        return moments

    def _of_all_ranks(self, inputs: Any, axes: Any) -> Any:
        mean, var = tf.nn.moments(inputs, axes)
        channel = self.axis if _KERAS_3 else self.axis[0]
        values = tf.cast(tf.size(inputs) / tf.shape(inputs)[channel], inputs.dtype)
        row = tf.concat([tf.reshape(values, [1]), mean, var * values], 0)
        # A batch of nothing has no mean: what it adds is 0, not nan.
        row = tf.where(values > 0, row, tf.zeros_like(row))
        mine = tf.one_hot(api.rank(), api.size(), dtype=inputs.dtype)
        table = allreduce(mine[:, None] * row[None, :], op=Sum, name=f"sync_batch_norm.{self.name}")
        channels = row.shape[0] // 2
        counts, means, squares = tf.split(table, [1, channels, channels], axis=1)
        total = tf.reduce_sum(counts)
        mean = tf.reduce_sum(counts * means, 0) / total
        return mean, tf.reduce_sum(squares + counts * (means - mean) ** 2, 0) / total
