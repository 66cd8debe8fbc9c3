"""Many collectives in one graph of TensorFlow: any order on each rank, TensorFlow's own pool of threads; and errors.

Runs with TensorFlow 2.15, too: see ``tests/legacy/test_retired_ranks.py``.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from thorough import diagonal, once_more

import workbench.tensorflow as hvd
from workbench.tf.host_calls import HOST_CALLS

v1 = tf.compat.v1
MANY, GRAPHS, RUNS = 16, 2, 4


@contextmanager
def session(**config: Any) -> Iterator[Any]:
    """A graph of TensorFlow 1, and a session of it."""
    with tf.Graph().as_default(), v1.Session(config=v1.ConfigProto(**config)) as made:
        yield made


def in_session(program: Callable[[], Any]) -> Any:
    """What a program gives that makes a graph."""
    with session() as running:
        return running.run(program())


def in_function(program: Callable[[], Any]) -> Any:
    """What a program gives within ``tf.function``."""
    return tf.nest.map_structure(lambda each: each.numpy(), tf.function(program, autograph=False)())


def at_once(program: Callable[[], Any]) -> Any:
    """What a program gives eagerly."""
    return tf.nest.map_structure(lambda each: each.numpy(), program())


class UnspeakableError(Exception):
    """Its own code makes its text, and fails."""

    def __str__(self) -> str:
        raise KeyError("no text")


WAYS = pytest.mark.parametrize("run", [at_once, in_function, in_session])
GRAPHED = pytest.mark.parametrize("run", [once_more(in_function), in_session])


def shuffled(count: int, seed: int) -> list[int]:
    """Numbers in another order on every rank."""
    order = list(range(count))
    random.Random(1000 * seed + hvd.rank()).shuffle(order)
    return order


def summed(i: int) -> Any:
    """The sum over the ranks of i + rank."""
    n = hvd.size()
    return np.full(17, n * i + n * (n - 1) / 2, np.float32)


def mine(i: int) -> Any:
    """What this rank gives to it."""
    return tf.constant(np.full(17, i + hvd.rank(), np.float32))


# --- any order ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [0, once_more(1)], ids=["default pool", "one thread"])
def test_many_collectives_in_one_session_run(threads: int) -> None:
    """16 allreduces in one Session.run, 8 times: each rank makes and asks for them in an order of its own."""
    for graph in range(GRAPHS):
        with session(inter_op_parallelism_threads=threads) as running:
            made = {i: hvd.allreduce(mine(i), op=hvd.Sum, name=f"many_{i}") for i in shuffled(MANY, graph)}
            for again in range(RUNS):
                asked = shuffled(MANY, graph + 100 * again)
                for i, value in zip(asked, running.run([made[i] for i in asked]), strict=True):
                    np.testing.assert_array_equal(value, summed(i))


def test_many_collectives_in_one_function() -> None:
    """Within ``tf.function`` the order of the program does not matter either."""

    @tf.function
    def both() -> dict[int, Any]:
        return {i: hvd.allreduce(mine(i), op=hvd.Sum, name=f"many_{i}") for i in shuffled(MANY, 1)}

    for _ in range(RUNS):
        for i, value in both().items():
            np.testing.assert_array_equal(value, summed(i))


@GRAPHED
def test_what_depends_on_other_collectives(run: Callable[..., Any]) -> None:
    """Chains of collectives side by side, of every verb, with the chains in another order on every rank."""
    rank, n = hvd.rank(), hvd.size()

    def chain(i: int) -> Any:
        x = hvd.allreduce(mine(i), op=hvd.Sum, name=f"chain_{i}.a")
        rows = hvd.allgather(tf.reshape(x, [1, -1]) + rank, name=f"chain_{i}.b")
        y = hvd.broadcast(rows, n - 1, name=f"chain_{i}.c")
        return tf.reduce_sum(hvd.reducescatter(tf.tile(y, [n, 1]), op=hvd.Sum, name=f"chain_{i}.d"))

    made = run(lambda: {str(i): chain(i) for i in shuffled(6, 7)})
    for i in range(6):
        total = sum(17 * float(summed(i)[0] + other) for other in range(n))
        np.testing.assert_allclose(made[str(i)], n * total, rtol=1e-6)


@GRAPHED
def test_gradients_in_any_order(run: Callable[..., Any]) -> None:
    """Of many collectives, all asked for in one run: the derivative of a sum over the ranks is a sum."""
    n = hvd.size()

    def program() -> Any:
        made = {}
        for i in shuffled(8, 3):
            x = mine(i)
            y = tf.reduce_sum(hvd.allreduce(x, op=hvd.Sum, name=f"slope_{i}") * (i + 1.0))
            made[str(i)] = tf.gradients(y, x)[0]
        return made

    for i, value in run(program).items():
        np.testing.assert_array_equal(value, np.full(17, n * (int(i) + 1.0)))


def test_a_graph_that_computes_is_not_taken_for_a_deadlock() -> None:
    """One collective waits while the graph computes, for longer than the grace, what another needs; crosswise."""
    slow = f"late_{hvd.rank() % 2}"

    def later(x: Any) -> Any:
        time.sleep(1.5)
        return x

    def program() -> Any:
        made = {}
        for name in ("late_0", "late_1"):
            x = tf.ones(3)
            if name == slow:
                x = tf.ensure_shape(tf.numpy_function(later, [x], tf.float32), [3])
            made[name] = hvd.allreduce(x, name=name)
        return made

    hvd.allreduce(tf.ones(1), name="the main thread has submitted before")
    assert all((each == 1).all() for each in in_session(program).values())


def test_a_second_import_finds_its_way() -> None:
    """TensorFlow keeps kernels for ever: those of a notebook's second import do not disturb those of the first."""
    from workbench.tf.host_calls import HostCalls

    with session() as running:
        for calls in (HostCalls(), HostCalls()):
            (made,) = calls.call(lambda x: [x * np.float32(2)], [tf.constant(1.0)], [tf.float32])
            assert running.run(made) == 2.0


