# fit() with tf.data pipelines.
import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers

AUTOTUNE = tf.data.AUTOTUNE
rng = np.random.default_rng(3)
features, labels = rng.normal(size=(96, 7)).astype("float32"), rng.integers(0, 2, size=(96, 1))


def make(x, y, training, batch_size=16):
    ds = tf.data.Dataset.from_tensor_slices((x, y))
    if training:
        ds = ds.shuffle(96)
    ds = ds.map(lambda a, b: (a * 2.0, b), num_parallel_calls=AUTOTUNE)
    return ds.batch(batch_size).prefetch(AUTOTUNE)


train_ds = tf.data.Dataset.from_tensor_slices((features[:64], labels[:64]))
train_ds = train_ds.shuffle(64).batch(16)
train_ds = train_ds.prefetch(AUTOTUNE)
val_ds = make(features[64:], labels[64:], False)

model = keras.Sequential([layers.Input((7,)), layers.Dense(8, activation="tanh"), layers.Dense(1, activation="sigmoid")])
optimizer = keras.optimizers.RMSprop(keras.optimizers.schedules.ExponentialDecay(0.01, 10, 0.9))
model.compile(optimizer, "binary_crossentropy", metrics=["accuracy"])
model.fit(train_ds, epochs=2, validation_data=val_ds, callbacks=[keras.callbacks.TerminateOnNaN()])
model.save_weights("pipeline.weights.h5")
