"""TensorFlow 1: a graph, a session that is watched over, and hooks, as in the first example of Horovod's README.

Start it::

    workbench run --as-horovod -np 2 python examples/tensorflow_mnist_v1.py
    ... examples/tensorflow_mnist_v1.py --data fashion-mnist --limit 6000
    ... examples/tensorflow_mnist_v1.py --checkpoint-dir runs/v1 --steps 400    # again, with more steps: it goes on

It is written for Horovod, and `--as-horovod` lets the import find the workbench. TensorFlow 2 still has all of this in
``tf.compat.v1``. Every rank keeps its batch size, so the global batch grows with the ranks (weak scaling); the learning
rate grows with it, and the number of steps shrinks.
"""

from __future__ import annotations

import argparse

import horovod.tensorflow as hvd
import tensorflow.compat.v1 as tf

from workbench import data


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", choices=["digits", "fashion-mnist"], default="digits", help="real images, no network")
    parser.add_argument("--limit", type=int, metavar="N", help="at most N images for training, and N for testing")
    parser.add_argument("--batch-size", type=int, default=32, help="per rank")
    parser.add_argument("--steps", type=int, default=400, help="of all ranks together, with those before a resume")
    parser.add_argument("--lr", type=float, default=0.05, help="for one rank")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--checkpoint-dir", help="rank 0 saves here, and goes on from here")
    return parser.parse_args()


def logits(images: tf.Tensor, classes: int, hidden: int = 64) -> tf.Tensor:
    """Two dense layers, the same ones whenever it is called: (n, channels, height, width) to (n, classes)."""
    pixels = int(images.shape[1] * images.shape[2] * images.shape[3])
    with tf.variable_scope("net", reuse=tf.AUTO_REUSE):
        w1, w2 = tf.get_variable("w1", [pixels, hidden]), tf.get_variable("w2", [hidden, classes])
        b1 = tf.get_variable("b1", [hidden], initializer=tf.zeros_initializer())
        b2 = tf.get_variable("b2", [classes], initializer=tf.zeros_initializer())
    return tf.nn.relu(tf.reshape(images, [-1, pixels]) @ w1 + b1) @ w2 + b2


def batches(x, y, batch_size: int, seed: int) -> tuple[tf.Tensor, tf.Tensor]:
    """The next batch of this rank's images, for ever, in a new order each time round."""
    found = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x), seed).repeat().batch(batch_size)
    return tf.data.make_one_shot_iterator(found).get_next()


def main() -> None:
    """Build the graph, train, and test."""
    args = options()
    tf.logging.set_verbosity(tf.logging.ERROR)
    tf.disable_eager_execution()
    # Horovod: initialize.
    hvd.init()
    tf.set_random_seed(args.seed + hvd.rank())
    images = data.digits() if args.data == "digits" else data.fashion_mnist()  # if it must be loaded, one rank does it
    if args.limit:
        images = images.limit(min(args.limit, len(images.train_x)), min(args.limit, len(images.test_x)))
    images = images.shard(hvd.rank(), hvd.size(), shuffle=True, seed=args.seed)  # each test image is there once

    # Horovod: pin the GPU of the local rank; without GPUs, one thread.
    config = tf.ConfigProto(intra_op_parallelism_threads=1)
    config.gpu_options.allow_growth = True
    config.gpu_options.visible_device_list = str(hvd.local_rank())

    # Build the model, for training and for testing.
    x, y = batches(images.train_x, images.train_y, args.batch_size, args.seed + hvd.rank())
    classes = len(images.classes)
    loss = tf.losses.sparse_softmax_cross_entropy(y, logits(x, classes))
    guess = tf.argmax(logits(tf.constant(images.test_x), classes), axis=1)
    right = tf.reduce_sum(tf.cast(tf.equal(guess, images.test_y), tf.int64))
    mine = tf.stack([right, tf.constant(len(images.test_y), tf.int64)])
    right_and_count = hvd.allreduce(mine, op=hvd.Sum, name="test")

    # Horovod: a learning rate for the global batch, and an optimizer that averages the gradients.
    opt = tf.train.AdagradOptimizer(args.lr * hvd.size())
    opt = hvd.DistributedOptimizer(opt)
    step = tf.train.get_or_create_global_step()
    train_op = opt.minimize(loss, global_step=step)

    # Horovod: all start with rank 0's variables, new ones or those of its checkpoint. The step's number is among them.
    hooks = [hvd.BroadcastGlobalVariablesHook(0)]
    hooks.append(tf.train.StopAtStepHook(last_step=args.steps // hvd.size()))
    # What is wanted at the end: an allreduce is among it, so on every rank.
    final = tf.train.FinalOpsHook([loss, right_and_count, step])
    hooks.append(final)

    # Horovod: checkpoints by rank 0 only; several writers would spoil them.
    checkpoint_dir = args.checkpoint_dir if hvd.rank() == 0 else None
    with tf.train.MonitoredTrainingSession(checkpoint_dir=checkpoint_dir, config=config, hooks=hooks) as mon_sess:
        first = mon_sess.run_step_fn(lambda step_context: step_context.session.run(step))  # no step of training
        while not mon_sess.should_stop():
            mon_sess.run(train_op)
    loss_now, (right, count), last = final.final_ops_values
    if hvd.rank() == 0:
        print(f"Step: {first} to {last}  Loss: {loss_now:.6f}  Accuracy: {right}/{count} = {right / count:.4f}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
