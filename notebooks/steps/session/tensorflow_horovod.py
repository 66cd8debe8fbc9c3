"""The practical session in TensorFlow: one training, shared out over the ranks. Compare time per epoch and accuracy.

Start it::

    workbench run --as-horovod -np 1 python examples/tensorflow_horovod.py
    workbench run --as-horovod -np 2 python examples/tensorflow_horovod.py
    ... examples/tensorflow_horovod.py --data fashion-mnist --limit 6000 --epochs 2
    ... examples/tensorflow_horovod.py --data cifar10 --model resnet50 --image-size 224    # the session's, for GPUs

It is written for Horovod, and `--as-horovod` lets the import find the workbench. The seven blocks are those of
`pytorch_horovod.py`: the *global* batch stays the same whatever the number of ranks (strong scaling), and only the time
shrinks. ``make practical`` makes the table of it, with ``ARGS=--tensorflow`` for this script.

What is handed to TensorFlow at once is a whole epoch (``steps_per_execution``): Python is not asked between two steps.
So the metrics, callbacks and progress bars that would ask are few, for each costs speed.
"""

import argparse
import time

import horovod.tensorflow.keras as hvd
import tensorflow as tf
from horovod.tensorflow import broadcast_variables

from workbench import data

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--data", choices=["digits", "fashion-mnist", "cifar10"], default="digits", help="real images")
parser.add_argument("--model", choices=["cnn", "resnet50"], default="cnn")
parser.add_argument("--image-size", type=int, metavar="PIXELS", help="enlarge the images to this height and width")
parser.add_argument("--epochs", type=int, default=8)
parser.add_argument("--batch-size", type=int, default=96, help="of all ranks together")
parser.add_argument("--limit", type=int, metavar="N", help="take at most N images for training, and N for testing")
parser.add_argument("--lr", type=float, default=3e-3)
parser.add_argument("--seed", type=int, default=42)
args = parser.parse_args()


# ---------------------------------------------------------------------------------------------------------------------
# 1. Initialize: from here on each process knows its rank. Random numbers (weights, the order of the images) are to
#    differ between ranks.
hvd.init()
tf.keras.utils.set_random_seed(args.seed + hvd.rank())

# ---------------------------------------------------------------------------------------------------------------------
# 2. Adapt the batch: the global batch is constant, each rank takes its share of it.
if args.batch_size % hvd.size():
    parser.error(f"--batch-size {args.batch_size} cannot be shared evenly by {hvd.size()} ranks")
local_batch = args.batch_size // hvd.size()

# ---------------------------------------------------------------------------------------------------------------------
# 3. Pin one accelerator per rank: the GPU with the number of the local rank (some batch systems show each rank only its
#    own, hence the modulo), and its memory as it is needed. Without GPUs an accelerator is a core: one thread.
gpus = tf.config.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.set_visible_devices(gpus[hvd.local_rank() % len(gpus)], "GPU")
tf.config.threading.set_intra_op_parallelism_threads(1)


# ---------------------------------------------------------------------------------------------------------------------
# 4. Data, in two steps: the shard (which images are this rank's, from disk to memory) and the local batch (what goes to
#    the device at once).
def cifar10():
    """The session's images. Keras downloads them, for one rank at a time: then no two write the same file."""
    for rank in range(hvd.size()):
        if rank == hvd.rank():
            (train_x, train_y), (test_x, test_y) = tf.keras.datasets.cifar10.load_data()
        hvd.allgather([0])
    return (train_x / 255.0).astype("float32"), train_y[:, 0], (test_x / 255.0).astype("float32"), test_y[:, 0]


def grey(images):
    """Ours are (n, channels, height, width); TensorFlow wants the channels last."""
    train_x, test_x = (each.transpose(0, 2, 3, 1) for each in (images.train_x, images.test_x))
    return train_x, images.train_y, test_x, images.test_y


load = {"digits": lambda: grey(data.digits()), "fashion-mnist": lambda: grey(data.fashion_mnist()), "cifar10": cifar10}
train_x, train_y, test_x, test_y = (each[: args.limit] for each in load[args.data]())