# --- names --------------------------------------------------------------------------------------------


@GRAPHED
def test_a_name_used_twice_in_a_graph(run: Callable[..., Any]) -> None:
    """As Horovod's, whose names are those of the ops, which TensorFlow keeps apart."""
    first, second = run(lambda: [hvd.allreduce(mine(i), op=hvd.Sum, name="twice") for i in range(2)])
    np.testing.assert_array_equal(first, summed(0))
    np.testing.assert_array_equal(second, summed(1))


def test_gradients_of_variables_with_the_same_names() -> None:
    """Two models in one function may have variables of the same names: each gets its own gradients."""
    ours = [[tf.Variable(np.full(4, 10.0 * model + i + hvd.rank())) for i in range(2)] for model in range(2)]

    def program() -> Any:
        made = []
        for model in ours:
            with tf.GradientTape() as tape:
                loss = tf.add_n([tf.reduce_sum(each * each) for each in model])
            made.append(hvd.DistributedGradientTape(tape).gradient(loss, model))
        return made

    mean = (hvd.size() - 1) / 2
    for model, gradients in enumerate(in_function(program)):
        for i, gradient in enumerate(gradients):
            np.testing.assert_allclose(gradient, np.full(4, 2 * (10.0 * model + i + mean)), rtol=1e-12)


def test_gradients_through_a_group_one_by_one() -> None:
    """Each gradient through a grouped op is a group of its own, in one run with the others."""
    n = hvd.size()

    def program() -> Any:
        xs = [mine(i) for i in range(3)]
        ys = hvd.grouped_allreduce(xs, op=hvd.Sum, name="group")
        return [tf.gradients(y * (i + 1.0), x)[0] for i, (x, y) in enumerate(zip(xs, ys, strict=True))]

    for i, value in enumerate(in_session(program)):
        np.testing.assert_array_equal(value, np.full(17, n * (i + 1.0)))


