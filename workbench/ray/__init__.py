"""Jobs in a Ray cluster, with Horovod's names.

::

    ray.init(address="auto")
    executor = RayExecutor(RayExecutor.create_settings(), num_workers=4, use_gpu=True)
    executor.start()
    losses = executor.run(train, kwargs={"lr": 0.1})        # by rank; train() calls hvd.init()
    executor.shutdown()

============================  ==========================================================================
:class:`RayExecutor`          ranks are actors that stay between calls; or, with ``min_workers``, elastic
:class:`ElasticRayExecutor`   ranks follow Ray's nodes, which come and go
``WorkbenchConfig``           for trainers of ``ray.train``, see :mod:`workbench.ray.train`
============================  ==========================================================================

Ray is an extra: ``pip install 'ray[train]'``, the same version on the driver and on each node, where this package and
the modules that the function imports are installed, too.
"""

from typing import TYPE_CHECKING, Any

from workbench.ray import needed as needed  # first: without Ray nothing of this folder is to be half loaded
from workbench.ray.elastic import ElasticRayExecutor
from workbench.ray.runner import RayExecutor
from workbench.ray.worker import BaseHorovodWorker

if TYPE_CHECKING:
    from workbench.ray.train import WorkbenchConfig as WorkbenchConfig
else:

    def __getattr__(name: str) -> Any:
        """``WorkbenchConfig``: ``ray.train`` is large, and who does not use it need not load it."""
        if name == "WorkbenchConfig":
            from workbench.ray.train import WorkbenchConfig

            return WorkbenchConfig
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["BaseHorovodWorker", "ElasticRayExecutor", "RayExecutor", "WorkbenchConfig"]


def __dir__() -> list[str]:
    return sorted(__all__)
