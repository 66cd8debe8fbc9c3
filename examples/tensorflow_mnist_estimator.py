"""TensorFlow 1's Estimator: graphs, sessions and hooks, as in the scripts of that time.

Estimators left TensorFlow with 2.16; `make legacy-test` makes an environment with 2.15. Start it there::

    .venv-legacy/bin/workbench run --as-horovod -np 2 .venv-legacy/bin/python examples/tensorflow_mnist_estimator.py
    ... examples/tensorflow_mnist_estimator.py --data fashion-mnist --limit 6000

It is written for Horovod, and `--as-horovod` lets the import find the workbench. Only rank 0 writes checkpoints;
started again, all ranks go on from its last one.
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

from workbench import data

v1 = tf.compat.v1


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", choices=["digits", "fashion-mnist"], default="digits", help="real images, no network")
    parser.add_argument("--limit", type=int, metavar="N", help="at most N images for training, and N for testing")
    parser.add_argument("--batch-size", type=int, default=32, help="per rank")
    parser.add_argument("--steps", type=int, default=200, help="of all ranks together")
    parser.add_argument("--lr", type=float, default=0.05, help="for one rank")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--model-dir", default="runs/estimator", help="rank 0 saves here, and goes on from here")
    return parser.parse_args()


def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> tf.estimator.EstimatorSpec:
    """A convolution and two dense layers; how they are trained and judged."""
    hidden = v1.layers.conv2d(features, 16, 3, padding="same", activation=tf.nn.relu)
    hidden = v1.layers.flatten(v1.layers.max_pooling2d(hidden, 2, 2))
    hidden = v1.layers.dense(hidden, 64, activation=tf.nn.relu)
    logits = v1.layers.dense(hidden, params["classes"])
    loss = v1.losses.sparse_softmax_cross_entropy(labels, logits)
    if mode == tf.estimator.ModeKeys.EVAL:
        accuracy = v1.metrics.accuracy(labels, tf.argmax(logits, axis=1))
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops={"accuracy": accuracy})
    # Horovod: a learning rate for the global batch, and an optimizer that averages the gradients.
    opt = v1.train.AdagradOptimizer(params["lr"] * hvd.size())
    opt = hvd.DistributedOptimizer(opt)
    train_op = opt.minimize(loss, global_step=v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def batches(x: Any, y: Any, batch_size: int, seed: int | None = None) -> tf.data.Dataset:
    """Images (n, height, width, channels) and labels; with a seed shuffled and for ever."""
    found = tf.data.Dataset.from_tensor_slices((x.transpose(0, 2, 3, 1), y))
    if seed is not None:
        found = found.shuffle(len(x), seed).repeat()
    return found.batch(batch_size)


def main() -> None:
    """Train on all ranks, evaluate on rank 0."""
    args = options()
    v1.logging.set_verbosity(v1.logging.ERROR)
    warnings.filterwarnings("ignore", "`tf.layers", UserWarning)  # old layers in an old script
    hvd.init()
    images = data.digits() if args.data == "digits" else data.fashion_mnist()  # if it must be loaded, one rank does it
    if args.limit:
        images = images.limit(min(args.limit, len(images.train_x)), min(args.limit, len(images.test_x)))
    mine = images.shard(hvd.rank(), hvd.size(), shuffle=True, seed=args.seed)

    # Horovod: checkpoints by rank 0 only; several writers would spoil them.
    model_dir = args.model_dir if hvd.rank() == 0 else None
    config = tf.estimator.RunConfig(model_dir, tf_random_seed=args.seed + hvd.rank())
    params = {"lr": args.lr, "classes": len(images.classes)}
    estimator = tf.estimator.Estimator(model_fn, config=config, params=params)

    # Horovod: the other ranks cannot see what rank 0 has done before.
    done = int(estimator.get_variable_value("global_step")) if estimator.latest_checkpoint() else 0
    done = hvd.broadcast_object(done, root_rank=0)
    # Horovod: all start with rank 0's variables, new ones or those of its checkpoint.
    hooks = [hvd.BroadcastGlobalVariablesHook(0)]
    last = done + args.steps // hvd.size()
    estimator.train(
        lambda: batches(mine.train_x, mine.train_y, args.batch_size, args.seed + done), hooks=hooks, max_steps=last
    )
    if hvd.rank() == 0:
        result = estimator.evaluate(lambda: batches(images.test_x, images.test_y, 1000))
        step, loss, accuracy = (result[name] for name in ("global_step", "loss", "accuracy"))
        print(f"Step: {done} to {step}  Loss: {loss:.6f}  Accuracy: {accuracy:.4f}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
