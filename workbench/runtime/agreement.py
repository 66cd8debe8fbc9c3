"""Do the ranks agree about a tensor? If so, what do all of them do; if not, what does each one say.

Pure functions of the requests of all ranks. An error text says what failed, the value on each rank, and
what to do; its first line is in the words of Horovod's coordinator, which people search for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from workbench.runtime.messages import Kind, Request, Response

Requests = dict[int, Request]
Value = Callable[[Request], Any]

_REDUCING = (Kind.ALLREDUCE, Kind.REDUCESCATTER)


def respond(requests: Requests) -> Response:
    """The response to the requests of all ranks of a process set, by rank."""
    ranks = sorted(requests)
    first = requests[ranks[0]]
    error = disagreement(requests)
    if error:
        return Response(first.name, first.kind, process_set=first.process_set, error=("MismatchError", error))
    return Response(
        name=first.name,
        kind=first.kind,
        dtype=first.dtype,
        shape=first.shape,
        op=first.op,
        root=first.root,
        device=first.device,
        prescale=first.prescale,
        postscale=first.postscale,
        process_set=first.process_set,
        rows=_rows([requests[rank] for rank in ranks]),
        places=_places([requests[rank] for rank in ranks]),
        all_absent=all(request.absent for request in requests.values()),
    )


def disagreement(requests: Requests) -> str:
    """What the ranks disagree about, as an error text; empty if they agree."""
    kind = next(iter(requests.values())).kind
    for what, value, phrase, cure in _checks(kind):
        values = {rank: value(requests[rank]) for rank in sorted(requests)}
        if len(set(values.values())) > 1:
            return _explain(requests, what, phrase, values, cure)
    return _impossible(requests)


def _checks(kind: Kind) -> Iterable[tuple[str, Value, str, str]]:
    """(what differs, its value, Horovod's sentence, the cure), in the order in which they are looked at."""
    yield (
        "operations",
        lambda r: r.kind.value,
        "One rank did an {0}, but another rank did an {1}.",
        "Call the same function under this name on every rank.",
    )
    yield (
        "data types",
        lambda r: r.dtype,
        "One rank had type {0}, but another rank had type {1}.",
        "Convert the tensor to one dtype on every rank.",
    )
    if kind in (Kind.ADD_SET, Kind.REMOVE_SET):
        yield (
            "process sets",
            lambda r: r.splits,
            "One rank gave the ranks {0}, but another rank gave {1}.",
            "Give the same ranks on every rank.",
        )
    yield (
        f"{kind.value} CPU/GPU device selection",
        lambda r: r.device,
        "One rank specified device {0}, but another rank specified device {1}.",
        "Put the tensor on the same kind of device on every rank.",
    )
    yield (
        "groups",
        lambda r: (r.group, r.group_size),
        "One rank submitted it in the group (name, size) {0}, but another rank in {1}.",
        "Group the same tensors on every rank.",
    )
    yield (f"{kind.value} tensor shapes", _common_shape(kind), _shape_phrase(kind), _shape_cure(kind))
    if kind in _REDUCING:
        yield (
            "reduction operation",
            lambda r: r.op.value,
            "One rank asked for {0}, but another rank asked for {1}.",
            "Give the same op= on every rank.",
        )
        yield (
            "prescale and/or postscale factors",
            lambda r: (r.prescale, r.postscale),
            "One rank gave {0}, but another rank gave {1}.",
            "Give the same prescale_factor= and postscale_factor= on every rank.",
        )
    if kind is Kind.BROADCAST:
        yield (
            "broadcast root ranks",
            lambda r: r.root,
            "One rank specified root rank {0}, but another rank specified root rank {1}.",
            "Give the same root_rank= on every rank.",
        )


def _common_shape(kind: Kind) -> Value:
    """The part of the shape that must be equal: all of it, or all but the first dimension."""
    if kind in (Kind.ALLGATHER, Kind.ALLTOALL):
        return lambda request: (len(request.shape), request.shape[1:])
    return lambda request: request.shape


def _shape_phrase(kind: Kind) -> str:
    if kind in (Kind.ALLGATHER, Kind.ALLTOALL):
        return "All dimensions but the first must be equal (dimensions, shape after the first): {0} and {1}."
    return "One rank sent a tensor of shape {0}, but another rank sent a tensor of shape {1}."


def _shape_cure(kind: Kind) -> str:
    if kind is Kind.ALLREDUCE:
        return "Send the same shape on every rank, or use allgather for rows that differ in number."
    if kind in (Kind.ALLGATHER, Kind.ALLTOALL):
        return "Only the first dimension may differ between ranks."
    return "Send the same shape on every rank."


def _explain(requests: Requests, what: str, phrase: str, values: dict[int, Any], cure: str) -> str:
    request = next(iter(requests.values()))
    shown = {rank: list(value) if isinstance(value, tuple) else value for rank, value in values.items()}
    one, other = list(dict.fromkeys(map(str, shown.values())))[:2]
    lines = [f"Mismatched {what}: {phrase.format(one, other)}", f"  in {request.name!r}:"]
    return "\n".join([*lines, *by_rank({rank: str(value) for rank, value in shown.items()}), cure])


def by_rank(values: dict[int, str]) -> list[str]:
    """One line per value with the ranks that have it.

    Example:
        >>> by_rank({0: "a", 1: "b", 2: "a"})
        ['  ranks 0, 2: a', '  rank 1: b']
    """
    ranks: dict[str, list[int]] = {}
    for rank, value in values.items():
        ranks.setdefault(value, []).append(rank)
    return [f"  {rank_list(who)}: {value}" for value, who in ranks.items()]


def rank_list(ranks: Iterable[int]) -> str:
    """Ranks in words.

    Example:
        >>> rank_list([2]), rank_list([0, 2, 3])
        ('rank 2', 'ranks 0, 2, 3')
    """
    ranks = sorted(ranks)
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _impossible(requests: Requests) -> str:
    """Agreed, but it cannot be done."""
    request = next(iter(requests.values()))
    if request.kind is Kind.BROADCAST and request.root not in requests:
        ranks = rank_list(requests)
        return f"{request.name!r}: the root rank {request.root} does not take part. Give one of {ranks}."
    if request.kind in (Kind.ALLGATHER, Kind.ALLTOALL, Kind.REDUCESCATTER) and not request.shape:
        return f"{request.name!r}: {request.kind.value} needs at least one dimension. Give it shape (1,)."
    return ""


def _rows(requests: list[Request]) -> tuple[int, ...]:
    kind = requests[0].kind
    if kind in (Kind.ADD_SET, Kind.REMOVE_SET):
        return requests[0].splits
    if kind is Kind.ALLGATHER:
        return tuple(request.shape[0] for request in requests)
    if kind is Kind.ALLTOALL:
        return tuple(rows for request in requests for rows in request.splits)
    if kind is Kind.REDUCESCATTER:
        n, length = len(requests), requests[0].shape[0]
        return tuple(length // n + (i < length % n) for i in range(n))
    return ()


def _places(requests: list[Request]) -> tuple[int, ...]:
    places = tuple(request.place for request in requests)
    return () if -1 in places else places
