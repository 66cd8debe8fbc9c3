"""Images per second in Keras 3: ``mpiexec -n 2 python benchmarks/keras_training.py --backend jax``.

Keras' ``fit`` (SGD, momentum 0.9), ours by its optimizer, on each backend. Keras' own ``DataParallel`` spans processes
on JAX alone. On torch ``--loop`` is a loop as Keras' guide has it, beside the same model in torch's DDP.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import frameworks
import numpy as np
import peers
from frameworks import LIMIT, TASKS, Peer, Task
from mpi4py import MPI
from tensorflow_training import network

BATCHES = {"cnn": 80, "mlp": 10}  # of an epoch
NO_DATA_PARALLEL = {
    "tensorflow": "Keras' `distribution` is a prototype on TensorFlow: it places no values, and knows no processes",
    "torch": "Keras has no `distribution` on torch; DDP stands beside ours in the custom loop",
}


def main() -> None:
    """Measure on all ranks; rank 0 prints one JSON line."""
    parser = frameworks.options(__doc__ or "")
    parser.add_argument("--backend", choices=["tensorflow", "torch", "jax"], default="tensorflow")
    parser.add_argument("--loop", action="store_true", help="on torch: a custom loop, beside DDP")
    args = parser.parse_args()
    if args.loop and args.backend != "torch":
        parser.error("--loop needs --backend torch.")
    comm = frameworks.start()
    os.environ["KERAS_BACKEND"] = args.backend
    distribution = prepare(comm, args)
    import workbench.keras as hvd

    hvd.init()
    cases = []
    for name in args.models:
        task, batches = TASKS[name], 1 if args.loop else BATCHES[name]
        ways = loops(task, comm.rank) if args.loop else fits(task, comm.rank, batches, distribution)
        cases.append(frameworks.measure(comm, task, ways, args.rounds, args.seconds, batches))
    absent = {} if args.loop or args.backend == "jax" else {"DataParallel": NO_DATA_PARALLEL[args.backend]}
    section = f"keras_{args.backend}{'_loop' if args.loop else ''}"
    peers.finish(comm, {"section": section, "ours": ["workbench"], "limit": LIMIT, "cases": cases, "absent": absent})
    if args.backend == "jax":
        import jax

        jax.distributed.shutdown()


def prepare(comm: MPI.Intracomm, args: argparse.Namespace) -> Any:
    """One thread for each rank, and what the peers need; Keras' ``DataParallel``, or None."""
    if args.backend == "tensorflow":
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
    if args.backend == "torch":
        import torch

        torch.set_num_threads(1)
        if args.loop:
            peers.gloo(comm)
    if args.backend != "jax":
        return None
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_platforms", "cpu")
    where = frameworks.addresses(comm)[0]
    import keras

    keras.distribution.initialize(comm.bcast(where), comm.size, comm.rank)
    return keras.distribution.DataParallel(devices=keras.distribution.list_devices(), auto_shard_dataset=False)


def built(task: Task, distributed: bool) -> tuple[Any, Any]:
    """Model and optimizer."""
    import keras

    import workbench.keras as hvd

    model, optimizer = network(task), keras.optimizers.SGD(0.01, momentum=0.9)
    return model, hvd.DistributedOptimizer(optimizer) if distributed else optimizer


def fits(task: Task, rank: int, batches: int, distribution: Any) -> dict[str, Peer]:
    """Each way as a function that trains for some epochs; one epoch is a step."""
    import keras

    given = batched(*task.data(rank, batches), task.batch)

    def way(distributed: bool, scope: Callable[[], AbstractContextManager[Any]] = nullcontext) -> Peer:
        with scope():
            model, optimizer = built(task, distributed)
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            # XLA makes TensorFlow slower on a CPU, and ours has no XLA there.
            model.compile(optimizer, loss, jit_compile=keras.backend.backend() == "jax")

        def steps(count: int) -> None:
            with scope():
                model.fit(**given, epochs=count, shuffle=False, verbose=0)

        return Peer(steps, lambda: weights(model))

    found = {LIMIT: way(False), "workbench": way(True)}
    return found | ({"DataParallel": way(False, distribution.scope)} if distribution else {})


def batched(images: Any, labels: Any, batch: int) -> dict[str, Any]:
    """What ``fit`` takes.

    At an epoch's end TensorFlow may wait for the thread that tunes its input, for as long as the epoch has taken, and
    then all ranks wait. It is TensorFlow's own, on copies as well, and by chance: so there the tuning is switched off.
    """
    import keras

    if keras.backend.backend() != "tensorflow":
        return {"x": images, "y": labels, "batch_size": batch}
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False
    return {"x": tf.data.Dataset.from_tensor_slices((images, labels)).batch(batch).with_options(options)}


def loops(task: Task, rank: int) -> dict[str, Peer]:
    """As Keras' guide to torch has it; what is wrapped in DDP is Keras' model."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    images, labels = (torch.from_numpy(each) for each in task.data(rank))

    def way(distributed: bool, wrap: Callable[[Any], Any] = lambda model: model) -> Peer:
        model, optimizer = built(task, distributed)
        variables = model.trainable_weights
        optimizer.build(variables)
        called = wrap(model)

        def steps(count: int) -> None:
            for _ in range(count):
                model.zero_grad()
                torch.nn.functional.cross_entropy(called(images), labels).backward()
                with torch.no_grad():
                    optimizer.apply([each.value.grad for each in variables], variables)

        return Peer(steps, lambda: weights(model))

    return {
        LIMIT: way(False),
        "workbench": way(True),
        "DDP": way(False, DistributedDataParallel),
        "DDP tuned": way(
            False, lambda model: DistributedDataParallel(model, gradient_as_bucket_view=True, static_graph=True)
        ),
    }


def weights(model: Any) -> list[Any]:
    """What was learned, as this rank has it."""
    values = [each.value for each in model.trainable_weights]
    return [np.array(getattr(each, "addressable_data", lambda _, each=each: host(each))(0)) for each in values]


def host(value: Any) -> Any:
    """Of torch or TensorFlow."""
    return value.detach().numpy() if hasattr(value, "detach") else value.numpy()


if __name__ == "__main__":
    main()
