"""Right answers of lesson 06 that are unlike the official ones."""

from __future__ import annotations

from typing import Any


def receives_posted_first(comm: Any, layers: Any) -> Any:
    """All receives are posted before the first layer computes."""
    other = 1 - comm.rank
    coming = [comm.irecv(source=other) for _ in layers]
    leaving = []
    for seconds, mine in layers:
        comm.compute(seconds)
        leaving.append(comm.isend(mine, dest=other))
    averages = [(request.wait() + mine) / 2 for request, (_, mine) in zip(coming, layers, strict=True)]
    for request in leaving:
        request.wait()
    return averages


def one_layer_behind(comm: Any, layers: Any) -> Any:
    """Receives come after the backward pass; by then the messages are there or on their way."""
    other, sent = 1 - comm.rank, []
    got = [None] * len(layers)
    coming = []
    for i, (seconds, mine) in enumerate(layers):
        comm.compute(seconds)
        sent.append(comm.isend(mine, dest=other, tag=i))
        coming.append((i, comm.irecv(source=other, tag=i)))
    for i, request in coming:
        got[i] = 0.5 * (layers[i][1] + request.wait())
    [request.wait() for request in sent]
    return got


def zero_grad_after_forward() -> Any:
    """The forward pass leaves the gradients alone."""
    return "EDBFAC"


def zero_grad_at_the_end() -> Any:
    """For the next step; and as a list."""
    return list("EBFACD")


RIGHT = {
    "06.overlap": [receives_posted_first, one_layer_behind],
    "06.in_order": [zero_grad_after_forward, zero_grad_at_the_end],
}
