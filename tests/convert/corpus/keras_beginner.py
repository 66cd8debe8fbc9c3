# The shortest script: tf.keras, all defaults.
import numpy as np
import tensorflow as tf

rng = np.random.RandomState(0)
x_train, y_train = rng.rand(128, 4, 4), rng.randint(0, 3, 128)
x_test, y_test = rng.rand(32, 4, 4), rng.randint(0, 3, 32)

model = tf.keras.models.Sequential([
  tf.keras.layers.Flatten(input_shape=(4, 4)),
  tf.keras.layers.Dense(16, activation='relu'),
  tf.keras.layers.Dense(3)
])

loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

model.compile(optimizer='sgd',
              loss=loss_fn,
              metrics=['accuracy'])

model.fit(x_train, y_train, epochs=2, shuffle=False)

model.evaluate(x_test,  y_test, verbose=2)
model.save("beginner.keras")
