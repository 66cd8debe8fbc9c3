"""TensorFlow eagerly, within ``tf.function``, and in graphs of TensorFlow 1: real images, the serial run's weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from thorough import once_more

import workbench.tensorflow as hvd
from workbench import data

v1 = tf.compat.v1
ROWS, STEPS = 32, 10  # rows of a rank in a step


@cache
def images() -> tuple[Any, Any]:
    """The digits: (rows, pixels) in float64, and classes."""
    found = data.digits()
    return found.train_x.reshape(len(found.train_x), -1).astype("float64"), found.train_y


def batches(n: int, steps: int = STEPS) -> Iterator[tuple[Any, Any]]:
    """Whole batches, the same on every rank."""
    x, y = images()
    for step in range(steps):
        at = np.arange(step * ROWS * n, (step + 1) * ROWS * n) % len(x)
        yield x[at], y[at]


def part(whole: Any) -> Any:
    """This rank's rows."""
    return whole[hvd.rank() :: hvd.size()]


Start = dict[str, Any]


def start(seed: int) -> Start:
    """Values of two layers."""
    random, pixels = np.random.default_rng(seed), images()[0].shape[1]
    shapes = {"first/w": (pixels, 16), "first/b": (16,), "second/w": (16, 10), "second/b": (10,)}
    return {name: random.normal(size=shape) / np.sqrt(shape[0]) for name, shape in shapes.items()}


def loss_of(weights: Start, x: Any, y: Any) -> Any:
    """Cross-entropy of two layers; for tensors of every kind."""
    hidden = tf.nn.relu(tf.matmul(x, weights["first/w"]) + weights["first/b"])
    logits = tf.matmul(hidden, weights["second/w"]) + weights["second/b"]
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))


def assert_close(mine: Start, wanted: Start, tolerance: float = 1e-10) -> None:
    """The same weights."""
    for name, value in wanted.items():
        np.testing.assert_allclose(mine[name], value, rtol=0, atol=tolerance, err_msg=name)


# --- with a tape --------------------------------------------------------------------------------------


def variables(seed: int) -> dict[str, Any]:
    """The layers' variables."""
    return {name: tf.Variable(value, name=name) for name, value in start(seed).items()}


def train_with_tape(
    weights: dict[str, Any],
    wrap: Callable[[Any], Any],
    batches: Iterator[tuple[Any, Any]],
    graph: bool = False,
    order: int = 1,
) -> Start:
    """SGD with momentum; ``order`` -1 asks for the gradients from the last variable to the first."""
    names = list(weights)[::order]
    momentum = {name: tf.Variable(tf.zeros_like(each)) for name, each in weights.items()}

    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(weights, x, y)
        gradients = wrap(tape).gradient(loss, [weights[name] for name in names])
        for name, gradient in zip(names, gradients, strict=True):
            momentum[name].assign(0.9 * momentum[name] - 0.1 * gradient)
            weights[name].assign_add(momentum[name])

    run = tf.function(step) if graph else step
    for x, y in batches:
        run(tf.constant(x), tf.constant(y))
    return {name: each.numpy() for name, each in weights.items()}


def plain(tape: Any) -> Any:
    """Of the serial run."""
    return tape


@pytest.mark.parametrize("graph", [once_more(False), True], ids=["eager", "tf.function"])
def test_tape_trains_as_the_serial_run(graph: bool, n: int) -> None:
    """Eagerly and in a graph: each rank its part of the batches, and at the end the serial weights on all."""
    mine = variables(seed=hvd.rank())
    hvd.broadcast_variables(list(mine.values()), root_rank=0)
    own = ((part(x), part(y)) for x, y in batches(n))
    ended = train_with_tape(mine, hvd.DistributedGradientTape, own, graph)
    wanted = train_with_tape(variables(seed=0), plain, batches(n))
    assert_close(ended, wanted)
    assert np.abs(wanted["first/w"] - start(0)["first/w"]).max() > 0.01
    for other in hvd.allgather_object(ended):
        assert_close(ended, other, 0.0)


