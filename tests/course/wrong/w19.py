"""Wrong solutions of lesson 19, each with what the check must say."""

from __future__ import annotations

import numpy as np
from wrong_answers import Answers

wrong = Answers()


def _alone(w, batch, lr):
    x, y = batch
    return w - lr * x.T @ (x @ w - y) / len(y)
@wrong("19.local_sgd", "the steps after the last average are not averaged")
def forgets_the_last_average(comm, w, batches, lr, every):
    for step, batch in enumerate(batches, 1):
        w = _alone(w, batch, lr)
        if step % every == 0: w = comm.allreduce(w) / comm.size
    return w
@wrong(
    "19.local_sgd",
    "✗ right: steps are counted from 0, so the first average comes too early: after `every` steps it is due",
)
def counts_from_zero(comm, w, batches, lr, every):
    for step, batch in enumerate(batches):
        w = _alone(w, batch, lr)
        if step % every == 0 or step == len(batches) - 1: w = comm.allreduce(w) / comm.size
    return w
@wrong("19.local_sgd", "that is an average in every step, and not every so many")
def averages_in_every_step(comm, w, batches, lr, every):
    for x, y in batches: w = w - lr * comm.allreduce(x.T @ (x @ w - y) / len(y)) / comm.size
    return w
@wrong("19.local_sgd", "the weights were averaged once, at the end")
def averages_once(comm, w, batches, lr, every):
    for batch in batches: w = _alone(w, batch, lr)
    return comm.allreduce(w) / comm.size
@wrong("19.local_sgd", "each rank has trained alone: nothing was averaged")
def never_averages(comm, w, batches, lr, every):
    for batch in batches: w = _alone(w, batch, lr)
    return w
@wrong("19.local_sgd", "the ranks' weights were added up: divide by comm.size")
def adds_the_weights(comm, w, batches, lr, every):
    for step, batch in enumerate(batches, 1):
        w = _alone(w, batch, lr)
        if step % every == 0 or step == len(batches): w = comm.allreduce(w)
    return w
@wrong("19.local_sgd", "bytes from the busiest rank; the limit")
def averages_twice(comm, w, batches, lr, every):
    for step, batch in enumerate(batches, 1):
        w = _alone(w, batch, lr)
        if step % every == 0 or step == len(batches):
            for _ in range(8): w = comm.allreduce(w) / comm.size
    return w
@wrong("19.local_sgd", "rank 0 changes its own w, which belongs to the caller")
def trains_in_place(comm, w, batches, lr, every):
    for step, (x, y) in enumerate(batches, 1):
        w -= lr * x.T @ (x @ w - y) / len(y)
        if step % every == 0 or step == len(batches): w[:] = comm.allreduce(w) / comm.size
    return w
@wrong("19.outer_step", "a step goes against the gradient")
def climbs(comm, start, w, velocity, lr, momentum):
    change = comm.allreduce(w - start) / comm.size
    velocity = momentum * velocity + change
    return start - lr * (change + momentum * velocity), velocity
@wrong("19.outer_step", "a step goes against the gradient")
def goes_the_other_way_at_last(comm, start, w, velocity, lr, momentum):
    change = comm.allreduce(start - w) / comm.size
    velocity = momentum * velocity + change
    return start + lr * (change + momentum * velocity), velocity
@wrong("19.outer_step", "that is plain momentum: Nesterov's step is g + momentum * (new velocity)")
def takes_plain_momentum(comm, start, w, velocity, lr, momentum):
    velocity = momentum * velocity + comm.allreduce(start - w) / comm.size
    return start - lr * velocity, velocity
@wrong("19.outer_step", "the changes were added up: divide by comm.size")
def adds_the_changes(comm, start, w, velocity, lr, momentum):
    change = comm.allreduce(start - w)
    velocity = momentum * velocity + change
    return start - lr * (change + momentum * velocity), velocity
@wrong("19.outer_step", "each rank stepped with its own change")
def steps_with_its_own_change(comm, start, w, velocity, lr, momentum):
    velocity = momentum * velocity + start - w
    return start - lr * (start - w + momentum * velocity), velocity
@wrong("19.outer_step", "the new velocity is to be returned")
def keeps_the_old_velocity(comm, start, w, velocity, lr, momentum):
    change = comm.allreduce(start - w) / comm.size
    return start - lr * (change + momentum * (momentum * velocity + change)), velocity
@wrong("19.outer_step", "the outer optimizer is missing")
def averages_the_weights(comm, start, w, velocity, lr, momentum): return comm.allreduce(w) / comm.size, velocity
def _round(comm, sent, p):
    mine = sent.T @ p
    q = comm.allreduce(mine) / comm.size
    return p @ q.T, sent - p @ mine.T
