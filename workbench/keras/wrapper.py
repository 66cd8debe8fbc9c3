"""What the two kinds of distributed optimizers, for Keras 3 and for Keras 2, have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from workbench.training.bridge import TensorReducer, names_of


class Distributed:
    """A Keras optimizer whose gradients are reduced over the ranks before they are applied.

    In everything else it *is* the wrapped optimizer: it shares its variables, settings and class, so ``isinstance`` is
    right, and a saved model holds Keras' optimizer and no more.

    Args:
        optimizer: the optimizer itself.
        reducer: reduces the gradients.
        local_layers: layers whose gradients stay on this rank.
    """

    def __init__(self, optimizer: Any, reducer: TensorReducer, local_layers: Iterable[Any] = ()) -> None:
        self.__dict__.update(_inner=optimizer, _reducer=reducer, _local_layers=list(local_layers), _local=set())

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self.__dict__["_inner"]) if "_inner" in self.__dict__ else Distributed

    def __getattr__(self, name: str) -> Any:
        if name == "_inner" or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__:
            self.__dict__[name] = value
        else:
            setattr(self._inner, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._inner, name)

    def register_local_var(self, var: Any) -> None:
        """This variable's gradients stay on this rank."""
        self._local.add(id(var))

    def _reduce(
        self, grads: Sequence[Any], variables: Sequence[Any], weights: Sequence[Any] | None = None
    ) -> tuple[list[Any], Any]:
        names = names_of(variables)
        local = self._local | {id(weight) for layer in self._local_layers for weight in layer.trainable_weights}
        self._reducer.keep_local(name for name, variable in zip(names, variables, strict=True) if id(variable) in local)
        reducer: TensorReducer = self._reducer
        return reducer(list(grads), names, weights)

    def __reduce__(self) -> Any:
        raise TypeError("A DistributedOptimizer cannot be pickled or copied: save the model.")


def is_distributed(optimizer: Any) -> bool:
    """Is it wrapped? ``isinstance`` would ask the wrapped optimizer."""
    return issubclass(type(optimizer), Distributed)