@pytest.mark.parametrize("graph", [False, once_more(True)], ids=["eager", "tf.function"])
def test_every_rank_has_its_layers_in_another_order(graph: bool, n: int) -> None:
    """Gradients are matched by name: no deadlock, and the serial weights."""
    mine = variables(seed=0)
    own = ((part(x), part(y)) for x, y in batches(n, 3))
    ended = train_with_tape(mine, hvd.DistributedGradientTape, own, graph, order=-1 if hvd.rank() % 2 else 1)
    assert_close(ended, train_with_tape(variables(seed=0), plain, batches(n, 3), graph))


def test_compressed_and_summed_tapes(n: int) -> None:
    """op=Sum is n times the average; half precision is near it; predivided it is the average again."""
    x, y = next(batches(n))
    weights = variables(seed=0)

    def gradient(wrap: Callable[[Any], Any], x: Any, y: Any) -> Start:
        with tf.GradientTape() as tape:
            loss = loss_of(weights, x, y)
        return {name: np.array(each) for name, each in wrap(tape).gradient(loss, weights).items()}

    whole = gradient(plain, x, y)
    wraps: list[tuple[Callable[[Any], Any], float, float]] = [
        (lambda tape: hvd.DistributedGradientTape(tape, op=hvd.Sum), n, 1e-10),
        (lambda tape: hvd.DistributedGradientTape(tape, compression=hvd.Compression.fp16), 1, 1e-3),
        (lambda tape: hvd.DistributedGradientTape(tape, gradient_predivide_factor=2.0), 1, 1e-10),
    ]
    for wrap, factor, tolerance in wraps:
        assert_close(gradient(wrap, part(x), part(y)), {k: v * factor for k, v in whole.items()}, tolerance)


class Layer:
    """What a Keras layer is to a tape."""

    def __init__(self, *weights: Any) -> None:
        self.trainable_weights = list(weights)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("scale", [True, once_more(False)])
def test_local_layers_of_a_tape(scale: bool, n: int) -> None:
    """Gradients of local layers stay the rank's own, by default divided by the number of ranks; the others are mean."""
    x, y = next(batches(n))
    weights = variables(seed=hvd.rank())
    with tf.GradientTape(persistent=True) as tape:
        loss = loss_of(weights, part(x), part(y))
    own = {name: np.array(each) for name, each in tape.gradient(loss, weights).items()}
    local = Layer(weights["second/w"], weights["second/b"])
    tape = hvd.PartialDistributedGradientTape(tape, local_layers=local, scale_local_gradients=scale)
    made = tape.gradient(loss, weights)
    everyones = hvd.allgather_object(own)
    for name, gradient in made.items():
        mean = np.mean([each[name] for each in everyones], 0)
        wanted = own[name] / (n if scale else 1) if name.startswith("second") else mean
        np.testing.assert_allclose(gradient, wanted, rtol=0, atol=1e-12, err_msg=name)


def test_sparse_gradients_of_a_tape(n: int) -> None:
    """IndexedSlices stay sparse and hold all ranks' rows, or become dense on demand; either way the mean."""
    table = tf.Variable(np.random.default_rng(0).normal(size=(9, 3)), name="table")
    places = [[rank, 3 + rank, 3, 3][: 3 + rank % 2] for rank in range(n)]

    def gradient(**options: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, places[hvd.rank()]) ** 2)
        return hvd.DistributedGradientTape(tape, **options).gradient(loss, table)

    wanted = sum(2 * table.numpy() * np.bincount(each, minlength=9)[:, None] for each in places) / n
    sparse, dense = gradient(), gradient(sparse_as_dense=True)
    assert isinstance(sparse, tf.IndexedSlices)
    assert len(sparse.indices) == sum(map(len, places))
    assert not isinstance(dense, tf.IndexedSlices)
    for each in (sparse, dense):
        np.testing.assert_allclose(tf.convert_to_tensor(each), wanted, rtol=0, atol=1e-12)


# --- TensorFlow 1 -------------------------------------------------------------------------------------


