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
# # Large batches
#
# **Question:** eight ranks with 32 images each make a batch of 256. Is that still the same training, and what has to
# change?
#
# **Afterwards you can**
#
# - tell the global batch from the local batch, and keep a training the same on any number of ranks,
# - scale the learning rate with the global batch, and say why,
# - recognise a run that diverges because the first steps are too large, and prevent that by warm-up.
#
# **Needs:** a laptop, no GPU. **Alone:** 25 minutes to read, 10 to do. **Led:** 40 minutes. **Before:** lesson 04.

# %% [markdown]
# ## Do you remember?
#
# Say each answer aloud before you open it.
#
# <details>
# <summary>Lesson 08: What is the difference between strong and weak scaling?</summary>
#
# Strong: the global batch stays, and each rank's part becomes smaller. Weak: each rank's part stays, and the global
# batch grows with n.
#
# </details>
#
# <details>
# <summary>Lesson 05: Rank 0 has an accuracy of 80 % over 50 samples, rank 1 of 90 % over 150. What is the accuracy
# over all?</summary>
#
# (40 + 135) / 200 = 87.5 %. The mean of the two figures, 85 %, is wrong.
#
# </details>

# %% tags=["both"]
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from workbench import data
from workbench.course import drawing, figures
from workbench.course.exercise import catch_up, check, exercise, hint, show, solution
from workbench.course.simulator import simulate
from workbench.data.sampler import batches

# %% [markdown]
# ## Global and local batch
#
# The **global batch** is what one step of the optimizer sees, on all ranks together; the **local batch** is one rank's
# part of it. Two ways to add ranks:
#
# | | local batch | global batch | steps per epoch | the training |
# |---|---|---|---|---|
# | keep the global batch | B/n | B | the same | the same |
# | keep the local batch | B | n · B | an n-th | a different one: this lesson |
#
# The second way is the usual one, because a GPU with a small local batch does not have enough to do. But fewer steps
# with larger batches are a different training, and need a different learning rate.
#
# The model: four hidden layers with tanh on scans of digits, in float64, with large random weights at the beginning.
# They make the first steps unstable, as in much deeper networks.

# %%
torch.set_num_threads(1)
digits = data.digits()
images = torch.from_numpy(digits.train_x).double().flatten(1)
labels = torch.from_numpy(digits.train_y)


def make_model(seed):
    torch.manual_seed(seed)
    layers = []
    for inputs, outputs in ((64, 64), (64, 64), (64, 64), (64, 64), (64, 10)):
        layer = nn.Linear(inputs, outputs).double()
        nn.init.normal_(layer.weight, std=2 / inputs**0.5)
        nn.init.zeros_(layer.bias)
        layers += [layer, nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def train(global_batch, rate, epochs=5, warmup_epochs=0, begin=1.0, seed=0):
    """Train on one process; return the loss of each step, the loss over all images at the end, and the model.

    Warm-up: the learning rate grows from begin * rate to rate, a little in every step.
    """
    model = make_model(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    warmup_steps = warmup_epochs * -(-len(images) // global_batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: begin + (1 - begin) * step / warmup_steps if step < warmup_steps else 1.0
    )
    losses = []
    for epoch in range(epochs):
        for mine in batches(len(images), 0, 1, global_batch, epoch=epoch):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images[mine]), labels[mine])
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
    with torch.no_grad():
        return losses, F.cross_entropy(model(images), labels).item(), model


# %% [markdown]
# ## An equal global batch: the same curve
#
# Four ranks in the simulator. Each computes the gradient of its part of the global batch of 64, and `allreduce`
# averages the gradients.


# %%
def together(comm, global_batch, rate, epochs):
    model = make_model(seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    losses = []
    for epoch in range(epochs):
        for mine in batches(len(images), comm.rank, comm.size, global_batch, epoch=epoch):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images[mine]), labels[mine])
            loss.backward()
            for weight in model.parameters():
                weight.grad = torch.from_numpy(comm.allreduce(weight.grad.numpy())) / comm.size
            optimizer.step()
            losses.append(comm.allreduce(loss.item()) / comm.size)
    return losses


