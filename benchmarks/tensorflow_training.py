"""Images per second in TensorFlow: ``mpiexec -n 2 python benchmarks/tensorflow_training.py --models cnn mlp``.

A custom loop, a ``tf.function`` of forward, backward and step (SGD, momentum 0.9): ours by the tape and by the
optimizer, beside ``tf.distribute.MultiWorkerMirroredStrategy``, whose collectives go by gRPC (``mirrored.py``).
"""

from __future__ import annotations

import os
from typing import Any

import frameworks
import peers
from frameworks import LIMIT, TASKS, Peer, Task

STRATEGY = "MultiWorkerMirroredStrategy"


def main() -> None:
    """Measure on all ranks; rank 0 prints one JSON line."""
    args = frameworks.options(__doc__ or "").parse_args()
    comm = frameworks.start()
    os.environ["KERAS_BACKEND"] = "tensorflow"
    import mirrored
    import tensorflow as tf

    import workbench.tensorflow as hvd

    tf.config.threading.set_intra_op_parallelism_threads(1)
    hvd.init()
    cases = []
    for name in args.models:
        task, own = TASKS[name], mirrored.Process(comm, name)
        ways = {
            LIMIT: peer(task, comm.rank),
            "workbench": peer(task, comm.rank, tape=True),
            "workbench DistributedOptimizer": peer(task, comm.rank, optimizer=True),
            STRATEGY: own.peer(),
        }
        cases.append(frameworks.measure(comm, task, ways, args.rounds, args.seconds))
        own.close()
    ours = [name for name in ways if name.startswith("workbench")]
    peers.finish(comm, {"section": "tensorflow_training", "ours": ours, "limit": LIMIT, "cases": cases, "absent": {}})


def network(task: Task) -> Any:
    """The same network as in ``models.py``, with the channels last; the same weights on every rank."""
    import keras

    layers = keras.layers
    keras.utils.set_random_seed(0)
    if len(task.shape) == 1:
        hidden: list[Any] = [layers.Dense(3072, activation="relu") for _ in range(3)]
    else:
        hidden = [
            *[layers.Conv2D(16, 3, activation="relu"), layers.MaxPooling2D()],
            *[layers.Conv2D(32, 3, activation="relu"), layers.MaxPooling2D()],
            *[layers.Flatten(), layers.Dense(128, activation="relu")],
        ]
    return keras.Sequential([layers.Input(task.shape), *hidden, layers.Dense(task.classes)])


def loss_of(model: Any, x: Any, y: Any) -> Any:
    """Mean cross entropy."""
    import tensorflow as tf

    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x, training=True)))


def peer(task: Task, rank: int, tape: bool = False, optimizer: bool = False) -> Peer:
    """A copy of its own, or ours."""
    import keras
    import tensorflow as tf

    import workbench.tensorflow as hvd

    model, sgd = network(task), keras.optimizers.SGD(0.01, momentum=0.9)
    if optimizer:
        sgd = hvd.DistributedOptimizer(sgd)
    x, y = (tf.constant(each) for each in task.data(rank))

    @tf.function  # type: ignore[untyped-decorator]
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as recorded:
            loss = loss_of(model, x, y)
        if tape:
            recorded = hvd.DistributedGradientTape(recorded)
        sgd.apply_gradients(
            zip(recorded.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
        )
        return loss

    return looping(model, lambda: step(x, y))


def looping(model: Any, step: Any) -> Peer:
    """Steps one after the other; the last one's loss is waited for."""

    def steps(count: int) -> None:
        for _ in range(count):
            loss = step()
        loss.numpy()

    return Peer(steps, lambda: [each.numpy() for each in model.trainable_variables])


if __name__ == "__main__":
    main()
