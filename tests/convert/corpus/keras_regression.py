# Regression with a normalization layer that is adapted to the data.
import keras
import numpy as np

rng = np.random.default_rng(5)
train_features = rng.uniform(10, 50, size=(90, 3)).astype("float32")
train_labels = train_features @ np.array([0.5, -0.2, 1.0], "float32") + 3

normalizer = keras.layers.Normalization(axis=-1)
normalizer.adapt(train_features)


def build_and_compile_model(norm):
    model = keras.Sequential([
        keras.Input((3,)),
        norm,
        keras.layers.Dense(16, activation='relu'),
        keras.layers.Dense(1)
    ])
    model.compile(loss='mean_absolute_error', optimizer=keras.optimizers.Adam(0.001))
    return model


dnn_model = build_and_compile_model(normalizer)
dnn_model.summary()
history = dnn_model.fit(train_features, train_labels, 30, verbose=0, epochs=2, shuffle=False)
dnn_model.save('dnn_model.keras')