class Graph1:
    """A graph of TensorFlow 1 with the layers, a loss, and an optimizer's step.

    Args:
        wrap: what is done to the optimizer.
        order: -1 makes the variables from the last to the first.
    """

    def __init__(
        self, seed: int, wrap: Callable[[Any], Any], order: int = 1, passes: int = 1, optimizer: Any = None
    ) -> None:
        self.graph = tf.Graph()
        with self.graph.as_default():
            pixels = images()[0].shape[1]
            self.x, self.y = v1.placeholder("float64", [None, pixels]), v1.placeholder("int64", [None])
            weights = {name: v1.get_variable(name, initializer=v) for name, v in list(start(seed).items())[::order]}
            step = v1.train.get_or_create_global_step()
            opt = wrap(optimizer or v1.train.AdagradOptimizer(0.01 * hvd.size()))
            self.loss = loss_of(weights, self.x, self.y)
            self.train = opt.minimize(self.loss, global_step=step)
            self.weights, self.step = weights, step

    def run(self, batches: Iterator[tuple[Any, Any]], hooks: Any = (), folder: Path | None = None) -> tuple[Start, int]:
        """Train in a MonitoredTrainingSession; the weights, and the number of steps."""
        seen: Start = {}
        with (
            self.graph.as_default(),
            v1.train.MonitoredTrainingSession(checkpoint_dir=folder and str(folder), hooks=list(hooks)) as session,
        ):
            for x, y in batches:
                session.run(self.train, {self.x: x, self.y: y})
            seen, step = session.run([self.weights, self.step])
        return seen, int(step)


def test_monitored_session_trains_as_the_serial_run(n: int, rank: int, tmp_path: Path) -> None:
    """Adagrad with a broadcast hook ends at the serial weights; rank 0 alone has checkpoints, and all go on from them.

    The second session restores on rank 0 only; the hook gives the rest of the ranks weights and accumulators.
    """
    folder = tmp_path / "logs" if rank == 0 else None

    def session(batches: Iterator[tuple[Any, Any]], seed: int) -> tuple[Start, int]:
        graph = Graph1(seed, hvd.DistributedOptimizer)
        with graph.graph.as_default():
            hooks = [hvd.BroadcastGlobalVariablesHook(0)]
        return graph.run(((part(x), part(y)) for x, y in batches), hooks, folder)

    whole = list(batches(n))
    first, _ = session(iter(whole[:4]), seed=rank)
    second, steps = session(iter(whole[4:]), seed=100 + rank)
    assert_close(first, Graph1(0, plain).run(iter(whole[:4]))[0])
    assert_close(second, Graph1(0, plain).run(iter(whole))[0])
    assert steps == len(whole)
    assert (tmp_path / "logs" / "checkpoint").exists() == (rank == 0)


def test_a_graph_with_its_variables_in_another_order_on_every_rank(n: int, rank: int) -> None:
    """Made in reverse on odd ranks, initialised from other seeds: variables and gradients find their own by name."""
    graph = Graph1(rank, hvd.DistributedOptimizer, order=-1 if rank % 2 else 1)
    own = ((part(x), part(y)) for x, y in batches(n, 3))
    assert_close(graph.run(own, [hvd.BroadcastGlobalVariablesHook(0)])[0], Graph1(0, plain).run(batches(n, 3))[0])


@pytest.mark.parametrize("average", [once_more(False), True])
def test_several_passes_in_a_graph(average: bool, n: int) -> None:
    """backward_passes_per_step=2: the serial run with batches twice as large, at twice the rate where they add up."""
    whole = list(batches(n, 8))
    pairs = [(np.concatenate([a, c]), np.concatenate([b, d])) for (a, b), (c, d) in zip(whole[::2], whole[1::2])]  # noqa: B905
    graph = Graph1(
        0,
        lambda opt: hvd.DistributedOptimizer(opt, backward_passes_per_step=2, average_aggregated_gradients=average),
        optimizer=v1.train.MomentumOptimizer(0.1, 0.9),
    )
    serial = Graph1(0, plain, optimizer=v1.train.MomentumOptimizer(0.1 if average else 0.2, 0.9))
    wanted, steps = serial.run(iter(pairs))
    made, mine = graph.run((part(x), part(y)) for x, y in whole)
    assert_close(made, wanted)
    assert mine == steps == 4


def test_v1_optimizer_keeps_the_names_of_its_slots(n: int) -> None:
    """All variables have the serial graph's names, so its checkpoints are read by the distributed one."""
    names = []
    for wrap in (plain, hvd.DistributedOptimizer):
        graph = Graph1(0, wrap)
        names.append(sorted(each.name for each in graph.graph.get_collection("variables")))
    assert names[0] == names[1]
