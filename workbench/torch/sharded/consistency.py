"""What must be equal on all ranks: the model before it is sharded, and before each step how far each rank has come."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from workbench.core import messages
from workbench.core.agreement import progress_apart
from workbench.core.messages import Kind
from workbench.errors import MismatchError
from workbench.job import api
from workbench.job.context import HOLDER
from workbench.job.objects import allgather_object
from workbench.runtime.faults.disagreement import cure_of
from workbench.torch.sharded.flat_parameter import Members
from workbench.training import progress

_DIGEST = 4  # bytes
_AT_ONCE = 1 << 20  # elements


@dataclass
class ShardedModels:
    """The number of the model that was last divided among the ranks of this job."""

    number: int = 0


def shardable(params: Mapping[str, torch.nn.Parameter], stage: str) -> dict[str, torch.nn.Parameter]:
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


def check_consistency(params: Mapping[str, torch.nn.Parameter], members: Members, about: Any = None) -> int:
    """All members have the same parameters in the same order. All call it.

    Args:
        params: by name.
        members: who shares.
        about: what else must be equal, for each rank to see.

    Returns:
        A number for these parameters, the same on all members, and for no others on any of them. It is part of the
        names under which they travel: two models may have equal names, and be trained in any order.

    Raises:
        MismatchError: on all of them; it names the first difference.
    """
    last = HOLDER.get().part(ShardedModels)
    number = last.number + 1
    if members.size > 1:
        mine = [*map(_described, params, params.values()), f"units: {about}"]
        everybody = allgather_object((number, mine), "sharded parameters", members.process_set)
        number = max(each for each, _ in everybody)
        _compare([lines for _, lines in everybody], members)
    last.number = number
    return number


def _described(name: str, param: torch.nn.Parameter) -> str:
    layout = "" if param.is_contiguous() else f", strides {param.stride()}"
    return f"{name}: {tuple(param.shape)} {param.dtype}{layout}{'' if param.requires_grad else ', frozen'}"


def _compare(everybody: Sequence[Sequence[str]], members: Members) -> None:
    for number in range(max(map(len, everybody))):
        lines = [each[number] if number < len(each) else "nothing more" for each in everybody]
        if len(set(lines)) > 1:
            raise MismatchError(
                f"The ranks do not have the same parameters. The first difference is at number {number}:\n"
                f"{_by_rank(lines, members)}\nBuild the same model on every rank, and freeze the same parameters."
            )


def _by_rank(lines: Sequence[object], members: Members) -> str:
    ranks = members.process_set.ranks or range(members.size)
    return "\n".join(f"  rank {rank}: {line}" for rank, line in zip(ranks, lines, strict=True))


def _rounded(numbers: messages.Progress) -> list[str]:
    """What machines that round unlike mostly have in common; where not, :func:`progress_apart` decides."""
    return [f"{what}={number if abs(number) > 1e-12 else 0:.5g}" for what, number in numbers]


@dataclass(frozen=True)
class Progress:
    """How far a rank has come. Where two ranks differ, what they have of gradients or parameters does not fit.

    Args:
        updates: how often it has updated its part of the parameters since it was made, or a state was loaded.
        complete: after the last update, every rank got what it needs of it.
        sent: how often each array of gradients was sent since it was last used up or dropped.
        loaded: a state was loaded since the last update.
        numbers: of the optimizer, for the update that comes next; and of the weights, if they are touched.
        touched: somebody else than the optimizer has changed the weights since the last update.
    """

    updates: int
    complete: bool = True
    sent: tuple[int, ...] = ()
    loaded: bool = False
    numbers: messages.Progress = ()
    touched: bool = False

    def __str__(self) -> str:
        last = "" if self.complete else ", the last one interrupted"
        state = ", then a state was loaded" if self.loaded else ""
        touched = ", then its weights were changed" if self.touched else ""
        sent = f"; gradients of {max(self.sent)} backward passes sent since" if self.sent else ""
        return f"{self.updates} updates of its parameters{last}{state}{touched}{sent}"

    def written(self, what: str) -> str:
        """Those of its numbers that have this name; "" if there are none."""
        numbers = [f"{number:.7g}" for name, number in self.numbers if name == what]
        about = {"lr": "learning rate", "weights": "two sums of the weights:"}.get(what, what)
        return f"; {about} {', '.join(numbers)}" if numbers else ""


class ReplicatedWeights:
    """Weights that each rank has whole, and of which each updates a part: what one rank alone changes would spread.

    torch counts the changes of a tensor, but for those by way of ``.data``: so some elements are looked at, too.

    Args:
        params: all of them.
        flats: the same, one behind the other.
    """

    def __init__(self, params: Iterable[torch.nn.Parameter] = (), flats: Iterable[torch.Tensor] = ()) -> None:
        self._params, self._flats = list(params), list(flats)
        self._samples = [flat[:: progress.stride(len(flat))] for flat in self._flats]
        self._seen: tuple[list[int], list[torch.Tensor]] | None = None

    def note(self) -> None:
        """An update is over: all ranks have the same now."""
        self._seen = [param._version for param in self._params], [sample.clone() for sample in self._samples]

    def touched(self) -> bool:
        if self._seen is None:
            return False
        versions, samples = self._seen
        counted = any(param._version != version for param, version in zip(self._params, versions, strict=True))
        return counted or not all(map(torch.equal, self._samples, samples))

    def numbers(self, all_elements: bool = False) -> messages.Progress:
        """What is compared of them: two sums."""
        parts = [part for flat in self._flats for part in flat.split(_AT_ONCE)] if all_elements else self._samples
        sums = np.array([[number for _, number in progress.weights(part.double().numpy())] for part in parts])
        return tuple(("weights", float(number)) for number in sums.sum(axis=0)) if parts else ()


class ConsistencyCheck:
    """Before each step: have all ranks come equally far, and which parameters have a gradient on any of them?

    Args:
        members: who must agree.
        name: of what they train, the same on all of them.
        weights: what all of them have.
    """

    def __init__(self, members: Members, name: str, weights: ReplicatedWeights | None = None) -> None:
        self._members = members
        self._name = name
        self.weights = weights or ReplicatedWeights()

    def any_of(self, present: Sequence[bool], mine: Progress) -> list[bool]:
        """What is true on any rank.

        Raises:
            MismatchError: on all ranks; the ranks have not come equally far.
        """
        here = np.array([*present, *self._digest(mine)], np.uint8)
        if self._members.size > 1:
            self._max(here, "which gradients there are of" if len(present) else "step of")
        digest, rest = here[len(present) :][:_DIGEST], here[len(present) + _DIGEST :]
        if (digest + rest != 255).any() or (not mine.complete and self._members.size > 1):
            self._refuse(mine)
        return [bool(each) for each in here[: len(present)]]

    def _digest(self, mine: Progress) -> list[int]:
        """Some bytes and 255 minus each: the largest of all ranks' still add up to 255 if all ranks' are equal."""
        # A rank whose update was broken off has a number of its own, so that all of them hear of it.
        torn = -1 if mine.complete else self._members.rank
        numbers = mine.numbers + (self.weights.numbers() if mine.touched else ())
        about = (mine.updates, mine.sent, mine.loaded, mine.touched, torn, _rounded(numbers))
        found = list(zlib.crc32(repr(about).encode()).to_bytes(_DIGEST, "little"))
        return [*found, *(255 - each for each in found)]

    def _max(self, here: np.ndarray[Any, Any], what: str) -> None:
        about: dict[str, Any] = {"op": api.Max, "target": here, "process_set": self._members.process_set}
        api.submit([api.entry(Kind.ALLREDUCE, here, f"{what} {self._name}", **about)], at_once=True)[0].wait()

    def _refuse(self, mine: Progress) -> None:
        everybody = [mine]
        if self._members.size > 1:
            mine = replace(mine, numbers=mine.numbers + self.weights.numbers(all_elements=True))
            everybody = allgather_object(mine, f"progress of {self._name}", self._members.process_set)
        torn = len({each.updates for each in everybody}) > 1 or not all(each.complete for each in everybody)
        uneven = len({each.sent for each in everybody}) > 1
        loaded = len({each.loaded for each in everybody}) > 1
        what = progress_apart([each.numbers for each in everybody])
        if not (torn or uneven or loaded or what):
            return
        lines = [f"{each}{each.written(what)}" for each in everybody]
        raise MismatchError(
            f"The ranks have made different progress with {self._name}:\n{_by_rank(lines, self._members)}\n"
            + (_TORN if torn else _LOADED if loaded else _UNEVEN if uneven else cure_of(what))
        )


_LOADED = (
    "Each rank loads its own part of a state. Call optimizer.load_state_dict(...) on all ranks: broadcast the "
    "checkpoint first if only one can read it."
)
_TORN = (
    "The last step was interrupted when only some ranks had updated their part of the parameters, so the model is now "
    "neither the old one nor the new one. Load a checkpoint: hvd.load_full_state_dict(model, ...) and "
    "optimizer.load_state_dict(...), on all ranks."
)
_UNEVEN = (
    "All ranks must make the same number of backward passes before a step, and all ranks must call zero_grad() at "
    "the same place. "
    "A rank that has no data left makes a pass over an empty sum: (model(x).sum() * 0).backward(). Now call "
    "optimizer.zero_grad() on all ranks, and do the step again."
)
