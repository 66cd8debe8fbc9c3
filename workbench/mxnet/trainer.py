"""DistributedTrainer: Gluon's trainer, with gradients averaged over all ranks."""

from __future__ import annotations

import warnings
from typing import Any

import mxnet as mx

from workbench.job.process_sets import ProcessSet, global_process_set
from workbench.mxnet.averaging import InPlaceAverage
from workbench.mxnet.optimizer import DistributedOptimizer
from workbench.mxnet.tensors import Compression
from workbench.training.compression import Compressor


class DistributedTrainer(mx.gluon.Trainer):  # type: ignore[misc]  # untyped
    """``gluon.Trainer`` whose ``step()`` (or ``allreduce_grads()``) averages the gradients of all ranks first.

    Args:
        params: ``block.collect_params()``, or a list of parameters in the same order on every rank.
        optimizer: MXNet's, or its name.
        optimizer_params: with a name, its options.
        compression: ``Compression.none`` or ``.fp16``.
        gradient_predivide_factor: divide by it before the sum and multiply after; keeps fp16 in range.
        prefix: of the names: another one for each trainer.
        num_groups: the gradients are sent in so many parts, one after the other; 0: as the buckets have room.
        process_set: the ranks to average over; a rank outside of it trains on its own.

    Raises:
        ValueError: num_groups negative, the set is not registered, or (in a step) several devices on one rank.

    Example:
        >>> import mxnet as mx
        >>> import workbench.mxnet as hvd
        >>> hvd.init()
        >>> net = mx.gluon.nn.Dense(1, in_units=2)
        >>> net.initialize()
        >>> trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        >>> with mx.autograd.record():
        ...     loss = net(mx.nd.ones((4, 2))).sum()
        >>> loss.backward()
        >>> trainer.step(batch_size=4)
        >>> hvd.shutdown()
    """

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: dict[str, Any] | None = None,
        compression: Compressor = Compression.none,
        gradient_predivide_factor: float = 1.0,
        prefix: str | None = None,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        if isinstance(optimizer, DistributedOptimizer):
            warnings.warn(
                "DistributedTrainer averages the gradients itself, so it unwraps the optimizer.", stacklevel=2
            )
            optimizer = optimizer.wrapped
        self._gradients = InPlaceAverage(gradient_predivide_factor, num_groups, process_set, compression, prefix)
        super().__init__(params, optimizer, optimizer_params=optimizer_params, kvstore=None)

    def _allreduce_grads(self) -> None:  # MXNet's own name: step() and allreduce_grads() call it
        found = {i: param.list_grad() for i, param in enumerate(self._params) if param.grad_req != "null"}
        if any(len(everywhere) > 1 for everywhere in found.values()):
            raise ValueError("A rank trains on one device: start as many ranks as there are devices.")
        self._gradients.average(list(found), [everywhere[0] for everywhere in found.values()])
