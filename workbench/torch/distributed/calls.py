"""What all calls of a group share: the forms in which they may be made, and their events in torch's profiler."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist

from workbench.errors import UnsupportedTensorError
from workbench.torch.distributed.works import Work

_FIELDS = {"root": "rootRank", "op": "reduceOp"}
Method = Callable[..., Work]


def call(
    event: str, options: type | None = None, fields: tuple[str, ...] = (), tensors: int = 1
) -> Callable[[Method], Method]:
    """Decorate a method of a group.

    torch's functions call it with lists of tensors and options. Programs may call it as
    ``group.allreduce(tensor, op, timeout)``, too.

    Args:
        event: its name in torch's profiler, behind the backend's.
        options: their class, if there is the other form.
        fields: of the options, in the order of that form; behind them stands ``timeout``.
        tensors: how many arguments have tensors; the last one's are what this rank gives.
    """

    def decorate(method: Method) -> Method:
        @functools.wraps(method)
        def called(self: Any, *args: Any, **named: Any) -> Work:
            if options and "opts" not in named:
                args, named = with_options(args, named, options, fields, tensors), {}
            if not torch.autograd._profiler_enabled():
                return method(self, *args, **named)
            given = _tensors(args[tensors - 1]) if tensors else []
            # Not "workbench" in a script that has asked for "gloo", whose events somebody may look for.
            shown = torch.autograd._record_function_with_args_enter(f"{dist.get_backend()}:{event}", *given)
            work = method(self, *args, **named)
            work.before_end(functools.partial(_elsewhere, torch.autograd._record_function_with_args_exit, shown))
            return work

        return opaque(for_the_cpu(tensors)(called))

    return decorate


def for_the_cpu(tensors: int) -> Callable[[Method], Method]:
    """Decorate a method that hands calls for tensors on other devices on, to the group beside ours for these.

    Args:
        tensors: how many arguments have tensors.
    """

    def decorate(method: Method) -> Method:
        @functools.wraps(method)
        def called(self: Any, *args: Any, **named: Any) -> Work:
            for tensor in _tensors(args[:tensors]):
                if not tensor.is_cpu:
                    return getattr(_other(self, method.__name__, tensor), method.__name__)(*args, **named)  # type: ignore[no-any-return]
            return method(self, *args, **named)

        return called

    return decorate


def _other(group: Any, what: str, tensor: torch.Tensor) -> dist.ProcessGroup:
    """The group beside ours that takes a tensor's device."""
    other: dist.ProcessGroup | None = group.others.get(tensor.device.type)
    if other is None:
        raise UnsupportedTensorError(
            f"{what}: a tensor is on {tensor.device}, and the backend workbench takes those on the CPU. Move it there "
            'with .cpu(); for GPUs use init_process_group("cpu:workbench,cuda:nccl").'
        )
    return other


def opaque(method: Method) -> Method:
    """Have torch.compile look at nothing in a method: DDP's C++ calls it from a graph."""
    untraced: Method = torch._disable_dynamo(method)  # every call through it takes some microseconds

    @functools.wraps(method)
    def called(*args: Any, **named: Any) -> Work:
        return (untraced if torch.compiler.is_compiling() else method)(*args, **named)

    return called


def _elsewhere(function: Callable[..., object], *args: object) -> None:
    """On another thread: an event that ends on the one where it began is not asynchronous to torch."""
    thread = threading.Thread(target=function, args=args)
    thread.start()
    thread.join()


def with_options(
    args: tuple[Any, ...], named: dict[str, Any], options: type, fields: tuple[str, ...], tensors: int
) -> tuple[Any, ...]:
    """The arguments as torch's functions give them, in whatever form they were given; see :func:`call`."""
    if len(args) > tensors and hasattr(args[tensors], "asyncOp"):
        return args
    given, found = args[:tensors], options()
    values = dict(zip((*fields, "timeout"), args[tensors:], strict=False))
    values |= {_FIELDS.get(name, name): value for name, value in named.items()}
    for field, value in values.items():
        if value is not None:
            setattr(found, field, value)
    if any(isinstance(one, torch.Tensor) for one in given):
        given = tuple([one] for one in given)
    return (*given, found)


def _tensors(given: torch.Tensor | Iterable[Any]) -> list[torch.Tensor]:
    return [given] if isinstance(given, torch.Tensor) else [each for one in given for each in _tensors(one)]
