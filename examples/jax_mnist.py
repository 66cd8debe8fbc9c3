"""JAX and optax: one process per rank, and the step of the training is compiled with its allreduce in it.

Start it::

    workbench run -np 2 python examples/jax_mnist.py
    mpiexec -n 2 python examples/jax_mnist.py --data fashion-mnist --limit 6000

Every rank keeps its batch size, so the global batch grows with the ranks (weak scaling), and the learning rate with it.
"""

from __future__ import annotations

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import optax

import workbench.jax as hvd
from workbench import data
from workbench.data.sampler import ShardedSampler


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", choices=["digits", "fashion-mnist"], default="digits", help="real images, no network")
    parser.add_argument("--limit", type=int, metavar="N", help="at most N images for training, and N for testing")
    parser.add_argument("--batch-size", type=int, default=32, help="per rank")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=0.05, help="for one rank")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=42)
    return parser.parse_args()


def pin_device() -> None:
    """This rank's GPU; without GPUs there is nothing to choose."""
    gpus = [device for device in jax.local_devices() if device.platform == "gpu"]
    if gpus:
        jax.config.update("jax_default_device", gpus[hvd.local_rank() % len(gpus)])


def make_params(key: jax.Array, channels: int, pixels: int, classes: int) -> dict[str, jax.Array]:
    """Two convolutions and a dense layer; a pytree."""
    normal, keys = jax.nn.initializers.he_normal(), jax.random.split(key, 3)
    return {
        "conv1": normal(keys[0], (3, 3, channels, 16)),
        "conv2": normal(keys[1], (3, 3, 16, 32)),
        "dense": normal(keys[2], (32 * (pixels // 4) ** 2, classes)),
        "bias": jnp.zeros(classes),
    }


def logits(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """(n, channels, height, width) to (n, classes)."""
    for name in ("conv1", "conv2"):
        x = jax.lax.conv_general_dilated(x, params[name], (1, 1), "SAME", dimension_numbers=("NCHW", "HWIO", "NCHW"))
        x = jax.lax.reduce_window(jax.nn.relu(x), -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    return x.reshape(len(x), -1) @ params["dense"] + params["bias"]


def loss_fn(params: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
    """Mean over the images."""
    return optax.softmax_cross_entropy_with_integer_labels(logits(params, x), y).mean()


def test(params: dict[str, jax.Array], images: data.Data) -> tuple[int, int]:
    """How many of all test images are right, and how many there are: each rank looks at every size-th."""
    x, y = images.test_x[hvd.rank() :: hvd.size()], images.test_y[hvd.rank() :: hvd.size()]
    guess = jax.jit(logits)(params, x).argmax(axis=1)
    right, count = hvd.allreduce(jnp.array([(guess == y).sum(), len(y)]), name="test", op=hvd.Sum).tolist()
    return right, count


def main() -> None:
    """Train, and test after each epoch."""
    args = options()
    hvd.init()
    pin_device()
    images = data.digits() if args.data == "digits" else data.fashion_mnist()  # if it must be loaded, one rank does it
    if args.limit:
        images = images.limit(min(args.limit, len(images.train_x)), min(args.limit, len(images.test_x)))
    sampler = ShardedSampler(len(images.train_x), hvd.rank(), hvd.size(), seed=args.seed, shuffle=True)

    _, channels, pixels, _ = images.train_x.shape
    params = make_params(jax.random.key(args.seed + hvd.rank()), channels, pixels, len(images.classes))
    # A learning rate for the global batch, and an optimizer that averages the gradients, in the compiled step, too.
    optimizer = hvd.DistributedOptimizer(optax.sgd(args.lr * hvd.size(), args.momentum))
    # All start with rank 0's parameters. Arrays of JAX do not change, so new ones are returned.
    params = hvd.broadcast_parameters(params, root_rank=0)
    state = optimizer.init(params)

    @jax.jit
    def step(params, state, x, y):
        loss, gradients = jax.value_and_grad(loss_fn)(params, x, y)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    for epoch in range(1, args.epochs + 1):
        sampler.set_epoch(epoch)  # without this every epoch has the same order
        mine = np.array(list(sampler))
        # The last batch is left out if it is smaller: JAX would compile the step for its shape, too.
        for start in range(0, len(mine) - args.batch_size + 1, args.batch_size):
            batch = mine[start : start + args.batch_size]
            params, state, loss = step(params, state, images.train_x[batch], images.train_y[batch])
        right, count = test(params, images)
        if hvd.rank() == 0:
            print(f"Epoch: {epoch}  Loss: {loss:.6f}  Accuracy: {right}/{count} = {right / count:.4f}", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
