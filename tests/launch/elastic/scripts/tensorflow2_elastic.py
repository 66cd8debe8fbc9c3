"""A training as a user of Elastic Horovod writes it for TensorFlow 2: a step that is traced once, and lives on.

All ranks take the same batch of a step, so the weights at the end are those of one process that nothing happened to.
"""

import argparse
import time

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--pause", type=float, default=0.01)
parser.add_argument("--variables", action="store_true", help="TensorFlowState in place of TensorFlowKerasState")
args = parser.parse_args()

hvd.init()
tf.random.set_seed(hvd.rank())
tf.keras.backend.set_floatx("float64")
LR = 0.05


def net():
    return tf.keras.Sequential(
        [tf.keras.Input((8,)), tf.keras.layers.Dense(16, activation="tanh"), tf.keras.layers.Dense(3)]
    )


def batch_of(step):
    """The same on every rank."""
    x = np.random.default_rng(step).normal(size=(16, 8))
    return tf.constant(x), tf.constant((x.sum(1) > 0) + 1 * (x[:, 0] > 1))


loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model, opt = net(), tf.keras.optimizers.SGD(LR * hvd.size(), momentum=0.9)
traces = []


@tf.function
def training_step(images, labels, allreduce=True):
    traces.append(allreduce)
    with tf.GradientTape() as tape:
        loss = loss_of(labels, model(images, training=True))
    if allreduce:
        tape = hvd.DistributedGradientTape(tape, op=hvd.Sum)
    grads = tape.gradient(loss, model.trainable_variables)
    count = tf.cast(hvd.size_op() if allreduce else 1, tf.float64)
    opt.apply_gradients([(grad / count, var) for grad, var in zip(grads, model.trainable_variables, strict=True)])
    return loss


training_step(*batch_of(0), allreduce=False)  # makes the optimizer's variables, as the documentation wants it
for variable in opt.variables if not callable(opt.variables) else opt.variables():
    if variable.shape:
        variable.assign(tf.zeros_like(variable))
opt.learning_rate.assign(LR)


@hvd.elastic.run
def train(state):
    if state.batch == 0:
        state.start = model.get_weights()
    print(f"begins with {hvd.size()} at {state.batch}", flush=True)
    while state.batch < args.steps:
        training_step(*batch_of(state.batch))
        state.batch += 1
        state.sizes.append(hvd.size())
        state.commit()
        time.sleep(args.pause)


def on_state_reset():
    opt.learning_rate.assign(LR)


more = {"batch": 0, "sizes": [], "start": model.get_weights()}
if args.variables:
    variables = [*model.variables, *(opt.variables if not callable(opt.variables) else opt.variables())]
    state = hvd.elastic.TensorFlowState(variables, **more)
else:
    state = hvd.elastic.TensorFlowKerasState(model, opt, **more)
state.register_reset_callbacks([on_state_reset])
train(state)

flat = np.concatenate([value.reshape(-1) for value in model.get_weights()])
assert (hvd.allgather(tf.constant(flat[None]), name="flat").numpy() == flat).all(), "ranks differ"
assert traces.count(True) == 1, traces  # no rank traces anew after a reset

alone, plain = net(), tf.keras.optimizers.SGD(LR, momentum=0.9)
alone.set_weights(state.start)
losses = []


@tf.function
def alone_step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_of(y, alone(x, training=True))
    grads = tape.gradient(loss, alone.trainable_variables)
    plain.apply_gradients(list(zip(grads, alone.trainable_variables, strict=True)))
    return loss


for step in range(args.steps):
    losses.append(float(alone_step(*batch_of(step))))
worst = max(float(np.abs(a - b).max()) for a, b in zip(model.get_weights(), alone.get_weights(), strict=True))
assert worst < 1e-6, worst
assert losses[-1] < losses[0]
print(f"done {state.batch} {len(state.sizes)} {sorted(set(state.sizes))} worst {worst:.1e}", flush=True)
