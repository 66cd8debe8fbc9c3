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
@wrong("19.powersgd", "np.linalg.qr gives a pair (Q, R), and p is to be Q: qr(…)[0]")
def takes_both_of_qr(comm, gradient, error, q):
    sent = gradient + error
    return _round(comm, sent, np.linalg.qr(comm.allreduce(sent @ q) / comm.size))
@wrong("19.powersgd", "bytes from the busiest rank; the limit")
def sends_the_whole_beside(comm, gradient, error, q):
    sent = gradient + error
    p = np.linalg.qr((comm.allreduce(sent) / comm.size) @ q)[0]
    return _round(comm, sent, p)
@wrong("19.outer_step", "the step begins at the ranks' average: it begins at start")
def begins_at_the_average(comm, start, w, velocity, lr, momentum):
    average = comm.allreduce(w) / comm.size
    velocity = momentum * velocity + start - average
    return average - lr * (start - average + momentum * velocity), velocity
