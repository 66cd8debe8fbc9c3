"""Wrong solutions of lesson 06, each with what the check must say."""

from __future__ import annotations

import numpy as np
from wrong_answers import Answers

from workbench.course.tasks.t06_distributed_optimizer import overlap

wrong = Answers()


@wrong("06.overlap", "✗ score: 4 ms in which a gradient is ready and none is being sent")
def first_computes_then_sends(comm, layers):
    other = 1 - comm.rank
    for seconds, _ in layers: comm.compute(seconds)
    return [(mine + comm.sendrecv(mine, dest=other, source=other)) / 2 for _, mine in layers]
@wrong("06.overlap", "3.04 ms in which backward waits for a message; there must be none. The next layer's backward")
def waits_in_every_layer(comm, layers):
    other, averages = 1 - comm.rank, []
    for seconds, mine in layers:
        comm.compute(seconds)
        sent, received = comm.isend(mine, dest=other), comm.irecv(source=other)
        averages.append((mine + received.wait()) / 2)
        sent.wait()
    return averages
@wrong("06.overlap", "n times the right number: a sum over the ranks was not divided by n")
def forgets_to_divide(comm, layers):
    other, requests = 1 - comm.rank, []
    for seconds, mine in layers:
        comm.compute(seconds)
        requests.append((comm.isend(mine, dest=other), comm.irecv(source=other)))
    return [mine + received.wait() for (_, mine), (_, received) in zip(layers, requests, strict=True)]
@wrong("06.overlap", "never waited for its isend()")
def sends_before_it_computes(comm, layers):
    other, requests = 1 - comm.rank, []
    for seconds, mine in layers:
        requests.append((comm.isend(mine, dest=other), comm.irecv(source=other)))
        comm.compute(seconds)
    return [(mine + received.wait()) / 2 for (_, mine), (_, received) in zip(layers, requests, strict=True)]
@wrong("06.overlap", "They wait in a circle")
def both_send_first(comm, layers):
    other, averages = 1 - comm.rank, []
    for seconds, mine in layers:
        comm.compute(seconds)
        comm.send(mine, dest=other)
        averages.append((mine + comm.recv(source=other)) / 2)
    return averages
@wrong("06.overlap", "ms until all averages are there; the limit")
def one_message_for_all(comm, layers):
    other = 1 - comm.rank
    for seconds, _ in layers: comm.compute(seconds)
    theirs = comm.sendrecv([np.asarray(mine) for _, mine in layers], dest=other, source=other)
    return [(mine + their) / 2 for (_, mine), their in zip(layers, theirs, strict=True)]
@wrong("06.overlap", "irecv returns a request, not the message: its wait() returns the message; TypeError")
def forgets_to_wait(comm, layers):
    other, averages = 1 - comm.rank, []
    for seconds, mine in layers:
        comm.compute(seconds)
        comm.isend(mine, dest=other)
        averages.append((mine + comm.irecv(source=other)) / 2)
    return averages
@wrong("06.overlap", "only the other rank's gradient is halved: (a + b) / 2")
def halves_the_other_alone(comm, layers):
    return [mean + mine / 2 for mean, (_, mine) in zip(overlap(comm, layers), layers, strict=True)]
@wrong("06.overlap", "✗ right: each rank returns its own gradients")
def keeps_its_own(comm, layers):
    overlap(comm, layers)
    return [mine for _, mine in layers]
@wrong("06.in_order", "clipping (A) comes before synchronize() (F)")
def clips_before_it_synchronizes(): return "DEBAFC"
@wrong("06.in_order", "the gradients are being sent, and the optimizer raises an AssertionError")
def zeroes_what_is_on_its_way(): return "EBDFAC"
@wrong("06.in_order", "step() has no averages any more")
def zeroes_the_averages(): return list("EBFADC")
@wrong("06.in_order", "step() (C) comes before clipping (A)")
def steps_before_it_clips(): return "DEBFCA"
@wrong("06.in_order", "synchronize() (F) comes before backward() (B)")
def synchronizes_first(): return "FDEBAC"
@wrong("06.in_order", "the forward pass (E) comes after it")
def backward_before_forward(): return "DBEFAC"
@wrong("06.in_order", "A is missing")
def leaves_one_out(): return "DEBFC"
@wrong(
    "06.in_order", 'the six lines stands there once: your result is 451613. Six letters are asked for, such as "ABCDEF"'
)
def as_a_number(): return 451613
@wrong("06.in_order", "',' is none of the letters A to F")
def with_commas(): return "D, E, B, F, A, C"
@wrong("06.overlap", "n = 2, no layers, rank 0: a value is None here: it has no other value yet, or")
def keeps_no_layer(comm, layers):
    other, pending, before = 1 - comm.rank, [], None
    for seconds, gradient in layers:
        comm.compute(seconds)
        if before is not None: pending.append((before, comm.isend(before, dest=other), comm.irecv(source=other)))
        before = gradient
    pending.append((before, comm.isend(before, dest=other), comm.irecv(source=other)))
    averages = []
    for mine, sent, received in pending:
        averages.append((mine + received.wait()) / 2)
        sent.wait()
    return averages
