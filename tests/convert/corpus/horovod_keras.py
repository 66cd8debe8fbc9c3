# A script for Horovod on Keras.
import numpy as np
import tensorflow as tf
import horovod.tensorflow.keras as hvd

hvd.init()

gpus = tf.config.experimental.list_physical_devices('GPU')
if gpus:
    tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], 'GPU')

rng = np.random.default_rng(2)
x, y = rng.normal(size=(64, 6)).astype('float32'), rng.integers(0, 3, 64)
mine = slice(hvd.rank(), None, hvd.size())

model = tf.keras.Sequential([
    tf.keras.layers.Input((6,)),
    tf.keras.layers.Dense(12, activation='relu'),
    tf.keras.layers.Dense(3, activation='softmax')
])

opt = hvd.DistributedOptimizer(tf.keras.optimizers.Adam(0.001 * hvd.size()))
model.compile(loss=tf.keras.losses.SparseCategoricalCrossentropy(), optimizer=opt, metrics=['accuracy'])

callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
]
if hvd.rank() == 0:
    callbacks.append(tf.keras.callbacks.ModelCheckpoint('./checkpoint-{epoch}.keras'))

model.fit(x[mine], y[mine], batch_size=8, callbacks=callbacks, epochs=2, verbose=1 if hvd.rank() == 0 else 0, shuffle=False)
