"""Distributed training with Keras: ``import workbench.keras as hvd``.

::

    hvd.init()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3 * hvd.size()))
    model.compile(optimizer, loss)
    model.fit(my_shard, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0),
                                   hvd.callbacks.MetricAverageCallback()])

Keras 3 runs on TensorFlow, torch and JAX. Keras 2 is ``keras`` beside TensorFlow 2.15, or ``tf_keras`` where
TF_USE_LEGACY_KERAS=1 makes it ``tf.keras``; see :mod:`workbench.keras.flavour`.
"""

import typing

from workbench.common.extras import cure as _cure
from workbench.common.extras import need as _need
from workbench.common.faces import public as _public

_need("workbench.keras", "keras", install=_cure("tensorflow"))

from workbench.job.objects import allgather_object as allgather_object
from workbench.job.objects import broadcast_object as broadcast_object
from workbench.keras import callbacks as callbacks
from workbench.keras import elastic as elastic
from workbench.keras.backend import Compression as Compression
from workbench.keras.functions import *  # noqa: F403
from workbench.keras.optimizer import DistributedOptimizer as DistributedOptimizer
from workbench.keras.optimizer import PartialDistributedOptimizer as PartialDistributedOptimizer
from workbench.keras.verbs import *  # noqa: F403
from workbench.training.common import *  # noqa: F403 - the names that all frameworks share

if not typing.TYPE_CHECKING:  # checkers see what is imported `as` itself, or by a star
    __all__ = _public(globals(), "callbacks", "elastic")

    def __dir__() -> list[str]:
        return __all__