def test_a_narrower_dy() -> None:
    """``grad_ys`` of float32 for a result of float64, as Horovod takes it."""

    def program() -> Any:
        x = tf.constant(np.arange(3.0))
        return tf.gradients(hvd.allreduce(x, op=hvd.Sum, name="wide"), x, tf.ones(3, tf.float32))[0]

    made = in_session(program)
    assert made.dtype == np.float64
    assert made.tolist() == [hvd.size()] * 3


# --- sparse, and local --------------------------------------------------------------------------------


@WAYS
def test_slices_in_a_group(run: Callable[..., Any]) -> None:
    """IndexedSlices stay what they are, beside dense tensors, which are reduced as ever."""
    rank, n = hvd.rank(), hvd.size()

    def program() -> Any:
        slices = [
            tf.IndexedSlices(tf.fill([rank + 1, 2], float(k + 1)), tf.range(rank + 1), tf.constant([5, 2]))
            for k in range(2)
        ]
        made = hvd.grouped_allreduce([slices[0], mine(4), slices[1]], op=hvd.Sum, name="mixed")
        assert [isinstance(each, tf.IndexedSlices) for each in made] == [True, False, True]
        return [tf.convert_to_tensor(each) for each in made]

    first, dense, second = run(program)
    counts = np.array([sum(row <= other for other in range(n)) for row in range(5)])
    np.testing.assert_array_equal(first, np.stack([counts, counts], 1))
    np.testing.assert_array_equal(second, 2 * np.stack([counts, counts], 1))
    np.testing.assert_array_equal(dense, summed(4))
    only = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([5, 2]))
    with pytest.raises(NotImplementedError, match="Average or Sum only"):
        hvd.grouped_allreduce([only], op=hvd.Max)


def test_local_and_global_gradients_of_a_tape() -> None:
    """Two lists of (source, gradient): local ones are the rank's own by the number of ranks, the others means."""
    rank, n = hvd.rank(), hvd.size()
    kept, shared = tf.Variable(2.0 + rank), tf.Variable(1.0 + rank)
    with tf.GradientTape() as tape:
        loss = kept * kept + shared * shared
    tape = hvd.DistributedGradientTape(tape)
    tape.register_local_source(kept)
    ((first, own),), ((second, mean),) = tape.get_local_and_global_gradients(loss, [kept, shared])
    assert (first is kept, second is shared) == (True, True)
    np.testing.assert_allclose(own, 2 * (2.0 + rank) / n)
    np.testing.assert_allclose(mean, 2 * (1.0 + (n - 1) / 2))


@pytest.mark.parametrize("scale", [True, False])
def test_local_variables_of_an_optimizer_of_tensorflow_1(scale: bool) -> None:
    """Their gradients stay the rank's own, by default divided by the number of ranks."""
    rank, n = hvd.rank(), hvd.size()
    with session() as running:
        kept, shared = v1.get_variable("kept", initializer=1.0), v1.get_variable("shared", initializer=1.0)
        sgd = v1.train.GradientDescentOptimizer(1.0)
        optimizer = hvd.DistributedOptimizer(sgd, scale_local_gradients=scale)
        optimizer.register_local_var(kept)
        pairs = optimizer.compute_gradients((kept + shared) * (rank + 1.0), [kept, shared])
        running.run(v1.global_variables_initializer())
        own, mean = running.run([gradient for gradient, _ in pairs])
    np.testing.assert_allclose(own, (rank + 1.0) / (n if scale else 1))
    np.testing.assert_allclose(mean, (n + 1) / 2)


# --- errors -------------------------------------------------------------------------------------------


# What a rank calls where all differ.
MISTAKES: dict[str, Callable[[int], Any]] = {
    "shape": lambda rank: hvd.allreduce(tf.ones(2 + rank), name="wrong"),
    "dtype": lambda rank: hvd.allreduce(tf.ones(2, tf.float32 if rank % 2 else tf.float64), name="wrong"),
    "columns": lambda rank: hvd.allgather(tf.ones([2, 2 + rank]), name="wrong"),
    "root": lambda rank: hvd.broadcast(tf.ones(2), rank, name="wrong"),
    "scattered": lambda rank: hvd.reducescatter(tf.ones([4, 2 + rank]), name="wrong"),
}