one = train(64, 0.05, epochs=2)[0]
four = simulate(4, together, 64, 0.05, 2).results[0]
difference = max(abs(a - b) for a, b in zip(one, four, strict=True))
print(f"{len(one)} steps of 1 rank with 64 images, {len(four)} of 4 ranks with 16 each")
print(f"largest difference of the losses: {difference:.0e}")
figures.curves({"1 rank": one, "4 ranks": four}, "step", "loss", "Equal global batch, equal curve")

# %% [markdown]
# Averaging is right because the parts are equally large: the mean over the batch is the mean of the parts' means.
# Parts of different sizes need weights; that is an exercise.
#
# ## Batch × learning rate
#
# Every run has five epochs, with any batch. A batch of 32 with a learning rate (LR) of 0.0125 ends at a loss of 0.05.

# %%
from workbench.course.predictions import predict, reveal

predict(
    "09.rate",
    "Batch 256 with the same LR of 0.0125, and as many epochs: how many times as large is the loss?",
    number="times",
    tolerance=0.25,
)

# %% [markdown]
# The table has the loss at the end, the mean of three runs from different random weights. A dash means a loss above 1.
# At high rates a training is chaotic: the last digits differ between processors.

# %% tags=["nbval-ignore-output"]
sizes, rates = (32, 64, 128, 256), (0.0125, 0.025, 0.05, 0.1, 0.2, 0.4)
grid = {size: [np.mean([train(size, rate, seed=seed)[1] for seed in range(3)]) for rate in rates] for size in sizes}
print("batch " + "".join(f"  LR {rate:<6g}" for rate in rates))
for size, losses in grid.items():
    print(f"{size:5} " + "".join(f"{loss:8.2f}   " if loss < 1 else "       –   " for loss in losses))

