"""TensorFlow's own way, in a process of its own beside each rank, for ``tensorflow_training.py``.

``MultiWorkerMirroredStrategy`` changes the process that it lives in: copies of the network that train there too take
twice as long where gradients are large. So each rank has a second process, tied to its core, which sleeps until it is
its turn: a line with a number of steps in, a line out when they are done; ``weights`` in, the name of a file out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from frameworks import TASKS, Peer, addresses
from mpi4py import MPI
from tensorflow_training import looping, loss_of, network


class Process:
    """The second process of a rank.

    Args:
        comm: of all ranks.
        model: which network.
    """

    def __init__(self, comm: MPI.Intracomm, model: str) -> None:
        config = {"cluster": {"worker": addresses(comm)}, "task": {"type": "worker", "index": comm.rank}}
        # It is no rank: MPI would take it for one.
        mine = {"TF_CONFIG": json.dumps(config), "MPI4PY_RC_INITIALIZE": "0"}
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), model, str(comm.rank)],
            env={**os.environ, **mine},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def peer(self) -> Peer:
        """As the others are called."""
        return Peer(lambda count: self._ask(str(count)) and None, self._weights)

    def close(self) -> None:
        """Let it end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)

    def _ask(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().strip()
        if not answer:
            raise RuntimeError("The process of MultiWorkerMirroredStrategy has ended; what it said stands above.")
        return answer

    def _weights(self) -> Sequence[np.ndarray[Any, Any]]:
        path = Path(self._ask("weights"))
        with np.load(path) as found:
            return [found[name] for name in found.files]


def strategy_peer(model: str, rank: int) -> Peer:
    """As TensorFlow's guide to training on several workers has its custom loop."""
    import keras
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    task = TASKS[model]
    with strategy.scope():
        network_, sgd = network(task), keras.optimizers.SGD(0.01, momentum=0.9)
    x, y = (tf.constant(each) for each in task.data(rank))

    @tf.function  # type: ignore[untyped-decorator]
    def step(x: Any, y: Any) -> Any:
        def on_replica(x: Any, y: Any) -> Any:
            with tf.GradientTape() as recorded:
                loss = loss_of(network_, x, y)
                share = loss / strategy.num_replicas_in_sync
            gradients = recorded.gradient(share, network_.trainable_variables)
            sgd.apply_gradients(zip(gradients, network_.trainable_variables, strict=True))
            return loss

        return strategy.run(on_replica, (x, y))

    return looping(network_, lambda: step(x, y))


def main() -> None:
    """Serve until there are no more lines."""
    os.environ["KERAS_BACKEND"] = "tensorflow"
    peer = strategy_peer(sys.argv[1], int(sys.argv[2]))
    with tempfile.TemporaryDirectory() as folder:
        for line in sys.stdin:
            if line.strip() == "weights":
                path = Path(folder, "weights.npz")
                np.savez(path, *peer.weights())
                print(path, flush=True)
            else:
                peer.steps(int(line))
                print("done", flush=True)
    os._exit(0)  # the strategy's server would wait for the other workers


if __name__ == "__main__":
    main()
