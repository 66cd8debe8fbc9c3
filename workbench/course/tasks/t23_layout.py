"""Lesson 23, the second capstone: what a layout needs, the fastest that fits, and a step on a grid of ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from workbench.course.judging.compare import unlike
from workbench.course.judging.task import Bound, Case, CommTask, PlainTask, as_solution, stated
from workbench.course.simulator import Run
from workbench.course.simulator.topology import ring_among
from workbench.course.training.layouts import NAMES, Cluster, Transformer, memory, parts, refuse, seconds

Layout = tuple[int, int, int, int]


def bytes_per_gpu(parameters: Any, activations: Any, data: Any, tensor: Any, pipeline: Any, microbatches: Any) -> Any:
    """Return the bytes that a GPU keeps at most.

    Each of the model's parameters needs 2 bytes, its gradient 2, Adam's state 12 (mixed precision).
    Tensor and pipeline divide all of that; ZeRO 1 divides Adam's state among the data ranks, too.
    activations: bytes that all layers keep of one micro-batch; with sequence parallelism tensor divides all of them,
    and pipeline does.
    With 1F1B a stage keeps those of at most min(pipeline, microbatches) micro-batches.
    """
    ### BEGIN SOLUTION
    mine = parameters / (tensor * pipeline)
    kept = activations / (tensor * pipeline) * min(pipeline, microbatches)
    return mine * (4 + 12 / data) + kept
    ### END SOLUTION


def choose(gpus: Any, gpus_per_host: Any, layers: Any, samples: Any, fits: Any, seconds: Any) -> Any:
    """Return the fastest layout that fits, as (data, tensor, pipeline, microbatches); None if none fits.

    data * tensor * pipeline is gpus, and microbatches is at least 1.
    Without a remainder tensor divides gpus_per_host, pipeline divides layers,
    data divides samples, and microbatches divides samples / data.
    fits(data, tensor, pipeline, microbatches) tells whether the memory is enough,
    seconds(data, tensor, pipeline, microbatches) how long a step takes.
    """
    ### BEGIN SOLUTION
    best = None
    for tensor in range(1, gpus_per_host + 1):
        for pipeline in range(1, layers + 1):
            data = gpus // (tensor * pipeline)
            if gpus_per_host % tensor or layers % pipeline or data * tensor * pipeline != gpus or samples % data:
                continue
            for microbatches in range(1, samples // data + 1):
                layout = (data, tensor, pipeline, microbatches)
                if samples // data % microbatches or not fits(*layout):
                    continue
                if best is None or seconds(*layout) < seconds(*best):
                    best = layout
    return best
    ### END SOLUTION


def grid_step(comm: Any, x: Any, y: Any, w1: Any, w2: Any, lr: Any, tensor: Any) -> Any:
    """Return this rank's (w1, w2) after a step with the loss 1/2 mean over the samples of |max(x @ w1, 0) @ w2 - y|².

    Rank data_rank * tensor + tensor_rank: the first `tensor` ranks share the first samples, and so on.
    x, y: the samples of this data rank, equally many for each. w1, w2: columns and rows of this tensor rank.
    ring_among(comm, ranks, array) returns the sum over some ranks of a one-dimensional array; only these call it.
    The weights of ranks with the same columns have to stay equal.
    """
    ### BEGIN SOLUTION
    data_rank, tensor_rank = divmod(comm.rank, tensor)
    my_tensor_group = [data_rank * tensor + k for k in range(tensor)]
    my_data_group = [k * tensor + tensor_rank for k in range(comm.size // tensor)]
    h = np.maximum(x @ w1, 0)
    output = ring_among(comm, my_tensor_group, (h @ w2).ravel()).reshape(y.shape)
    error = (output - y) / len(x)
    dh = error @ w2.T * (h > 0)
    mine = np.concatenate([(x.T @ dh).ravel(), (h.T @ error).ravel()])
    mean = ring_among(comm, my_data_group, mine) / len(my_data_group)
    d1, d2 = mean[: w1.size].reshape(w1.shape), mean[w1.size :].reshape(w2.shape)
    return w1 - lr * d1, w2 - lr * d2
    ### END SOLUTION


# --- 23.bytes_per_gpu -------------------------------------------------------------------------------------

_PLACES: tuple[tuple[float, float, int, int, int, int], ...] = (
    (1e9, 8e9, 1, 1, 1, 1),
    (1e9, 8e9, 4, 1, 1, 1),
    (1e9, 8e9, 1, 2, 1, 1),
    (1e9, 8e9, 1, 1, 4, 8),
    (1e9, 8e9, 1, 1, 4, 2),
    (13e9, 28e9, 2, 4, 8, 128),
    (174e9, 41e9, 4, 4, 32, 16),
    (174e9, 41e9, 3, 8, 12, 12),
)


# --- 23.choose --------------------------------------------------------------------------------------------


@cache
def jobs() -> tuple[tuple[str, Transformer, Cluster], ...]:
    """What is to be laid out: name, model, cluster."""
    slow = 1 / 1.25e9
    return (
        ("1.2 G parameters on 8 GPUs", Transformer(24, 2048), Cluster(1)),
        ("13 G on 8 hosts", Transformer(40, 5120), Cluster(8)),
        ("13 G on 8 hosts with a slow network", Transformer(40, 5120), Cluster(8, between_s=slow)),
        ("64 G on 32 hosts with a slow network", Transformer(80, 8192), Cluster(32, between_s=slow)),
        ("174 G on 64 hosts", Transformer(96, 12288, samples=1536), Cluster(64)),
        ("1 T on 64 hosts", Transformer(128, 25600, samples=1536), Cluster(64)),
        ("1 T on 4 hosts", Transformer(128, 25600, samples=96), Cluster(4)),
        (
            "8 G on 4 hosts with 6 GPUs each",
            Transformer(39, 4096, samples=60),
            Cluster(4, 6, memory_bytes=40 * 2**30, latency_s=3e-4),
        ),
    )


def fitting(model: Transformer, cluster: Cluster) -> Callable[..., bool]:
    """Whether a layout of a model fits into a GPU's memory."""
    return lambda *layout: sum(memory(model, layout)) <= cluster.memory_bytes


