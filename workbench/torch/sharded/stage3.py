"""Stage 3: a layer's parameters are gathered before its forward pass and before its backward pass, and freed after.

A *unit* is a module whose parameters come and go together. Its hooks::

    forward begins ──► gather ──► forward ──► free
    the gradient of its output is there ──► gather ──► backward ──► gradients are sent (backward.py) ──► free

What autograd has saved of a parameter are views of the gathered array. So freeing resizes that array's storage to 0
bytes, and gathering again fills the same storage: the views are right again. What a backward pass with
``create_graph=True`` saves is used by a pass that no hook announces: until the step, its parameters stay.
"""

from __future__ import annotations

import dataclasses
import enum
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.autograd.graph import register_multi_grad_hook
from torch.utils._pytree import tree_leaves

from workbench.job.process_sets import ProcessSet, global_process_set
from workbench.torch.compiled import not_traced
from workbench.torch.hooks import take_over
from workbench.torch.sharded.backward import Backward, failures
from workbench.torch.sharded.consistency import check_consistency, shardable
from workbench.torch.sharded.flat_parameter import PARAMETERS, FlatParameter, Members, sharded_model_of

_PLAIN = (type(None), bool, int, float, complex, str, bytes, enum.Enum, torch.dtype, torch.device, torch.Size)
_ATOMIC = (torch.nn.MultiheadAttention,)  # its forward uses the weights of a module inside without calling that one


class ShardedModel:
    """A model whose parameters are sharded.

    Args:
        model: its modules get hooks, its parameters other memory.
        units: modules whose parameters are gathered together.
        process_set: who shares.

    Attributes:
        flats: the arrays.
        units: the modules with what they need of these.
        number: of this model, the same on all ranks.
        backward: sends the gradients.
        keeps_full: somebody looks at full parameters: none is resharded.
    """

    def __init__(self, model: torch.nn.Module, units: Sequence[torch.nn.Module], process_set: ProcessSet) -> None:
        self.members = Members.of(process_set)
        self.keeps_full = False
        self._failures = failures()
        names = {param: name for name, param in model.named_parameters()}
        params = {name: param for param, name in names.items()}
        units_named = [name for name, each in model.named_modules() if each in units]
        self.number = check_consistency(params, self.members, units_named)
        self._owned = {param: name for name, param in shardable(params, PARAMETERS).items()}
        for param in params.values():
            take_over(param)
        self._flat_of: dict[torch.nn.Parameter, FlatParameter] = {}
        chosen = {*units, model}
        self.units = [Unit(self, each, self._flats(each, chosen)) for each in model.modules() if each in chosen]
        self.flats = list(dict.fromkeys(flat for unit in self.units for flat in unit.flats))
        self._users = {flat: [unit for unit in self.units if flat in unit.flats] for flat in self.flats}
        self.backward = Backward(self.flats, self._completed, self._ended)

    def _flats(self, unit: torch.nn.Module, units: set[torch.nn.Module]) -> list[FlatParameter]:
        """Of a unit: new ones, and those of other units that have some of its parameters, which are tied."""
        mine = list(dict.fromkeys(param for param in _parameters(unit, units) if param in self._owned))
        of_a_kind: dict[Any, dict[str, torch.nn.Parameter]] = {}
        for param in mine:
            if param not in self._flat_of:
                of_a_kind.setdefault((param.dtype, param.requires_grad), {})[self._owned[param]] = param
        for params in of_a_kind.values():
            flat = FlatParameter(params, self.members, kept=False, stage=PARAMETERS, number=self.number)
            flat.model = self
            self._flat_of |= dict.fromkeys(params.values(), flat)
        return list(dict.fromkeys(self._flat_of[param] for param in mine))

    def reshard(self, flats: Iterable[FlatParameter]) -> None:
        """Those that no unit needs."""
        for flat in flats:
            if not self.keeps_full and not any(unit.needs_parameters for unit in self._users[flat]):
                flat.reshard()

    def _completed(self, flat: FlatParameter) -> None:
        for unit in self._users[flat]:
            unit.end_backward_if_done()

    def _ended(self, which: int | None) -> None:
        for unit in self.units:
            unit.end_backward(which)
        self.reshard(self.flats)

    def end_passes(self) -> None:
        """No pass goes on, whatever Ctrl-C may have broken off: nothing that is unsharded now is kept for the next."""
        for unit in self.units:
            unit.end_passes()
        self.reshard(self.flats)

    def forget_failed_cell(self) -> None:
        """After a cell that failed, ranks may have other layers unsharded, and one waits for those that do not come."""
        if self._failures != failures():
            self._failures = failures()
            self.end_passes()

    @contextmanager
    def full_parameters(self) -> Iterator[None]:
        """Within it all parameters are unsharded on all ranks; afterwards each rank keeps its part of what they are."""
        self.keeps_full = True
        try:
            for flat in self.flats:
                flat.unshard()
            yield
            for flat in self.flats:
                flat.keep_changes()
        finally:
            self.keeps_full = False
            self.reshard(self.flats)


