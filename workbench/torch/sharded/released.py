"""A parameter that is not here: each rank has a part of it, and nobody may look at the whole before it is gathered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch

P = TypeVar("P", bound=torch.Tensor)
_GONE = (
    "The parameter {name!r} is divided among the ranks (hvd.shard_parameters), and whole only while the module that "
    "owns it runs. {what} looked at it outside of that. If another module's forward uses it, give that module: "
    "hvd.shard_parameters(model, units=[...]). To look at parameters or change them: with hvd.full_parameters(model). "
    "For a checkpoint: hvd.full_state_dict(model)."
)
_tensor: Any = torch.Tensor
_ALLOWED = {
    *(getattr(_tensor, name).__get__ for name in ("shape", "dtype", "device", "layout", "ndim", "requires_grad")),
    *(getattr(_tensor, name).__get__ for name in ("is_leaf", "grad_fn", "grad", "is_cuda", "is_sparse", "is_meta")),
    *(getattr(_tensor, name).__set__ for name in ("grad", "data", "requires_grad")),
    *(getattr(_tensor, name).__get__ for name in ("_post_accumulate_grad_hooks", "_backward_hooks")),
    *(getattr(_tensor, name).__set__ for name in ("_post_accumulate_grad_hooks", "_backward_hooks")),
    *(getattr(_tensor, name) for name in ("size", "dim", "numel", "nelement", "element_size", "__len__")),
    *(getattr(_tensor, name) for name in ("is_floating_point", "is_complex", "requires_grad_", "register_hook")),
    _tensor.register_post_accumulate_grad_hook,
    _tensor.untyped_storage,  # of one element: who counts bytes finds as good as none
    torch.is_floating_point,
    torch.is_complex,
    torch.numel,
}
"""Functions of a tensor that need none of its values."""


class Released(torch.nn.Parameter):
    """The class of a parameter while its memory is free."""

    owner: Any

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Called by torch in place of each function that takes such a parameter."""
        if func in _ALLOWED:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        gone = next(of_class(Released, (args, kwargs)), None)
        raise RuntimeError(_GONE.format(name=gone.its_name() if gone is not None else "?", what=_called(func)))

    def its_name(self) -> str:
        """As the model knows it."""
        return next((name for name, param in self.owner.params.items() if param is self), "?")

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Refused."""
        raise RuntimeError(_GONE.format(name=self.its_name(), what="copy.deepcopy()"))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refused."""
        raise RuntimeError(_GONE.format(name=self.its_name(), what="pickle"))

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"Released parameter {self.its_name()!r} of shape {tuple(self.shape)}"


def refuse_divided(params: Mapping[str, torch.nn.Parameter], stage: bool | str) -> None:
    """Raise a ValueError if a parameter belongs to a model that ``shard_parameters`` has divided."""
    for name, param in params.items():
        if hasattr(param, "owner"):
            raise ValueError(
                f"The parameter {name!r} is divided among the ranks (hvd.shard_parameters), and sharded={stage!r} "
                "takes whole ones. Give DistributedOptimizer sharded='parameters'."
            )


def _called(func: Callable[..., Any]) -> str:
    owner = getattr(getattr(func, "__self__", None), "__name__", "")
    return f"{owner or getattr(func, '__name__', func)}()"


def of_class(kind: type[P], value: Any) -> Iterator[P]:
    """The tensors of just this class among a function's arguments."""
    if type(value) is kind:
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from of_class(kind, each)
    elif isinstance(value, dict):
        yield from of_class(kind, list(value.values()))


__all__ = ["Released", "of_class", "refuse_divided"]
