"""The wrapper for Keras 3, on TensorFlow, torch and JAX.

All three trainers of Keras end a step in ``optimizer.apply`` (JAX's in ``stateless_apply``), and so do custom loops.
The wrapper reduces the gradients there and hands them on.

Mixed precision: ``LossScaleOptimizer`` skips a step whose gradients are not finite. It must stand *inside*, where it
sees the reduced gradients, an inf of any rank among them, and all ranks skip together. Outside it would skip the
collective on one rank, and the others would wait; so that order raises an error.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

from workbench.keras.flavour import keras
from workbench.keras.wrapper import Distributed, is_distributed

_TRAP = (
    "LossScaleOptimizer must be inside of DistributedOptimizer, or a rank with an inf would skip the step alone. Under "
    "mixed_float16 compile() puts it outside of any other optimizer: give it "
    "hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))."
)


class Variables(list[Any]):
    """An optimizer's variables: Keras 3 has a list, and scripts of earlier Keras call ``optimizer.variables()``."""

    def __call__(self) -> Variables:
        return self


class Distributed3(Distributed):
    """Reduces in ``apply`` and ``stateless_apply``; see :class:`~workbench.keras.wrapper.Distributed`."""

    @property
    def variables(self) -> Variables:
        """The optimizer's own; they may be called for, too."""
        return Variables(self._inner.variables)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "loss_scale_factor" and value is None:  # LossScaleOptimizer does so to what it is put around
            raise ValueError(_TRAP)
        super().__setattr__(name, value)

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> Any:
        """Reduce, then apply; see :meth:`apply`.

        Args:
            grads_and_vars: pairs of a gradient, which may be None, and its variable.
        """
        pairs = list(grads_and_vars)
        self.apply([gradient for gradient, _ in pairs], [variable for _, variable in pairs])
        return self._inner.iterations

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Reduce the gradients over the ranks, then apply them; after the last of several passes only.

        Args:
            grads: one per variable; None where there is none, on every rank.
            trainable_variables: by default those that the optimizer was built for.

        Raises:
            CollectiveError: the reduction failed; within a graph it is the backend's error with this one's text.
        """
        variables = self._trainable_variables if trainable_variables is None else list(trainable_variables)
        if not self._inner.built:
            self._inner.build(variables)
        reduced, ready = self._reduce(grads, variables, [each.value for each in variables])
        with self._reducer.stepping(reduced, ready):
            if ready is None:
                self._inner.apply(reduced, variables)
            else:
                keras.ops.cond(ready, lambda: self._inner.apply(reduced, variables), lambda: None)

    def stateless_apply(
        self, optimizer_variables: Sequence[Any], grads: Sequence[Any], trainable_variables: Sequence[Any]
    ) -> Any:
        """As :meth:`apply`, for JAX: the new values are returned, those of the variables and those of the optimizer."""
        reduced, ready = self._reduce(grads, self._trainable_variables, trainable_variables)

        def step() -> Any:
            return self._inner.stateless_apply(optimizer_variables, reduced, trainable_variables)

        with self._reducer.stepping(reduced, ready):
            if ready is None:
                return step()
            return keras.ops.cond(ready, step, lambda: (list(trainable_variables), list(optimizer_variables)))


@functools.cache
def keep_xla_away() -> None:
    """On TensorFlow ``compile(jit_compile="auto")`` takes XLA, which cannot call the host: see to it that it does not.

    1. A model with our optimizer does not support XLA, as far as Keras asks; for ``jit_compile=True`` Keras then says
       in a warning that it goes without.
    2. Keras asks this one function, and there is no way to answer by the optimizer. Where a later Keras has it no more,
       :func:`workbench.tf.tensors.on_host` still refuses, with a text that says ``jit_compile=False``.
    """
    if keras.backend.backend() != "tensorflow":
        return
    from keras.src.trainers import trainer

    plain = getattr(trainer, "model_supports_jit", None)
    if plain is None:
        return

    @functools.wraps(plain)
    def supports(model: Any) -> bool:
        return not is_distributed(getattr(model, "optimizer", None)) and plain(model)

    trainer.model_supports_jit = supports