# %%
steps = {size: 5 * -(-len(images) // size) for size in (32, 256)}
reveal(
    "09.rate",
    grid[256][0] / grid[32][0],
    f"Both have seen the same images, but the large batch has made {steps[256]} steps of that length and the small one "
    f"{steps[32]}.",
)

# %% [markdown]
# Read the table in three ways.
#
# - **Down a column:** at the same learning rate, a larger batch learns more slowly. It makes fewer steps of the same
#   length.
# - **Down a diagonal,** twice the batch and twice the learning rate: the losses stay closer together. That is the
#   **linear scaling rule**: n steps with gradients that hardly change in between give about the same result as one step
#   with their average, n times as long. So *n times the batch, n times the learning rate.*
# - **To the right:** from some learning rate on, each row diverges. There the rule does not hold.
#
# Which learning rates are good for which batch?

# %%
for size, losses in grid.items():
    good = [f"{rate:g}" for rate, loss in zip(rates, losses, strict=True) if loss < min(losses) + 0.02]
    print(f"batch {size:3}: losses within 0.02 of the best with LR {' and '.join(good)}")
print(f"batch 32, LR 0.0125; 8 times the batch and 8 times the LR: {grid[256][3] / grid[32][0]:.1f} times the loss")

# %% [markdown]
# The good rates grow with the batch. With 8 times the batch, seeds 0, 1 and 2 give 2, 4 and 8 times the rate: one run
# cannot tell whether they grow in proportion, or less. So the rule gives a rate to begin the search with. From 0.0125
# it leads to a good rate, 0.1. From 0.05 it leads to 0.4, which diverges.
#
# ## The beginning of a run
#
# One rank with a batch of 32 and LR 0.05 does well. Eight ranks have a batch of 256, and the rule gives LR 0.4. Now the
# learning rate grows in the first five of ten epochs, a little in every step, from 0.05 to 0.4.

# %%
predict(
    "09.warmup",
    "Batch 256 and LR 0.4 from the first step on diverges. What is the loss after ten epochs, if the rate grows to 0.4 "
    "during the first five?",
    choices=["above 1: the rate is too large for this batch", "about 0.5: it has lost time", "below 0.1"],
)

# %%
ranks, base = 8, 0.05
cold, warm = [], []
print("loss after ten epochs   1 rank   8 ranks, LR 0.4 at once   8 ranks, with warm-up")
for seed in range(3):
    alone = train(32, base, 10, seed=seed)[1]
    cold.append(train(32 * ranks, base * ranks, 10, seed=seed))
    warm.append(train(32 * ranks, base * ranks, 10, warmup_epochs=5, begin=1 / ranks, seed=seed))
    at_once = "above 10" if cold[seed][1] > 10 else f"{cold[seed][1]:.2f}"
    print(f"seed {seed}                  {alone:6.3f}   {at_once:>23}   {warm[seed][1]:21.2f}")

# %%
highest = max(loss for _, loss, _ in warm)
reveal(
    "09.warmup",
    "below 0.1"
    if highest < 0.1
    else "about 0.5: it has lost time"
    if highest < 1
    else "above 1: the rate is too large for this batch",
    "So the rate is too large only for the first steps. One rank still does better after as many epochs: it makes 8 "
    "times as many steps.",
)

# %% tags=["nbval-ignore-output"]
runs = {"LR 0.4 at once": cold[0], "with warm-up": warm[0]}
cut = {name: [min(loss, 6) for loss in losses] for name, (losses, _, _) in runs.items()}
figures.curves(cut, "step", "loss (cut at 6)", "Batch 256, LR 0.4")

# %% [markdown]
# **Warm-up:** begin with a small learning rate and let it grow to the scaled one, a little in every step. The rule
# assumes that the gradient hardly changes during n steps. That is least true at the beginning, where the loss is
# steepest. Long steps there make the weights so large that tanh is flat: its gradient is nearly zero, and the weights
# hardly change any more. After some short steps the same learning rate does not do this harm. Look at the last hidden
# layer:


# %%
def flat_part(model):
    """How many of the outputs of the last hidden layer are at the ends of tanh, where it is flat."""
    with torch.no_grad():
        return (model[:-1](images).abs() > 0.99).double().mean().item()


# %% tags=["nbval-ignore-output"]
models = {"before training": make_model(seed=0), "LR 0.4 at once": cold[0][2], "with warm-up": warm[0][2]}
flat = {name: round(100 * flat_part(model)) for name, model in models.items()}
assert flat["before training"] < 10 < 95 < flat["LR 0.4 at once"]
drawing.bars(flat, "%", "Outputs of the last hidden layer where tanh is flat")

# %% [markdown]
# ### The control
#
# Did the warm-up help, or would any smaller learning rate have helped, too? The same batch without warm-up, with
# smaller learning rates:

# %%
predict(
    "09.control",
    "Batch 256 without warm-up, but with LR 0.1 or 0.2: how does the loss compare with that of LR 0.4 with warm-up?",
    choices=["higher: the rule says 0.4", "about the same", "lower"],
)

# %%
control = {rate: [train(32 * ranks, rate, 10, seed=seed) for seed in range(3)] for rate in (0.1, 0.2)}
for rate, found in control.items():
    print(f"LR {rate} without warm-up: loss {', '.join(f'{loss:.2f}' for _, loss, _ in found)}")
print(f"LR 0.4 with warm-up:    loss {', '.join(f'{loss:.2f}' for _, loss, _ in warm)}")


# %%
without = [loss for found in control.values() for _, loss, _ in found]
with_warmup = [loss for _, loss, _ in warm]
reveal(
    "09.control",
    "lower"
    if max(without) < min(with_warmup)
    else "about the same"
    if np.mean(without) < 2 * np.mean(with_warmup)
    else "higher: the rule says 0.4",
    "A smaller rate in all steps does better here than warm-up to 0.4. Without this control we would have thought that "
    "only warm-up helps.",
)


# %% tags=["nbval-ignore-output"]
def accuracy(model):
    with torch.no_grad():
        guesses = model(torch.from_numpy(digits.test_x).double().flatten(1)).argmax(dim=1)
    return (guesses == torch.from_numpy(digits.test_y)).double().mean().item()


for name, found in {
    **{f"LR {rate} without warm-up": found for rate, found in control.items()},
    "LR 0.4 with warm-up": warm,
}.items():
    print(f"{name:22} test accuracy {', '.join(f'{accuracy(model):.1%}' for _, _, model in found)}")

# %% [markdown]
# Here a quarter or half of the scaled rate does better, without any warm-up. Warm-up makes the scaled rate *possible*;
# whether that rate is a good one is another question, and only the control answers it. The loss is that of the
# training images: compare the accuracy on the test images, too.
#
# Goyal et al. (2017, arXiv:1706.02677) trained a ResNet-50 on ImageNet like that, with batches of 8,192 on 256 GPUs:
# linear scaling from a base rate, warm-up during the first five epochs, then a tenth of the rate after epochs 30, 60
# and 80. That schedule is your exercise. In PyTorch, `torch.optim.lr_scheduler.LambdaLR` takes a function like it, as
# `train()` above does.
#
# The linear rule is made for SGD. For Adam, √n times the learning rate fits better (Malladi et al. 2022,
# arXiv:2205.10287). And beyond a *critical batch size* no learning rate compensates for the missing steps: more ranks
# then finish an epoch sooner, but not the training. This size differs by orders of magnitude between tasks (McCandlish
# et al. 2018, arXiv:1812.06162; Shallue et al. 2019, arXiv:1811.03600).

# %% [markdown] tags=["exercise"]
# ## The learning rate of every step
#
# First run the cell above. `check` judges your function, `hint` gives a hint, `solution` shows the solution.
#
# Linear scaling, gradual warm-up, then a staircase: a tenth of the rate at each drop.

# %% tags=["exercise"]
# exercise: 09.learning_rate

# %% tags=["exercise"]
check("09.learning_rate")

# %% [markdown] tags=["exercise"]
# What does it look like? Eight ranks, base 0.1, five epochs of warm-up, drops at 30, 60 and 80 of 90 epochs:


# %% tags=["exercise"]
def schedule():
    try:
        return [learning_rate(step, 0.1, 8, 10, 5, (30, 60, 80)) for step in range(900)]
    except NotImplementedError:
        return [0.0]  # not done yet


figures.curves({"learning rate": schedule()}, "step", "learning rate", "Warm-up and staircase")

# %% [markdown] tags=["instructor"]
# **Instructor.** Led: 40 minutes, 12 of them for the exercises. Let them guess the row of batch 256 from that of
# batch 32 before the table is shown. The best rates of single runs vary: from batch 32 to 256 they grow 2, 4 and 8
# times with seeds 0, 1 and 2. Common wrong answers: the warm-up starts at 0 instead of at base; it grows once per
# epoch, so that each epoch begins with a jump; epochs are counted from the end of the warm-up; division by zero without
# warm-up. In the second exercise: 1/n as weight, which is right only for equal parts. A good question: who would notice
# a wrong weight, and when? (Nobody; the loss falls all the same.)

# %% [markdown] tags=["exercise"]
# ## A batch for n ranks
#
# How many samples does each rank take, and with which weight is its gradient multiplied? There may be fewer samples
# than ranks.

# %% tags=["exercise"]
# exercise: 09.local_batches

# %% tags=["exercise"]
check("09.local_batches")

# %% [markdown]
# ## Keypoints
#
# - Equal global batch: the same training on any number of ranks. Equal local batch: another training.
# - n times the batch, n times the learning rate: with SGD, begin the search there; the rule holds up to a limit.
# - Where the scaled rate diverges at the beginning, let it grow by warm-up, and try a smaller one as a control.
# - Ranks with different numbers of samples: weight each gradient by its number of samples.

# %% [markdown]
# ## Today
#
# What libraries do about this in November 2026:
#
# - **LARS** (with SGD, 2017) and **LAMB** (with Adam, 2019) are for very large batches: they scale each layer's step
#   by the size of its weights. Keras and DeepSpeed have `Lamb` ([source](https://arxiv.org/abs/1904.00962)).
# - **Most language models** use AdamW, with warm-up and a decay along a cosine or a line. In Llama 3 (2024) the batch
#   grew, too: from 4 to 16 million tokens ([source](https://arxiv.org/abs/2407.21783)).
# - **Muon** makes the step of each weight matrix nearly orthogonal. `torch.optim`, Keras, optax and DeepSpeed have it;
#   a report on training language models with it is from 2025 ([source](https://arxiv.org/abs/2502.16982)).
# - **The critical batch size** of language models grows with the amount of training data, and hardly with the size of
#   the model (Zhang and others, 2024) ([source](https://arxiv.org/abs/2410.21676)).
# - **DeepSpeed** checks that `train_batch_size` is micro-batch × accumulation steps × GPUs. Of the three settings, it
#   computes the one that is left out ([source](https://www.deepspeed.ai/docs/config-json/)).
