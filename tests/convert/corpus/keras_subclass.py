"""A subclassed model with compile and fit."""
import keras
import numpy as np
from keras import layers


class MLP(keras.Model):
    def __init__(self, units):
        super().__init__()
        self.hidden = layers.Dense(units, activation="relu")
        self.out = layers.Dense(4)

    def call(self, inputs):
        return self.out(self.hidden(inputs))


def main():
    keras.utils.set_random_seed(3)
    x = np.random.normal(size=(64, 5)).astype("float32")
    y = np.random.randint(0, 4, size=(64,))
    model = MLP(10)
    model.compile(
        optimizer=keras.optimizers.SGD(learning_rate=0.1, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    model.fit(x=x, y=y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    model.save_weights("mlp.weights.h5")


if __name__ == "__main__":
    main()
