# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # The same six steps in every framework
#
# **Question:** your model is in TensorFlow, Keras or JAX. What is different from PyTorch when several ranks train it?
#
# **Afterwards you can**
#
# - name the six steps, and for each the call in PyTorch, TensorFlow, Keras 3 and JAX,
# - train one model in all four, and show that the result is that of one process,
# - do it in a framework without support, with two verbs.
#
# **Needs:** two cores, no GPU; PyTorch, TensorFlow, Keras and JAX with optax: `make setup EXTRAS=+tensorflow,jax`.
# **Alone:** 20 minutes to read, 10 to do. **Led:** 40 minutes. **Before:** lesson 10.

# %% [markdown]
# ## Do you remember?
#
# Say each answer aloud before you open it.
#
# <details>
# <summary>Lesson 11: Three ranks have equal weights after ten steps, the fourth has not. What was probably left
# out?</summary>
#
# The broadcast before the first step, or a change of weights on one rank only, such as a checkpoint that only one rank
# has read after it.
#
# </details>
#
# <details>
# <summary>Lesson 06: Weights are broadcast, the optimizer's state is not. When does that go wrong?</summary>
#
# When a rank begins with a state: after a checkpoint was read on rank 0. With momentum or Adam the ranks' steps are
# different from then on.
#
# </details>

# %% [markdown]
# ## Six steps, four frameworks
#
# | step | PyTorch | TensorFlow | Keras 3 | JAX |
# |---|---|---|---|---|
# | `import … as hvd` | `workbench.torch` | `workbench.tensorflow` | `workbench.keras` | `workbench.jax` |
# | 1 initialize | `hvd.init()` | the same | the same | the same |
# | 2 local batch | `BATCH // hvd.size()` | the same | the same | the same |
# | 3 pin the GPU | `set_device` | `set_visible_devices` | as its backend | `CUDA_VISIBLE_DEVICES` |
# | 4 shard | this rank's samples | the same | the same | the same |
# | 5 same start | `broadcast_parameters` | `broadcast_variables` | a callback | `broadcast_parameters` |
# | 6 gradients | `DistributedOptimizer` | `DistributedGradientTape` | `DistributedOptimizer` | `DistributedOptimizer` |
#
# These are the six steps of lesson 00. Each rank takes the GPU with the number `i = hvd.local_rank()`:
# `torch.cuda.set_device(i)`, `tf.config.set_visible_devices(gpus[i], "GPU")`. For JAX set
# `os.environ["CUDA_VISIBLE_DEVICES"]` to that one GPU before JAX is imported, or start the engines by
# `cluster.up(gpus="auto")`. The setting `jax_default_device` is not enough: it chooses where arrays go, but JAX
# initialises every GPU that it sees.
#
# Steps 1, 2 and 4 are the same lines in all frameworks. The others differ:
#
# - PyTorch calls a hook as soon as one gradient is ready. In the first step this gradient is sent at once; from the
#   second step on gradients are sent in buckets of up to 16 MB, each as soon as it is full, while backward goes on.
# - With TensorFlow, Keras and JAX this package waits for all gradients and sends them together. (Horovod's tape for
#   TensorFlow sends each one when it is ready.)
# - PyTorch, TensorFlow and Keras have variables that can be set: step 5 changes them in place. JAX's arrays never
#   change: step 5 returns new ones.

# %%
from workbench import cluster
from workbench.common.extras import need

need("This lesson", "tensorflow", "keras", "jax", "optax", install="make setup EXTRAS=+tensorflow,jax")
engines = cluster.up(n=2)

# %% [markdown]
# ## The training, without any framework
#
# Softmax regression on the handwritten digits: a matrix w, a vector b, and a gradient of two lines. So numpy on one
# process, in float64, can say which weights are right. Each rank draws different weights; the training must start from
# those of rank 0. `judge` compares, after each training, the ranks with each other and with numpy.

# %%
# %%px
import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # before TensorFlow is imported
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"
os.environ["KERAS_BACKEND"] = "torch"  # or tensorflow, or jax

import numpy as np

import workbench as hvd
from workbench import data
from workbench.data.sampler import batches

hvd.init()
BATCH, LR = 96, 0.5
digits = data.digits()
x, y = digits.train_x.reshape(-1, 64), digits.train_y


def draw(rank):
    random = np.random.default_rng(rank)
    return random.normal(0, 0.1, (64, 10)).astype("float32"), np.zeros(10, "float32")


def train_alone():
    w, b = draw(0)
    for part in batches(len(x), 0, 1, BATCH):
        scores = np.exp(x[part] @ w + b)
        off = (scores / scores.sum(axis=1, keepdims=True) - np.eye(10)[y[part]]) / len(part)
        w, b = w - LR * x[part].T @ off, b - LR * off.sum(axis=0)
    return w, b


w_alone, b_alone = train_alone()


