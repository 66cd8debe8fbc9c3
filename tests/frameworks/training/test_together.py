"""torch, TensorFlow and JAX in one process and one world, in turns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import tensorflow as tf
import torch
import torch._dynamo  # torch does it in the first step, which takes seconds

import workbench as plain
import workbench.jax as jax_hvd
import workbench.tensorflow as tf_hvd
import workbench.torch as torch_hvd

STEPS, RATE, ROWS = 6, 0.1, 4


def torch_trainer(start: Any) -> tuple[Callable[[Any, Any], Any], Callable[[], Any]]:
    """(a step, the weights)."""
    weights = torch.nn.Parameter(torch.tensor(start))
    optimizer = torch_hvd.DistributedOptimizer(torch.optim.SGD([weights], lr=RATE), [("w", weights)])

    def step(x: Any, y: Any) -> None:
        optimizer.zero_grad()
        (torch.from_numpy(x) @ weights - torch.from_numpy(y)).square().mean().backward()
        optimizer.step()

    return step, lambda: weights.detach().numpy()


def tensorflow_trainer(start: Any) -> tuple[Callable[[Any, Any], Any], Callable[[], Any]]:
    """(a step, the weights)."""
    weights = tf.Variable(start, name="w")

    @tf.function
    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.linalg.matvec(x, weights) - y) ** 2)
        weights.assign_sub(RATE * tf_hvd.DistributedGradientTape(tape).gradient(loss, weights))

    return lambda x, y: step(tf.constant(x), tf.constant(y)), weights.numpy


def jax_trainer(start: Any) -> tuple[Callable[[Any, Any], Any], Callable[[], Any]]:
    """(a step, the weights)."""
    kept = [jax.numpy.asarray(start)]
    both = jax.jit(jax_hvd.distributed_value_and_grad(lambda w, x, y: ((x @ w - y) ** 2).mean()))

    def step(x: Any, y: Any) -> None:
        kept[0] = kept[0] - RATE * both(kept[0], x, y)[1]

    return step, lambda: np.asarray(kept[0])


def test_three_frameworks_take_turns(n: int, rank: int) -> None:
    """Each trains its own model, step by step with the others, and all end at the serial loop's weights in numpy.

    Between the steps travel a torch tensor that is waited for only at the end of the turn, and a plain array.
    """
    jax.config.update("jax_enable_x64", True)
    try:
        random = np.random.default_rng(4)
        start, x, y = (
            random.normal(size=3),
            random.normal(size=(STEPS, ROWS * n, 3)),
            random.normal(size=(STEPS, ROWS * n)),
        )
        trainers = [make(start) for make in (torch_trainer, tensorflow_trainer, jax_trainer)]
        wanted = start.copy()
        for i in range(STEPS):
            handle = torch_hvd.allreduce_async(
                torch.full((5,), float(rank + i)), name=f"in between {i}", op=torch_hvd.Sum
            )
            for step, _ in trainers[i % 3 :] + trainers[: i % 3]:
                step(x[i, rank::n], y[i, rank::n])
                assert plain.allreduce(np.array(rank), op=plain.Sum) == n * (n - 1) // 2
            assert torch_hvd.synchronize(handle).tolist() == [float(n * i + n * (n - 1) // 2)] * 5
            wanted = wanted - RATE * 2 * x[i].T @ (x[i] @ wanted - y[i]) / (ROWS * n)
        for _, weights in trainers:
            np.testing.assert_allclose(weights(), wanted, rtol=0, atol=1e-12)
    finally:
        jax.config.update("jax_enable_x64", False)


def test_one_world(n: int, rank: int) -> None:
    """rank, size, process sets and objects are the same ones in all three."""
    assert {each.rank() for each in (plain, torch_hvd, tf_hvd, jax_hvd)} == {rank}
    assert {each.size() for each in (plain, torch_hvd, tf_hvd, jax_hvd)} == {n}
    one = tf_hvd.add_process_set([0])
    try:
        if rank == 0:
            assert torch_hvd.allreduce(torch.ones(2), process_set=one).tolist() == [1.0, 1.0]
            assert jax_hvd.allreduce(jax.numpy.ones(2), process_set=one).tolist() == [1.0, 1.0]
    finally:
        assert torch_hvd.remove_process_set(one)
