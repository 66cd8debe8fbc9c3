"""Right answers of lesson 27 that are unlike the official ones."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import torch


def places_by_numpy(layers, ranks, chunks):  # An array of chunks × ranks × layers of a stage.
    grid = np.arange(layers).reshape(chunks, ranks, -1)  # reshape raises the ValueError
    return [grid[:, rank].ravel().tolist() for rank in range(ranks)]
def places_by_asking(layers, ranks, chunks):  # Whose is a layer?
    each, rest = divmod(layers, ranks * chunks)
    if rest: raise ValueError("no equal stages")
    return [[i for i in range(layers) if (i // each) % ranks == rank] for rank in range(ranks)]
def places_by_dealing(layers, ranks, chunks):  # Stage after stage, dealt out.
    if layers % (ranks * chunks) != 0: raise ValueError(f"{layers} layers")
    hands, each = [[] for _ in range(ranks)], layers // ranks // chunks
    for begin in range(0, layers, each):
        hands[begin // each % ranks].extend(range(begin, begin + each))
    return hands
def places_by_starts(layers, ranks, chunks):  # Where each of a rank's stages begins.
    each = layers / (ranks * chunks)
    if each != int(each): raise ValueError(each)
    each = int(each)
    return [[s + i for s in range(r * each, layers, ranks * each) for i in range(each)] for r in range(ranks)]
def experts_by_sorting(comm, x, choice, expert):  # Sorted by expert, and unsorted at the end.
    order = np.argsort(choice, kind="stable")
    ends = np.cumsum(np.bincount(choice, minlength=comm.size))[:-1]
    back = comm.alltoall([tokens @ expert for tokens in comm.alltoall(np.split(x[order], ends))])
    found = np.empty_like(x)
    found[order] = np.concatenate(back)
    return found
def experts_by_lists(comm, x, choice, expert):  # Token by token; what comes back is taken from the front.
    rows = defaultdict(list)
    for row, to in zip(x, choice, strict=True):
        rows[to].append(row)
    came = comm.alltoall([np.array(rows[r]).reshape(-1, x.shape[1]) for r in range(comm.size)])
    back = [iter(tokens) for tokens in comm.alltoall([tokens @ expert for tokens in came])]
    return np.array([next(back[to]) for to in choice])
def experts_at_once(comm, x, choice, expert):  # One product for all tokens that came.
    masks = [choice == rank for rank in range(comm.size)]
    came = comm.alltoall([x[mask] for mask in masks])
    made = np.concatenate(came) @ expert
    back = comm.alltoall(np.split(made, np.cumsum([len(tokens) for tokens in came])[:-1]))
    found = np.zeros((len(choice), made.shape[1]))
    for mask, tokens in zip(masks, back, strict=True): found[mask] = tokens
    return found
def experts_by_torch(comm, x, choice, expert):  # torch's products and index_copy_.
    index = [torch.from_numpy(np.flatnonzero(choice == rank)) for rank in range(comm.size)]
    came = comm.alltoall([x[each.numpy()] for each in index])
    back = comm.alltoall([(torch.from_numpy(tokens) @ torch.from_numpy(expert)).numpy() for tokens in came])
    found = torch.empty(len(x), expert.shape[1], dtype=torch.float64)
    for each, tokens in zip(index, back, strict=True): found.index_copy_(0, each, torch.from_numpy(tokens))
    return found.numpy()
def slots_by_counting(choice, experts, capacity):  # How many stand before it?
    places = [list(choice[:i]).count(expert) for i, expert in enumerate(choice)]
    return [place if place < capacity else None for place in places]
def slots_by_counter(choice, experts, capacity):  # A Counter that stops at the capacity.
    seen, found = Counter(), []
    for expert in choice:
        if seen[expert] == capacity:
            found.append(None)
            continue
        found.append(seen[expert])
        seen[expert] += 1
    return found
def slots_by_iterators(choice, experts, capacity):  # Each expert hands out its places, until there are none left.
    free = [iter(range(capacity)) for _ in range(experts)]
    return [next(free[expert], None) for expert in choice]
def slots_by_numpy(choice, experts, capacity):  # A running count in each expert's column.
    if len(choice) == 0: return []
    onehot = np.eye(experts, dtype=int)[list(choice)]
    places = (np.cumsum(onehot, axis=0) * onehot).sum(axis=1) - 1
    return [int(place) if place < capacity else None for place in places]
def balance_of_means(comm, probabilities):  # All ranks have as many tokens, so means may be averaged.
    share = np.eye(probabilities.shape[1])[probabilities.argmax(axis=1)].mean(axis=0)
    both = comm.allreduce(np.concatenate([share, probabilities.mean(axis=0)])) / comm.size
    share, mean = np.split(both, 2)
    return len(share) * float((share * mean).sum())
def balance_in_two_sums(comm, probabilities):  # One message each.
    tokens, experts = probabilities.shape
    best = np.array([np.count_nonzero(probabilities.argmax(axis=1) == e) for e in range(experts)])
    counts, total = comm.allreduce(best), comm.allreduce(probabilities.sum(axis=0))
    return experts * float(np.dot(counts, total)) / (tokens * comm.size) ** 2
def balance_by_torch(comm, probabilities):  # torch's bincount.
    p = torch.from_numpy(probabilities)
    counts = torch.bincount(p.argmax(dim=1), minlength=p.shape[1]).double()
    both = comm.allreduce(torch.stack([counts, p.sum(dim=0)]).numpy()) / (len(p) * comm.size)
    return float(p.shape[1] * (both[0] * both[1]).sum())
def balance_by_gathered_sums(comm, probabilities):  # The ranks' sums, gathered.
    tokens, experts = probabilities.shape
    mine = np.stack([np.bincount(probabilities.argmax(axis=1), minlength=experts), probabilities.sum(axis=0)])
    share, mean = np.mean(comm.allgather(mine), axis=0) / tokens
    return float(experts * share @ mean)


RIGHT = {
    "27.places": [places_by_numpy, places_by_asking, places_by_dealing, places_by_starts],
    "27.to_experts": [experts_by_sorting, experts_by_lists, experts_at_once, experts_by_torch],
    "27.slots": [slots_by_counting, slots_by_counter, slots_by_iterators, slots_by_numpy],
    "27.balance_loss": [balance_of_means, balance_in_two_sums, balance_by_torch, balance_by_gathered_sums],
}