@wrong("19.powersgd", "what was left out before is never sent: add the error to the gradient")
def never_adds_the_error(comm, gradient, error, q):
    return _round(comm, gradient, np.linalg.qr(comm.allreduce(gradient @ q) / comm.size)[0])
@wrong("19.powersgd", "the new error is lost")
def drops_the_error(comm, gradient, error, q):
    sent = gradient + error
    average, _ = _round(comm, sent, np.linalg.qr(comm.allreduce(sent @ q) / comm.size)[0])
    return average, np.zeros_like(error)
@wrong("19.powersgd", "the error is measured from the average")
def keeps_the_distance_to_the_average(comm, gradient, error, q):
    sent = gradient + error
    average, _ = _round(comm, sent, np.linalg.qr(comm.allreduce(sent @ q) / comm.size)[0])
    return average, sent - average
@wrong("19.powersgd", "p was made orthonormal before it was averaged: average first")
def makes_orthonormal_first(comm, gradient, error, q):
    sent = gradient + error
    return _round(comm, sent, comm.allreduce(np.linalg.qr(sent @ q)[0]) / comm.size)
@wrong("19.powersgd", "each rank has a p of its own")
def has_a_p_of_its_own(comm, gradient, error, q):
    sent = gradient + error
    return _round(comm, sent, np.linalg.qr(sent @ q)[0])
@wrong("19.powersgd", "the second factor was not averaged")
def averages_the_first_factor_only(comm, gradient, error, q):
    sent = gradient + error
    p = np.linalg.qr(comm.allreduce(sent @ q) / comm.size)[0]
    return p @ (sent.T @ p).T, sent - p @ (sent.T @ p).T
@wrong("19.powersgd", "p is not orthonormal")
def never_makes_orthonormal(comm, gradient, error, q):
    sent = gradient + error
    return _round(comm, sent, comm.allreduce(sent @ q) / comm.size)
@wrong("19.powersgd", "np.linalg.qr gives a pair (Q, R), and p is to be Q: qr(…)[0]")
def takes_both_of_qr(comm, gradient, error, q):
    sent = gradient + error
    return _round(comm, sent, np.linalg.qr(comm.allreduce(sent @ q) / comm.size))
@wrong("19.powersgd", "the second factor was added up: divide by comm.size")
def adds_the_second_factor(comm, gradient, error, q):
    sent = gradient + error
    p = np.linalg.qr(comm.allreduce(sent @ q) / comm.size)[0]
    mine = sent.T @ p
    return p @ comm.allreduce(mine).T, sent - p @ mine.T
@wrong("19.powersgd", "the whole matrices were averaged, and nothing was compressed")
def compresses_nothing(comm, gradient, error, q):
    return comm.allreduce(gradient + error) / comm.size, np.zeros_like(error)
@wrong("19.powersgd", "bytes from the busiest rank; the limit")
def sends_the_whole_beside(comm, gradient, error, q):
    sent = gradient + error
    p = np.linalg.qr((comm.allreduce(sent) / comm.size) @ q)[0]
    return _round(comm, sent, p)
@wrong("19.local_sgd", "gradients were averaged every so many steps, and not the weights")
def averages_gradients_every_so_many(comm, w, batches, lr, every):
    for step, (x, y) in enumerate(batches, 1):
        change = lr * x.T @ (x @ w - y) / len(y)
        if step % every == 0 or step == len(batches): change = comm.allreduce(change) / comm.size
        w = w - change
    return w
@wrong("19.outer_step", "the step begins at the ranks' average: it begins at start")
def begins_at_the_average(comm, start, w, velocity, lr, momentum):
    average = comm.allreduce(w) / comm.size
    velocity = momentum * velocity + start - average
    return average - lr * (start - average + momentum * velocity), velocity
@wrong("19.powersgd", "✗ right: the error is taken off: it is added")
def takes_the_error_off(comm, gradient, error, q):
    sent = gradient - error
    return _round(comm, sent, np.linalg.qr(comm.allreduce(sent @ q) / comm.size)[0])
@wrong("19.powersgd", "the new error is measured from the gradient")
def measures_the_error_from_the_gradient(comm, gradient, error, q):
    sent = gradient + error
    average, left = _round(comm, sent, np.linalg.qr(comm.allreduce(sent @ q) / comm.size)[0])
    return average, left - error
@wrong("19.local_sgd", "✗ right: the steps between two averages all take the gradient at the same weights")
def collects_the_gradients(comm, w, batches, lr, every):
    change = 0 * w
    for step, (x, y) in enumerate(batches, 1):
        change = change + lr * x.T @ (x @ w - y) / len(y)
        if step % every == 0 or step == len(batches): w, change = w - comm.allreduce(change) / comm.size, 0 * w
    return w
