"""DistributedOptimizer: any torch optimizer, with gradients averaged over all ranks before its step.

A hook on every parameter submits the gradient in the moment backward has finished it. ``step()`` waits
for all of them and lets the wrapped optimizer do the rest.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from workbench import api
from workbench.api import Adasum, Average, ReduceOp
from workbench.process_sets import ProcessSet, global_process_set
from workbench.runtime.messages import Kind
from workbench.runtime.pending import Entry
from workbench.torch.adasum import adasum_step
from workbench.torch.compression import Compression
from workbench.torch.ops import allreduce_async, sparse_allreduce_async
from workbench.torch.tensors import dtype_name, in_place, tensor_of
from workbench.torch.topk import TopKCompression
from workbench.training.compression import Compressor
from workbench.training.gradients import GradientReducer

Named = Iterable[tuple[str, torch.nn.Parameter]]
Groups = Sequence[Sequence[torch.nn.Parameter]]

_ZERO_GRAD = (
    "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or optimizer.synchronize(). "
    "This is prohibited as it can cause a race condition."
)
_STEP_TWICE = (
    "optimizer.step() called without optimizer.skip_synchronize() context after optimizer.synchronize(). "
    "This can cause training slowdown. You may want to consider using optimizer.skip_synchronize() context if you use "
    "optimizer.synchronize() in your code."
)


class DistributedOptimizer(torch.optim.Optimizer):
    """Wrap an optimizer so that every rank steps with the gradients of all.

    It shares the wrapped optimizer's ``param_groups`` and ``state``, so learning-rate schedulers,
    checkpoints and ``isinstance`` see the optimizer they know.

    Args:
        optimizer: any ``torch.optim`` optimizer; it is used from now on through this object only.
        named_parameters: ``model.named_parameters()``: names for errors and timeline. All or none of the
            optimizer's parameters have a name.
        compression: ``Compression.none``, ``.fp16``, ``.bf16`` or ``.topk(ratio)``.
        backward_passes_per_step: gradients are accumulated locally over so many passes, then summed up over ranks;
            they are not divided by this number.
        op: Average (default), Sum, Min, Max, Product, or Adasum, which combines the changes of the weights instead
            of the gradients and takes no account of ``backward_passes_per_step`` and groups.
        gradient_predivide_factor: divide by it before the sum and multiply after; keeps fp16 in range.
        num_groups: split the parameters into so many groups, each reduced at once when it is complete.
        groups: the groups themselves, lists of parameters; the others travel one by one. A number means num_groups.
        sparse_as_dense: turn sparse gradients into dense ones before the reduction; otherwise they are reduced
            as they are, in ``step()``.
        process_set: the ranks to average over; a rank outside of it trains on its own.

    Raises:
        ValueError: names missing, twice, or not strings; num_groups negative; a group of unknown parameters.

    Example:
        >>> import workbench.torch as hvd
        >>> hvd.init()
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        >>> model(torch.ones(1, 2)).sum().backward()
        >>> optimizer.step()
        >>> hvd.shutdown()
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: Named | None = None,
        compression: Compressor = Compression.none,
        backward_passes_per_step: int = 1,
        op: ReduceOp = Average,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        groups: Groups | int | None = None,
        sparse_as_dense: bool = False,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        if gradient_predivide_factor != 1.0 and op is not Average:
            raise ValueError("gradient_predivide_factor goes with op=Average only.")
        params = _named(optimizer, named_parameters)
        self._distributed = _Gradients(
            optimizer,
            params,
            compression,
            (op, gradient_predivide_factor),
            backward_passes_per_step,
            _groups(params, num_groups, groups),
            sparse_as_dense,
            process_set,
        )

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # isinstance(optimizer, torch.optim.SGD) stays true
        return (
            type(self.__dict__["_distributed"].optimizer) if "_distributed" in self.__dict__ else DistributedOptimizer
        )

    def __getattr__(self, name: str) -> Any:
        # Optimizer.__init__ was not called: state, parameter groups and hooks are those of the wrapped optimizer.
        if name == "_distributed":
            raise AttributeError(name)
        return getattr(self._distributed.optimizer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        # ``step`` stays here, for learning-rate schedulers replace it by one that counts.
        if name in ("_distributed", "step"):
            object.__setattr__(self, name, value)
        else:
            setattr(self._distributed.optimizer, name, value)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Wait for all gradients, then step.

        Args:
            closure: evaluates the model again and returns the loss; gradients are reduced after each call.

        Raises:
            CollectiveError: a reduction failed; no parameter has changed.
        """
        mine = self._distributed
        if mine.adasum:
            return mine.adasum_step(closure)
        if closure is not None:

            def synced() -> Any:
                loss = closure()
                mine.synchronize()
                return mine.average(loss)  # or ranks could take different decisions, as LBFGS does by the loss

            return mine.optimizer.step(synced)
        if mine.should_synchronize:
            if mine.synchronized:
                warnings.warn(_STEP_TWICE, stacklevel=2)
            mine.synchronize()
        mine.synchronized = False
        return mine.optimizer.step()

    def synchronize(self) -> None:
        """Wait for all gradients, to look at them or clip them before ``step()``; see :meth:`skip_synchronize`."""
        self._distributed.synchronize()
        self._distributed.synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it, ``step()`` takes the gradients as they are.

        Example::

            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            with optimizer.skip_synchronize():
                optimizer.step()
        """
        self._distributed.should_synchronize = False
        try:
            yield
        finally:
            self._distributed.should_synchronize = True

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Accumulate over so many passes from the next step on."""
        if passes < 1:
            raise ValueError(f"backward_passes_per_step={passes}: there is at least one.")
        self._distributed.reducer.passes = passes

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the wrapped optimizer's.

        Raises:
            AssertionError: gradients are on their way.
        """
        if self._distributed.reducer.in_flight:
            raise AssertionError(_ZERO_GRAD)
        self._distributed.optimizer.zero_grad(set_to_none=set_to_none)

    def state_dict(self) -> Any:
        """As the wrapped optimizer's, so that it can be loaded without this wrapper."""
        return self._distributed.optimizer.state_dict()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As the wrapped optimizer's; the new parameters are reduced from the next step on."""
        self._distributed.optimizer.add_param_group(param_group)

    def load_state_dict(self, state_dict: Any) -> None:
        """As the wrapped optimizer's, whose class knows how."""
        self._distributed.optimizer.load_state_dict(state_dict)

    def __repr__(self) -> str:
        return f"Distributed{self._distributed.optimizer!r}"

    def __reduce__(self) -> Any:
        raise TypeError("A DistributedOptimizer cannot be pickled: save its state_dict().")


class _Gradients:
    """What DistributedOptimizer adds: hooks, names, and how a gradient becomes an entry and back."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        params: dict[str, torch.nn.Parameter],
        compression: Compressor,
        reduction: tuple[ReduceOp, float],
        passes: int,
        groups: Sequence[Sequence[str]],
        sparse_as_dense: bool,
        process_set: ProcessSet,
    ) -> None:
        self.optimizer, self._params, self._compression = optimizer, params, compression
        (self._op, self._predivide), self._sparse_as_dense = reduction, sparse_as_dense
        self.should_synchronize, self.synchronized = True, False
        self._set, self._alone = process_set, not process_set.included() or process_set.size() == 1
        self.adasum = self._op is Adasum and not self._alone
        self._sparse: set[str] = set()  # gradients that were sparse the last time
        self._topk = compression if isinstance(compression, TopKCompression) else None
        self._names = {param: name for name, param in params.items()}
        self._travelling: dict[str, tuple[torch.Tensor, Any]] = {}  # what was compressed, and its context
        self._watched: set[str] = set()
        trained = [name for name, param in params.items() if param.requires_grad]
        self.reducer = GradientReducer(trained, self._entry, api.submit, passes, groups)
        for name in trained:
            self._watch(name)

    def synchronize(self) -> None:
        """Reduce what is left, wait for all, and put the results into ``.grad``."""
        trained = self._trained_now()
        if self._alone or self.adasum:
            for name in trained if self._sparse_as_dense else ():
                if self._params[name].grad is not None:
                    self._dense(name)
            return
        sparse = {name: self._submit_sparse(name) for name in trained if self._topk or name in self._sparse}
        for name, reduced in self.reducer.finish([name for name in trained if name not in sparse]).items():
            self._store(name, reduced)
        for name, wait in sparse.items():
            self._params[name].grad = wait()
        self._travelling = {}

    def average(self, loss: Any) -> Any:
        """The ranks' average of a loss; anything else as it is."""
        if self._alone or not isinstance(loss, (float, torch.Tensor)):
            return loss
        mean = allreduce_async(
            torch.as_tensor(loss).detach().contiguous(), name="closure", process_set=self._set
        ).wait()
        return mean.item() if isinstance(loss, float) else mean

    def adasum_step(self, closure: Callable[[], Any] | None) -> Any:
        """Step with Adasum, see :func:`workbench.torch.adasum.adasum_step`."""
        params = {name: self._params[name] for name in self._trained_now()}
        return adasum_step(self.optimizer, params, self._compression, self._set, closure)

    def _watch(self, name: str) -> None:
        self._watched.add(name)
        if not self._alone and not self.adasum:
            self._params[name].register_post_accumulate_grad_hook(lambda _: self._ready(name))

    def _ready(self, name: str) -> None:
        """The hook: a dense gradient leaves at once, a sparse one in :meth:`synchronize`."""
        grad = self._params[name].grad
        if grad is not None and (self._topk or (grad.is_sparse and not self._sparse_as_dense)):
            self._sparse.add(name)
            self.reducer.remove(name)
        else:
            self.reducer.ready(name)

    def _submit_sparse(self, name: str) -> Callable[[], torch.Tensor]:
        param = self._params[name]
        grad = param.grad
        if self._topk:
            return self._topk.reduce(torch.zeros_like(param) if grad is None else grad, name, self._op, self._set)
        if grad is None:  # not used on this rank in this step: nothing is added to the others' part
            grad = torch.sparse_coo_tensor(
                torch.empty(1, 0, dtype=torch.int64),
                torch.empty(0, *param.shape[1:], dtype=param.dtype),
                param.shape,
                check_invariants=True,
            )
        return sparse_allreduce_async(grad, name, self._op, self._set)

    def _trained_now(self) -> list[str]:
        """What to reduce now: also what was added or unfrozen since the last step, without what was frozen."""
        found = []
        for g, group in enumerate(self.optimizer.param_groups):
            for i, param in enumerate(group["params"]):
                if not param.requires_grad:
                    continue
                name = self._names.setdefault(param, f"noname.{g}.{i}")
                found.append(name)
                if name not in self._watched:
                    self._params[name] = param
                    self.reducer.add(name)
                    self._watch(name)
        return found

    def _entry(self, name: str, group: str, group_size: int) -> Entry:
        """The gradient as it is now; without one, this rank contributes zeros, or nothing if no rank has one."""
        param = self._params[name]
        fields: dict[str, Any] = {"op": self._op, "group": group, "group_size": group_size}
        fields |= {"device": param.device.type, "process_set": self._set}
        if self._predivide != 1.0:
            fields |= {"prescale": 1.0 / self._predivide, "postscale": self._predivide}
        absent = param.grad is None
        grad = torch.empty_like(param, memory_format=torch.contiguous_format) if absent else self._dense(name)
        small, ctx = self._compression.compress(grad.detach())
        small = small.contiguous()
        self._travelling[name] = small, ctx
        if absent:
            shape = tuple(small.shape)
            return api.entry(Kind.ALLREDUCE, None, name, dtype=dtype_name(small), shape=shape, absent=True, **fields)
        array, convert = in_place(small)
        return api.entry(Kind.ALLREDUCE, array, name, dtype=dtype_name(small), target=array, convert=convert, **fields)

    def _dense(self, name: str) -> torch.Tensor:
        grad = self._params[name].grad
        assert grad is not None
        if grad.layout is torch.strided:
            return grad
        self._params[name].grad = dense = grad.to_dense()
        return dense

    def _store(self, name: str, reduced: Any) -> None:
        """Put one result where the optimizer looks for it."""
        if reduced is None:
            return  # no rank had a gradient: as in a serial run, there is none
        param, (small, ctx) = self._params[name], self._travelling[name]
        if not isinstance(reduced, torch.Tensor):
            reduced = tensor_of(reduced, small)
        whole = self._compression.decompress(reduced, ctx)
        if param.grad is None:
            param.grad = whole
        elif whole.data_ptr() != param.grad.data_ptr():
            param.grad.copy_(whole)


def _named(optimizer: torch.optim.Optimizer, named: Named | None) -> dict[str, torch.nn.Parameter]:
    """The optimizer's parameters by name, in its order."""
    params = [(g, i, p) for g, group in enumerate(optimizer.param_groups) for i, p in enumerate(group["params"])]
    if named is None:
        return {f"noname.{g}.{i}": param for g, i, param in params}
    pairs = list(named)
    if any(not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], str) for pair in pairs):
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter), usually model.named_parameters()."
        )
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"Parameter names in named_parameters must be unique. Found duplicates: {', '.join(twice)}.")
    given = {param: name for name, param in reversed(pairs)}
    unnamed = sum(param not in given for _, _, param in params)
    if unnamed:
        raise ValueError(
            f"named_parameters was specified, but {unnamed} of the optimizer's parameters have no name in it."
        )
    return {given[param]: param for _, _, param in params}


def _groups(
    params: dict[str, torch.nn.Parameter], num_groups: int, groups: Groups | int | None
) -> Sequence[Sequence[str]]:
    """The groups asked for, as names and checked; frozen parameters left out."""
    if isinstance(groups, int):
        if groups < 1:
            raise ValueError(f"groups={groups}: give at least 1, or a list of lists of parameters.")
        num_groups, groups = groups, None
    if num_groups < 0:
        raise ValueError(f"num_groups={num_groups}: give 0 (no groups) or more.")
    trained = [name for name, param in params.items() if param.requires_grad]
    if groups is not None:
        names = {param: name for name, param in params.items()}
        flat = [param for group in groups for param in group]
        if any(param not in names for param in flat) or len(set(flat)) < len(flat):
            raise ValueError("groups must be lists of the optimizer's parameters, each in one group at most.")
        return [[names[param] for param in group if param.requires_grad] for group in groups]
    size = -(-len(trained) // max(1, min(num_groups, len(trained))))
    return [trained[i : i + size] for i in range(0, len(trained), size)] if num_groups else []
