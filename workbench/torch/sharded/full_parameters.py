"""The full parameters of a sharded model: for a checkpoint, and to look at them or change them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from workbench.job import api
from workbench.torch.sharded.flat_parameter import sharded_model_of


@contextmanager
def full_parameters(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Within it, all parameters of a model are unsharded on all ranks. All ranks call it.

    Changes are kept if all ranks make the same change: each keeps its part. It takes the memory of the whole model. A
    model that is not sharded does not change.

    Example::

        with hvd.full_parameters(model), torch.no_grad():
            model.head.weight.zero_()
    """
    sharded = sharded_model_of(model.parameters())
    if sharded is None:
        yield model
        return
    with sharded.full_parameters():
        yield model


def full_state_dict(model: torch.nn.Module, rank: int | None = None) -> dict[str, Any]:
    """The full state dict of a model, as it would be if it were not sharded. All ranks call it.

    Parameters are gathered layer by layer, so memory holds the result and one more layer. Buffers are this rank's.

    Args:
        model: sharded by ``shard_parameters``, or not.
        rank: only this one gets it, the others an empty one; default: all.

    Example::

        state = hvd.full_state_dict(model, rank=0)
        if hvd.rank() == 0:
            torch.save(state, "model.pt")  # torch.load() and load_state_dict() of a model that is not sharded take it
    """
    sharded = sharded_model_of(model.parameters())
    wanted = rank is None or rank == api.rank()
    found: dict[str, Any] = dict(model.state_dict(keep_vars=True))  # the keys and their order; values follow
    keys: dict[int, list[str]] = {}
    for key, value in found.items():
        keys.setdefault(id(value), []).append(key)
    for flat in sharded.flats if sharded else ():
        flat.unshard()
        for param in flat.params.values() if wanted else ():
            found |= dict.fromkeys(keys.get(id(param), ()), param.detach().clone())
        flat.model.reshard([flat])
    if not wanted:
        return {}
    of_shards = {id(param) for flat in (sharded.flats if sharded else ()) for param in flat.params.values()}
    return {
        key: value.detach().clone() if isinstance(value, torch.Tensor) and id(value) not in of_shards else value
        for key, value in found.items()
    }


def load_full_state_dict(model: torch.nn.Module, state_dict: Mapping[str, Any], strict: bool = True) -> Any:
    """Load the result of :func:`full_state_dict`, or an unsharded model's ``state_dict()``. All ranks call it alike.

    It takes the memory of the whole model while it loads.

    Returns:
        What ``model.load_state_dict`` returns: missing and unexpected keys.
    """
    with full_parameters(model):
        return model.load_state_dict(state_dict, strict=strict)
