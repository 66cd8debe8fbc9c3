"""The wrapper for Keras 2, whose steps end in ``apply_gradients``, and whose hook is ``aggregate_gradients``.

A step may come in parts: ``minimize`` computes and applies, and ``LossScaleOptimizer`` asks for the reduction before it
looks for infs, then applies. The rule: a gradient is reduced where it is first handed to the wrapper, and ``_mark``
says which ones have been. It saves these very gradients a second reduction, and no others.

Mixed precision: ``LossScaleOptimizer`` may stand outside, where ``compile`` puts it, or inside.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from workbench.keras.flavour import build, is_legacy
from workbench.keras.wrapper import Distributed
from workbench.tf.functions import Aggregation
from workbench.tf.tensors import as_it_is
from workbench.training.bridge import TensorReducer

Pairs = Iterable[tuple[Any, Any]]


_SKIP = "skip_gradients_aggregation=True"
_OTHERS = (
    "apply_gradients() got other gradients than the {count} that this optimizer has reduced before and that were not "
    "applied, so it cannot tell whether these are reduced. If they are made of reduced ones, by clipping for instance, "
    "pass {flag}. If they are new, because a step was abandoned, call apply_gradients() once more: now it will "
    "reduce them."
)


class _ReducedMark:
    """What was reduced and not yet applied.

    Args:
        before: the gradients that came.
        after: the reduced ones that were handed out.
        ready: what the reducer said: is it time for a step?
    """

    def __init__(self, before: Iterable[Any], after: Iterable[Any], ready: Any) -> None:
        self._before, self._after, self.ready = _references(before), _references(after), ready

    def is_of(self, gradients: Sequence[Any]) -> bool:
        """Are these the reduced ones, all of them?"""
        return _all_among(gradients, self._after)

    def came_from(self, gradients: Sequence[Any]) -> bool:
        """Are these the ones before the reduction, all of them?"""
        return _all_among(gradients, self._before)

    def __len__(self) -> int:
        return len(self._after)


def _references(gradients: Iterable[Any]) -> list[Any]:
    """Weak ones: no memory is held, and what is made later cannot be taken for one of them."""
    return [weakref.ref(each) for each in gradients if each is not None]


def _all_among(gradients: Sequence[Any], references: Sequence[Any]) -> bool:
    alive = [reference() for reference in references]
    there = [each for each in gradients if each is not None]
    return bool(there) and all(any(each is one for one in alive) for each in there)


class Distributed2(Distributed):
    """Reduces once in a step, where the gradients come in; see :class:`~workbench.keras.wrapper.Distributed`.

    With ``backward_passes_per_step`` the optimizer steps after the last pass, while ``iterations`` counts each pass, as
    Horovod's does: schedules and checkpoints that go by it count batches.
    """

    _mark: _ReducedMark | None

    def __init__(self, optimizer: Any, reducer: TensorReducer, local_layers: Iterable[Any] = ()) -> None:
        super().__init__(optimizer, reducer, local_layers)
        self.__dict__["_mark"] = None

    def minimize(self, *args: Any, **kwargs: Any) -> Any:
        """The optimizer's own, which computes and applies by way of this wrapper."""
        try:
            return type(self._inner).minimize(self, *args, **kwargs)
        finally:
            self._mark = None

    def get_updates(self, loss: Any, params: Sequence[Any]) -> Any:
        """The legacy optimizer's own, by way of this wrapper; in graphs of TensorFlow 1."""
        try:
            return type(self._inner).get_updates(self, loss, params)
        finally:
            self._mark = None

    def get_gradients(self, loss: Any, params: Sequence[Any]) -> list[Any]:
        """The legacy optimizer's, reduced."""
        gradients = self._inner.get_gradients(loss, params)
        return gradients if self._scaled() else [each for each, _ in self._reduced(zip(gradients, params, strict=True))]

    def _compute_gradients(self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None) -> Any:
        """The optimizer's, reduced; those of Keras 2.11 have no ``grad_loss``."""
        if is_legacy(self._inner):
            pairs = self._inner._compute_gradients(loss, var_list, grad_loss, tape)
        else:
            pairs = self._inner.compute_gradients(loss, var_list, tape)
        return pairs if self._scaled() else self._reduced(pairs)

    @property
    def _agg_helper(self) -> Aggregation | None:
        return Aggregation(self._reducer) if self._reducer.passes > 1 else None

    def _scaled(self) -> bool:
        """Within a LossScaleOptimizer, which will ask for the reduction when it has taken its factor out again."""
        return bool(getattr(self._inner, "_is_wrapped_by_loss_scale_optimizer", False))

    def aggregate_gradients(self, grads_and_vars: Pairs) -> list[tuple[Any, Any]]:
        """Reduce; ``apply_gradients(…, skip_gradients_aggregation=True)`` comes next."""
        return self._reduced(grads_and_vars)

    def _aggregate_gradients(self, grads_and_vars: Pairs) -> list[tuple[Any, Any]]:
        """Reduce; ``apply_gradients(…, experimental_aggregate_gradients=False)`` comes next."""
        return self._reduced(grads_and_vars)

    def _reduced(self, grads_and_vars: Pairs) -> list[tuple[Any, Any]]:
        """Reduce for a caller who will apply later."""
        pairs = list(grads_and_vars)
        reduced, ready = self._reduced_now(pairs)
        self._mark = _ReducedMark((each for each, _ in pairs), (each for each, _ in reduced), ready)
        return reduced

    @as_it_is
    def _reduced_now(self, pairs: list[tuple[Any, Any]]) -> tuple[list[tuple[Any, Any]], Any]:
        variables = [variable for _, variable in pairs]
        reduced, ready = self._reduce([gradient for gradient, _ in pairs], variables)
        return list(zip(reduced, variables, strict=True)), ready

    @as_it_is
    def apply_gradients(self, grads_and_vars: Pairs, *args: Any, **kwargs: Any) -> Any:
        """Reduce, unless that is done or not wanted, then apply; after the last of several passes only.

        Args:
            grads_and_vars: pairs of a gradient, which may be None, and its variable.
            args, kwargs: as the optimizer's. With ``skip_gradients_aggregation=True`` (for legacy optimizers
                ``experimental_aggregate_gradients=False``) the gradients are applied as they are.

        Raises:
            RuntimeError: others were reduced before and not applied, and whether these are reduced nobody can tell.
        """
        pairs, mark = list(grads_and_vars), self._mark
        self._mark = None
        ready = mark.ready if mark is not None else None
        if _wanted(is_legacy(self._inner), args, kwargs) and not self._is_done(mark, [each for each, _ in pairs]):
            pairs, ready = self._reduced_now(pairs)
        if ready is None:
            with self._reducer.stepping([each for each, _ in pairs]):
                return self._inner.apply_gradients(pairs, *args, **kwargs)

        def step() -> Any:
            with tf.control_dependencies([self._inner.apply_gradients(pairs, *args, **kwargs)]):
                return tf.constant(True)

        def wait() -> Any:
            with tf.control_dependencies([self._inner.iterations.assign_add(1, read_value=False)]):
                return tf.constant(False)

        with tf.init_scope():  # a branch of a graph cannot make the optimizer's variables
            build(self._inner, [variable for _, variable in pairs])
        with self._reducer.stepping([each for each, _ in pairs], ready):
            return tf.cond(ready, step, wait)

    def _is_done(self, mark: _ReducedMark | None, gradients: Sequence[Any]) -> bool:
        if mark is None or mark.came_from(gradients):
            return False
        if mark.is_of(gradients):
            return True
        if not self._twice_is_once():
            flag = "experimental_aggregate_gradients=False" if is_legacy(self._inner) else _SKIP
            raise RuntimeError(_OTHERS.format(count=len(mark), flag=flag))
        return False

    def _twice_is_once(self) -> bool:
        """Does a second reduction change nothing? A mean of equal gradients does not."""
        reducer: TensorReducer = self._reducer
        return not (reducer.sums or reducer.passes > 1 or self._local or self._local_layers)


def _wanted(legacy: bool, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Does apply_gradients(pairs, name, …) ask for a reduction?"""
    given = args[1] if len(args) > 1 else None
    if legacy:
        return bool(kwargs.get("experimental_aggregate_gradients", True if given is None else given))
    return not kwargs.get("skip_gradients_aggregation", given) and kwargs.get("experimental_aggregate_gradients", True)
