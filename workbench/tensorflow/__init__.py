"""Distributed training with TensorFlow: ``import workbench.tensorflow as hvd``.

Eagerly, within ``tf.function``, and in the graphs and sessions of ``tf.compat.v1``. For Keras' ``fit`` see
:mod:`workbench.keras`, here :mod:`workbench.tensorflow.keras`. Any TensorFlow from 2.15 on will do, with Keras 2 or 3.
"""

import typing

from workbench.common.extras import cure as _cure
from workbench.common.extras import need as _need
from workbench.common.faces import public as _public
from workbench.common.faces import when_asked as _when_asked

_need("workbench.tensorflow", "tensorflow", install=_cure("tensorflow"))

from workbench.tensorflow import elastic as elastic
from workbench.tensorflow.gradient_tape import DistributedGradientTape as DistributedGradientTape
from workbench.tensorflow.gradient_tape import PartialDistributedGradientTape as PartialDistributedGradientTape
from workbench.tensorflow.optimizer import DistributedOptimizer as DistributedOptimizer
from workbench.tensorflow.sync_batch_norm import SyncBatchNormalization as SyncBatchNormalization
from workbench.tf.functions import BroadcastGlobalVariablesHook as BroadcastGlobalVariablesHook
from workbench.tf.functions import allgather_object as allgather_object
from workbench.tf.functions import broadcast_global_variables as broadcast_global_variables
from workbench.tf.functions import broadcast_object as broadcast_object
from workbench.tf.functions import broadcast_object_fn as broadcast_object_fn
from workbench.tf.functions import broadcast_variables as broadcast_variables
from workbench.tf.ops import *  # noqa: F403
from workbench.tf.tensors import Compression as Compression
from workbench.tf.verbs import *  # noqa: F403
from workbench.training.common import *  # noqa: F403 - the names that all frameworks share

if typing.TYPE_CHECKING:  # checkers see what is imported `as` itself, or by a star
    from workbench.tensorflow import data as data
    from workbench.tensorflow import keras as keras
else:
    __all__ = _public(globals(), "elastic")
    _MODULES = ("data", "keras")
    __getattr__ = _when_asked(__name__, *_MODULES)

    def __dir__() -> list[str]:
        return [*__all__, *_MODULES]
