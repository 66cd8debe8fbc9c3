"""What is not here, because each rank has a part of it: a whole parameter before it is gathered, a whole gradient.

Both are refused by the class of the parameter. Without that, a serial script's ``torch.nn.utils.clip_grad_norm_`` would
find no gradient and clip none, ``model.zero_grad()`` drop none, and an optimizer that is not wrapped update nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch._guards import CompileContext

P = TypeVar("P", bound=torch.Tensor)
_GONE = (
    "The parameter {name!r} is divided among the ranks (hvd.shard_parameters), and whole only while the module that "
    "owns it runs. {what} looked at it outside of that. If another module's forward uses it, give that module: "
    "hvd.shard_parameters(model, units=[...]). To look at parameters or change them: with hvd.full_parameters(model). "
    "For a checkpoint: hvd.full_state_dict(model). An optimizer that makes its state before the first step, as Adagrad "
    "does, needs whole parameters: take sharded='gradients' for it."
)
_GRADIENT_GONE = (
    "The gradient of {what} is divided among the ranks, and the optimizer that divided it has not stepped since. In "
    "place of torch.nn.utils.clip_grad_norm_: optimizer.clip_grad_norm_(max_norm). In place of model.zero_grad(): "
    "optimizer.zero_grad(). To step: that optimizer, the hvd.DistributedOptimizer that was given sharded=."
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
_READ_GRAD = _tensor.grad.__get__


class ShardedGradParameter(torch.nn.Parameter):
    """The class of a parameter that is here, while its gradient is not: from backward to step."""

    @property
    def grad(self) -> torch.Tensor | None:
        """Refused. Backward itself does not come here; torch.compile does, and asks only whether it is there."""
        if CompileContext.try_get() is not None:
            return None
        raise RuntimeError(_GRADIENT_GONE.format(what=f"a parameter of shape {tuple(self.shape)}"))

    @grad.setter
    def grad(self, value: torch.Tensor | None) -> None:
        set_grad(self, value)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.nn.Parameter:
        """A parameter like any: no rank has taken its gradient."""
        memo[id(self)] = copied = torch.nn.Parameter(self.data.clone(), self.requires_grad)
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        return torch.nn.Parameter, (self.data, self.requires_grad)


def get_grad(param: torch.nn.Parameter) -> torch.Tensor | None:
    """What is in ``.grad``, whatever the parameter's class."""
    with torch._C.DisableTorchFunctionSubclass():
        found: torch.Tensor | None = _READ_GRAD(param)
        return found


def set_grad(param: torch.nn.Parameter, value: torch.Tensor | None) -> None:
    """Set ``.grad``, whatever the parameter's class."""
    with torch._C.DisableTorchFunctionSubclass():
        _tensor.grad.__set__(param, value)


def mark_grad_sharded(param: torch.nn.Parameter, taken: bool) -> None:
    """Say by the class of a parameter that is here whether its gradient is here, too."""
    if not isinstance(param, ReshardedParameter):
        param.__class__ = ShardedGradParameter if taken else torch.nn.Parameter


class ReshardedParameter(torch.nn.Parameter):
    """The class of a parameter while its memory is free."""

    owner: Any

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Called by torch in place of each function that takes such a parameter."""
        gone = next(of_class(ReshardedParameter, (args, kwargs)), None)
        if func == _READ_GRAD and gone is not None and (name := gone.its_name()) in gone.owner.with_gradient:
            raise RuntimeError(_GRADIENT_GONE.format(what=repr(name)))
        if func in _ALLOWED:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        raise RuntimeError(_GONE.format(name=gone.its_name() if gone is not None else "?", what=_called(func)))

    def its_name(self) -> str:
        return next((name for name, param in self.owner.params.items() if param is self), "?")

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        raise RuntimeError(_GONE.format(name=self.its_name(), what="copy.deepcopy()"))

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise RuntimeError(_GONE.format(name=self.its_name(), what="pickle"))

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"Resharded parameter {self.its_name()!r} of shape {tuple(self.shape)}"


def refuse_sharded(params: Mapping[str, torch.nn.Parameter], stage: bool | str) -> None:
    """Raise a ValueError if a parameter belongs to a model that ``shard_parameters`` has sharded."""
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