def asked(model: Transformer, cluster: Cluster) -> tuple[Any, ...]:
    """The arguments of ``choose`` for a job."""
    sizes = cluster.gpus, cluster.gpus_per_host, model.layers, model.samples
    return *sizes, fitting(model, cluster), lambda *layout: seconds(model, cluster, layout)


@cache
def best(number: int) -> Layout | None:
    """The fastest layout of a job."""
    return choose(*asked(*jobs()[number][1:]))  # type: ignore[no-any-return]


def _judged(numbers: Sequence[int], function: Callable[..., Any]) -> str:
    for number in numbers:
        name, model, cluster = jobs()[number]
        wanted, mine = best(number), function(*asked(model, cluster))
        if wrong := _layout(mine, wanted, model, cluster):
            if mine is None:
                never = all(function(*asked(*other[1:])) is None for other in jobs())
                wrong += ". Is there a return?" if never else ". Which of your conditions leaves it out?"
            return f"{name}: {wrong}"
    return ""


def _layout(mine: Any, wanted: Layout | None, model: Transformer, cluster: Cluster) -> str:
    """What is wrong with an answer; empty if nothing is."""
    if wanted is None:
        return "" if mine is None else f"your result is {mine!r}, expected None. No layout fits: what then?"
    if mine is None:
        return f"your result is None, but {wanted} keeps all rules, and fits"
    if wrong := unlike([0] * len(mine) if isinstance(mine, (tuple, list, np.ndarray)) else mine, [0, 0, 0, 0]):
        return f"four numbers are asked for; (data, tensor, pipeline, microbatches){wrong}"
    numbers = np.asarray(mine)
    if numbers.dtype.kind not in "iu" or (numbers < 1).any():
        return f"your result is {mine!r}; each of the four is a whole number, and at least 1"
    layout = (int(numbers[0]), int(numbers[1]), int(numbers[2]), int(numbers[3]))
    try:
        refuse(model, cluster, layout)
    except ValueError as rule:
        return f"{layout}: {rule}. Leave such layouts out"
    if not fitting(model, cluster)(*layout):
        return f"{layout} does not fit into a GPU. Ask fits() before you compare the times"
    slower = seconds(model, cluster, layout) / seconds(model, cluster, wanted)
    if slower > 1 + 1e-9:
        more = np.subtract(parts(model, cluster, layout), parts(model, cluster, wanted))
        why = f"most of it is {NAMES[int(np.argmax(more))]}"
        return f"{layout} takes {slower:.3g} times as long as the fastest one that fits; {why}"
    return ""


