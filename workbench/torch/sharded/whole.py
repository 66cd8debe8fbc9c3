"""Whole parameters of a model that is divided among the ranks: for a checkpoint, and to look at them or change them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from workbench.job import api
from workbench.torch.sharded.stage3 import home_of


@contextmanager
def full_parameters(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Within it, all parameters of a model are whole on all ranks. All ranks call it.

    What is changed there stays, if all ranks make the same change: each keeps its part. It takes the memory of the
    whole model. Of a model that is not divided nothing changes.

    Example::

        with hvd.full_parameters(model), torch.no_grad():
            model.head.weight.zero_()
    """
    home = home_of(model.parameters())
    if home is None:
        yield model
        return
    with home.whole():
        yield model


def full_state_dict(model: torch.nn.Module, rank: int | None = None) -> dict[str, Any]:
    """The state dict of the whole model, as it would be if it were not divided. All ranks call it.

    Parameters are gathered layer by layer, so beside the result there is one layer in memory. Buffers are this rank's.

    Args:
        model: divided by ``shard_parameters``, or not.
        rank: only this one gets it, the others an empty one; default: all.

    Example::

        state = hvd.full_state_dict(model, rank=0)
        if hvd.rank() == 0:
            torch.save(state, "model.pt")  # torch.load() and load_state_dict() of a model that is not divided take it
    """
    home = home_of(model.parameters())
    wanted = rank is None or rank == api.rank()
    found: dict[str, Any] = dict(model.state_dict(keep_vars=True))  # the keys and their order; values follow
    keys: dict[int, list[str]] = {}
    for key, value in found.items():
        keys.setdefault(id(value), []).append(key)
    for flat in home.flats if home else ():
        flat.gather()
        for param in flat.params.values() if wanted else ():
            found |= dict.fromkeys(keys.get(id(param), ()), param.detach().clone())
        flat.home.free([flat])
    if not wanted:
        return {}
    divided = {id(param) for flat in (home.flats if home else ()) for param in flat.params.values()}
    return {
        key: value.detach().clone() if isinstance(value, torch.Tensor) and id(value) not in divided else value
        for key, value in found.items()
    }


def load_full_state_dict(model: torch.nn.Module, state_dict: Mapping[str, Any], strict: bool = True) -> Any:
    """Load what :func:`full_state_dict` or an undivided model's ``state_dict()`` gave. All ranks call it with the same.

    It takes the memory of the whole model while it loads.

    Returns:
        What ``model.load_state_dict`` returns: missing and unexpected keys.
    """
    with full_parameters(model):
        return model.load_state_dict(state_dict, strict=strict)


__all__ = ["full_parameters", "full_state_dict", "load_full_state_dict"]
