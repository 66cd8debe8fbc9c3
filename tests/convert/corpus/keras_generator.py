# Batches from an object of the user's own.
import keras
import numpy as np


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        x = rng.normal(size=(8, 3))
        return x, x.sum(1)


model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile(optimizer="sgd", loss="mse")
model.fit(Batches(), epochs=2)
# decide 18: fit() has neither arrays x and y nor a data set of tf.data