def judge(framework, w, b):
    """On all ranks: compare the replicas with each other, and with the one process."""
    w, b = np.asarray(w), np.asarray(b)
    weights = np.concatenate([w.ravel(), b])
    replicas = hvd_numpy.allgather(weights[None], name=f"judge {framework}")
    same = (replicas == replicas[0]).all(axis=0).sum()
    off = max(abs(w - w_alone).max(), abs(b - b_alone).max())
    all_off.append(float(off))
    limit = min(power for power in 10.0 ** np.arange(-6, 6) if off <= power)
    if hvd_numpy.rank() == 0:
        print(f"{framework}: {same} of {weights.size} weights have the same bits on all ranks;")
        print(f"the largest difference from one process is at most {limit:g}")


hvd_numpy, all_off = hvd, []
guess = (digits.test_x.reshape(-1, 64) @ w_alone + b_alone).argmax(axis=1)
if hvd.rank() == 0:
    steps, right = len(batches(len(x), 0, 1, BATCH)), (guess == digits.test_y).mean()
    print(f"one process: {steps} steps, {right:.0%} of the test digits")

# %%
from workbench.course.predictions import predict, reveal

predict(
    "14.same",
    "The same 15 steps in PyTorch, TensorFlow, Keras and JAX, each on two ranks in float32. By how much do their "
    "weights differ from numpy's on one process? Take the worst weight of the worst of the four.",
    choices=[
        "the same bits",
        "less than 1e-5",
        "about 1e-3: each has its own arithmetic",
        "about 0.1: other trainings",
    ],
)

# %% [markdown]
# ## PyTorch

# %%
# %%px
import torch

import workbench.torch as hvd

hvd.init()  # 1 initialize
local_batch = BATCH // hvd.size()  # 2 local batch
torch.set_num_threads(1)  # 3 pin: no GPU here, so one core
mine = batches(len(x), hvd.rank(), hvd.size(), BATCH)  # 4 shard: its part

model = torch.nn.Linear(64, 10)
w, b = draw(hvd.rank())
model.load_state_dict({"weight": torch.from_numpy(w.T), "bias": torch.from_numpy(b)})
hvd.broadcast_parameters(model.state_dict(), root_rank=0)  # 5 same start
optimizer = torch.optim.SGD(model.parameters(), lr=LR)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())  # 6 gradients

for part in mine:
    assert len(part) == local_batch
    optimizer.zero_grad()
    scores = model(torch.from_numpy(x[part]))
    torch.nn.functional.cross_entropy(scores, torch.from_numpy(y[part])).backward()
    optimizer.step()
judge("PyTorch", model.weight.detach().T, model.bias.detach())

# %% [markdown]
# ## TensorFlow
#
# `tf.function` makes a graph of the step. The tape's gradients are averaged inside it, in one operation for all.
# With XLA, `jit_compile=True`, it raises an error: this package has no operation that XLA can compile for TensorFlow.
# (Horovod has one.) For the optimizers of Keras and of TensorFlow 1 there is `hvd.DistributedOptimizer`.

# %%
# %%px
import tensorflow as tf

import workbench.tensorflow as hvd

hvd.init()  # 1
local_batch = BATCH // hvd.size()  # 2
tf.config.threading.set_intra_op_parallelism_threads(1)  # 3
mine = batches(len(x), hvd.rank(), hvd.size(), BATCH)  # 4

w, b = (tf.Variable(each) for each in draw(hvd.rank()))
hvd.broadcast_variables([w, b], root_rank=0)  # 5


@tf.function
def step(images, labels):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, images @ w + b))
    tape = hvd.DistributedGradientTape(tape)  # 6
    for variable, gradient in zip((w, b), tape.gradient(loss, (w, b)), strict=True):
        variable.assign_sub(LR * gradient)


for part in mine:
    step(x[part], y[part])
judge("TensorFlow", w, b)

# %% [markdown]
# ## Keras 3
#
# The loop is inside `fit`, so the broadcast is a callback, which `fit` calls. Keras computes with PyTorch, TensorFlow
# or JAX, whichever `KERAS_BACKEND` named before the import: above, PyTorch. The lines are the same with all three.

# %%
# %%px
import keras

import workbench.keras as hvd

hvd.init()  # 1
local_batch = BATCH // hvd.size()  # 2
# 3 is the backend's
mine = np.concatenate(batches(len(x), hvd.rank(), hvd.size(), BATCH))  # 4

model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(10)])
model.set_weights(draw(hvd.rank()))
same_start = hvd.callbacks.BroadcastGlobalVariablesCallback(0)  # 5
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(LR))  # 6

model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(x[mine], y[mine], batch_size=local_batch, shuffle=False, verbose=0, callbacks=[same_start])
judge("Keras", *model.get_weights())

# %% [markdown]
# ## JAX
#
# `DistributedOptimizer` averages the gradients, and then optax's optimizer updates the weights. This also works inside
# `jit`: each time the compiled step runs, it exchanges gradients with the other ranks.

# %%
# %%px
import jax
import optax

import workbench.jax as hvd

hvd.init()  # 1
local_batch = BATCH // hvd.size()  # 2
# 3: no GPU, nothing to choose
mine = batches(len(x), hvd.rank(), hvd.size(), BATCH)  # 4

