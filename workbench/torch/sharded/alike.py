"""What is refused before anything is divided: models that differ between ranks, parameters that cannot be divided."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from workbench.errors import MismatchError
from workbench.torch.sharded.flat import Members
from workbench.training.objects import allgather_object


def divisible(params: Mapping[str, torch.nn.Parameter], stage: str) -> dict[str, torch.nn.Parameter]:
    """Those that have elements, all of them floats; what has none, or integers, stays whole on each rank.

    Raises:
        ValueError: one is on a GPU, or not initialized.
    """
    for name, param in params.items():
        if torch.nn.parameter.is_lazy(param):
            raise ValueError(f"The parameter {name!r} has no shape yet: run the model once on a batch before.")
        if param.device.type != "cpu":
            raise ValueError(
                f"sharded={stage!r} is for parameters in the CPU's memory, and {name!r} is on {param.device}. On a GPU "
                "leave it out, or shard with torch's own fully_shard()."
            )
        if param.is_complex():
            raise ValueError(f"sharded={stage!r} takes real numbers, and the parameter {name!r} is {param.dtype}.")
    return {name: param for name, param in params.items() if param.numel() and param.is_floating_point()}


def check_alike(params: Mapping[str, torch.nn.Parameter], members: Members, about: Any = None) -> None:
    """All members have the same parameters in the same order. All call it.

    Args:
        params: by name.
        members: who shares.
        about: what else must be equal, for each rank to see.

    Raises:
        MismatchError: on all of them; it names the first difference.
    """
    if members.size == 1:
        return
    mine = [f"{name}: {tuple(p.shape)} {p.dtype}{'' if p.requires_grad else ', frozen'}" for name, p in params.items()]
    everybody = allgather_object([*mine, f"units: {about}"], "sharded parameters", members.process_set)
    ranks = members.process_set.ranks or range(members.size)
    for number in range(max(map(len, everybody))):
        lines = [each[number] if number < len(each) else "nothing more" for each in everybody]
        if len(set(lines)) > 1:
            told = "\n".join(f"  rank {rank}: {line}" for rank, line in zip(ranks, lines, strict=True))
            raise MismatchError(
                f"The ranks have not the same parameters. The first difference is at number {number}:\n{told}\n"
                "Build the same model on every rank, and freeze the same parameters."
            )


__all__ = ["check_alike", "divisible"]
