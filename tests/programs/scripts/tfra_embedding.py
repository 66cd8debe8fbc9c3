"""TensorFlow Recommenders Addons: a dynamic embedding whose keys are spread over the ranks by Horovod's alltoall."""

import horovod.tensorflow as hvd
import tensorflow as tf
import tensorflow_recommenders_addons.dynamic_embedding as de

hvd.init()
users = tf.reshape(tf.range(64, dtype=tf.int64) * 7 % 23, (4, 16))
ratings = tf.cast(users % 5, tf.float32)
n = 16 // hvd.size()
mine = slice(hvd.rank() * n, (hvd.rank() + 1) * n)
constant = tf.keras.initializers.Constant
embedding = de.keras.layers.HvdAllToAllEmbedding(
    embedding_size=4, key_dtype=tf.int64, value_dtype=tf.float32, initializer=constant(0.1), devices=["/CPU:0"]
)
model = tf.keras.Sequential([embedding, tf.keras.layers.Dense(1, kernel_initializer=constant(0.5))])
optimizer = de.DynamicEmbeddingOptimizer(tf.keras.optimizers.SGD(0.1), synchronous=True)
for _ in range(3):
    for keys, wanted in zip(users, ratings):  # noqa: B905 - tensors, equally long
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(model(keys[mine])[:, 0] - wanted[mine])) / 16  # this optimizer adds up
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))  # noqa: B905
error = tf.reduce_sum(tf.square(model(users[0][mine])[:, 0] - ratings[0][mine]))
print("RESULT", hvd.size(), float(hvd.allreduce(error, op=hvd.Sum)), flush=True)
