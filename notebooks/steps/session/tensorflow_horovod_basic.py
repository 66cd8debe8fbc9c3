"""The practical session's first training: the six steps in a small network, and a clock for each epoch.

A *reconstruction*: the session's slides name this script and say what to look at, but its text was never published.

Start it, notice the time of an epoch, and compare::

    workbench run --as-horovod -np 1 python examples/tensorflow_horovod_basic.py
    workbench run --as-horovod -np 2 python examples/tensorflow_horovod_basic.py

It is written for Horovod, and `--as-horovod` lets the import find the workbench. The first epoch takes longer than the
others: TensorFlow traces the graph of the training step in it. `tensorflow_horovod.py` has options, and does more for
speed.
"""

import time

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf

from workbench import data

BATCH_SIZE, EPOCHS, LEARNING_RATE = 96, 4, 5e-3

# 1. Initialization: from here on each process knows its rank.
hvd.init()
tf.random.set_seed(42 + hvd.rank())

# 2. The local batch: all ranks together take BATCH_SIZE images per step.
local_batch = BATCH_SIZE // hvd.size()

# 3. Pin the process to its GPU; without GPUs, to one thread, or the ranks would fight for the cores.
gpus = tf.config.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.set_visible_devices(gpus[hvd.local_rank() % len(gpus)], "GPU")
tf.config.threading.set_intra_op_parallelism_threads(1)

# 4. Shard the data: an equal piece for each rank; what does not go up evenly is left out.
images = data.digits()
piece = len(images.train_x) // hvd.size()
mine = slice(hvd.rank() * piece, (hvd.rank() + 1) * piece)
train_x, train_y = images.train_x[mine].transpose(0, 2, 3, 1), images.train_y[mine]
test_x, test_y = images.test_x.transpose(0, 2, 3, 1), images.test_y

model = tf.keras.Sequential(
    [
        tf.keras.Input(train_x.shape[1:]),
        tf.keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
        tf.keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
        tf.keras.layers.GlobalMaxPooling2D(),
        tf.keras.layers.Dense(len(images.classes), activation="softmax"),
    ]
)

# 5. The same start: rank 0's weights become everybody's when fit() begins.
callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]

# 6. The gradients are averaged over the ranks before each step.
optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.Adam(LEARNING_RATE))
model.compile(optimizer, "sparse_categorical_crossentropy")

for epoch in range(1, EPOCHS + 1):
    hvd.allgather([0])  # nobody starts the clock before all are here
    start = time.perf_counter()
    model.fit(train_x, train_y, local_batch, epochs=1, verbose=0, callbacks=callbacks if epoch == 1 else [])
    print(f"Epoch: {epoch} {time.perf_counter() - start:.2f} sec.", flush=True)

# All ranks have the same weights now, and each looks at all test images.
guess = model.predict(test_x, batch_size=256, verbose=0)
right = int((guess.argmax(axis=1) == test_y).sum())
loss = -np.log(guess[np.arange(len(test_y)), test_y]).mean()
print(f"Loss:  {loss:.6f}  accuracy:  {right / len(test_y):.6f}  ({right} of {len(test_y)} images)", flush=True)
hvd.shutdown()
