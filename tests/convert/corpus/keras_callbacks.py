"""Functional API, callbacks that write files, a schedule of the rate, two inputs."""
import argparse

import keras
import numpy as np


def build():
    left = keras.Input((5,), name="left")
    right = keras.Input((3,), name="right")
    x = keras.layers.Concatenate()([keras.layers.Dense(8, activation="relu")(left), right])
    return keras.Model([left, right], keras.layers.Dense(1)(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=12)
    args = parser.parse_args()

    keras.utils.set_random_seed(812)
    left, right = np.random.rand(72, 5), np.random.rand(72, 3)
    target = left.sum(1) - right.sum(1)

    model = build()
    model.compile(optimizer=keras.optimizers.Adam(learning_rate=1e-2), loss="mse", metrics=["mae"])
    checkpoint = keras.callbacks.ModelCheckpoint("best.keras", monitor="val_loss", save_best_only=True)
    callbacks = [
        checkpoint,
        keras.callbacks.CSVLogger("log.csv"),
        keras.callbacks.EarlyStopping(monitor="val_loss", patience=5),
    ]
    callbacks.append(keras.callbacks.LearningRateScheduler(lambda epoch, lr: lr * 0.9))
    history = model.fit(
        [left[:60], right[:60]],
        target[:60],
        batch_size=args.batch_size,
        epochs=args.epochs,
        validation_data=([left[60:], right[60:]], target[60:]),
        callbacks=callbacks,
        verbose=2,
        shuffle=False,
    )
    print("best", min(history.history["val_loss"]))


if __name__ == "__main__":
    main()
