"""fit() on every rank, as a script; EarlyStopping, by a metric that is not averaged, ends it on rank 1 alone."""

import keras
import numpy as np

import workbench.keras as hvd

hvd.init()
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
stops = keras.callbacks.EarlyStopping(monitor="loss", min_delta=1e9, patience=1 if hvd.rank() == 1 else 10)
model.fit(np.ones((32, 4)), np.ones((32, 1)), batch_size=8, epochs=6, verbose=0, callbacks=[stops])
print("came to the end")