# --- 23.grid_step -----------------------------------------------------------------------------------------


def grid(data: int, tensor: int, hidden: int = 6, samples: int = 4) -> Case:
    """A step on data × tensor ranks."""
    random = np.random.default_rng((data, tensor, hidden))
    w1, w2 = random.normal(size=(5, hidden)), random.normal(size=(hidden, 3))
    x, y = random.normal(size=(data * samples, 5)), random.normal(size=(data * samples, 3))
    inputs = []
    for rank in range(data * tensor):
        shard = slice(rank // tensor * samples, (rank // tensor + 1) * samples)
        mine = np.array_split(np.arange(hidden), tensor)[rank % tensor]
        inputs.append((x[shard].copy(), y[shard].copy(), w1[:, mine].copy(), w2[mine].copy(), 0.1, tensor))
    return Case(data * tensor, f"{data} data × {tensor} tensor ranks", inputs)


def serial(case: Case) -> list[Any]:
    """The step of one process, cut as the ranks' weights are."""
    tensor = case.inputs[0][5]
    x, y = (np.concatenate([one[i] for one in case.inputs[::tensor]]) for i in (0, 1))
    w1 = np.concatenate([one[2] for one in case.inputs[:tensor]], axis=1)
    w2 = np.concatenate([one[3] for one in case.inputs[:tensor]])
    h = np.maximum(x @ w1, 0)
    error = (h @ w2 - y) / len(x)
    new1, new2 = w1 - 0.1 * x.T @ (error @ w2.T * (h > 0)), w2 - 0.1 * h.T @ error
    parts_of = np.array_split(np.arange(w1.shape[1]), tensor)
    return [(new1[:, parts_of[rank % tensor]], new2[parts_of[rank % tensor]]) for rank in range(case.n)]


def _two_sums(case: Case, run: Run) -> Sequence[Bound]:
    """Of outputs in the tensor group, of gradients in the data group."""
    x, y, w1, w2, _, tensor = case.inputs[0]
    data = case.n // tensor
    least = 2 * (tensor - 1) / tensor * y.nbytes + 2 * (data - 1) / data * (w1.nbytes + w2.nbytes)
    why = "Only outputs in a tensor group and gradients in a data group have to be added up"
    return [Bound.busiest(run, least, 2 * least + 16 * x.itemsize, why)]


TASKS = [
    PlainTask(
        "23.bytes_per_gpu",
        "what a GPU keeps, by the layout",
        bytes_per_gpu,
        probes=lambda: _PLACES,
        properties=as_solution(
            bytes_per_gpu,
            ("One GPU: 16 bytes a parameter, and the activations.", _PLACES[:1]),
            ("One way to divide at a time.", _PLACES[1:5]),
            ("All three together.", _PLACES[5:]),
        ),
    ),
    PlainTask(
        "23.choose",
        "the fastest layout that fits",
        choose,
        probes=lambda: [asked(model, cluster) for _, model, cluster in jobs()],
        properties=stated(
            ("One host, and a model that fits.", lambda f: _judged([0], f)),
            ("The same model on a fast and on a slow network.", lambda f: _judged([1, 2], f)),
            ("Models that fit in few ways.", lambda f: _judged([3, 4, 5], f)),
            ("6 GPUs a host, 39 layers and 60 samples: few numbers divide them.", lambda f: _judged([7], f)),
            ("A model that fits in no way.", lambda f: _judged([6], f)),
        ),
        points=2,
    ),
    CommTask(
        "23.grid_step",
        "a step on a grid of data and tensor ranks",
        grid_step,
        cases=lambda: [grid(*shape) for shape in ((1, 1), (2, 1), (1, 2), (2, 2), (2, 3), (3, 2))],
        expected=serial,
        names=("w1", "w2"),
        bounds=_two_sums,
        scored=grid(2, 2, 256, 64),
        shown=grid(2, 2),
        points=2,
    ),
]
