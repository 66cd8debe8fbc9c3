"""What TensorFlow has and the others have not: sparse tensors, unknown shapes, variables, sizes in a graph."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from thorough import once_more

import workbench.tensorflow as hvd
from workbench.errors import MismatchError


def test_sparse_tensors_are_gathered() -> None:
    """An allreduce of IndexedSlices has all ranks' rows, divided by the number of ranks for Average; no other op."""
    rank, n = hvd.rank(), hvd.size()
    mine = tf.IndexedSlices(tf.fill([rank + 1, 2], float(rank + 1)), tf.range(rank + 1), tf.constant([4, 2]))
    for op, factor in ((hvd.Sum, 1), (hvd.Average, 1 / n)):
        for allreduce in (hvd.allreduce, tf.function(hvd.allreduce)):
            made = tf.convert_to_tensor(allreduce(mine, op=op)).numpy()
            wanted = [[factor * sum(r + 1 for r in range(n) if r >= row)] * 2 for row in range(4)]
            np.testing.assert_allclose(made, wanted, rtol=1e-6)
    with pytest.raises(NotImplementedError, match="Average or Sum only"):
        hvd.allreduce(mine, op=hvd.Max)


@pytest.mark.parametrize("rows", [None, 2], ids=["rows unknown", "rows known"])
def test_shapes_that_only_the_run_tells(rows: int | None) -> None:
    """Of tensors of unknown shape in a graph the results and gradients are right, and no static shape is wrong."""
    rank, n = hvd.rank(), hvd.size()
    static = {}

    @tf.function(input_signature=[tf.TensorSpec([rows, 3])])
    def both(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            gathered, sent = hvd.allgather(x), hvd.alltoall(x)
            loss = tf.reduce_sum(gathered) + tf.reduce_sum(sent)
        static.update(gathered=gathered.shape.as_list(), sent=sent.shape.as_list())
        return gathered, sent, tape.gradient(loss, x)

    gathered, sent, grad = both(tf.fill([2 * n if rows is None else n, 3], float(rank)))
    assert static == {"gathered": [None, 3], "sent": [None, 3]}
    each = 2 if rows is None else 1
    assert gathered[:, 0].numpy().tolist() == np.repeat(range(n), each * n).tolist()
    assert sent[:, 0].numpy().tolist() == np.repeat(range(n), each).tolist()
    assert (grad.numpy() == 2).all()


class Witness:
    """A compressor that notes who calls it: functions that AutoGraph has rewritten lie in files of its own."""

    def __init__(self) -> None:
        self.rewritten: list[str] = []

    def compress(self, tensor: tf.Tensor) -> tuple[tf.Tensor, None]:
        """As it is."""
        self.rewritten += [each.function for each in inspect.stack(0) if "__autograph_generated" in each.filename]
        return tensor, None

    def decompress(self, tensor: tf.Tensor, ctx: None) -> tf.Tensor:
        """As it is."""
        return tensor


def test_autograph_rewrites_the_callers_functions_alone() -> None:
    """To rewrite ours takes seconds whenever a graph is made, and wins nothing."""
    w, witness = tf.Variable([1.0, 2.0]), Witness()
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.5)

    @tf.function
    def mine(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w * x)
        gradients = hvd.DistributedGradientTape(tape, compression=witness).gradient(loss, [w])
        hvd.DistributedOptimizer(optimizer, compression=witness).apply_gradients(zip(gradients, [w], strict=True))
        return hvd.grouped_allreduce([hvd.allreduce(x, compression=witness)], compression=witness)[0]

    assert mine(tf.constant([2.0, 4.0])).numpy().tolist() == [2, 4]
    assert w.numpy().tolist() == [0, 0]
    assert witness.rewritten == ["tf__mine"] * 3


def test_xla_is_refused() -> None:
    """What XLA compiles cannot talk to other ranks: the text says how to leave it out."""
    with pytest.raises(Exception, match="jit_compile=False"):
        tf.function(lambda x: hvd.allreduce(x), jit_compile=True)(tf.ones(2))


def test_variables_get_the_root_s_values() -> None:
    """Eagerly, in a function and in a session, of any dtype and shape."""
    rank, n = hvd.rank(), hvd.size()
    starts = [np.full((2, 3), rank, np.float32), np.array(rank, np.int64), np.array([], np.float32)]
    variables = [tf.Variable(each) for each in starts]
    assert hvd.broadcast_variables(variables, root_rank=n - 1) is None
    assert [each.numpy().tolist() for each in variables] == [[[n - 1] * 3] * 2, n - 1, []]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        placed = [tf.compat.v1.Variable(each) for each in starts]
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(hvd.broadcast_global_variables(n - 1))
        assert [each.tolist() for each in session.run(placed)] == [[[n - 1] * 3] * 2, n - 1, []]


def test_numbers_of_ranks_in_a_graph() -> None:
    """They are those of the run; size_op and process_set_included_op of a process set, too."""
    numbers = tf.function(lambda: [hvd.size_op(), hvd.rank_op(), hvd.local_size_op(), hvd.local_rank_op()])
    wanted = [hvd.size(), hvd.rank(), hvd.local_size(), hvd.local_rank()]
    assert [int(each) for each in numbers()] == wanted
    assert [int(each) for each in (hvd.size_op(), hvd.rank_op())] == wanted[:2]
    assert int(hvd.process_set_included_op()) == 1


@pytest.mark.parametrize("wrap", [once_more(lambda f: f), tf.function], ids=["at once", "graph"])
def test_tapes_of_two_models_in_unlike_order_are_not_mixed(wrap: Any) -> None:
    """Two variables have one name; tapes, made in each step, know them apart: else all ranks get an error."""
    rank, n = hvd.rank(), hvd.size()
    variables = [tf.Variable([float(rank), 1.0], name="twin") for _ in range(2)]

    def gradient(variable: tf.Variable) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable * variable)
        return hvd.DistributedGradientTape(tape).gradient(loss, variable)

    steps = [wrap(lambda variable=variable: gradient(variable)) for variable in variables]
    for step in steps * 2:
        assert step().numpy().tolist() == [n - 1.0, 2.0]

    def swapped() -> None:
        for step in steps[:: -1 if rank == 0 else 1]:
            step()

    if n > 1:
        with pytest.raises((MismatchError, tf.errors.OpError), match="Two optimizers have parameters of this name"):
            swapped()


@pytest.mark.parametrize("graph", [once_more(False), True], ids=["eager", "tf.function"])
def test_a_tape_tells_of_weights_that_one_rank_has_alone(graph: bool) -> None:
    """The user's own optimizer is not known, but the variables are."""
    rank, w = hvd.rank(), tf.Variable(tf.ones(5))

    def step(x: tf.Tensor, rate: float) -> None:
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_mean((w * x - 1) ** 2)
        w.assign_sub(rate * tape.gradient(loss, w))

    run = tf.function(step) if graph else step

    def train(rate: float) -> None:
        for i in range(20):
            run(tf.fill([5], 1.0 + rank + i % 3), tf.constant(rate))

    train(0.01)
    hvd.broadcast_variables([w], 0)
    with pytest.raises(Exception, match="Mismatched weights"):
        train(0.01 * (1 + rank))
    hvd.broadcast_variables([w], 0)
