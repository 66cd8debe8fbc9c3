"""Wrong solutions of lesson 19, each with what the check must say."""

from __future__ import annotations

from typing import Any

import numpy as np


def _alone(w: Any, batch: Any, lr: Any) -> Any:
    x, y = batch
    return w - lr * x.T @ (x @ w - y) / len(y)


def forgets_the_last_average(comm: Any, w: Any, batches: Any, lr: Any, every: Any) -> Any:
    for step, batch in enumerate(batches, 1):
        w = _alone(w, batch, lr)
        if step % every == 0:
            w = comm.allreduce(w) / comm.size
    return w


def counts_from_zero(comm: Any, w: Any, batches: Any, lr: Any, every: Any) -> Any:
    for step, batch in enumerate(batches):
        w = _alone(w, batch, lr)
        if step % every == 0 or step == len(batches) - 1:
            w = comm.allreduce(w) / comm.size
    return w


def averages_in_every_step(comm: Any, w: Any, batches: Any, lr: Any, every: Any) -> Any:
    for x, y in batches:
        w = w - lr * comm.allreduce(x.T @ (x @ w - y) / len(y)) / comm.size
    return w


def averages_once(comm: Any, w: Any, batches: Any, lr: Any, every: Any) -> Any:
    for batch in batches:
        w = _alone(w, batch, lr)
    return comm.allreduce(w) / comm.size


def never_averages(comm: Any, w: Any, batches: Any, lr: Any, every: Any) -> Any:
    for batch in batches:
        w = _alone(w, batch, lr)
    return w


def adds_the_weights(comm: Any, w: Any, batches: Any, lr: Any, every: Any) -> Any:
    for step, batch in enumerate(batches, 1):
        w = _alone(w, batch, lr)
        if step % every == 0 or step == len(batches):
            w = comm.allreduce(w)
    return w


def averages_twice(comm: Any, w: Any, batches: Any, lr: Any, every: Any) -> Any:
    for step, batch in enumerate(batches, 1):
        w = _alone(w, batch, lr)
        if step % every == 0 or step == len(batches):
            for _ in range(8):
                w = comm.allreduce(w) / comm.size
    return w


def trains_in_place(comm: Any, w: Any, batches: Any, lr: Any, every: Any) -> Any:
    for step, (x, y) in enumerate(batches, 1):
        w -= lr * x.T @ (x @ w - y) / len(y)
        if step % every == 0 or step == len(batches):
            w[:] = comm.allreduce(w) / comm.size
    return w


def climbs(comm: Any, start: Any, w: Any, velocity: Any, lr: Any, momentum: Any) -> Any:
    change = comm.allreduce(w - start) / comm.size
    velocity = momentum * velocity + change
    return start - lr * (change + momentum * velocity), velocity


def goes_the_other_way_at_last(comm: Any, start: Any, w: Any, velocity: Any, lr: Any, momentum: Any) -> Any:
    change = comm.allreduce(start - w) / comm.size
    velocity = momentum * velocity + change
    return start + lr * (change + momentum * velocity), velocity


def takes_plain_momentum(comm: Any, start: Any, w: Any, velocity: Any, lr: Any, momentum: Any) -> Any:
    velocity = momentum * velocity + comm.allreduce(start - w) / comm.size
    return start - lr * velocity, velocity


def takes_the_old_velocity(comm: Any, start: Any, w: Any, velocity: Any, lr: Any, momentum: Any) -> Any:
    change = comm.allreduce(start - w) / comm.size
    return start - lr * (change + momentum * velocity), momentum * velocity + change


def adds_the_changes(comm: Any, start: Any, w: Any, velocity: Any, lr: Any, momentum: Any) -> Any:
    change = comm.allreduce(start - w)
    velocity = momentum * velocity + change
    return start - lr * (change + momentum * velocity), velocity


def steps_with_its_own_change(comm: Any, start: Any, w: Any, velocity: Any, lr: Any, momentum: Any) -> Any:
    velocity = momentum * velocity + start - w
    return start - lr * (start - w + momentum * velocity), velocity


def keeps_the_old_velocity(comm: Any, start: Any, w: Any, velocity: Any, lr: Any, momentum: Any) -> Any:
    change = comm.allreduce(start - w) / comm.size
    return start - lr * (change + momentum * (momentum * velocity + change)), velocity


def averages_the_weights(comm: Any, start: Any, w: Any, velocity: Any, lr: Any, momentum: Any) -> Any:
    return comm.allreduce(w) / comm.size, velocity


def _round(comm: Any, sent: Any, p: Any) -> Any:
    mine = sent.T @ p
    q = comm.allreduce(mine) / comm.size
    return p @ q.T, sent - p @ mine.T


def never_adds_the_error(comm: Any, gradient: Any, error: Any, q: Any) -> Any:
    return _round(comm, gradient, np.linalg.qr(comm.allreduce(gradient @ q) / comm.size)[0])


def drops_the_error(comm: Any, gradient: Any, error: Any, q: Any) -> Any:
    sent = gradient + error
    average, _ = _round(comm, sent, np.linalg.qr(comm.allreduce(sent @ q) / comm.size)[0])
    return average, np.zeros_like(error)


def keeps_the_distance_to_the_average(comm: Any, gradient: Any, error: Any, q: Any) -> Any:
    sent = gradient + error
    average, _ = _round(comm, sent, np.linalg.qr(comm.allreduce(sent @ q) / comm.size)[0])
    return average, sent - average


def makes_orthonormal_first(comm: Any, gradient: Any, error: Any, q: Any) -> Any:
    sent = gradient + error
    return _round(comm, sent, comm.allreduce(np.linalg.qr(sent @ q)[0]) / comm.size)


