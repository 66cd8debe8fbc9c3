"""Wrong solutions of lesson 06, each with what the check must say."""

from __future__ import annotations

from typing import Any

import numpy as np

from workbench.course.tasks.t06_distributed_optimizer import overlap


def first_computes_then_sends(comm: Any, layers: Any) -> Any:
    other = 1 - comm.rank
    for seconds, _ in layers:
        comm.compute(seconds)
    return [(mine + comm.sendrecv(mine, dest=other, source=other)) / 2 for _, mine in layers]


def waits_in_every_layer(comm: Any, layers: Any) -> Any:
    other, averages = 1 - comm.rank, []
    for seconds, mine in layers:
        comm.compute(seconds)
        sent, received = comm.isend(mine, dest=other), comm.irecv(source=other)
        averages.append((mine + received.wait()) / 2)
        sent.wait()
    return averages


def starts_to_receive_at_the_end(comm: Any, layers: Any) -> Any:
    other, sends = 1 - comm.rank, []
    for seconds, mine in layers:
        comm.compute(seconds)
        sends.append(comm.isend(mine, dest=other))
    averages = [(mine + comm.recv(source=other)) / 2 for _, mine in layers]
    for sent in sends:
        sent.wait()
    return averages


def forgets_to_divide(comm: Any, layers: Any) -> Any:
    other, requests = 1 - comm.rank, []
    for seconds, mine in layers:
        comm.compute(seconds)
        requests.append((comm.isend(mine, dest=other), comm.irecv(source=other)))
    return [mine + received.wait() for (_, mine), (_, received) in zip(layers, requests, strict=True)]


def sends_before_it_computes(comm: Any, layers: Any) -> Any:
    other, requests = 1 - comm.rank, []
    for seconds, mine in layers:
        requests.append((comm.isend(mine, dest=other), comm.irecv(source=other)))
        comm.compute(seconds)
    return [(mine + received.wait()) / 2 for (_, mine), (_, received) in zip(layers, requests, strict=True)]


def never_computes(comm: Any, layers: Any) -> Any:
    other, requests = 1 - comm.rank, []
    for _, mine in layers:
        requests.append((comm.isend(mine, dest=other), comm.irecv(source=other)))
    return [(mine + received.wait()) / 2 for (_, mine), (_, received) in zip(layers, requests, strict=True)]


def both_send_first(comm: Any, layers: Any) -> Any:
    other, averages = 1 - comm.rank, []
    for seconds, mine in layers:
        comm.compute(seconds)
        comm.send(mine, dest=other)
        averages.append((mine + comm.recv(source=other)) / 2)
    return averages


def one_message_for_all(comm: Any, layers: Any) -> Any:
    other = 1 - comm.rank
    for seconds, _ in layers:
        comm.compute(seconds)
    theirs = comm.sendrecv([np.asarray(mine) for _, mine in layers], dest=other, source=other)
    return [(mine + their) / 2 for (_, mine), their in zip(layers, theirs, strict=True)]


def forgets_to_wait(comm: Any, layers: Any) -> Any:
    other, averages = 1 - comm.rank, []
    for seconds, mine in layers:
        comm.compute(seconds)
        comm.isend(mine, dest=other)
        averages.append((mine + comm.irecv(source=other)) / 2)
    return averages


def halves_the_other_alone(comm: Any, layers: Any) -> Any:
    return [mean + mine / 2 for mean, (_, mine) in zip(overlap(comm, layers), layers, strict=True)]


def keeps_its_own(comm: Any, layers: Any) -> Any:
    overlap(comm, layers)
    return [mine for _, mine in layers]


def last_layer_first(comm: Any, layers: Any) -> Any:
    return overlap(comm, layers)[::-1]


def one_layer_late(comm: Any, layers: Any) -> Any:
    other, averages, before = 1 - comm.rank, [], []
    for seconds, mine in [*layers, (0.0, None)]:
        comm.compute(seconds)
        for gradient, sent, received in before:
            averages.append((gradient + received.wait()) / 2)
            sent.wait()
        before = [] if mine is None else [(mine, comm.isend(mine, dest=other), comm.irecv(source=other))]
    return averages


def clips_before_it_synchronizes() -> str:
    return "DEBAFC"


def zeroes_what_is_on_its_way() -> str:
    return "EBDFAC"


def zeroes_the_averages() -> list[str]:
    return list("EBFADC")


def steps_before_it_clips() -> str:
    return "DEBFCA"


def synchronizes_first() -> str:
    return "FDEBAC"


def backward_before_forward() -> str:
    return "DBEFAC"


def leaves_one_out() -> str:
    return "DEBFC"


def as_a_number() -> int:
    return 451613


def as_they_stand() -> str:
    return "ABCDEF"


def with_commas() -> str:
    return "D, E, B, F, A, C"


def keeps_no_layer(comm: Any, layers: Any) -> Any:
    other, pending, before = 1 - comm.rank, [], None
    for seconds, gradient in layers:
        comm.compute(seconds)
        if before is not None:
            pending.append((before, comm.isend(before, dest=other), comm.irecv(source=other)))
        before = gradient
    pending.append((before, comm.isend(before, dest=other), comm.irecv(source=other)))
    averages = []
    for mine, sent, received in pending:
        averages.append((mine + received.wait()) / 2)
        sent.wait()
    return averages


WRONG = {
    "06.overlap": [
        (first_computes_then_sends, "✗ score: 4 ms in which a gradient is ready and none is being sent"),
        (
            waits_in_every_layer,
            "3.04 ms in which backward waits for a message; there must be none. The next layer's backward",
        ),
        (starts_to_receive_at_the_end, "✗ score: 4 ms in which a gradient is ready and none is being sent"),
        (one_layer_late, "✗ score: 0.22 ms in which backward waits for a message"),
        (one_message_for_all, "ms until all averages are there; the limit"),
        (forgets_to_divide, "n times the right number: a sum over the ranks was not divided by n"),
        (halves_the_other_alone, "only the other rank's gradient is halved: (a + b) / 2; rank 0, item 0"),
        (keeps_its_own, "each rank returns its own gradients; rank 0, item 0"),
        (last_layer_first, "✗ right: the averages are in reverse order"),
        (sends_before_it_computes, "never waited for its isend()"),
        (never_computes, "never waited for its isend()"),
        (both_send_first, "They wait in a circle"),
        (forgets_to_wait, "irecv returns a request, not the message: its wait() returns the message; TypeError"),
        (keeps_no_layer, "n = 2, no layers, rank 0: a value is None here: it has no other value yet, or"),
    ],
    "06.in_order": [
        (clips_before_it_synchronizes, "clipping (A) comes before synchronize() (F)"),
        (zeroes_what_is_on_its_way, "the gradients are being sent, and the optimizer raises an AssertionError"),
        (zeroes_the_averages, "step() has no averages any more"),
        (steps_before_it_clips, "step() (C) comes before clipping (A)"),
        (synchronizes_first, "synchronize() (F) comes before backward() (B)"),
        (backward_before_forward, "the forward pass (E) comes after it"),
        (leaves_one_out, "A is missing"),
        (as_they_stand, "the forward pass (E) comes after it"),
        (
            as_a_number,
            'the six lines stands there once: your result is 451613. Six letters are asked for, such as "ABCDEF"',
        ),
        (with_commas, "',' is none of the letters A to F"),
    ],
}