params = hvd.broadcast_parameters(draw(hvd.rank()), root_rank=0)  # 5
optimizer = hvd.DistributedOptimizer(optax.sgd(LR))  # 6
state = optimizer.init(params)


def loss(params, images, labels):
    w, b = params
    return optax.softmax_cross_entropy_with_integer_labels(images @ w + b, labels).mean()


@jax.jit
def step(params, state, images, labels):
    updates, state = optimizer.update(jax.grad(loss)(params, images, labels), state, params)
    return optax.apply_updates(params, updates), state


for part in mine:
    params, state = step(params, state, x[part], y[part])
judge("JAX", *params)

# %%
worst = max(engines.client[0]["all_off"])
bounds = {"about 0.1: other trainings": 1e-2, "about 1e-3: each has its own arithmetic": 1e-5, "less than 1e-5": 1e-300}
reveal(
    "14.same",
    next((choice for choice, least in bounds.items() if worst >= least), "the same bits"),
    "float32 keeps about 7 digits, and each framework adds up the same numbers in a different order. Nothing else is "
    "different: the frameworks write the same training in different ways.",
)

# %% [markdown]
# ## All in one job
#
# Each engine has called `init()` five times: of `workbench` itself, of `workbench.torch`, `.tensorflow`, `.keras` and
# `.jax`.

# %%
predict(
    "14.jobs",
    "Two engines, five modules, five calls of init() on each engine. How many jobs are there?",
    number="jobs",
    tolerance=0,
)

# %%
# %%px
import workbench.tensorflow
import workbench.torch

if hvd.rank() == 0:
    both = workbench.torch.allreduce(torch.tensor(1.0), name="both", op=workbench.torch.Sum)
else:
    both = workbench.jax.allreduce(jax.numpy.full((), 2.0), name="both", op=workbench.jax.Sum)
both = float(both)
print(f"rank {hvd.rank()} of {hvd.size()}: 1 of PyTorch and 2 of JAX have the sum {both}")

# %%
reveal(
    "14.jobs",
    1 if engines.client[0]["both"] == 3.0 else 5,
    "Rank 0 gave a tensor of PyTorch, rank 1 an array of JAX, and both got the sum. The five modules share one job, "
    "with one queue of tensors and one coordinator. So a script may use two frameworks, say JAX for one model and "
    "PyTorch for another.",
)

# %%
engines.down()

# %% [markdown] tags=["exercise"]
# ## A framework without support
#
# What if your framework is none of these? All of them are built on two verbs for arrays: `hvd.broadcast(array,
# root_rank=0, name=…)` and `hvd.allreduce(array, name=…)`, which averages. Both return an array. Here the framework is
# numpy, and `gradient` is given. Nothing works before `hvd.init()`, and each rank is alone on its machine, which has
# one GPU. `check` tests the six steps in their order.

# %% tags=["exercise"]
from workbench.course.exercise import check, exercise, hint, solution

# %% tags=["exercise"]
# exercise: 14.six_steps

# %% tags=["exercise"]
check("14.six_steps")

# %% [markdown] tags=["instructor"]
# **Instructor.** Led: 40 minutes, 10 of them for the exercises. First the table and the four cells, side by side,
# with the question "which of these lines would you have to change for another framework?" Common wrong answers:
# `rank()` for the GPU; every rank takes the first samples of each step; each rank trains with a batch as large as that
# of all; `op=hvd.Sum`.

# %% [markdown]
# ## Keypoints
#
# - Six steps: init, local batch, device, shard, same start, gradients. Three of them are the same everywhere.
# - With the same global batch and the same start, the result is that of one process, in each framework.
# - PyTorch's gradients are sent in buckets during backward; here those of the other frameworks are sent together, after
#   it.
# - JAX's arrays do not change: take what `broadcast_parameters` returns.

# %% [markdown]
# ## Today
#
# What libraries do about this in November 2026:
#
# - **JAX:** `jax.jit` divides the work if the arrays are sharded; `jax.shard_map` lets you write one device's part.
#   Since 0.8 `pmap` is built on both, and not recommended
#   ([source](https://docs.jax.dev/en/latest/migrate_pmap.html)).
# - **Keras 3** has `keras.distribution.DataParallel` and `ModelParallel`, for JAX. In 3.15 there is no such code for
#   PyTorch, and only a prototype for TensorFlow ([source](https://keras.io/guides/distribution/)).
# - **TensorFlow's `MultiWorkerMirroredStrategy`** is synchronous data parallelism. Each worker finds the others in the
#   variable `TF_CONFIG` ([source](https://www.tensorflow.org/tutorials/distribute/multi_worker_with_keras)).
# - **MLX** (Apple) has `mx.distributed`, over MPI, its own ring, RDMA over Thunderbolt, or NCCL. With one process each
#   call does nothing ([source](https://ml-explore.github.io/mlx/build/html/usage/distributed.html)).
# - **Horovod** has one interface for TensorFlow, Keras, PyTorch and MXNet. Its last release is 0.28.1, of 2023
#   ([source](https://pypi.org/project/horovod/)).