class Unit:
    """A module whose parameters come and go together.

    Args:
        home: the model.
        module: gets hooks.
        flats: its parameters.
    """

    def __init__(self, home: ShardedModel, module: torch.nn.Module, flats: Sequence[FlatParameter]) -> None:
        self._model = weakref.proxy(home)
        self.flats = list(flats)
        self._running: list[_ForwardPass] = []
        self._passes: set[int] = set()  # backward passes that need the parameters
        self._recorded = False  # create_graph=True: a later pass, through a backward pass, uses what this one has saved
        self._awaited: dict[_ForwardPass, int] = {}  # of how many inputs the gradients are still to come in these
        if flats:
            # The first of all hooks before forward, so that others find the full parameters; and called after a forward
            # that failed, too, or they would stay.
            module.register_forward_pre_hook(self._before, prepend=True, with_kwargs=True)
            module.register_forward_hook(self._after, always_call=True)

    @property
    def needs_parameters(self) -> bool:
        """Is its forward or backward pass going on, or will one through its backward pass?"""
        return bool(self._running or self._passes or self._recorded)

    @not_traced
    def _before(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        if not self._running:
            self._model.forget_failed_cell()
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        inputs = {id(each): each for each in tensors if each.requires_grad}
        call = _ForwardPass(len(inputs))
        self._running.append(call)
        self._unshard()
        for each in inputs.values() if torch.is_grad_enabled() else ():
            each.register_hook(partial(self._input_done, call))  # torch's own for several takes no autograd.grad()

    @not_traced
    def _after(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        """Its forward pass has ended, be it with an error. Amid backward, of a checkpoint, that needs them still."""
        # Also called where another hook failed before _before.
        call = self._running.pop() if self._running else _ForwardPass(0)
        try:
            outputs = list(_with_gradients(output, type(module).__name__)) if torch.is_grad_enabled() else []
            if outputs:
                register_multi_grad_hook(outputs, partial(self._before_backward, call), mode="any")
        finally:
            self._model.reshard(self.flats)

    @not_traced
    def _before_backward(self, call: _ForwardPass, _: torch.Tensor) -> None:
        """The gradient of an output is there: what computes those of parameters and inputs comes next."""
        self._model.backward.touch()
        self._passes.add(torch._C._current_graph_task_id())
        self._recorded |= torch.is_grad_enabled()
        if call.inputs:
            self._awaited[call] = call.inputs
        self._unshard()

    @not_traced
    def _input_done(self, call: _ForwardPass, _: torch.Tensor) -> None:
        """The gradient of an input is there. When all of one call's are, nothing of it is left to be computed."""
        left = self._awaited.get(call, 0) - 1
        if left > 0:
            self._awaited[call] = left
            return
        self._awaited.pop(call, None)
        self.end_backward_if_done()

    def end_backward_if_done(self) -> None:
        """Free the parameters if all gradients of parameters and inputs are there."""
        if self._passes and not self._awaited and all(map(self._model.backward.is_complete, self.flats)):
            self._passes.clear()
            self._model.reshard(self.flats)

    def end_backward(self, which: int | None) -> None:
        """A whole backward pass is over; None: all that were begun."""
        self._passes = self._passes - {which} if which is not None else set()
        self._recorded = self._recorded and which is not None
        if not self._passes:
            self._awaited.clear()

    def end_passes(self) -> None:
        self._running.clear()
        self.end_backward(None)

    def _unshard(self) -> None:
        for flat in self.flats:
            flat.unshard()


class _ForwardPass:
    """A forward pass of a module, whose backward pass may come once, several times, or never."""

    def __init__(self, inputs: int) -> None:
        self.inputs = inputs


def default_units(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Every module with parameters of its own; what is inside of an attention belongs to that."""
    inside = {each for one in model.modules() if isinstance(one, _ATOMIC) for each in one.modules() if each is not one}
    return [each for each in model.modules() if each not in inside and any(True for _ in each.parameters(False))]


def _parameters(unit: torch.nn.Module, units: set[torch.nn.Module]) -> Iterator[torch.nn.Parameter]:
    """Its own, and those of modules in it that are in no other unit."""
    yield from unit.parameters(recurse=False)
    for child in unit.children():
        if child not in units:
            yield from _parameters(child, units)


def _with_gradients(output: Any, module: str) -> Iterator[torch.Tensor]:
    """The tensors in an output that have gradients: when the first of these comes, the parameters are needed.

    Raises:
        RuntimeError: something of a class in which none can be found. Backward would read memory that is free.
    """
    for each in tree_leaves(output):
        if isinstance(each, torch.Tensor):
            if each.requires_grad:
                yield each
        elif dataclasses.is_dataclass(each):
            yield from _with_gradients([getattr(each, field.name) for field in dataclasses.fields(each)], module)
        elif not isinstance(each, _PLAIN):
            raise RuntimeError(
                f"{module}.forward() returns an object of class {type(each).__name__}. With sharded='parameters' a "
                "module returns tensors, or tuples, lists, dicts or dataclasses of them: others cannot be looked into."
            )


def shard_parameters(
    model: torch.nn.Module, units: Sequence[torch.nn.Module] | None = None, process_set: ProcessSet = global_process_set
) -> torch.nn.Module:
    """Shard the parameters of a model among the ranks: each keeps one n-th, and gathers a layer's when it runs.

    Call it before the optimizer is made, on all ranks. All get the first rank's values. The model then computes the
    same as before. While a parameter is not gathered, its shape can be read, but its values cannot: an error says so.

    Args:
        model: in the CPU's memory; may have frozen, tied and unused parameters, and be run under
            ``torch.utils.checkpoint`` with ``use_reentrant=False``.
        units: modules whose parameters are gathered together, for their forward and backward pass; what is in none of
            them is gathered for the whole model's. Default: each module that has parameters of its own. Give the module
            whose ``forward`` uses a parameter of a module inside of it without calling that.
        process_set: who shares; a rank outside keeps all.

    Returns:
        The model.

    Raises:
        MismatchError: the ranks have different models.
        ValueError: on a GPU, not initialized, complex, sharded already, or a unit that is not in the model.

    Example:
        >>> import workbench.torch as hvd
        >>> hvd.init()
        >>> model = hvd.shard_parameters(torch.nn.Linear(2, 1))
        >>> optimizer = hvd.DistributedOptimizer(
        ...     torch.optim.Adam(model.parameters()), model.named_parameters(), sharded="parameters"
        ... )
        >>> model(torch.ones(1, 2)).sum().backward()
        >>> optimizer.step()
        >>> sorted(hvd.full_state_dict(model))
        ['bias', 'weight']
        >>> hvd.shutdown()
    """
    if sharded_model_of(model.parameters()) is not None:
        raise ValueError("shard_parameters(): the parameters of this model are divided already.")
    chosen = default_units(model) if units is None else list(units)
    missing = [type(each).__name__ for each in chosen if each not in set(model.modules())]
    if missing:
        raise ValueError(f"shard_parameters(units=…): {', '.join(missing)} is no module of this model.")
    ShardedModel(model, chosen, process_set)
    return model
