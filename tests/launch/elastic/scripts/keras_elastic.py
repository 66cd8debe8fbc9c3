"""A training as a user of Elastic Horovod writes it for Keras, with ``fit`` and the callbacks of the state.

Keras is what ``--keras`` imports, on any backend. All ranks take the same batches, in order, so the weights at the end
are those of one process that nothing happened to: each epoch's data are cut to what is left of it after a reset.
"""

import argparse
import importlib
import time

import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--batches", type=int, default=30)
parser.add_argument("--pause", type=float, default=0.01)
parser.add_argument("--keras", default="keras")
parser.add_argument("--hvd", default="horovod.keras")
args = parser.parse_args()

keras = importlib.import_module(args.keras)
keras = getattr(keras, "keras", keras)
hvd = importlib.import_module(args.hvd)

hvd.init()
LR = 0.05


def net():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(3)])
    return model


def compiled(model, optimizer):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss=loss, optimizer=optimizer)
    return model


x = np.random.default_rng(1).normal(size=(args.batches * 16, 8)).astype("float32")
y = (x.sum(1) > 0) + 1 * (x[:, 0] > 1)
model = compiled(net(), hvd.DistributedOptimizer(keras.optimizers.SGD(LR, momentum=0.9)))


class Slow(keras.callbacks.Callback):
    """So that a kill comes in the middle; and it counts."""

    def on_train_batch_end(self, batch, logs=None):
        state.sizes.append(hvd.size())
        time.sleep(args.pause)


class Next(keras.callbacks.Callback):
    """The batch that comes next, which is what a commit has to know."""

    def on_train_batch_end(self, batch, logs=None):
        state.done += 1


def on_state_reset():
    rate = model.optimizer.learning_rate
    rate.assign(LR)


state = hvd.elastic.KerasState(model, batch=0, epoch=0, done=0, sizes=[], start=model.get_weights())
state.register_reset_callbacks([on_state_reset])


@hvd.elastic.run
def train(state):
    if state.done == 0:
        state.start = model.get_weights()
    print(f"begins with {hvd.size()} at {state.done}", flush=True)
    callbacks = [
        Slow(),
        Next(),
        hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.CommitStateCallback(state),
    ]
    while state.done < args.epochs * args.batches:
        rest = state.done % args.batches * 16
        model.fit(x[rest:], y[rest:], batch_size=16, shuffle=False, epochs=1, callbacks=callbacks, verbose=0)


train(state)
flat = np.concatenate([value.reshape(-1) for value in model.get_weights()])
assert (np.asarray(hvd.allgather(flat[None], name="flat")) == flat).all(), "ranks differ"
alone = compiled(net(), keras.optimizers.SGD(LR, momentum=0.9))
alone.set_weights(state.start)
losses = alone.fit(x, y, batch_size=16, shuffle=False, epochs=args.epochs, verbose=0).history["loss"]
worst = max(float(np.abs(a - b).max()) for a, b in zip(model.get_weights(), alone.get_weights(), strict=True))
assert worst < 1e-3, worst
assert losses[-1] < losses[0]
print(f"done {state.done} {len(state.sizes)} {sorted(set(state.sizes))} worst {worst:.1e}", flush=True)
