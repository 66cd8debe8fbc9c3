# Text in Keras: an embedding, a recurrent layer, weights for classes, a checkpoint within the call.
import numpy as np
from tensorflow import keras
from tensorflow.keras import layers

max_features = 40
maxlen = 8

rng = np.random.RandomState(7)
x_train = rng.randint(0, max_features, size=(64, maxlen))
y_train = (x_train.sum(axis=1) > maxlen * max_features / 2).astype("float32")
x_val, y_val = x_train[:16], y_train[:16]

inputs = keras.Input(shape=(None,), dtype="int32")
x = layers.Embedding(max_features, 8)(inputs)
x = layers.LSTM(6)(x)
outputs = layers.Dense(1, activation="sigmoid")(x)
model = keras.Model(inputs, outputs)
model.summary()

model.compile(optimizer="adam", loss="binary_crossentropy", metrics=["accuracy"])
history = model.fit(
    x_train, y_train, batch_size=16, epochs=2, shuffle=False,
    class_weight={0: 1.0, 1: 2.0},
    validation_data=(x_val, y_val),
    callbacks=[keras.callbacks.ModelCheckpoint("lstm.keras", save_best_only=True), keras.callbacks.EarlyStopping(patience=3)],
)
print(sorted(history.history))
