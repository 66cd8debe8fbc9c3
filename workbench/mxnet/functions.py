"""The same start on every rank: broadcast of parameters, of those too that have no shape yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mxnet.gluon.parameter import DeferredInitializationError, Parameter, ParameterDict

from workbench.core.messages import Kind
from workbench.job import api
from workbench.mxnet.tensors import array_of, fill


def broadcast_parameters(params: Any, root_rank: int = 0, prefix: str | None = None) -> None:
    """Copy the root's parameters into every rank's, in place.

    A parameter that gets its shape from the first batch (deferred initialisation) is broadcast when it has it.

    Args:
        params: ``block.collect_params()``, or a dict of arrays or parameters, such as each of the two that
            ``Module.get_params()`` returns; the same names on every rank.
        root_rank: who has the right values.
        prefix: of the names, where two calls may be in flight at once.

    Raises:
        ValueError: something else than these.

    Example:
        >>> import mxnet as mx
        >>> import workbench.mxnet as hvd
        >>> hvd.init()
        >>> net = mx.gluon.nn.Dense(2)
        >>> net.initialize()
        >>> hvd.broadcast_parameters(net.collect_params(), root_rank=0)
        >>> hvd.shutdown()
    """
    if not isinstance(params, (dict, ParameterDict)):
        raise ValueError(
            f"broadcast_parameters() needs a dict or a ParameterDict, not {type(params).__name__}: "
            "give it block.collect_params()."
        )
    _broadcast(_ready(params, root_rank, f"parameters.{prefix or ''}"), root_rank)


def _ready(params: Any, root_rank: int, prefix: str) -> dict[str, list[Any]]:
    """A parameter's arrays, one for each device, by name. The others will be broadcast later."""
    ready = {}
    for key, value in sorted(params.items()):
        name = f"{prefix}{key}"
        try:
            ready[name] = value.list_data() if isinstance(value, Parameter) else [value]
        except DeferredInitializationError:
            _broadcast_when_ready(value, root_rank, name)
    return ready


def _broadcast(tensors: Mapping[str, list[Any]], root_rank: int) -> None:
    # All at once, and then all waits: another rank may be without some of them yet.
    entries = []
    for name, (first, *_) in tensors.items():
        array = array_of(first)
        entries.append(api.entry(Kind.BROADCAST, array, name, target=array, root=root_rank))
    for handle, everywhere in zip(api.submit(entries), tensors.values(), strict=True):
        array = handle.wait()
        for tensor in everywhere:
            fill(tensor, array)


def _broadcast_when_ready(parameter: Any, root_rank: int, name: str) -> None:
    """MXNet calls a parameter's ``_init_impl`` when it gets its first values: once, ours is called."""
    first_values = parameter._init_impl

    def init_and_broadcast(*args: Any, **kwargs: Any) -> None:
        parameter.__dict__.pop("_init_impl", None)
        first_values(*args, **kwargs)
        _broadcast({name: parameter.list_data()}, root_rank)

    parameter._init_impl = init_and_broadcast
