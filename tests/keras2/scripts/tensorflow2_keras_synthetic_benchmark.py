"""In the manner of Horovod's example of this name, with its calls."""

# ruff: noqa: D103
import argparse
import os
from timeit import default_timer as timer

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf
from tensorflow.keras import applications

parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
parser.add_argument("--fp16-allreduce", action="store_true", default=False)
parser.add_argument("--model", type=str, default="ResNet50")
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--num-warmup-batches", type=int, default=10)
parser.add_argument("--num-batches-per-iter", type=int, default=10)
parser.add_argument("--num-iters", type=int, default=10)
parser.add_argument("--no-cuda", action="store_true", default=False)
args = parser.parse_args()
args.cuda = not args.no_cuda

hvd.init()

if args.cuda:
    gpus = tf.config.experimental.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if gpus:
        tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], "GPU")
    args.cuda = bool(gpus)
else:
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

model = getattr(applications, args.model)(weights=None)
opt = tf.optimizers.SGD(0.01)
compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
opt = hvd.DistributedOptimizer(
    opt, compression=compression, backward_passes_per_step=1, average_aggregated_gradients=True
)
model.compile(loss=tf.losses.SparseCategoricalCrossentropy(), optimizer=opt, experimental_run_tf_function=False)

data = tf.random.uniform([args.batch_size, 224, 224, 3])
target = tf.random.uniform([args.batch_size, 1], minval=0, maxval=999, dtype=tf.int64)
dataset = tf.data.Dataset.from_tensor_slices((data, target)).cache().repeat().batch(args.batch_size)
device = "GPU" if args.cuda else "CPU"


def log(s: str, nl: bool = True) -> None:
    if hvd.rank() == 0:
        print(s, end="\n" if nl else "")


class TimingCallback(tf.keras.callbacks.Callback):
    def on_train_begin(self, logs: object = None) -> None:
        self.img_secs: list[float] = []

    def on_train_end(self, logs: object = None) -> None:
        mean, conf = np.mean(self.img_secs), 1.96 * np.std(self.img_secs)
        log(f"Img/sec per {device}: {mean:.1f} +-{conf:.1f}")
        log(f"Total img/sec on {hvd.size()} {device}(s): {hvd.size() * mean:.1f} +-{hvd.size() * conf:.1f}")

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        self.starttime = timer()

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        self.img_secs.append(args.batch_size * args.num_batches_per_iter / (timer() - self.starttime))


timing = TimingCallback()
callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), timing]
log("Running warmup...")
model.fit(dataset, steps_per_epoch=args.num_warmup_batches, callbacks=callbacks[:1], epochs=1, verbose=0)
log("Running benchmark...")
model.fit(dataset, steps_per_epoch=args.num_batches_per_iter, callbacks=callbacks, epochs=args.num_iters, verbose=0)
