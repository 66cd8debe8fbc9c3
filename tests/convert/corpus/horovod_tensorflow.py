# A script for Horovod on TensorFlow 2 with a loop of its own.
import tensorflow as tf
import horovod.tensorflow as hvd

hvd.init()
gpus = tf.config.experimental.list_physical_devices('GPU')
if gpus:
    tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], 'GPU')

tf.random.set_seed(1)
dataset = tf.data.Dataset.from_tensor_slices((tf.random.normal([64, 5]), tf.random.normal([64, 1])))
dataset = dataset.shard(hvd.size(), hvd.rank()).batch(8)
model = tf.keras.Sequential([tf.keras.layers.Input((5,)), tf.keras.layers.Dense(8, activation='relu'), tf.keras.layers.Dense(1)])
loss = tf.losses.MeanSquaredError()
opt = tf.optimizers.Adam(0.001 * hvd.size())


@tf.function
def training_step(x, y, first_batch):
    with tf.GradientTape() as tape:
        loss_value = loss(y, model(x, training=True))
    tape = hvd.DistributedGradientTape(tape)
    grads = tape.gradient(loss_value, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables))
    if first_batch:
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(opt.variables, root_rank=0)
    return loss_value


for batch, (x, y) in enumerate(dataset.take(100 // hvd.size())):
    loss_value = training_step(x, y, batch == 0)
    if batch % 2 == 0 and hvd.local_rank() == 0:
        print('Step #%d\tLoss: %.6f' % (batch, loss_value))
