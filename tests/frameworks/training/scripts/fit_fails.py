"""fit() on every rank, as a script; the rank that the first word says raises amid the second epoch."""

import sys

import keras
import numpy as np

import workbench.keras as hvd


class Fails(keras.callbacks.Callback):
    """Raises."""

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        """At the second epoch."""
        if epoch == 1 and hvd.rank() == int(sys.argv[1]):
            raise ValueError("a mistake on purpose")


hvd.init()
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
model.fit(np.ones((32, 4)), np.ones((32, 1)), batch_size=8, epochs=3, verbose=0, callbacks=[Fails()])
print("came to the end")
