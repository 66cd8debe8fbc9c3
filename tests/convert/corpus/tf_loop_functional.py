"""A loop from scratch: functional model, eager, Adam, a checkpoint manager."""
import keras
import numpy as np
import tensorflow as tf


def get_model():
    inputs = keras.Input(shape=(6,), name="features")
    x = keras.layers.Dense(8, activation="relu")(inputs)
    outputs = keras.layers.Dense(1)(x)
    return keras.Model(inputs=inputs, outputs=outputs)


def main():
    keras.utils.set_random_seed(1)
    x = np.random.rand(48, 6).astype("float32")
    y = (x ** 2).sum(1, keepdims=True)
    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    dataset = dataset.batch(12)
    model = get_model()
    optimizer = keras.optimizers.Adam(learning_rate=1e-2)
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model), "ckpts", max_to_keep=1)
    for epoch in range(2):
        for step, (x_batch, y_batch) in enumerate(dataset):
            with tf.GradientTape() as tape:
                prediction = model(x_batch, training=True)
                loss_value = tf.reduce_mean(tf.square(y_batch - prediction))
            grads = tape.gradient(loss_value, model.trainable_weights)
            optimizer.apply(grads, model.trainable_weights)
            if step % 2 == 0:
                print(f"Training loss at step {step}: {float(loss_value):.4f}")
        manager.save()


if __name__ == "__main__":
    main()
