"""Wrong solutions of lesson 09, each with what the check must say."""

from __future__ import annotations

from wrong_answers import Answers

wrong = Answers()


@wrong("09.learning_rate", "one n-th of the right number: the rate was not multiplied by the number of ranks")
def never_scaled(step, base, n, steps_per_epoch, warmup_epochs, drops):
    warmup_steps = warmup_epochs * steps_per_epoch
    if step < warmup_steps: return base * step / warmup_steps
    return base * 0.1 ** sum(step >= epoch * steps_per_epoch for epoch in drops)
@wrong("09.learning_rate", "the warm-up begins at 0")
def warms_up_from_zero(step, base, n, steps_per_epoch, warmup_epochs, drops):
    warmup_steps = warmup_epochs * steps_per_epoch
    if step < warmup_steps: return base * n * step / warmup_steps
    return base * n * 0.1 ** sum(step >= epoch * steps_per_epoch for epoch in drops)
@wrong("09.learning_rate", "the warm-up grows with each epoch")
def warms_up_by_epochs(step, base, n, steps_per_epoch, warmup_epochs, drops):
    epoch = step // steps_per_epoch
    if epoch < warmup_epochs: return base * (1 + (n - 1) * epoch / warmup_epochs)
    return base * n * 0.1 ** sum(epoch >= drop for drop in drops)
@wrong("09.learning_rate", "a warm-up of 0 epochs has 0 steps, and your function divides by them; ZeroDivisionError")
def divides_by_zero(step, base, n, steps_per_epoch, warmup_epochs, drops):
    factor = min(n, 1 + (n - 1) * step / (warmup_epochs * steps_per_epoch))
    return base * factor * 0.1 ** sum(step >= epoch * steps_per_epoch for epoch in drops)
@wrong("09.learning_rate", "n times the right number: the rate was multiplied by the number of ranks twice")
def scaled_twice(step, base, n, steps_per_epoch, warmup_epochs, drops): return n * n * base
@wrong("09.learning_rate", "That is a tenth: one drop too many. Drops are epochs")
def drops_are_steps(step, base, n, steps_per_epoch, warmup_epochs, drops):
    warmup_steps = warmup_epochs * steps_per_epoch
    if step < warmup_steps: return base * (1 + (n - 1) * step / warmup_steps)
    return base * n * 0.1 ** sum(step >= drop for drop in drops)
@wrong("09.learning_rate", "That is ten times as much: the last drop that has begun is missing")
def forgets_the_last_drop(step, base, n, steps_per_epoch, warmup_epochs, drops):
    warmup_steps = warmup_epochs * steps_per_epoch
    if step < warmup_steps: return base * (1 + (n - 1) * step / warmup_steps)
    return base * n * 0.1 ** sum(step >= epoch * steps_per_epoch for epoch in drops[:-1])
@wrong("09.local_batches", "global batch 9, n = 2: your sizes [4, 4], expected [5, 4]. The sum of your sizes is 8")
def loses_the_remainder(global_batch, n): return [global_batch // n] * n, [1 / n] * n
@wrong("09.local_batches", "your sizes [4, 5], expected [5, 4]. The same sizes, but the first ranks have")
def last_one_takes_the_rest(global_batch, n):
    sizes = [global_batch // n] * (n - 1)
    sizes.append(global_batch - sum(sizes))
    return sizes, [size / global_batch for size in sizes]
@wrong("09.local_batches", "your sizes [5, 5], expected [5, 4]. The sum of your sizes is 10, and not 9")
def rounds_up(global_batch, n):
    sizes = [-(-global_batch // n)] * n
    return sizes, [1 / n] * n
@wrong(
    "09.local_batches",
    "that of the whole batch: each rank has the weight 1/n: a rank with more samples must count for more",
)
def plain_average(global_batch, n):
    sizes = [global_batch // n + (rank < global_batch % n) for rank in range(n)]
    return sizes, [1 / n] * n
@wrong("09.local_batches", "Your weights add up to 2; those of a mean add up to 1")
def sums_instead(global_batch, n):
    sizes = [global_batch // n + (rank < global_batch % n) for rank in range(n)]
    return sizes, [1.0] * n
@wrong(
    "09.local_batches", "is that of the whole batch: the weights are the sizes themselves: those of a mean add up to 1"
)
def weights_are_sizes(global_batch, n):
    sizes = [global_batch // n + (rank < global_batch % n) for rank in range(n)]
    return sizes, sizes
@wrong("09.local_batches", "✗ Equal parts, where the global batch can be divided")
def sizes_alone(global_batch, n): return [global_batch // n + (rank < global_batch % n) for rank in range(n)]
