"""Wrong solutions of lesson 27, each with what the check must say."""

from __future__ import annotations

import numpy as np
from wrong_answers import Answers

wrong = Answers()


@wrong("27.places", "each rank has neighbouring stages")
def in_order(layers, ranks, chunks):
    if layers % (ranks * chunks): raise ValueError(layers)
    return [list(range(r * layers // ranks, (r + 1) * layers // ranks)) for r in range(ranks)]
@wrong("27.places", "each layer was taken for a stage")
def layer_by_layer(layers, ranks, chunks):
    if layers % (ranks * chunks): raise ValueError(layers)
    return [list(range(layers))[r::ranks] for r in range(ranks)]
@wrong("27.places", "a ValueError is asked for")
def never_refuses(layers, ranks, chunks):
    each = layers // (ranks * chunks)
    return [[i for i in range(layers) if i // max(1, each) % ranks == r] for r in range(ranks)]
@wrong("27.to_experts", "the results are in the order of the experts")
def as_they_came(comm, x, choice, expert):
    order = np.argsort(choice, kind="stable")
    ends = np.cumsum(np.bincount(choice, minlength=comm.size))[:-1]
    came = comm.alltoall(np.split(x[order], ends))
    return np.concatenate(comm.alltoall([tokens @ expert for tokens in came]))
@wrong("27.to_experts", "each token went to this rank's own expert")
def stays_at_home(comm, x, choice, expert): return x @ expert
@wrong("27.to_experts", "bytes from the busiest rank")
def gathers_all(comm, x, choice, expert):
    everything = np.concatenate(comm.allgather(x))
    made = comm.allgather(everything @ expert)
    begin = comm.rank * len(x)
    return np.array([made[to][begin + i] for i, to in enumerate(choice)])
@wrong("27.slots", "places were counted over all experts")
def one_queue(choice, experts, capacity): return [i if i < capacity else None for i in range(len(choice))]
@wrong("27.slots", "dropped tokens were left out")
def shorter(choice, experts, capacity):
    seen, found = {}, []
    for expert in choice:
        place = seen[expert] = seen.get(expert, -1) + 1
        if place < capacity: found.append(place)
    return found
@wrong("27.slots", "one token too many has a place")
def one_more(choice, experts, capacity):
    places = [list(choice[:i]).count(expert) for i, expert in enumerate(choice)]
    return [place if place <= capacity else None for place in places]
@wrong("27.balance_loss", "each rank's own loss was averaged")
def mean_of_losses(comm, probabilities):
    tokens, experts = probabilities.shape
    share = np.bincount(probabilities.argmax(axis=1), minlength=experts) / tokens
    return comm.allreduce(experts * float(share @ probabilities.mean(axis=0))) / comm.size
@wrong("27.balance_loss", "the factor of the number of experts is missing")
def without_experts(comm, probabilities):
    share = np.eye(probabilities.shape[1])[probabilities.argmax(axis=1)].mean(axis=0)
    share, mean = comm.allreduce(np.stack([share, probabilities.mean(axis=0)])) / comm.size
    return float(share @ mean)
@wrong("27.balance_loss", "bytes from the busiest rank")
def gathers_probabilities(comm, probabilities):
    every = np.concatenate(comm.allgather(probabilities))
    share = np.eye(every.shape[1])[every.argmax(axis=1)].mean(axis=0)
    return every.shape[1] * float(share @ every.mean(axis=0))
