"""A training with JAX and optax under ``elastic.run``; Horovod has no elastic state for JAX.

All ranks take the same batch of a step, so the weights at the end are those of one process that nothing happened to.
"""

import argparse
import functools
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

import workbench.jax as hvd

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--pause", type=float, default=0.01)
args = parser.parse_args()

hvd.init()
jax.config.update("jax_enable_x64", True)


def batch_of(step):
    """The same on every rank."""
    x = np.random.default_rng(step).normal(size=(16, 8))
    return x, (x.sum(1) > 0) + 1 * (x[:, 0] > 1)


def fresh(seed):
    keys = jax.random.split(jax.random.key(seed))
    return {"in": jax.random.normal(keys[0], (8, 16)) / 3, "out": jax.random.normal(keys[1], (16, 3)) / 4}


def loss_of(params, x, y):
    logits = jnp.tanh(x @ params["in"]) @ params["out"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def step_with(optimizer):
    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, opt_state, x, y):
        loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    return step


params = fresh(hvd.rank())
optimizer = hvd.DistributedOptimizer(optax.adam(0.01))
update = step_with(optimizer)
state = hvd.elastic.JaxState(
    params=params, opt_state=optimizer.init(params), key=jax.random.key(0), step=0, sizes=[], start=None
)


@hvd.elastic.run
def train(state):
    if state.step == 0:
        state.start = jax.tree.map(np.asarray, state.params)
        state.start = {name: value.copy() for name, value in state.start.items()}
    print(f"begins with {hvd.size()} at {state.step}", flush=True)
    while state.step < args.steps:
        state.key, _ = jax.random.split(state.key)
        state.params, state.opt_state, _ = update(state.params, state.opt_state, *batch_of(state.step))
        state.step += 1
        state.sizes.append(hvd.size())
        state.commit()
        time.sleep(args.pause)


train(state)
flat = jnp.concatenate([each.reshape(-1) for each in jax.tree.leaves(state.params)])
assert (hvd.allgather(flat[None], name="flat") == flat).all(), "ranks differ"
key = jax.random.key(0)
alone, plain, losses = jax.tree.map(jnp.asarray, state.start), optax.adam(0.01), []
opt_state, alone_step = plain.init(alone), step_with(plain)
for step in range(args.steps):
    key, _ = jax.random.split(key)
    alone, opt_state, loss = alone_step(alone, opt_state, *batch_of(step))
    losses.append(float(loss))
worst = max(float(jnp.abs(alone[name] - state.params[name]).max()) for name in alone)
assert worst < 1e-6, worst
assert (jax.random.key_data(key) == jax.random.key_data(state.key)).all()
assert losses[-1] < losses[0]
print(f"done {state.step} {len(state.sizes)} {sorted(set(state.sizes))} worst {worst:.1e}", flush=True)
