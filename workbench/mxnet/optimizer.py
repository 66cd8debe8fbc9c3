"""DistributedOptimizer: any MXNet optimizer, with gradients averaged over all ranks before its update."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import mxnet as mx

from workbench.job.process_sets import ProcessSet, global_process_set
from workbench.mxnet.averaging import InPlaceAverage
from workbench.mxnet.tensors import Compression
from workbench.training.compression import Compressor


class DistributedOptimizer(mx.optimizer.Optimizer):  # type: ignore[misc]  # untyped
    """Wrap an optimizer so that every rank updates with the average of all ranks' gradients.

    For ``gluon.Trainer(params, optimizer, kvstore=None)`` and ``Module.fit(optimizer=optimizer)``. Every attribute is
    the wrapped optimizer's, to read and to set. ``rescale_grad`` stays what it would be without the ranks: a trainer's
    ``step(batch_size)`` divides by this rank's batch.

    All ranks must update the same parameters. Where one may leave some out, or skip a step (``ignore_stale_grad=True``,
    automatic mixed precision), use :class:`~workbench.mxnet.DistributedTrainer`.

    Args:
        optimizer: it is used from now on through this object only.
        gradient_predivide_factor: divide by it before the sum and multiply after.
        num_groups: the gradients are sent in so many parts, one after the other; 0: as the buckets have room.
        process_set: the ranks to average over; a rank outside of it trains on its own.

    Raises:
        ValueError: num_groups negative, or the set is not registered.

    Example:
        >>> import mxnet as mx
        >>> import workbench.mxnet as hvd
        >>> hvd.init()
        >>> net = mx.gluon.nn.Dense(1, in_units=2)
        >>> net.initialize()
        >>> optimizer = hvd.DistributedOptimizer(mx.optimizer.create("sgd", learning_rate=0.1))
        >>> trainer = mx.gluon.Trainer(net.collect_params(), optimizer, kvstore=None)
        >>> with mx.autograd.record():
        ...     loss = net(mx.nd.ones((4, 2))).sum()
        >>> loss.backward()
        >>> trainer.step(batch_size=4)
        >>> hvd.shutdown()
    """

    aggregate_num = sys.maxsize  # MXNet hands over so many parameters at once: all of a step

    def __init__(
        self,
        optimizer: Any,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        if isinstance(optimizer, DistributedOptimizer):  # wrapped again, by a notebook's cell that is run again
            optimizer = optimizer.wrapped
        options = gradient_predivide_factor, num_groups, process_set
        # Optimizer.__init__ is not called: the attributes that its methods use are the wrapped optimizer's.
        self.__dict__.update(wrapped=optimizer, _options=options, _gradients=InPlaceAverage(*options))

    def __getattr__(self, name: str) -> Any:
        if name == "wrapped":
            raise AttributeError(name)
        return getattr(self.wrapped, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.wrapped, name, value)

    def __reduce__(self) -> Any:  # for Trainer.save_states
        return DistributedOptimizer, (self.wrapped, *self._options)

    def create_state(self, index: Any, weight: Any) -> Any:
        return self.wrapped.create_state(index, weight)

    def create_state_multi_precision(self, index: Any, weight: Any) -> Any:
        return self.wrapped.create_state_multi_precision(index, weight)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Average the gradients, then update; for one parameter or lists of them."""
        self._average_and(self.wrapped.update, index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """As :meth:`update`, with weights in half precision."""
        self._average_and(self.wrapped.update_multi_precision, index, weight, grad, state)

    def _average_and(self, update: Callable[..., None], *step: Any) -> None:
        index, _, grad, _ = step
        if not isinstance(index, (tuple, list)):
            self._gradients.average([index], [grad])
            update(*step)
            return
        self._gradients.average(index, grad)
        most = self.wrapped.aggregate_num  # that it takes at once
        if most == 0:
            for each in zip(*step, strict=True):
                update(*each)
            return
        for start in range(0, len(index), most):
            update(*(part[start : start + most] for part in step))


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
