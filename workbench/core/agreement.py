"""Do the ranks agree about a tensor? If they do, the response; if not, an error with the value of each rank.

Pure functions of the requests of all ranks. ``runtime/faults/disagreement.py`` finds better words for what differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import isclose
from typing import Any

from workbench.common.text import by_rank, rank_list
from workbench.core.messages import Kind, Progress, ReduceOp, Request, Response
from workbench.core.verbs import verb

Requests = dict[int, Request]
Explain = Callable[[str, Requests, dict[int, Any]], str]
"""(what differs, requests, the value on each rank) → an error text."""


def plainly(what: str, requests: Requests, values: dict[int, Any]) -> str:
    """What differs, and the value on each rank."""
    name = next(iter(requests.values())).name
    shown = {rank: str(list(value) if isinstance(value, tuple) else value) for rank, value in values.items()}
    return "\n".join([f"Mismatched {what} in {name!r}:", *by_rank(shown)])


def respond(requests: Requests, explain: Explain = plainly) -> Response:
    """The response to the requests of all ranks of a process set, by rank.

    Example:
        >>> respond({0: Request("x", Kind.ALLREDUCE, shape=(2,)), 1: Request("x", Kind.ALLREDUCE, shape=(3,))}).error[0]
        'MismatchError'
    """
    ranks = sorted(requests)
    in_order = [requests[rank] for rank in ranks]
    first = in_order[0]
    if error := _disagreement(requests, explain) or _impossible(requests):
        return Response(first.name, first.kind, process_set=first.process_set, error=("MismatchError", error))
    offsets = tuple(request.offset for request in in_order)
    return Response(
        *(first.name, first.kind, first.dtype, first.shape, first.op, first.root, first.device),
        *(first.prescale, first.postscale, first.process_set),
        rows=_rows(in_order),
        offsets=() if -1 in offsets else offsets,
        all_absent=all(request.absent for request in in_order),
        priority=max(request.priority for request in in_order),
        requests=requests,
    )


def _disagreement(requests: Requests, explain: Explain) -> str:
    """What the ranks disagree about, as an error text; empty if they agree."""
    for what, value in _checks(next(iter(requests.values())).kind):
        values = {rank: value(requests[rank]) for rank in sorted(requests)}
        if len(set(values.values())) > 1:
            return explain(what, requests, values)
    progress = {rank: requests[rank].progress for rank in sorted(requests)}
    what = progress_apart(list(progress.values()))
    return explain(what, requests, {rank: _values(each, what) for rank, each in progress.items()}) if what else ""


def progress_apart(progress: Sequence[Progress]) -> str:
    """In what the ranks differ, by more than rounding, for machines may round unlike; "" if in nothing.

    What a rank does not tell is not compared.

    Example:
        >>> progress_apart([(("lr", 0.1), ("momentum", 0.9)), (("lr", 0.1), ("momentum", 0.5))])
        'momentum'
        >>> progress_apart([(("lr", 0.1),), (("lr", 0.1000001), ("lr", 0.1))]), progress_apart([(("lr", 0.1),), ()])
        ('', '')
    """
    if len(set(progress)) == 1:
        return ""
    for what in dict(progress[0]):
        first, *rest = (_values(each, what) for each in progress)
        if all(rest) and any(not (_among(first, each, what) and _among(each, first, what)) for each in rest):
            return what
    return ""


def _values(progress: Progress, what: str) -> tuple[float, ...]:
    return tuple(value for name, value in progress if name == what)


def _among(some: tuple[float, ...], others: tuple[float, ...], what: str) -> bool:
    # What was rounded unlike adds up in the weights, from step to step.
    near = 1e-4 if what == "weights" else 1e-5
    return some == others or all(
        any(isclose(one, other, rel_tol=near, abs_tol=1e-12) for other in others) for one in some
    )


def _checks(kind: Kind) -> Iterator[tuple[str, Callable[[Request], Any]]]:
    """(what must be equal, its value), in the order in which they are looked at."""
    one = verb(kind)
    yield "operations", lambda r: r.kind.value
    yield "data types", lambda r: r.dtype
    if kind in (Kind.ADD_SET, Kind.REMOVE_SET):
        yield "process sets", lambda r: r.splits
    yield "optimizers", lambda r: r.user[:2] or (1, 1)
    yield "steps", lambda r: r.user[2:]
    yield f"{kind.value} CPU/GPU device selection", lambda r: r.device
    yield "groups", lambda r: (r.group, r.group_size)
    yield f"{kind.value} tensor shapes", lambda r: (len(r.shape), r.shape[1:]) if one.ragged else r.shape
    if one.reduces:
        yield "reduction operation", lambda r: r.op.value
        yield "prescale and/or postscale factors", lambda r: (r.prescale, r.postscale)
    if one.rooted:
        yield f"{kind.value} root ranks", lambda r: r.root


def _impossible(requests: Requests) -> str:
    """Why the request cannot be executed although all ranks agree; empty if it can."""
    request = next(iter(requests.values()))
    one = verb(request.kind)
    if one.rooted and request.root not in requests:
        ranks = rank_list(requests)
        return f"{request.name!r}: the root rank {request.root} does not take part. Give one of {ranks}."
    if one.by_rows and not request.shape:
        return f"{request.name!r}: {request.kind.value} needs at least one dimension. Give it shape (1,)."
    if one.splits and request.absent:  # who only tells of it says behind what it sends what it expects
        told = {rank: (each.splits[: len(requests)], each.splits[len(requests) :]) for rank, each in requests.items()}
        sent, expected = zip(*(told[rank] for rank in sorted(told)), strict=True)
        if tuple(zip(*sent, strict=True)) != expected:
            shown = {rank: f"sends {list(sends)}, and expects {list(takes)}" for rank, (sends, takes) in told.items()}
            return "\n".join([f"Ranks send other sizes than are expected in {request.name!r}:", *by_rank(shown)])
    return ""


def _rows(requests: list[Request]) -> tuple[int, ...]:
    """A response's ``rows``, from the requests in the order of the ranks."""
    first, one, n = requests[0], verb(requests[0].kind), len(requests)
    if one.splits:
        return tuple(rows for request in requests for rows in request.splits)
    if one.ragged:
        return tuple(request.shape[0] for request in requests)
    if one.by_rows:
        return tuple(first.shape[0] // n + (i < first.shape[0] % n) for i in range(n))
    return first.ranks if first.kind is Kind.SEND else first.splits  # a process set's members, or none


def goes_without_joined(response: Response) -> bool:
    """Can ranks that have joined be left out? Where zeros are neutral, or nothing moves."""
    one = verb(response.kind)
    return one.without_joined and (not one.reduces or response.op in (ReduceOp.AVERAGE, ReduceOp.SUM))


def without(joined: Sequence[int], response: Response, requests: Mapping[int, Request]) -> Response:
    """The response where some ranks have joined: they contribute zeros, or it is an error."""
    if goes_without_joined(response):
        # Not everybody has an array; and who has joined may not know the response's id.
        return replace(response, offsets=(), joined=tuple(joined), cache_id=None, cached=False)
    what = response.kind.value + (f" with op={response.op.value}" if verb(response.kind).without_joined else "")
    text = (
        f"{what.capitalize()} is not supported with Join at this time: {response.name!r}, submitted by "
        f"{rank_list(requests)}, but {rank_list(joined)} called join(). Use allreduce with Average or "
        "Sum, or call join() later."
    )
    return Response(response.name, response.kind, process_set=response.process_set, error=("MismatchError", text))
