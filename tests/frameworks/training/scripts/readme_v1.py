"""The example of Horovod's README for TensorFlow 1, as it stands but for imports, model, and a last step.

Words: a folder for the checkpoints; how many steps; and for a job that fails: a rank that raises, in its third step.
"""

import sys

import numpy as np
import tensorflow.compat.v1 as tf

import workbench.tensorflow as hvd

tf.disable_v2_behavior()
FOLDER, LAST, WHO = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None


def next_batch() -> np.ndarray:
    """Another one on every rank and in every step; what is to be learnt is the sum of the first five columns."""
    count[0] += 1
    if hvd.rank() == WHO and count[0] == 3:
        raise ValueError("a mistake on purpose")
    return np.random.default_rng([hvd.rank(), count[0]]).normal(size=(8, 6))


count = [0]

# Initialize Horovod
hvd.init()

# Pin GPU to be used to process local rank (one GPU per process)
config = tf.ConfigProto()
config.gpu_options.visible_device_list = str(hvd.local_rank())

# Build model...
tf.set_random_seed(hvd.rank())
batch = tf.py_func(next_batch, [], tf.float64)
batch.set_shape([8, 6])
made = batch @ tf.get_variable("w", [6, 1], tf.float64)
loss = tf.reduce_mean((made - tf.reduce_sum(batch[:, :5], 1, keepdims=True)) ** 2)
opt = tf.train.AdagradOptimizer(0.01 * hvd.size())

# Add Horovod Distributed Optimizer
opt = hvd.DistributedOptimizer(opt)

# Add hook to broadcast variables from rank 0 to all other processes during
# initialization.
hooks = [hvd.BroadcastGlobalVariablesHook(0), tf.train.StopAtStepHook(last_step=LAST)]

# Make training operation
train_op = opt.minimize(loss, global_step=tf.train.get_or_create_global_step())

# Save checkpoints only on worker 0 to prevent other workers from corrupting them.
checkpoint_dir = FOLDER if hvd.rank() == 0 else None

# The MonitoredTrainingSession takes care of session initialization,
# restoring from a checkpoint, saving to a checkpoint, and closing when done
# or an error occurs.
with tf.train.MonitoredTrainingSession(checkpoint_dir=checkpoint_dir, config=config, hooks=hooks) as mon_sess:
    while not mon_sess.should_stop():
        # Perform synchronous training.
        mon_sess.run(train_op)

print("came to the end")
