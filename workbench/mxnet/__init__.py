"""Distributed training with MXNet: ``import workbench.mxnet as hvd``.

MXNet is retired software: its last release is 1.9.1, which wants numpy 1.23. ``make legacy-test`` makes the environment
that it needs, ``.venv-legacy``, from the pins in ``.ci/legacy.txt``.
"""

import typing

from workbench.common.extras import need as _need
from workbench.common.faces import public as _public

_need("workbench.mxnet", "mxnet", install="pip install mxnet==1.9.1, which needs Python up to 3.11 and numpy 1.23")

from workbench.job.objects import allgather_object as allgather_object
from workbench.job.objects import broadcast_object as broadcast_object
from workbench.mxnet.functions import broadcast_parameters as broadcast_parameters
from workbench.mxnet.ops import *  # noqa: F403
from workbench.mxnet.optimizer import DistributedOptimizer as DistributedOptimizer
from workbench.mxnet.optimizer import DistributedTrainer as DistributedTrainer
from workbench.mxnet.tensors import Compression as Compression
from workbench.mxnet.verbs import *  # noqa: F403
from workbench.training.common import *  # noqa: F403 - the names that all frameworks share

if not typing.TYPE_CHECKING:  # checkers see what is imported `as` itself, or by a star
    __all__ = _public(globals())

    def __dir__() -> list[str]:
        return __all__
