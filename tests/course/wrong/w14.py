"""Wrong solutions of lesson 14, each with what the check must say."""

from __future__ import annotations

from typing import Any

from wrong_answers import Answers

wrong = Answers()


def _trained(
    hvd: Any, gradient: Any, weights: Any, x: Any, y: Any, batch: Any, lr: Any, without: str = "", **options: Any
) -> Any:
    """The six steps without one of them."""
    if without != "init": hvd.init()
    local_batch = batch // hvd.size() if without != "batch" else batch
    gpu = hvd.rank() if without == "pin" else hvd.local_rank()
    if without != "start": weights = [hvd.broadcast(w, root_rank=0, name=f"start {i}") for i, w in enumerate(weights)]
    for start in range(0, len(x), batch):
        first = start if without in ("shard", "batch") else start + hvd.rank() * local_batch
        mine = slice(first, first + local_batch)
        found = gradient(weights, x[mine], y[mine])
        if without != "gradients":
            found = [hvd.allreduce(g, name=f"gradient {i}", **options) for i, g in enumerate(found)]
        weights = [w - lr * g for w, g in zip(weights, found, strict=True)]
    return gpu, weights
@wrong("14.six_steps", "✗ 1: it runs, on one, two and three ranks: n = 1: NotInitializedError: hvd.size() before")
def forgets_init(hvd, *given): return _trained(hvd, *given, without="init")
@wrong("14.six_steps", "n = 2, rank 0: the batches have [24, 24, 24, 24] samples, expected 4 of 12")
def keeps_the_batch(hvd, *given): return _trained(hvd, *given, without="batch")
@wrong("14.six_steps", "n = 2: rank 1 takes GPU 1, and its machine has only GPU 0")
def pins_by_rank(hvd, *given): return _trained(hvd, *given, without="pin")
@wrong("14.six_steps", "n = 2, step 0: 12 of the 24 samples are seen, expected all, once")
def forgets_to_shard(hvd, *given): return _trained(hvd, *given, without="shard")
@wrong("14.six_steps", "n = 2: rank 1 begins with other weights")
def forgets_the_start(hvd, *given): return _trained(hvd, *given, without="start")
@wrong("14.six_steps", "the ranks end with different weights: each steps with its own gradient")
def forgets_the_gradients(hvd, *given): return _trained(hvd, *given, without="gradients")
@wrong("14.six_steps", "each step is n times too long: a sum, no average")
def sums_the_gradients(hvd, *given):
    hvd.init()
    return _trained(hvd, *given, op=hvd.Sum)
@wrong("14.six_steps", "rank 1")
def averages_on_rank_zero(hvd, gradient, weights, x, y, batch, lr):
    hvd.init()
    if hvd.rank() == 0: return _trained(hvd, gradient, weights, x, y, batch, lr)
    return hvd.local_rank(), weights
@wrong(
    "14.six_steps",
    "✗ 1: it runs, on one, two and three ranks: n = 1: it returns list. The pair (GPU, weights) is asked for",
)
def returns_the_weights_alone(hvd, *given): return _trained(hvd, *given)[1]
@wrong(
    "14.six_steps",
    "ranks: n = 1: it returns the pair (list, int). First the number of the GPU, then the list of arrays",
)
def returns_the_weights_first(hvd, *given): return _trained(hvd, *given)[::-1]
@wrong("14.six_steps", "each step goes up: w - lr * gradient goes down")
def climbs(hvd, gradient, weights, x, y, batch, lr): return _trained(hvd, gradient, weights, x, y, batch, -lr)
@wrong("14.six_steps", "the ranks' weights differ between the steps: average the gradients in each step")
def averages_at_the_end(hvd, *given):
    gpu, weights = _trained(hvd, *given, without="gradients")
    return gpu, [hvd.allreduce(w, name=f"end {i}") for i, w in enumerate(weights)]
