"""What the wrapped optimizer steps on when a rank updates a part of each parameter, and its state as a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from workbench.job.objects import allgather_object
from workbench.job.process_sets import ProcessSet

_PARTLY = (
    "A state_dict() has the parts of all ranks, and of a parameter of shape {} some ranks have none: load_state_dict() "
    "was called on the others only. Call it on all ranks: broadcast the checkpoint first if only one can read it."
)


@dataclass
class Shard:
    """This rank's part of one parameter.

    Args:
        start: of its elements, in the order of the parameter's memory.
        stop: likewise.
        param: what the wrapped optimizer updates.
    """

    start: int
    stop: int
    param: torch.nn.Parameter


class ShardedState:
    """The parts of an optimizer's parameters. To it they are parameters like others, so it makes state for them alone.

    Args:
        optimizer: the wrapped one.
        process_set: who shares; None: nobody, this rank has all.
        name: of what is trained, the same on all ranks.

    Attributes:
        shards: this rank's, by name.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, process_set: ProcessSet | None, name: str) -> None:
        self._optimizer = optimizer
        self._set = process_set
        self._name = name
        self._model_groups: list[list[torch.nn.Parameter]] = []
        self._index: dict[torch.nn.Parameter, str] = {}
        self._likes: dict[str, torch.Tensor] = {}
        self._owned: set[torch.nn.Parameter] = set()
        self.shards: dict[str, Shard] = {}

    def cut(
        self,
        params: Mapping[str, torch.nn.Parameter],
        parts: Mapping[str, Shard],
        likes: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        """In the groups that are not cut yet, shards take the places of parameters.

        Args:
            params: that are sharded, by name.
            parts: of these, this rank's.
            likes: tensors with the shape and strides of each parameter, if it has not got them itself.
        """
        self._index |= {param: name for name, param in params.items()}
        self._likes |= params if likes is None else likes
        self.shards |= parts
        self._owned |= {part.param for part in parts.values()}
        for group in self._optimizer.param_groups[len(self._model_groups) :]:
            self._model_groups.append(list(group["params"]))
            group["params"] = [each for param in group["params"] for each in self._stand_for(param)]
        for name, param in params.items():
            state, part = self._optimizer.state.pop(param, None), self.shards.get(name)
            if state and part:
                like = self._likes[name]
                self._optimizer.state[part.param] = {key: _cut(value, part, like) for key, value in state.items()}

    def dissolve(self) -> None:
        """Give the optimizer whole parameters again; the state of shards is gone."""
        for group, params in zip(self._optimizer.param_groups, self._model_groups, strict=False):
            group["params"] = params
        for part in self._owned:
            self._optimizer.state.pop(part, None)

    # --- checkpoints ----------------------------------------------------------------------------------

    def state_dict(self) -> Any:
        """The state of all ranks together, as the optimizer would have it on its own. All ranks call it."""
        mine = {
            name: (part.start, dict(self._optimizer.state[part.param]))
            for name, part in self.shards.items()
            if part.param in self._optimizer.state
        }
        everybody = [mine] if self._set is None else allgather_object(mine, f"state of {self._name}", self._set)
        found = self._optimizer.state_dict()
        state: dict[int, Any] = {}
        for number, param in enumerate(param for group in self._groups() for param in group):
            name = self._index.get(param)
            pieces = [rank[name] for rank in everybody if name in rank] if name else []
            if name and pieces:
                state[number] = _joined(pieces, self._likes[name])
            elif name is None and param in self._optimizer.state:
                state[number] = dict(self._optimizer.state[param])
        ends = np.cumsum([0, *map(len, self._groups())]).tolist()
        groups = [
            {**group, "params": list(range(ends[i], ends[i + 1]))} for i, group in enumerate(found["param_groups"])
        ]
        return {**found, "state": state, "param_groups": groups}

    def load_state_dict(self, full: Any) -> None:
        """Take this rank's part of what :meth:`state_dict` gave; each rank takes it on its own."""
        state, groups, number, slot = {}, [], 0, 0
        for params, group in zip(self._groups(), full["param_groups"], strict=True):
            slots = []
            for param in params:
                for part in self._stand_for(param):
                    if number in full["state"]:
                        state[slot] = self._mine(param, full["state"][number])
                    slots.append(slot)
                    slot += len([part])
                number += 1
            groups.append({**group, "params": slots})
        self._optimizer.load_state_dict({**full, "state": state, "param_groups": groups})

    def _mine(self, param: torch.nn.Parameter, values: Mapping[str, Any]) -> dict[str, Any]:
        """This rank's part of a parameter's state."""
        name = self._index.get(param, "")
        part = self.shards.get(name)
        if part is None:
            return dict(values)
        return {key: _cut(value, part, self._likes[name]) for key, value in values.items()}

    def _groups(self) -> list[list[torch.nn.Parameter]]:
        """The model's parameters in their groups, with those that were added later."""
        return [
            *self._model_groups,
            *(group["params"] for group in self._optimizer.param_groups[len(self._model_groups) :]),
        ]

    def _stand_for(self, param: torch.nn.Parameter) -> list[torch.nn.Parameter]:
        """What stands for a parameter on this rank: its shard, nothing, or itself if it is not sharded."""
        name = self._index.get(param)
        if name is None:
            return [param]
        return [self.shards[name].param] if name in self.shards else []


def _cut(value: Any, part: Shard, like: torch.Tensor) -> Any:
    """This rank's part of a value of the state, if it has one number per element of the parameter."""
    if isinstance(value, torch.Tensor) and value.shape == like.shape:
        return in_memory_order(value, like)[part.start : part.stop].clone()
    return value


def _joined(pieces: Sequence[tuple[int, dict[str, Any]]], like: torch.Tensor) -> dict[str, Any]:
    """Undo :func:`_cut`."""
    pieces = sorted(pieces, key=lambda piece: piece[0])
    joined = dict(pieces[0][1])
    for key, value in joined.items():
        if isinstance(value, torch.Tensor) and value.dim():
            flat = torch.cat([state[key] for _, state in pieces])
            if len(flat) != like.numel():
                raise RuntimeError(_PARTLY.format(tuple(like.shape)))
            full = torch.empty_strided(like.shape, like.stride(), dtype=flat.dtype)
            joined[key] = full.copy_(flat.as_strided(like.shape, like.stride()))
    return joined


def in_memory_order(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The elements in the order in which those of a parameter lie in memory."""
    flat = torch.empty(like.numel(), dtype=value.dtype)
    flat.as_strided(like.shape, like.stride()).copy_(value)
    return flat