@pytest.mark.parametrize(("run", "mistake"), diagonal([at_once, in_function, in_session], MISTAKES))
def test_ranks_that_disagree(run: Callable[..., Any], mistake: str) -> None:
    """It is TensorFlow's FailedPreconditionError; eagerly ours as well; in a graph ours is known by its text."""
    if hvd.size() == 1:
        pytest.skip("one rank agrees with itself")
    with pytest.raises(tf.errors.FailedPreconditionError, match="Mismatched") as caught:
        run(lambda: MISTAKES[mistake](hvd.rank()))
    if run is at_once:
        assert isinstance(caught.value, hvd.HorovodInternalError)
    else:
        assert "MismatchError: " in str(caught.value)
    np.testing.assert_array_equal(run(lambda: hvd.allreduce(mine(1), op=hvd.Sum, name="right")), summed(1))


@WAYS
def test_splits_that_do_not_fit(run: Callable[..., Any]) -> None:
    """It is TensorFlow's InvalidArgumentError: rows that cannot be split evenly, splits of too many rows, of floats."""
    n = hvd.size()
    if n > 1:
        with pytest.raises(tf.errors.InvalidArgumentError, match="cannot be split evenly"):
            run(lambda: hvd.alltoall(tf.ones([n + 1])))
    with pytest.raises(tf.errors.InvalidArgumentError, match="do not match"):
        run(lambda: hvd.alltoall(tf.ones([n]), tf.fill([n], 2)))
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match="splits must be int32"):
        run(lambda: hvd.alltoall(tf.ones([n]), tf.ones([n])))


@WAYS
def test_before_init(run: Callable[..., Any]) -> None:
    """It is TensorFlow's FailedPreconditionError, and a ValueError as well, that says what to call."""
    from workbench.job.context import HOLDER

    context = HOLDER.get()
    HOLDER.set(None)
    try:
        with pytest.raises(tf.errors.FailedPreconditionError, match=r"call init\(\) first") as caught:
            run(lambda: hvd.allreduce(tf.ones(2), name="early"))
        with pytest.raises(tf.errors.FailedPreconditionError, match=r"call init\(\) first"):
            tf.function(lambda: hvd.allreduce(tf.ones(2), name="rewritten by AutoGraph"))()
    finally:
        HOLDER.set(context)
    assert isinstance(caught.value, ValueError)


@GRAPHED
@pytest.mark.ranks(2)
def test_ranks_that_wait_for_each_other(run: Callable[..., Any]) -> None:
    """The error names what each rank waits for, and the line that put it into the graph; the next run is all right."""
    hvd.allreduce(tf.ones(1), name="the main thread has submitted before")

    def program() -> Any:
        return hvd.allreduce(tf.ones(2), name=f"only_{hvd.rank()}")  # the user's line

    with pytest.raises(tf.errors.UnknownError, match="wait for each other") as caught:
        run(program)
    for rank in range(2):
        (line,) = [each for each in str(caught.value).splitlines() if each.strip().startswith(f"rank {rank}: waiting")]
        assert "in test_tensorflow_graphs.py, line " in line
        assert line.endswith("# the user's line")
    np.testing.assert_array_equal(run(lambda: hvd.allreduce(mine(1), op=hvd.Sum, name="next")), summed(1))


@pytest.mark.parametrize(
    ("run", "error"), diagonal([in_function, in_session], [UnspeakableError(), OSError("no file \udcff")])
)
def test_an_error_without_a_proper_text_ends_the_graph(run: Callable[..., Any], error: Exception) -> None:
    """Whatever an exception's text is, the op that waits ends with an error of TensorFlow's."""

    def fail(_: Any) -> Any:
        time.sleep(0.2)  # until the op waits
        raise error

    caught: list[BaseException] = []

    def call() -> None:
        try:
            run(lambda: HOST_CALLS.call(fail, [tf.constant(0.0)], [tf.float32]))
        except tf.errors.OpError as failed:
            caught.append(failed)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(60)
    assert len(caught) == 1
