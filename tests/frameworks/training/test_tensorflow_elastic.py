"""TensorFlowState and TensorFlowKerasState, and failures within ``tf.function`` and sessions."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from thorough import once_more

import workbench.tensorflow as hvd
from workbench.keras.elastic import KerasState

v1 = tf.compat.v1


def test_save_restore_sync(rank: int) -> None:
    """restore() brings variables and objects back, any number of times; sync() brings rank 0's to all."""
    variables = [tf.Variable([1.0 + rank, 2.0]), tf.Variable(rank)]
    state = hvd.elastic.TensorFlowState(variables, step=rank, losses=[rank])
    for _ in range(2):
        variables[0].assign([7.0, 8.0])
        variables[1].assign(9)
        state.step += 1
        state.losses.append(3)
        state.restore()
        assert variables[0].numpy().tolist() == [1.0 + rank, 2.0]
        assert (int(variables[1]), state.step, state.losses) == (rank, rank, [rank])
    variables[1].assign(rank + 5)
    state.sync()
    assert variables[0].numpy().tolist() == [1.0, 2.0]
    assert (int(variables[1]), state.step, state.losses) == (5, 0, [0])
    variables[1].assign(0)
    state.restore()
    assert int(variables[1]) == 5, "sync() has saved it"


@pytest.mark.parametrize("in_session", [False, True])
def test_a_checkpoint_is_gone_on_from(in_session: bool, rank: int, tmp_path: Path) -> None:
    """Other variables of the same shapes, given the same folder: after the sync all ranks have what was committed."""
    folder = hvd.broadcast_object(str(tmp_path))

    def variables(value: float) -> list[Any]:
        if in_session:
            return [v1.Variable([value, 2.0]), v1.Variable(int(value), use_resource=False)]
        return [tf.Variable([value, 2.0], dtype=tf.bfloat16), tf.Variable(int(value))]

    for again in (False, True):
        with tf.Graph().as_default() if in_session else nullcontext():
            session = v1.Session() if in_session else None
            mine = variables(rank + (50.0 if again else 5.0))
            if session is not None:
                session.run(v1.global_variables_initializer())
            state = hvd.elastic.TensorFlowState(mine, session, step=0)
            state.checkpoint(folder)
            state.sync()
            if not again:
                state.step = 3
                state.commit()
            state.finish()
            found = session.run(mine) if session is not None else [each.numpy() for each in mine]
            if session is not None:
                session.close()
    assert ([float(each) for each in found[0]], int(found[1]), state.step) == ([5.0, 2.0], 5, 3)


def test_save_restore_sync_in_a_session(rank: int) -> None:
    """The same with a session of TensorFlow 1, by default with all its variables."""
    with tf.Graph().as_default(), v1.Session() as session:
        one, two = v1.get_variable("one", initializer=[1.0 + rank]), v1.get_variable("two", initializer=rank)
        change = [v1.assign(one, [7.0]), v1.assign(two, 9)]
        session.run(v1.global_variables_initializer())
        state = hvd.elastic.TensorFlowState(session=session, step=rank)
        for _ in range(2):
            session.run(change)
            state.step = 4
            state.restore()
            assert session.run([one, two]) == [[1.0 + rank], rank]
            assert state.step == rank
        state.sync()
        assert session.run([one, two]) == [[1.0], 0]
        assert state.step == 0
        session.run(change)
        state.restore()
        assert session.run([one, two]) == [[1.0], 0]


def test_keras_state_by_its_other_name() -> None:
    """TensorFlowKerasState is KerasState."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    assert isinstance(
        hvd.elastic.TensorFlowKerasState(model, keras.optimizers.SGD(), backend=None, batch=0), KerasState
    )


@pytest.mark.ranks(2)
@pytest.mark.parametrize("which", [once_more("first"), "last"])
def test_a_failure_within_tf_function_changes_nothing(which: str, n: int, rank: int) -> None:
    """One rank fails between two steps, the others within one: all go back to the commit, and end undisturbed."""

    def train(fails_at: int) -> Any:
        weights = tf.Variable(np.full(3, rank, "float64"))
        state, left = hvd.elastic.TensorFlowState([weights], step=0), [fails_at]

        @tf.function
        def step(x: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((weights - x) ** 2)
            weights.assign_sub(0.1 * hvd.DistributedGradientTape(tape).gradient(loss, weights))

        @hvd.elastic.run
        def run(state: Any) -> None:
            while state.step < 6:
                step(tf.constant(np.arange(3.0) * (rank + 1) + state.step))
                state.step += 1
                if state.step in left and rank == (0 if which == "first" else n - 1):
                    left.clear()
                    raise hvd.HorovodInternalError("fails on purpose")
                if state.step % 2 == 0:
                    state.commit()

        run(state)
        return weights.numpy()

    np.testing.assert_allclose(train(3), train(-1), rtol=0, atol=1e-12)


@pytest.mark.ranks(2)
def test_an_error_within_a_session_is_ours(n: int, rank: int) -> None:
    """A mismatch in a graph of TensorFlow 1 leads back to the commit, too; the session goes on."""
    with tf.Graph().as_default(), v1.Session() as session:
        number = v1.get_variable("number", initializer=0)
        more = v1.assign_add(number, 1)
        wrong = hvd.allreduce(tf.ones(1 + rank), name="different")
        session.run(v1.global_variables_initializer())
        state, seen = hvd.elastic.TensorFlowState(session=session), []

        @hvd.elastic.run
        def run(state: Any) -> None:
            seen.append(int(session.run(more)))
            if len(seen) == 1:
                session.run(wrong)

        run(state)
        assert seen == [1, 1]
