"""fit() with a backup in the folder that the first word says; if there is a second, rank 1 is killed in epoch 3."""

import os
import signal
import sys

import keras
import numpy as np

import workbench.keras as hvd

FOLDER, *KILLED = sys.argv[1:]
hvd.init()
x = np.random.default_rng(hvd.rank()).normal(size=(32, 4))


class Killed(keras.callbacks.Callback):
    """Amid an epoch."""

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        """In the second step of the third epoch."""
        if KILLED and hvd.rank() == 1 and self.model.optimizer.iterations == 2 * 4 + 1:
            os.kill(os.getpid(), signal.SIGKILL)


keras.utils.set_random_seed(hvd.rank())
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.BackupAndRestore(FOLDER),
    Killed(),
]
history = model.fit(x, x.sum(1), 8, epochs=5, verbose=0, shuffle=False, callbacks=callbacks)
print(f"epochs {history.epoch}", *model.get_weights()[0].ravel().tolist())
