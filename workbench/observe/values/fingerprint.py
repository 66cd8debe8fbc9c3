"""``fingerprint(model, optimizer)``: are the replicas one model? A checksum of each rank's state, side by side."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from workbench import config
from workbench.common.table import RankTable, ShownAsTable
from workbench.common.text import numbered
from workbench.job import api
from workbench.job.objects import allgather_object
from workbench.observe.values.leaves import (
    NOT_HERE,
    as_array,
    describe,
    digest,
    digest_all,
    largest_difference,
    leaves,
    own_part,
)

_NAME = "workbench.fingerprint"
_SHOWN = 8  # digits of a checksum
_MUST = ("weights", "optimizer")
_SEED = "torch seed"  # the one column that is no checksum
_AS_THEY_ARE = ("float16", "float32", "float64")  # dtypes in which parameters travel; others as float64

State = Mapping[str, Sequence[str]]
"""(checksum, dtype and shape, which shard of a DTensor) by path."""


@dataclass(frozen=True)
class Own:
    """What one rank has.

    Args:
        weights, optimizer: the states; ``optimizer`` is None where none was given.
        seeds: the state of each random generator.
    """

    weights: State
    optimizer: State | None
    seeds: Mapping[str, str]

    def columns(self) -> dict[str, str]:
        """One text for each column of the table."""
        found = {"weights": _summary(self.weights)}
        if self.optimizer is not None:
            found["optimizer"] = _summary(self.optimizer)
        return found | dict(self.seeds)


@dataclass(frozen=True, repr=False)
class Fingerprint(ShownAsTable):
    """The same on every rank. True if weights and optimizer state are the same bits everywhere.

    Random states may differ, and with dropout or augmentation often have to; what they do is in ``agreement``.

    Args:
        table: for reading; text and, in a notebook, HTML.
        agreement: column → do all ranks agree?
        first: the first parameter that differs, "" for none.
        largest: by rank, the largest difference of a parameter from its value on the largest group of equal ranks.
    """

    table: RankTable
    agreement: Mapping[str, bool]
    first: str
    largest: tuple[float, ...]

    @property
    def agree(self) -> bool:
        """Do the ranks agree about weights and optimizer?"""
        return all(self.agreement.get(column, True) for column in _MUST)

    def __bool__(self) -> bool:
        return self.agree


def fingerprint(model: Any, optimizer: Any = None) -> Fingerprint:
    """Compare the state of all ranks. Every rank calls it, in a ``%%px`` cell or under mpiexec.

    Each rank hashes its state, and the checksums are gathered: about 100 bytes for each tensor and rank. If parameters
    differ, those of the largest group of equal ranks are also sent to all, one by one, to compute the difference.
    Of a DTensor each shard is compared among the ranks that have it.

    Args:
        model: what has a ``state_dict()``, or a dict or list of arrays and tensors of any framework.
        optimizer: likewise.

    Returns:
        A table by rank, which is true if weights and optimizer agree. In a process on its own it has one line.

    Raises:
        TypeError: a model or an optimizer without a state.
        NotInitializedError: on one of several ranks, before ``init()``.

    Example:
        >>> def check():
        ...     same = fingerprint({"bias": np.zeros(3)})
        ...     other = fingerprint({"weight": np.zeros(3), "bias": np.full(3, api.rank() / 2)})
        ...     return same.agree, other.agree, other.first, other.largest
        >>> api.run_threads(2, check)[1]
        (True, False, 'bias', (0.0, 0.5))
    """
    weights = _state(model, "model")
    state = None if optimizer is None else _digests(_state(optimizer, "optimizer"))
    everyone = _whole(_gather(Own(_digests(weights), state, seeds())))
    states = [own.weights for own in everyone]
    largest = _largest(weights, states) if _differing(states) else (0.0,) * len(states)
    return _report(everyone, largest)


def seeds() -> dict[str, str]:
    """The state of each random generator that this process has loaded, as a checksum; of torch the seed, too."""
    found: dict[str, str] = {}
    torch = sys.modules.get("torch")
    if torch is not None:
        found |= {_SEED: str(torch.initial_seed()), "torch RNG": digest(torch.get_rng_state())}
        if torch.cuda.is_initialized():
            found["CUDA RNG"] = digest(torch.cuda.get_rng_state())
    found["numpy RNG"] = _summary(_digests(leaves(np.random.get_state(legacy=False))))
    return found | {"random": digest(repr(random.getstate()))}


def _state(thing: Any, what: str) -> dict[str, Any]:
    tree = thing.state_dict() if hasattr(thing, "state_dict") else thing
    if not isinstance(tree, (Mapping, list, tuple)):
        raise TypeError(
            f"fingerprint(): the {what} is a {type(thing).__name__}, which has no state_dict(). Give its state "
            "as a dict or list of arrays."
        )
    return leaves(tree)


def _digests(state: Mapping[str, Any]) -> dict[str, tuple[str, str, str]]:
    found = {}
    for path, leaf in state.items():
        part, shard = own_part(leaf)
        found[path] = digest(part), describe(leaf) + (f", shard {shard}" if shard else ""), shard
    return found


def _summary(state: State) -> str:
    return digest_all({path: text for path, (text, *_) in state.items()})


# --- together -----------------------------------------------------------------------------------------


def _gather(own: Own) -> list[Own]:
    """What every rank has, by rank."""
    if not api.is_initialized() and config.launch().size == 1:
        return [own]
    return allgather_object(own, _NAME)


def _whole(everyone: Sequence[Own]) -> list[Own]:
    """With checksums of whole tensors: for the shards that a rank does not have, those of the first rank that does."""
    return [
        replace(own, weights=weights, optimizer=own.optimizer and optimizer)
        for own, weights, optimizer in zip(
            everyone,
            _of_whole_tensors([own.weights for own in everyone]),
            _of_whole_tensors([own.optimizer or {} for own in everyone]),
            strict=True,
        )
    ]


def _of_whole_tensors(states: Sequence[State]) -> list[State]:
    shards: dict[str, dict[str, str]] = {}
    for state in states:
        for path, (text, _, shard) in state.items():
            if shard != NOT_HERE:
                shards.setdefault(path, {}).setdefault(shard, text)

    def whole(path: str, text: str, shard: str) -> str:
        there = shards.get(path, {})
        if not shard or "" in there:  # not sharded, so nothing is put together
            return text if shard != NOT_HERE else there.get("", text)
        return digest_all(there if shard == NOT_HERE else there | {shard: text})

    return [
        {path: (whole(path, text, shard), kind, shard) for path, (text, kind, shard) in state.items()}
        for state in states
    ]


def _reference(states: Sequence[State]) -> int:
    """The first rank of those, most in number, that have the same state."""
    texts = [_summary(state) for state in states]
    return texts.index(Counter(texts).most_common(1)[0][0])


def _differing(states: Sequence[State]) -> list[str]:
    """Paths that are not the same on all ranks, in the order of the reference."""
    paths = dict.fromkeys(path for state in (states[_reference(states)], *states) for path in state)
    return [path for path in paths if len({_checksum(state, path) for state in states}) > 1]


def _checksum(state: State, path: str) -> str:
    return state[path][0] if path in state else ""


def _largest(mine: Mapping[str, Any], states: Sequence[State]) -> tuple[float, ...]:
    """By rank, the largest difference from the reference in what has the same dtype and shape on all ranks."""
    found, root = 0.0, _reference(states)
    for path in _differing(states):
        part, shard = own_part(mine.get(path))
        numbers = other = _numbers(part)
        if any(path in state and state[path][2] for state in states):
            there = allgather_object((shard, numbers), f"{_NAME}.{path}")
            other = next(theirs for which, theirs in there if which == shard)  # of NOT_HERE None
        elif len({state[path][1] if path in state else "" for state in states}) == 1 and numbers is not None:
            other = api.broadcast(numbers, root, f"{_NAME}.{path}")
        if numbers is not None and other is not None:
            found = float(np.maximum(found, largest_difference(numbers, other)))  # NaN wins
    return tuple(float(each) for each in api.allgather(np.array([found]), f"{_NAME}.largest"))


def _numbers(leaf: Any) -> Any:
    array = as_array(leaf)
    if array is None:
        return None
    array = np.ascontiguousarray(array).reshape(-1)
    array = array.view(array.real.dtype) if np.iscomplexobj(array) else array
    return array if array.dtype.name in _AS_THEY_ARE else array.astype(np.float64)


# --- the table ----------------------------------------------------------------------------------------


def _report(everyone: Sequence[Own], largest: tuple[float, ...]) -> Fingerprint:
    texts = [own.columns() for own in everyone]
    columns = list(dict.fromkeys(column for row in texts for column in row))
    agreement = {column: len({row.get(column) for row in texts}) == 1 for column in columns}
    rows = [(str(rank), *(_cell(column, row) for column in columns)) for rank, row in enumerate(texts)]
    below = ["agree", *("yes" if agreement[column] else "NO" for column in columns)] if len(rows) > 1 else []
    if not agreement["weights"]:
        columns.append("largest difference")
        rows = [(*row, f"{difference:.3g}") for row, difference in zip(rows, largest, strict=True)]
        below.append("")
    states = {"weights": [own.weights for own in everyone]}
    states["optimizer"] = [own.optimizer for own in everyone if own.optimizer is not None]
    foot = [_first(what, each) for what, each in states.items() if len(each) == len(rows) and not agreement[what]]
    table = RankTable(("rank", *columns), rows, below, foot)
    return Fingerprint(table, agreement, next(iter(_differing(states["weights"])), ""), largest)


def _cell(column: str, row: Mapping[str, str]) -> str:
    text = row.get(column, "-")
    return text if column == _SEED else text[:_SHOWN]


def _first(what: str, states: Sequence[State]) -> str:
    """Which one differs first, where, and how if it is not the same dtype and shape."""
    path, root = _differing(states)[0], _reference(states)
    others = [rank for rank, state in enumerate(states) if _checksum(state, path) != _checksum(states[root], path)]
    kinds = [state[path][1] if path in state else "missing" for state in states]
    unlike = (
        f" ({', '.join(f'{kind} on rank {rank}' for rank, kind in enumerate(kinds))})" if len(set(kinds)) > 1 else ""
    )
    return f"{what}: {path!r} is the first that differs, on {numbered(others)} from rank {root}{unlike}"
