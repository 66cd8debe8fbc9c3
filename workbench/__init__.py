"""Distributed deep learning from a notebook: Horovod's ideas in pure Python.

``import workbench.torch as hvd`` for PyTorch; this module has the same verbs for numpy arrays, and :func:`run`, which
calls a function on ranks that it starts:

    >>> import workbench
    >>> def total():
    ...     workbench.init()
    ...     return int(workbench.allreduce(workbench.rank() + 1, op=workbench.Sum))
    >>> workbench.run(total, np=2, use_gloo=True)
    [3, 3]

The public names are those that ``dir(workbench)`` lists, and ``dir()`` of each module in it. Other names may change.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if sys.version_info < (3, 10):  # noqa: UP036 - a clone on an older one, which pip would have refused
    raise ImportError(f"workbench needs Python 3.10 or newer; {sys.executable} is {sys.version.split()[0]}.")

from workbench._version import __version__ as __version__
from workbench.common.faces import when_asked as _when_asked
from workbench.core.verbs import VERBS, forms

_IN_API = (
    *(name for kind in VERBS for name in forms(kind)),
    "Adasum",
    "Average",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "ReduceOp",
    "Sum",
    "add_process_set",
    "cross_rank",
    "cross_size",
    "global_process_set",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "poll",
    "rank",
    "remove_process_set",
    "run_threads",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    "synchronize",
)
# Elsewhere than in workbench.job.api.
_HOMES = {
    "autotune_report": "workbench.observe.tuning",
    "chaos": "workbench.elastic.chaos",
    "doctor": "workbench.cluster.checkup",
    "empty": "workbench.training.memory",
    "fingerprint": "workbench.observe.values.fingerprint",
    "measure": "workbench.calibration.measure",
    "mpi_threads_supported": "workbench.job.built",
    "predict": "workbench.simulate.measured.prediction",
    "run": "workbench.launch.function",
    "timeline": "workbench.cluster.notebook_timeline",
    "who_has": "workbench.cluster.who_has",
}
# Loaded when they are asked for. Not in __all__: `from workbench import *` would import every framework.
_MODULES = (
    "cluster",
    "data",
    "elastic",
    "errors",
    "jax",
    "keras",
    "mxnet",
    "ray",
    "simulate",
    "spark",
    "tensorflow",
    "torch",
)

if TYPE_CHECKING:
    from workbench import cluster as cluster
    from workbench import data as data
    from workbench import elastic as elastic
    from workbench import errors as errors
    from workbench import jax as jax
    from workbench import keras as keras
    from workbench import mxnet as mxnet
    from workbench import ray as ray
    from workbench import simulate as simulate
    from workbench import spark as spark
    from workbench import tensorflow as tensorflow
    from workbench import torch as torch
    from workbench.calibration.measure import measure as measure
    from workbench.cluster.checkup import doctor as doctor
    from workbench.cluster.notebook_timeline import timeline as timeline
    from workbench.cluster.who_has import who_has as who_has
    from workbench.elastic.chaos import chaos as chaos
    from workbench.job.api import *  # noqa: F403
    from workbench.job.array_verbs import *  # noqa: F403
    from workbench.job.built import mpi_threads_supported as mpi_threads_supported
    from workbench.launch.function import run as run
    from workbench.observe.tuning import autotune_report as autotune_report
    from workbench.observe.values.fingerprint import fingerprint as fingerprint
    from workbench.simulate.measured.prediction import predict as predict
    from workbench.training.memory import empty as empty
else:
    __all__ = sorted([*_HOMES, *_IN_API])

    def __getattr__(name: str) -> Any:
        """Load what is behind a public name at its first use: `workbench --help` needs no numpy."""
        if name not in __all__:
            return _when_asked(__name__, *_MODULES)(name)
        value = getattr(import_module(_HOMES.get(name, "workbench.job.api")), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted([*__all__, *_MODULES, "__version__"])
