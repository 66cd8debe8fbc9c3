"""A step that overlaps with the next forward pass: a parameter is updated when something looks at it.

``step()`` waits for nothing. Until the update of a parameter is done, its class is :class:`Deferred`: the first
operation that takes the parameter waits for its gradient and updates it. In the next forward pass that is the layer
that owns it, while the gradients of later layers are still on their way. So is it for whatever else looks: an
evaluation, a checkpoint, a print. All parameters of a bucket are updated together, for they were reduced together.
Another thread may look, too: whoever comes first makes the update. Nobody waits for other ranks with the lock held.

The idea: Jayarajan et al. 2019 (P3), arXiv:1905.03960; Peng et al. 2019 (ByteScheduler), SOSP. What is needed first
overtakes the rest on its way, see ``runtime/steady/priority.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from threading import RLock, get_ident
from typing import Any

import torch

from workbench.core.handle import Handle
from workbench.errors import CollectiveError
from workbench.job.api import Average, ReduceOp, Sum
from workbench.job.context import HOLDER
from workbench.torch.compiled import not_traced
from workbench.torch.gradients.bucket import GradBucket
from workbench.torch.gradients.by_name import CHANGED
from workbench.torch.gradients.dense import DenseGradients, Submit
from workbench.torch.gradients.grads import Grads
from workbench.torch.optimizer.initial_zeros import DropZeros
from workbench.torch.sharded.resharded import of_class
from workbench.torch.sharded.stage1 import check_elementwise

_STALE = (
    "{!r} was used in a forward pass before its update: torch cannot see which tensors this code uses, for example in "
    "torch.jit.script and in extensions in C++. Make the DistributedOptimizer without overlap_forward."
)
_tensor: Any = torch.Tensor
_READ_NO_VALUE = {
    *(getattr(_tensor, name).__get__ for name in ("shape", "dtype", "device", "layout", "ndim", "requires_grad")),
    *(getattr(_tensor, name).__get__ for name in ("is_leaf", "grad_fn", "is_cuda", "is_sparse", "is_meta")),
    *(getattr(_tensor, name) for name in ("size", "dim", "numel", "nelement", "element_size", "stride", "__len__")),
    *(getattr(_tensor, name) for name in ("is_contiguous", "is_floating_point", "is_complex")),
}
"""Functions of a tensor that have the same result before and after the update."""


def check_deferrable(
    optimizer: torch.optim.Optimizer, params: Iterable[torch.nn.Parameter], op: ReduceOp, others: bool
) -> None:
    """Raise a ValueError if updates cannot be made bucket by bucket, in any order.

    Args:
        optimizer, params, op: of the DistributedOptimizer.
        others: is it sharded, or has it groups, or a compression with which there are no buckets?
    """
    if others or op not in (Average, Sum):
        raise ValueError(
            "overlap_forward=True works only with op=Average or Sum, without sharded, groups, and a compression other "
            "than Compression.fp16 and bf16."
        )
    if any(param.device.type != "cpu" for param in params):
        raise ValueError("overlap_forward=True is for parameters in the CPU's memory. On a GPU leave it out.")
    check_elementwise(
        optimizer, "overlap_forward=True", "updates one parameter before another, and {} may need all at once"
    )


class Deferred(torch.nn.Parameter):
    """A parameter whose update is still to come. Whoever looks at its value has it updated first."""

    update: Update

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Called by torch in place of each function that takes such a parameter."""
        kwargs = kwargs or {}
        if func in _READ_NO_VALUE:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        for param in of_class(Deferred, (args, kwargs)):
            _finish(param)
        return func(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        _finish(self)
        return self.__deepcopy__(memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        _finish(self)
        return self.__reduce_ex__(protocol)


def _finish(param: Deferred) -> None:
    update = getattr(param, "update", None)
    if update is not None:  # else another thread has just finished it
        update.finish()


def settle(params: Iterable[torch.nn.Parameter]) -> None:
    """Make the updates that are still to come, but for those that fail: their step was broken off."""
    for param in params:
        if type(param) is Deferred:
            with suppress(RuntimeError):
                _finish(param)


class DeferredGradients(DenseGradients):
    """A :class:`~workbench.torch.gradients.source.GradientSource` for ``overlap_forward=True``.

    Args:
        grads: of the optimizer's parameters.
        submit: hands entries to the engine.
        deferral: the updates that are still to come.
    """

    def __init__(self, grads: Grads, submit: Submit, deferral: Deferral) -> None:
        super().__init__(grads, submit)
        self._deferral = deferral

    def ready(self, name: str, keep: bool) -> None:
        self._deferral.check_used(self.grads.params[name], name)
        super().ready(name, keep)

    def store(self, results: dict[str, Any], buckets: Mapping[str, GradBucket]) -> None:
        super().store(results, buckets)
        self._deferral.look_for_new_buckets()

    @not_traced
    def reduce(self, names: Sequence[str], unsharded: bool = False) -> None:
        self._deferral.finish()
        super().reduce(names)

    def step(self, update: Callable[[], Any], names: Sequence[str] | None) -> Any:
        """Begin a step whose updates come later. Where that is not possible it is one like others."""
        if names is None or not self._defer(names):
            return super().step(update, names)
        with self.grads.steps.step(self.grads.order):
            return None

    @not_traced
    def _defer(self, names: Sequence[str]) -> bool:
        self._deferral.finish()
        if not self._deferral.possible():
            return False
        handles, buckets = self.hand_over(names), self.grads.buckets
        results = {name: handle.wait() for name, handle in handles.items() if name not in buckets}
        self.store(results, buckets)
        self._deferral.begin({name: handle for name, handle in handles.items() if name in buckets}, buckets)
        self.grads.order.note_round()
        return True

    def abandon(self) -> None:
        super().abandon()
        self._deferral.settle()

    def _learn(self, handles: Iterable[Handle]) -> None:
        """Nothing: when the next step begins, buckets of this one may be in flight."""

    def _limit_bytes(self) -> int:
        """Not so large that what the next forward pass needs first waits for the rest of its bucket."""
        most = HOLDER.get().settings.piece_bytes
        return min(super()._limit_bytes(), most) if most else super()._limit_bytes()


class Deferral:
    """The updates that are still to come, of one DistributedOptimizer.

    Args:
        optimizer: the wrapped one.
        grads: of its parameters.
        owner: a weak reference to whoever must live as long as an update is to come.

    Attributes:
        updates: in the order in which their buckets were sent.
        lock: held while updates are begun or made, and while gradients are cleared.
        thread: that makes the steps.
        missed: another thread's error, which this one is to have at its next step.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, grads: Grads, owner: Callable[[], Any]) -> None:
        self._optimizer = optimizer
        self._grads = grads
        self._owner = owner  # weak, so that the memory of an optimizer that nobody has is free at once
        self.updates: list[Update] = []
        self.lock = RLock()
        self.thread = get_ident()
        self.missed: BaseException | None = None
        self._ranked: Mapping[str, GradBucket] = {}
        self._order: list[GradBucket] | None = None  # in which they are looked at, until it is known
        self._looked_at = True

    def look_for_new_buckets(self) -> None:
        """As long as nothing is known of the forward pass, the model's order is taken for it."""
        buckets = self._grads.buckets
        if buckets is self._ranked:
            return
        self._ranked = buckets
        first = sorted(buckets, key=list(self._grads.params).index)
        _rank(dict.fromkeys(buckets[name] for name in first))
        self._order = []

    def possible(self) -> bool:
        """Are there buckets, of ordinary parameters, and is nobody told of each step?"""
        grads, optimizer = self._grads, self._optimizer
        step = vars(optimizer).get("step")  # replaced by somebody, who is called then; a scheduler only counts
        told = step is not None and not hasattr(step, "_wrapped_by_lr_sched")
        hooks = [*optimizer._optimizer_step_pre_hooks.values(), *optimizer._optimizer_step_post_hooks.values()]
        told = told or not all(isinstance(hook, DropZeros) for hook in hooks)
        plain = all(type(grads.params[name]) is torch.nn.Parameter for name in grads.buckets)
        return bool(grads.buckets) and plain and not told and grads.sparse.dims is None

    def begin(self, handles: Mapping[str, Handle], buckets: Mapping[str, GradBucket]) -> None:
        """Of parameters with a bucket the update comes later, of the others now.

        Args:
            handles: of the reductions of buckets, by name.
            buckets: in which these were reduced.
        """
        grads, optimizer = self._grads, self._optimizer
        groups = [dict(_as_now(group), params=list(group["params"])) for group in optimizer.param_groups]
        with self.lock:
            self.thread = get_ident()
            for bucket in dict.fromkeys(buckets[name] for name in handles):
                params = {grads.params[name] for name in bucket.layout.names}
                handle = next(handles[name] for name in bucket.layout.names if name in handles)
                self.updates.append(Update(self._owner(), self, bucket, handle, _only(groups, params)))
            self.step(_only(groups, self._later(), False))
            for update in self.updates:
                for param in update.params:
                    param.update, param.__class__ = update, Deferred

    def _later(self) -> set[Any]:
        return {param for update in self.updates for param in update.params}

    def step(self, groups: Sequence[dict[str, Any]]) -> None:
        if not groups:
            return
        with torch.inference_mode(False), torch.autocast("cpu", enabled=False):
            self._having(groups).step()

    def _having(self, groups: Sequence[dict[str, Any]]) -> torch.optim.Optimizer:
        """The optimizer with these groups only, and the same state: it looks the same to other threads meanwhile."""
        kind = type(self._optimizer)
        found = kind.__new__(kind)
        vars(found).update(vars(self._optimizer), param_groups=list(groups))
        vars(found).pop("step", None)  # a scheduler's, which is bound to the optimizer
        return found

    def finish(self) -> None:
        """Make all updates that are still to come.

        Raises:
            CollectiveError: a reduction failed; the parameters of its bucket stay as they are.
        """
        missed, self.missed = self.missed, None
        if missed is not None:
            raise missed.with_traceback(None)
        self._looked_at = False
        try:
            for update in list(self.updates):
                update.finish()
        finally:
            self._looked_at = True

    def settle(self) -> None:
        """As :meth:`finish`, without an error for what failed. What was reduced was so on all ranks."""
        settle(param for update in list(self.updates) for param in update.params)

    def leave(self, update: Update) -> None:
        self.updates.remove(update)
        for param in update.params:
            param.__class__ = torch.nn.Parameter
            del param.update
        if self._order is not None and self._looked_at:
            self._learn(self._order, update.bucket)

    def _learn(self, order: list[GradBucket], bucket: GradBucket) -> None:
        """What is looked at first in the first such forward pass has the highest priority from then on."""
        order.append(bucket)
        if set(order) == set(self._grads.buckets.values()):
            self._order = None
            _rank(order)

    def zero_grad(self, set_to_none: bool) -> None:
        """As the optimizer's; gradients that an update is still to use are cleared after it."""
        with self.lock:
            for update in self.updates:
                update.zero = "none" if set_to_none else "zeros"
            optimizer = self._optimizer
            if self.updates:
                optimizer = self._having(_only(optimizer.param_groups, self._later(), False))
            optimizer.zero_grad(set_to_none=set_to_none)

    def check_used(self, param: torch.nn.Parameter, name: str) -> None:
        """A gradient has come. Raise a RuntimeError if it belongs to a value before an update."""
        if type(param) is Deferred:
            raise RuntimeError(_STALE.format(name))


class Update:
    """The update of the parameters of one bucket.

    Args:
        owner: lives until then: a newer optimizer that takes the parameters over finds it, and has it finish.
        deferral: all updates of that optimizer.
        bucket: of their gradients.
        handle: of its reduction.
        groups: the optimizer's groups with these parameters only, as they were when ``step()`` was called.

    Attributes:
        params: that it updates.
        zero: what becomes of the gradients then: ``zeros``, ``none``, or empty: they stay.
    """

    def __init__(
        self, owner: Any, deferral: Deferral, bucket: GradBucket, handle: Handle, groups: Sequence[dict[str, Any]]
    ) -> None:
        self._owner = owner
        self._deferral = deferral
        self.bucket = bucket
        self.handle = handle
        self._groups = groups
        self.params: list[Any] = [param for group in groups for param in group["params"]]
        self.zero = ""

    @not_traced
    def finish(self) -> None:
        """Wait for the gradients, and update the parameters; nothing if that is done.

        Raises:
            CollectiveError: the reduction failed; the parameters stay as they are.
            RuntimeError: a gradient was changed in the meantime.
        """
        with suppress(CollectiveError):  # which the first who comes gets below
            self.handle.wait()
        # Until all is done, other threads that look have to wait here, too; this one takes them for plain parameters.
        with self._deferral.lock, torch._C.DisableTorchFunctionSubclass():
            if self not in self._deferral.updates:
                return
            try:
                self._make()
            except Exception as error:
                if get_ident() != self._deferral.thread:
                    self._deferral.missed = error
                raise
            finally:
                self._deferral.leave(self)

    def _make(self) -> None:
        self.handle.wait()
        for name in self.bucket.changed():
            raise RuntimeError(CHANGED.format(name))
        self.bucket.give()
        self._deferral.step(self._groups)
        self._zero()

    def _zero(self) -> None:
        for param in self.params if self.zero else ():
            if self.zero == "none":
                param.grad = None
            elif param.grad is not None:
                param.grad.zero_()


def _rank(buckets: Iterable[GradBucket]) -> None:
    """What comes first has the highest priority."""
    for i, bucket in enumerate(buckets):
        bucket.about["priority"] = -1 - i


def _as_now(group: dict[str, Any]) -> dict[str, Any]:
    """A copy of a group's values, which a learning-rate scheduler may change before they are used."""
    return {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in group.items()}


def _only(groups: Iterable[dict[str, Any]], params: set[Any], these: bool = True) -> list[dict[str, Any]]:
    """The groups with these parameters only, or with all but these; without empty ones."""
    found = [{**group, "params": [p for p in group["params"] if (p in params) is these]} for group in groups]
    return [group for group in found if group["params"]]