# For training each rank has an equal piece, or some would make one step more and wait for ever. In a test each image
# has to count once and only once: rank r takes r, r + size, r + 2 size, ..., and some ranks may have one less.
piece = len(train_x) // hvd.size()
train_x, train_y = (each[hvd.rank() * piece : (hvd.rank() + 1) * piece] for each in (train_x, train_y))
test_x, test_y = (each[hvd.rank() :: hvd.size()] for each in (test_x, test_y))
steps = piece // local_batch
if not steps:
    parser.error(f"{piece} images per rank are less than one batch of {local_batch}")
size = (args.image_size or train_x.shape[1],) * 2


def prepare(x, y):
    """One batch in the wanted size."""
    return (tf.image.resize(x, size) if args.image_size else x), y


train_data = tf.data.Dataset.from_tensor_slices((train_x, train_y)).shuffle(1024)
train_data = train_data.batch(local_batch, drop_remainder=True).map(prepare).prefetch(tf.data.AUTOTUNE)
test_data = tf.data.Dataset.from_tensor_slices((test_x, test_y)).batch(256).map(prepare)


# ---------------------------------------------------------------------------------------------------------------------
# 5. Build the network on each device. Rank 0's weights and optimizer state become everybody's when fit() begins, and
#    the optimizer averages the gradients.
def cnn(width=64):
    """Three convolutions: seconds per epoch on one core."""
    layers = [tf.keras.layers.Conv2D(width, 3, padding="same", activation="relu") for _ in range(3)]
    return tf.keras.Sequential([*layers, tf.keras.layers.GlobalMaxPooling2D()])


shape, classes = (*size, train_x.shape[-1]), int(max(train_y.max(), test_y.max())) + 1
inputs = tf.keras.Input(shape)
if args.model == "cnn":
    features = cnn()(inputs)
else:
    network = tf.keras.applications.ResNet50(weights=None, include_top=False, input_shape=shape)
    features = tf.keras.layers.GlobalAveragePooling2D()(network(inputs))
model = tf.keras.Model(inputs, tf.keras.layers.Dense(classes, activation="softmax")(features))

optimizer = tf.keras.optimizers.Adam(args.lr)
optimizer = hvd.DistributedOptimizer(optimizer, backward_passes_per_step=1, average_aggregated_gradients=True)
model.compile(optimizer, "sparse_categorical_crossentropy", steps_per_execution=steps)


# ---------------------------------------------------------------------------------------------------------------------
# 6. Train. The ranks start the clock together, and the slowest one's time is the epoch's: the others wait for it.
#    The first epoch takes longer, because the graph is made in it.
class Clock(tf.keras.callbacks.Callback):
    """Prints the seconds of each epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        """An allgather ends when all ranks have begun it: a barrier."""
        hvd.allgather([0], name="barrier")
        self.start = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        """The slowest rank's time."""
        seconds = hvd.allgather([time.perf_counter() - self.start], name="seconds").max()
        print(f"Epoch: {epoch + 1} {seconds:.2f} sec.", flush=True)


callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), Clock()]
if hvd.rank() == 0:
    print(
        f"{steps} steps per epoch, of {args.batch_size} images, {local_batch} on each of {hvd.size()} ranks", flush=True
    )
verbose = 2 if hvd.rank() == 0 else 0
model.fit(train_data, epochs=args.epochs, shuffle=False, callbacks=callbacks, verbose=verbose)

# ---------------------------------------------------------------------------------------------------------------------
# 7. Evaluate. Sums and counts travel, not means: shards may differ by an image, and a mean of means would be wrong.
#    Batch norm's statistics are each rank's own; rank 0's are taken, so that all ranks test one and the same model.
broadcast_variables(model.variables, root_rank=0)
model.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
loss, accuracy = model.evaluate(test_data, verbose=0)
count = len(test_y)
totals = hvd.allreduce([loss * count, accuracy * count, count], name="test", op=hvd.Sum)
loss, right, count = totals[0] / totals[2], round(float(totals[1])), round(float(totals[2]))
print(f"Loss:  {loss:.6f}  accuracy:  {right / count:.6f}  ({right} of {count} images)", flush=True)
hvd.shutdown()
