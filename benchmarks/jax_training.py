"""Images per second in JAX: ``mpiexec -n 2 python benchmarks/jax_training.py --models cnn mlp``.

One ``jit`` of forward, backward and step (SGD, momentum 0.9). Ours reduces within it; the peers are JAX's own processes
(``jax.distributed``), each with one CPU device, whose collectives are Gloo's: ``pmean`` in a ``shard_map``, and a batch
that is sharded over a mesh, from which the compiler makes the collectives itself.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import frameworks
import jax
import jax.numpy as jnp
import numpy as np
import peers
from frameworks import LIMIT, TASKS, Peer, Task
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import workbench.jax as hvd

Step = Callable[[Any, Any, Any], tuple[Any, Any]]


def main() -> None:
    """Measure on all ranks; rank 0 prints one JSON line."""
    args = frameworks.options(__doc__ or "").parse_args()
    comm = frameworks.start()
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_platforms", "cpu")
    where = comm.bcast(frameworks.addresses(comm)[0])
    jax.distributed.initialize(where, comm.size, comm.rank)
    hvd.init()
    mesh = Mesh(np.array(jax.devices()), ("ranks",))
    cases = []
    for name in args.models:
        task = TASKS[name]
        ways = {
            LIMIT: alone(task, comm.rank, jax.value_and_grad(loss)),
            "workbench": alone(task, comm.rank, hvd.distributed_value_and_grad(loss)),
            "jax.distributed, pmean": together(task, comm.rank, mesh, by_hand(mesh)),
            "jax.distributed, sharded batch": together(task, comm.rank, mesh, jax.value_and_grad(loss)),
        }
        cases.append(frameworks.measure(comm, task, ways, args.rounds, args.seconds))
    peers.finish(comm, {"section": "jax_training", "ours": ["workbench"], "limit": LIMIT, "cases": cases, "absent": {}})
    jax.distributed.shutdown()


def first_weights(task: Task) -> list[Any]:
    """The network's, the same on every rank: (kernel, bias) of each layer."""
    if len(task.shape) == 1:
        sizes = [task.shape[0], 3072, 3072, 3072, task.classes]
        shapes: list[tuple[int, ...]] = [*pairwise(sizes)]
    else:
        shapes = [(3, 3, 1, 16), (3, 3, 16, 32), (800, 128), (128, task.classes)]
    rng = np.random.default_rng(0)
    made = []
    for shape in shapes:
        kernel = rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(np.prod(shape[:-1])))
        made.append((kernel, np.zeros(shape[-1], np.float32)))
    return made


def loss(weights: Any, x: Any, y: Any) -> Any:
    """Mean cross entropy of the network."""
    for kernel, bias in weights[:-1]:
        if kernel.ndim == 4:
            x = jax.lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            x = jax.lax.reduce_window(jax.nn.relu(x + bias), -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        else:
            x = jax.nn.relu(x.reshape(len(x), -1) @ kernel + bias)
    kernel, bias = weights[-1]
    chances = jax.nn.log_softmax(x @ kernel + bias)
    return -jnp.take_along_axis(chances, y[:, None], 1).mean()


def step_of(value_and_grad: Callable[..., Any]) -> Step:
    """A step of SGD with momentum; the state is (weights, momentum)."""

    def step(state: Any, x: Any, y: Any) -> tuple[Any, Any]:
        weights, momentum = state
        value, gradients = value_and_grad(weights, x, y)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradients)
        return (jax.tree.map(lambda w, m: w - 0.01 * m, weights, momentum), momentum), value

    return step


def by_hand(mesh: Mesh) -> Callable[..., Any]:
    """Gradients of each rank's share of the batch, and their mean by a collective."""

    def mean(weights: Any, x: Any, y: Any) -> Any:
        # Each rank differentiates a copy of its own: else JAX itself would add up the gradients, in the backward pass.
        mine = jax.lax.pcast(weights, "ranks", to="varying")
        return jax.lax.pmean(jax.value_and_grad(loss)(mine, x, y), "ranks")

    return jax.shard_map(mean, mesh=mesh, in_specs=(P(), P("ranks"), P("ranks")), out_specs=(P(), P()))


def alone(task: Task, rank: int, value_and_grad: Callable[..., Any]) -> Peer:
    """On this rank's device: a copy of its own, or ours."""
    x, y = (jnp.asarray(each) for each in task.data(rank))
    weights = jax.tree.map(jnp.asarray, first_weights(task))
    return looping(jax.jit(step_of(value_and_grad), donate_argnums=0), weights, x, y)


def together(task: Task, rank: int, mesh: Mesh, value_and_grad: Callable[..., Any]) -> Peer:
    """On the devices of all ranks: weights on each of them, the batch divided among them."""
    everywhere, divided = NamedSharding(mesh, P()), NamedSharding(mesh, P("ranks"))
    x, y = (jax.make_array_from_process_local_data(divided, each) for each in task.data(rank))
    weights = jax.tree.map(lambda each: jax.make_array_from_process_local_data(everywhere, each), first_weights(task))
    step = jax.jit(step_of(value_and_grad), donate_argnums=0, out_shardings=everywhere)
    return looping(step, weights, x, y)


def looping(step: Step, weights: Any, x: Any, y: Any) -> Peer:
    """Steps one after the other; the last one's loss is waited for."""
    state = [(weights, jax.tree.map(jnp.zeros_like, weights))]

    def steps(count: int) -> None:
        for _ in range(count):
            state[0], value = step(state[0], x, y)
        jax.block_until_ready((state[0], value))

    return Peer(steps, lambda: [np.asarray(each.addressable_data(0)) for each in jax.tree.leaves(state[0][0])])


if __name__ == "__main__":
    main()
