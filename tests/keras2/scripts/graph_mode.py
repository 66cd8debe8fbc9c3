"""Keras 2 without eager execution: graphs and Keras' session, as in TensorFlow 1."""

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf

tf.compat.v1.disable_eager_execution()
hvd.init()
np.random.seed(hvd.rank())
model = tf.keras.Sequential([tf.keras.layers.Dense(3, input_shape=(4,)), tf.keras.layers.Dense(1)])
model.compile(loss="mse", optimizer=hvd.DistributedOptimizer(tf.keras.optimizers.legacy.Adam(0.01)))
x = np.random.rand(32, 4).astype("float32")
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(0.01, warmup_epochs=1),
]
before = model.get_weights()
model.fit(x, x.sum(1, keepdims=True), batch_size=8, epochs=2, verbose=0, callbacks=callbacks)
mine, roots = model.get_weights(), hvd.broadcast_object(model.get_weights())
same = all((a == b).all() for a, b in zip(mine, roots, strict=True))
trained = any((a != b).any() for a, b in zip(mine, before, strict=True))
total = hvd.allreduce(hvd.rank() + 1.0, op=hvd.Sum)
hvd.broadcast_global_variables(0)
print(f"told {(same, trained, float(total))}")
hvd.shutdown()
