"""Wrong solutions of lesson 14, each with what the check must say."""

from __future__ import annotations

from typing import Any


def _trained(
    hvd: Any, gradient: Any, weights: Any, x: Any, y: Any, batch: Any, lr: Any, without: str = "", **options: Any
) -> Any:
    """The six steps without one of them."""
    if without != "init":
        hvd.init()
    local_batch = batch // hvd.size() if without != "batch" else batch
    gpu = hvd.rank() if without == "pin" else hvd.local_rank()
    if without != "start":
        weights = [hvd.broadcast(w, root_rank=0, name=f"start {i}") for i, w in enumerate(weights)]
    for start in range(0, len(x), batch):
        first = start if without in ("shard", "batch") else start + hvd.rank() * local_batch
        mine = slice(first, first + local_batch)
        found = gradient(weights, x[mine], y[mine])
        if without != "gradients":
            found = [hvd.allreduce(g, name=f"gradient {i}", **options) for i, g in enumerate(found)]
        weights = [w - lr * g for w, g in zip(weights, found, strict=True)]
    return gpu, weights


def forgets_init(hvd: Any, *given: Any) -> Any:
    return _trained(hvd, *given, without="init")


def keeps_the_batch(hvd: Any, *given: Any) -> Any:
    return _trained(hvd, *given, without="batch")


def pins_by_rank(hvd: Any, *given: Any) -> Any:
    return _trained(hvd, *given, without="pin")


def forgets_to_shard(hvd: Any, *given: Any) -> Any:
    return _trained(hvd, *given, without="shard")


def forgets_the_start(hvd: Any, *given: Any) -> Any:
    return _trained(hvd, *given, without="start")


def forgets_the_gradients(hvd: Any, *given: Any) -> Any:
    return _trained(hvd, *given, without="gradients")


def sums_the_gradients(hvd: Any, *given: Any) -> Any:
    hvd.init()
    return _trained(hvd, *given, op=hvd.Sum)


def averages_on_rank_zero(hvd: Any, gradient: Any, weights: Any, x: Any, y: Any, batch: Any, lr: Any) -> Any:
    hvd.init()
    if hvd.rank() == 0:
        return _trained(hvd, gradient, weights, x, y, batch, lr)
    return hvd.local_rank(), weights


def returns_the_weights_alone(hvd: Any, *given: Any) -> Any:
    return _trained(hvd, *given)[1]


def returns_the_weights_first(hvd: Any, *given: Any) -> Any:
    return _trained(hvd, *given)[::-1]


def climbs(hvd: Any, gradient: Any, weights: Any, x: Any, y: Any, batch: Any, lr: Any) -> Any:
    return _trained(hvd, gradient, weights, x, y, batch, -lr)


def averages_at_the_end(hvd: Any, *given: Any) -> Any:
    gpu, weights = _trained(hvd, *given, without="gradients")
    return gpu, [hvd.allreduce(w, name=f"end {i}") for i, w in enumerate(weights)]


WRONG = {
    "14.six_steps": [
        (climbs, "each step goes up: w - lr * gradient goes down"),
        (averages_at_the_end, "the ranks' weights differ between the steps: average the gradients in each step"),
        (forgets_init, "✗ 1: it runs, on one, two and three ranks: n = 1: NotInitializedError: hvd.size() before"),
        (keeps_the_batch, "n = 2, rank 0: the batches have [24, 24, 24, 24] samples, expected 4 of 12"),
        (pins_by_rank, "n = 2: rank 1 takes GPU 1, and its machine has only GPU 0"),
        (forgets_to_shard, "n = 2, step 0: 12 of the 24 samples are seen, expected all, once"),
        (forgets_the_start, "n = 2: rank 1 begins with other weights"),
        (forgets_the_gradients, "the ranks end with different weights: each steps with its own gradient"),
        (sums_the_gradients, "each step is n times too long: a sum, no average"),
        (averages_on_rank_zero, "rank 1"),
        (
            returns_the_weights_first,
            "ranks: n = 1: it returns the pair (list, int). First the number of the GPU, then the list of arrays",
        ),
        (
            returns_the_weights_alone,
            "✗ 1: it runs, on one, two and three ranks: n = 1: it returns list. The pair (GPU, weights) is asked for",
        ),
    ],
}
