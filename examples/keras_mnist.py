"""Keras 3 on TensorFlow, torch or JAX: the same script, with a learning rate that warms up and metrics of all ranks.

Start it::

    KERAS_BACKEND=torch workbench run -np 2 python examples/keras_mnist.py
    KERAS_BACKEND=jax workbench run -np 2 python examples/keras_mnist.py --data fashion-mnist --limit 6000
    KERAS_BACKEND=tensorflow workbench run -np 2 python examples/keras_mnist.py --checkpoint-dir runs/keras

Every rank keeps its batch size, so the global batch grows with the ranks (weak scaling), and the learning rate with it.
That rate would be too large for the first steps, so it starts with one rank's and grows over ``--warmup-epochs``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import keras

import workbench.keras as hvd
from workbench import data


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", choices=["digits", "fashion-mnist"], default="digits", help="real images, no network")
    parser.add_argument("--limit", type=int, metavar="N", help="at most N images for training, and N for testing")
    parser.add_argument("--batch-size", type=int, default=32, help="per rank")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--warmup-epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.05, help="for one rank")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--checkpoint-dir", type=Path, help="keep the best model here")
    return parser.parse_args()


def pin_device() -> None:
    """This rank's GPU, and no more of its memory than is needed; without GPUs one thread."""
    if keras.backend.backend() == "torch":
        import torch

        torch.set_num_threads(1)
        if torch.cuda.is_available():
            torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())
    elif keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        gpus = tf.config.list_physical_devices("GPU")
        for gpu in gpus:
            tf.config.experimental.set_memory_growth(gpu, True)
        if gpus:
            tf.config.set_visible_devices(gpus[hvd.local_rank() % len(gpus)], "GPU")
        tf.config.threading.set_intra_op_parallelism_threads(1)
    else:
        import jax

        gpus = [device for device in jax.local_devices() if device.platform == "gpu"]
        if gpus:
            jax.config.update("jax_default_device", gpus[hvd.local_rank() % len(gpus)])


def make_model(shape: tuple[int, ...], classes: int) -> keras.Model:
    """Two convolutions, two dense layers; images as (height, width, channels)."""
    return keras.Sequential(
        [
            keras.Input(shape),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(classes, activation="softmax"),
        ]
    )


def main() -> None:
    """Train with fit(), and test."""
    args = options()
    hvd.init()
    pin_device()
    keras.utils.set_random_seed(args.seed + hvd.rank())
    images = data.digits() if args.data == "digits" else data.fashion_mnist()  # if it must be loaded, one rank does it
    if args.limit:
        images = images.limit(min(args.limit, len(images.train_x)), min(args.limit, len(images.test_x)))
    # A part of the training images, as many on each rank; and every size-th image for testing, each once.
    images = images.shard(hvd.rank(), hvd.size(), shuffle=True, seed=args.seed)
    train_x, test_x = images.train_x.transpose(0, 2, 3, 1), images.test_x.transpose(0, 2, 3, 1)

    model = make_model(train_x.shape[1:], len(images.classes))
    rate = args.lr * hvd.size()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(rate, momentum=0.9))
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])

    callbacks = [
        # All start with rank 0's weights.
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        # The metrics of an epoch are everybody's. Before all that reads them.
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(rate, warmup_epochs=args.warmup_epochs, verbose=1),
    ]
    if args.checkpoint_dir:  # by rank 0 only
        best = str(args.checkpoint_dir / "best.keras")
        callbacks.append(hvd.callbacks.BestModelCheckpoint(monitor="loss", filepath=best))
    verbose = 2 if hvd.rank() == 0 else 0
    model.fit(train_x, images.train_y, args.batch_size, args.epochs, callbacks=callbacks, verbose=verbose)

    # Sums and counts travel, so that each test image counts once.
    loss, accuracy = model.evaluate(test_x, images.test_y, batch_size=256, verbose=0)
    count = len(test_x)
    totals = hvd.allreduce([loss * count, accuracy * count, count], name="test", op=hvd.Sum)
    if hvd.rank() == 0:
        right, count = round(float(totals[1])), round(float(totals[2]))
        print(f"Loss: {totals[0] / count:.6f} Accuracy: {right}/{count} = {right / count:.4f}", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
