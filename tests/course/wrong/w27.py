"""Wrong solutions of lesson 27, each with what the check must say."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
from wrong_answers import Answers

from workbench.course.tasks import task

with suppress(ModuleNotFoundError):  # a browser has no torch
    import torch

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
# --- 27.stages -----------------------------------------------------------------------------------------
def passed(dist, x, add=None):
    rank, last, done = dist.get_rank(), dist.get_world_size() - 1, []
    for micro in x:
        if rank > 0: dist.recv(micro, rank - 1)
        done.append(micro + rank)
        if rank < last: dist.send(done[-1], rank + 1)
    return done
@wrong("27.stages", "A collective failed on rank 0, and the function caught the error")
def catches_it(dist, x):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    done = passed(dist, x)
    with suppress(Exception):
        if rank < last: dist.send(done[-1], rank + 1)
    return done if rank == last else []
@wrong("27.stages", "MissingRanksError: Rank 0 is idle")
def last_one_after_the_loop(dist, x):
    rank, last, results = dist.get_rank(), dist.get_world_size() - 1, []
    for micro in x:
        if rank > 0: dist.recv(micro, rank - 1)
        micro = micro + rank
        results.append(micro)
    if rank < last: dist.send(micro, rank + 1)
    return results if rank == last else []
@wrong("27.stages", "MissingRanksError: Rank 1 is idle")
def last_receives_one_more(dist, x):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    done = passed(dist, x)
    if rank < last: dist.send(done[-1], rank + 1)
    if rank == last: dist.recv(torch.empty_like(x[0]), rank - 1)
    return done if rank == last else []
@wrong("27.stages", "The ranks wait for each other")
def meets_at_the_end(dist, x):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    done = passed(dist, x)
    if rank < last: dist.send(done[-1], rank + 1)
    dist.barrier()
    return done if rank == last else []
# --- 27.dispatch ---------------------------------------------------------------------------------------
def sorted_by(tokens, expert): return tokens[expert.argsort(stable=True)]
@wrong("27.dispatch", "of torch.float64 do not make torch.Size([2, 2])")
def all_equally_many(dist, tokens, expert):
    mine = torch.empty_like(tokens)
    dist.all_to_all_single(mine, sorted_by(tokens, expert))
    return mine
@wrong("27.dispatch", "ranks 0, 1: sent 1, and 2 expected")
def counts_of_all(dist, tokens, expert):
    sent = torch.bincount(expert, minlength=dist.get_world_size())
    received = sent.clone()
    dist.all_reduce(received)
    mine = tokens.new_empty(int(received.sum()), tokens.shape[1])
    dist.all_to_all_single(mine, sorted_by(tokens, expert), received.tolist(), sent.tolist())
    return mine
@wrong("27.dispatch", "Rank 0 was sent other sizes than it expects")
def counts_of_rank_0(dist, tokens, expert):
    sent = torch.bincount(expert, minlength=dist.get_world_size())
    received = sent.clone()
    dist.broadcast(received, src=0)
    mine = tokens.new_empty(int(received.sum()), tokens.shape[1])
    dist.all_to_all_single(mine, sorted_by(tokens, expert), received.tolist(), sent.tolist())
    return mine
@wrong("27.dispatch", "has shape (3, 2), expected (2, 2)")
def catches_and_keeps(dist, tokens, expert):
    sent = torch.bincount(expert, minlength=dist.get_world_size()).tolist()
    mine = torch.empty_like(tokens)
    try: dist.all_to_all_single(mine, sorted_by(tokens, expert), sent, sent)
    except ValueError: return tokens
    return mine
# --- 27.through_experts --------------------------------------------------------------------------------
def sent_back(dist, tokens, received, sent):
    back = tokens.new_empty(sum(sent), tokens.shape[1])
    dist.all_to_all_single(back, tokens, sent, received)
    return back
@wrong("27.through_experts", "MissingRanksError: Rank 1 is idle")
def leaves_early(dist, tokens, received, sent):
    if len(tokens) == 0: return tokens
    return sent_back(dist, tokens / tokens.norm(dim=1).max(), received, sent)
@wrong("27.through_experts", "A collective failed on rank 0, and the function caught the error")
def catches_and_leaves(dist, tokens, received, sent):
    try: return sent_back(dist, tokens / tokens.norm(dim=1).max(), received, sent)
    except RuntimeError: return tokens
@wrong("27.through_experts", "max(): Expected reduction dim to be specified for input.numel() == 0")
def waits_first(dist, tokens, received, sent):
    dist.barrier()
    return sent_back(dist, tokens / tokens.norm(dim=1).max(), received, sent)
@wrong("27.through_experts", "MissingRanksError: Rank 1 is idle")
def busy_ones_in_the_branch(dist, tokens, received, sent):
    back = tokens.new_zeros(sum(sent), tokens.shape[1])
    if len(tokens) > 0: dist.all_to_all_single(back, tokens / tokens.norm(dim=1).max(), sent, received)
    return back
@wrong("27.through_experts", "splits [1, 0, 3] do not match 0 rows and 3 ranks")
def counts_swapped(dist, tokens, received, sent):
    largest = tokens.norm(dim=1).max() if len(tokens) else 1.0
    return sent_back(dist, tokens / largest, sent, received)
SAID = {
    "27.stages": ("MissingRanksError: Rank 1 is idle, so 'send.0.0to1.0.2'", "dist.send(micro, rank + 1)"),
    "27.dispatch": ("Rank 0 was sent other sizes than it expects", "rank 1: sent 0, and 2 expected"),
    "27.through_experts": ("max(): Expected reduction dim to be specified for input.numel() == 0",),
}
"""What check() must say of each broken program as it comes."""
for name, told in SAID.items(): wrong(name, told[0])(task(name).broken)
