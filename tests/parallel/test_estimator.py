"""TensorFlow 1's Estimator on n ranks is the serial one with all ranks' batches as one.

Run by ``make legacy-test``; skipped where there is no Estimator.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow_estimator")

import tensorflow as tf

import workbench.tensorflow as hvd
from workbench import data

v1 = tf.compat.v1
BATCH, STEPS = 16, 6
NAMES = ("kernel", "bias", "kernel/Adagrad", "bias/Adagrad", "global_step")


def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
    """One layer; ``params`` has what the ranks may differ in."""
    start = v1.random_normal_initializer(seed=params["seed"])
    kernel = v1.get_variable("kernel", (64, 10), initializer=start)
    logits = features @ kernel + v1.get_variable("bias", (10,), initializer=start)
    loss = v1.losses.sparse_softmax_cross_entropy(labels, logits)
    optimizer = params["wrap"](v1.train.AdagradOptimizer(0.1))
    train_op = optimizer.minimize(loss, global_step=v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def batches(ranks: range) -> Any:
    """For each step the images and labels of these ranks, of the real digits."""
    digits, size = data.digits(), hvd.size()
    rows = [(step * size + r) * BATCH + i for step in range(2 * STEPS) for r in ranks for i in range(BATCH)]
    found = tf.data.Dataset.from_tensor_slices((digits.train_x[rows].reshape(-1, 64), digits.train_y[rows]))
    return found.batch(BATCH * len(ranks))


def estimator(folder: Path, seed: int, wrap: Any) -> Any:
    """A new one with its own folder."""
    params = {"seed": seed, "wrap": wrap}
    return tf.estimator.Estimator(model_fn, str(folder), tf.estimator.RunConfig(save_summary_steps=0), params)


def values(trained: Any) -> list[Any]:
    """What the last checkpoint has: weights, the optimizer's state, the step."""
    return [trained.get_variable_value(name) for name in NAMES]


def test_training_is_the_serial_training(tmp_path: Path, rank: int, n: int) -> None:
    """With the optimizer wrapped and the hook, each rank gets the weights of one process with all batches.

    Rank 0 then goes on from its checkpoint, and the others, who begin anew, from rank 0's values.
    """
    mine = range(rank, rank + 1)
    hooks = [hvd.BroadcastGlobalVariablesHook(0)]
    together = estimator(tmp_path / "together", rank, hvd.DistributedOptimizer)
    together.train(lambda: batches(mine), hooks=hooks, max_steps=STEPS)
    again = together if rank == 0 else estimator(tmp_path / "anew", 7, hvd.DistributedOptimizer)
    again.train(lambda: batches(mine).skip(STEPS), hooks=[hvd.BroadcastGlobalVariablesHook(0)], max_steps=2 * STEPS)

    serial = estimator(tmp_path / "serial", 0, lambda optimizer: optimizer)
    serial.train(lambda: batches(range(n)), max_steps=2 * STEPS)
    ended = values(again)
    for other in hvd.allgather_object(ended):
        assert all(np.array_equal(one, two) for one, two in zip(ended, other, strict=True))
    for one, two in zip(ended, values(serial), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-6)
