"""Wrong solutions of lesson 23, each with what the check must say; most are its known mistakes, in other words."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
from wrong_answers import Answers

from workbench.course.simulator.topology import ring_among

wrong = Answers()


def bytes_by(formula):
    """An answer to ``23.bytes_per_gpu``."""
    return lambda parameters, activations, data, tensor, pipeline, microbatches: formula(
        parameters, activations, data, tensor, pipeline, microbatches
    )
def chosen(
    limit: Callable[..., bool] = lambda *layout: True, key: Callable[..., Any] | None = None, without: str = ""
) -> Callable[..., Any]:
    """An answer to ``23.choose``: the best by ``key``, of the layouts that keep to ``limit``, without one rule."""
    def choose(gpus, gpus_per_host, layers, samples, fits, seconds):
        found = []
        for tensor, pipeline in product(range(1, gpus_per_host + 1), range(1, layers + 1)):
            data = gpus // (tensor * pipeline)
            left = {
                "product": gpus % (tensor * pipeline),
                "tensor": gpus_per_host % tensor,
                "layers": layers % pipeline,
            }
            if not data or any(each for rule, each in left.items() if rule != without): continue
            if samples % data and without != "data": continue
            each = [m for m in range(1, samples // data + 1) if without == "micro-batches" or samples // data % m == 0]
            found += [(data, tensor, pipeline, m) for m in each if fits(data, tensor, pipeline, m)]
        good = [one for one in found if limit(*one)]
        return min(good, key=(lambda one: key(*one)) if key else (lambda one: seconds(*one)), default=None)
    return choose
def step_by(change):
    """An answer to ``23.grid_step`` with one mistake, by its name."""
    def step(comm, x, y, w1, w2, lr, tensor):
        row, column = divmod(comm.rank, tensor)
        group = [row * tensor + k for k in range(tensor)]
        same = list(range(column, comm.size, tensor))
        h = np.maximum(x @ w1, 0)
        output = h @ w2
        if change == "other ranks": group, same = same, group
        if change != "no sum of outputs": output = ring_among(comm, group, output.ravel()).reshape(y.shape)
        if change == "mean of outputs": output /= tensor
        error = (output - y) / (1 if change == "no mean over samples" else len(x))
        dh = error @ w2.T if change == "no mask" else error @ w2.T * (h > 0)
        sums = [ring_among(comm, same, one.ravel()).reshape(one.shape) for one in (x.T @ dh, h.T @ error)]
        if change == "no sum of gradients": sums = [x.T @ dh, h.T @ error]
        by = {"sum": 1, "no sum of gradients": 1, "by size": comm.size}.get(change, len(same))
        sign = -1 if change == "uphill" else 1
        new = w1 - sign * lr * sums[0] / by, w2 - sign * lr * sums[1] / by
        return (new[1], new[0]) if change == "swapped" else None if change == "no return" else new
    return step
MADE = {
    "23.bytes_per_gpu": [
        (bytes_by(lambda p, a, d, t, k, m: p / t / k * 16 + a / t / k * min(k, m)), "ZeRO 1 does that"),
        (bytes_by(lambda p, a, d, t, k, m: 16 * p / (d * t * k) + a / t / k * min(k, m)), "divides Adam's state only"),
        (bytes_by(lambda p, a, d, t, k, m: (4 + 12 / d) * p / t / k + a / t / k * m), "1F1B keeps at most"),
        (bytes_by(lambda p, a, d, t, k, m: (4 + 12 / d) * p / t / k + a / t / k * k), "even where there are fewer"),
        (bytes_by(lambda p, a, d, t, k, m: (4 + 12 / d) * p / t / k + a / t / k), "one micro-batch only are kept"),
        (bytes_by(lambda p, a, d, t, k, m: (4 + 12 / d) * p / t / k + a * min(k, m)), "were not divided by tensor and"),
        (bytes_by(lambda p, a, d, t, k, m: (4 + 12 / d) * p / t + a / t / k * min(k, m)), "not divided by pipeline"),
        (bytes_by(lambda p, a, d, t, k, m: (2 + 12 / d) * p / t / k + a / t / k * min(k, m)), "2 bytes are missing"),
        (bytes_by(lambda p, a, d, t, k, m: f"{p} bytes"), "is of type str"),
        (bytes_by(lambda p, a, d, t, k, m: None), "Is there a return?"),
    ],
    "23.choose": [
        (chosen(lambda d, t, p, m: p == 1), "pipelines were not tried"),
        (chosen(lambda d, t, p, m: t == 1), "tensor groups were not tried"),
        (chosen(lambda d, t, p, m: t in (6, 8)), "tensor is always a whole host"),
        (chosen(lambda d, t, p, m: m == 1), "one micro-batch only was tried"),
        (chosen(lambda d, t, p, m: d == 1), "data = 1 only was tried"),
        (chosen(key=lambda d, t, p, m: -d), "times as long as the fastest one that fits"),
        (chosen(key=lambda d, t, p, m: d), "times as long as the fastest one that fits"),
        (chosen(without="product"), "= 13 ranks, and there are 24"),
        (chosen(without="tensor"), "tensor = 4 does not divide gpus_per_host = 6"),
        (chosen(without="layers"), "does not divide layers"),
        (chosen(without="data"), "does not divide samples"),
        (chosen(without="micro-batches"), "does not divide samples / data"),
        (chosen(lambda d, t, p, m: d * m == 60 or d * m > 512), "keeps all rules, and fits"),
        (lambda gpus, *rest: (gpus, 1, 1, 1), "(8, 1, 1, 1) does not fit into a GPU"),
        (lambda gpus, per_host, *rest: (1, per_host, 1, 1), "does not fit into a GPU"),
        (lambda gpus, *rest: (1, 1, 1, 4), "= 1 ranks, and there are 8"),
        (lambda gpus, *rest: (1, 1, 8, 5), "microbatches = 5 does not divide samples / data = 512"),
        (lambda gpus, *rest: (gpus, 1, 1), "four numbers are asked for"),
        (lambda gpus, *rest: (gpus, 1, 1, 0.5), "each of the four is a whole number"),
        (lambda *all_of_it: None, "Is there a return?"),
    ],
    "23.grid_step": [
        (step_by("no sum of outputs"), "each rank has a part of the sum only"),
        (step_by("no sum of gradients"), "each data rank makes a step of its own"),
        (step_by("sum"), "divide by the number of data ranks"),
        (step_by("by size"), "tensor ranks have nothing to average"),
        (step_by("other ranks"), "the two groups were taken for each other"),
        (step_by("mean of outputs"), "each rank has other terms of one sum"),
        (step_by("no mask"), "it is 0 where h is"),
        (step_by("no mean over samples"), "the loss is a mean"),
        (step_by("uphill"), "in the other direction"),
        (step_by("swapped"), "has shape (6, 3), expected (5, 6)"),
        (step_by("no return"), "Is there a return?"),
    ],
}
wrong.extend((name, answer, words) for name, answers in MADE.items() for answer, words in answers)
