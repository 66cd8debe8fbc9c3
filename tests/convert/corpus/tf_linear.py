# Linear regression on tf.Variable, a loop over a pipeline.
import numpy as np
import tensorflow as tf

rng = np.random.RandomState(0)
x_data = rng.rand(40, 2).astype("float32")
y_data = x_data @ np.array([[2.0], [-3.0]], dtype="float32") + 1.0

train_data = tf.data.Dataset.from_tensor_slices((x_data, y_data))
train_data = train_data.repeat(3).batch(10).prefetch(1)

W = tf.Variable(tf.zeros([2, 1]), name="weight")
b = tf.Variable(tf.zeros([1]), name="bias")
optimizer = tf.optimizers.SGD(0.1)


def linear_regression(x):
    return tf.matmul(x, W) + b


def mean_square(y_pred, y_true):
    return tf.reduce_mean(tf.square(y_pred - y_true))


def run_optimization(x, y):
    with tf.GradientTape() as g:
        pred = linear_regression(x)
        loss = mean_square(pred, y)
    gradients = g.gradient(loss, [W, b])
    optimizer.apply_gradients(zip(gradients, [W, b]))


for step, (batch_x, batch_y) in enumerate(train_data, 1):
    run_optimization(batch_x, batch_y)
    if step % 4 == 0:
        pred = linear_regression(batch_x)
        print("step: %i, loss: %f" % (step, mean_square(pred, batch_y)))