def has_a_p_of_its_own(comm: Any, gradient: Any, error: Any, q: Any) -> Any:
    sent = gradient + error
    return _round(comm, sent, np.linalg.qr(sent @ q)[0])


def averages_the_first_factor_only(comm: Any, gradient: Any, error: Any, q: Any) -> Any:
    sent = gradient + error
    p = np.linalg.qr(comm.allreduce(sent @ q) / comm.size)[0]
    return p @ (sent.T @ p).T, sent - p @ (sent.T @ p).T


def never_makes_orthonormal(comm: Any, gradient: Any, error: Any, q: Any) -> Any:
    sent = gradient + error
    return _round(comm, sent, comm.allreduce(sent @ q) / comm.size)


def takes_both_of_qr(comm: Any, gradient: Any, error: Any, q: Any) -> Any:
    sent = gradient + error
    return _round(comm, sent, np.linalg.qr(comm.allreduce(sent @ q) / comm.size))


def adds_the_second_factor(comm: Any, gradient: Any, error: Any, q: Any) -> Any:
    sent = gradient + error
    p = np.linalg.qr(comm.allreduce(sent @ q) / comm.size)[0]
    mine = sent.T @ p
    return p @ comm.allreduce(mine).T, sent - p @ mine.T


def compresses_nothing(comm: Any, gradient: Any, error: Any, q: Any) -> Any:
    return comm.allreduce(gradient + error) / comm.size, np.zeros_like(error)


def sends_the_whole_beside(comm: Any, gradient: Any, error: Any, q: Any) -> Any:
    sent = gradient + error
    p = np.linalg.qr((comm.allreduce(sent) / comm.size) @ q)[0]
    return _round(comm, sent, p)


def averages_gradients_every_so_many(comm: Any, w: Any, batches: Any, lr: Any, every: Any) -> Any:
    for step, (x, y) in enumerate(batches, 1):
        change = lr * x.T @ (x @ w - y) / len(y)
        if step % every == 0 or step == len(batches):
            change = comm.allreduce(change) / comm.size
        w = w - change
    return w


def begins_at_the_average(comm: Any, start: Any, w: Any, velocity: Any, lr: Any, momentum: Any) -> Any:
    average = comm.allreduce(w) / comm.size
    velocity = momentum * velocity + start - average
    return average - lr * (start - average + momentum * velocity), velocity


def takes_the_error_off(comm: Any, gradient: Any, error: Any, q: Any) -> Any:
    sent = gradient - error
    return _round(comm, sent, np.linalg.qr(comm.allreduce(sent @ q) / comm.size)[0])


def measures_the_error_from_the_gradient(comm: Any, gradient: Any, error: Any, q: Any) -> Any:
    sent = gradient + error
    average, left = _round(comm, sent, np.linalg.qr(comm.allreduce(sent @ q) / comm.size)[0])
    return average, left - error


def collects_the_gradients(comm: Any, w: Any, batches: Any, lr: Any, every: Any) -> Any:
    change = 0 * w
    for step, (x, y) in enumerate(batches, 1):
        change = change + lr * x.T @ (x @ w - y) / len(y)
        if step % every == 0 or step == len(batches):
            w, change = w - comm.allreduce(change) / comm.size, 0 * w
    return w


WRONG = {
    "19.local_sgd": [
        (forgets_the_last_average, "the steps after the last average are not averaged"),
        (
            counts_from_zero,
            "✗ right: steps are counted from 0, so the first average comes too early: after `every` steps it is due",
        ),
        (averages_in_every_step, "that is an average in every step, and not every so many"),
        (averages_once, "the weights were averaged once, at the end"),
        (never_averages, "each rank has trained alone: nothing was averaged"),
        (adds_the_weights, "the ranks' weights were added up: divide by comm.size"),
        (averages_gradients_every_so_many, "gradients were averaged every so many steps, and not the weights"),
        (averages_twice, "bytes from the busiest rank; the limit"),
        (trains_in_place, "rank 0 changes its own w, which belongs to the caller"),
        (collects_the_gradients, "✗ right: the steps between two averages all take the gradient at the same weights"),
    ],
    "19.outer_step": [
        (climbs, "a step goes against the gradient"),
        (goes_the_other_way_at_last, "a step goes against the gradient"),
        (takes_plain_momentum, "that is plain momentum: Nesterov's step is g + momentum * (new velocity)"),
        (takes_the_old_velocity, "that is plain momentum"),
        (adds_the_changes, "the changes were added up: divide by comm.size"),
        (steps_with_its_own_change, "each rank stepped with its own change"),
        (begins_at_the_average, "the step begins at the ranks' average: it begins at start"),
        (keeps_the_old_velocity, "the new velocity is to be returned"),
        (averages_the_weights, "the outer optimizer is missing"),
    ],
    "19.powersgd": [
        (never_adds_the_error, "what was left out before is never sent: add the error to the gradient"),
        (takes_the_error_off, "✗ right: the error is taken off: it is added"),
        (measures_the_error_from_the_gradient, "the new error is measured from the gradient"),
        (drops_the_error, "the new error is lost"),
        (keeps_the_distance_to_the_average, "the error is measured from the average"),
        (makes_orthonormal_first, "p was made orthonormal before it was averaged: average first"),
        (has_a_p_of_its_own, "each rank has a p of its own"),
        (averages_the_first_factor_only, "the second factor was not averaged"),
        (never_makes_orthonormal, "p is not orthonormal"),
        (takes_both_of_qr, "np.linalg.qr gives a pair (Q, R), and p is to be Q: qr(…)[0]"),
        (adds_the_second_factor, "the second factor was added up: divide by comm.size"),
        (compresses_nothing, "the whole matrices were averaged, and nothing was compressed"),
        (sends_the_whole_beside, "bytes from the busiest rank; the limit"),
    ],
}
