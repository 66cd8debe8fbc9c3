"""A convolutional network in Keras, with a part of the data for validation."""

import keras
import numpy as np
from keras import layers

# Model / data parameters
num_classes = 10
input_shape = (8, 8, 1)

rng = np.random.default_rng(1)
x_train = rng.random((80, 8, 8)).astype("float32")
y_train = rng.integers(0, num_classes, 80)
x_test = rng.random((16, 8, 8)).astype("float32")
y_test = rng.integers(0, num_classes, 16)
# Make sure images have shape (8, 8, 1)
x_train = np.expand_dims(x_train, -1)
x_test = np.expand_dims(x_test, -1)
print("x_train shape:", x_train.shape)
print(x_train.shape[0], "train samples")

# convert class vectors to binary class matrices
y_train = keras.utils.to_categorical(y_train, num_classes)
y_test = keras.utils.to_categorical(y_test, num_classes)

model = keras.Sequential(
    [
        keras.Input(shape=input_shape),
        layers.Conv2D(4, kernel_size=(3, 3), activation="relu"),
        layers.MaxPooling2D(pool_size=(2, 2)),
        layers.Flatten(),
        layers.Dropout(0.5),
        layers.Dense(num_classes, activation="softmax"),
    ]
)

model.summary()

batch_size = 16
epochs = 2

model.compile(loss="categorical_crossentropy", optimizer="adam", metrics=["accuracy"])

model.fit(x_train, y_train, batch_size=batch_size, epochs=epochs, validation_split=0.2)

score = model.evaluate(x_test, y_test, verbose=0)
print("Test loss:", score[0])
print("Test accuracy:", score[1])
