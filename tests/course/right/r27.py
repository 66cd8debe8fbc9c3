"""Right answers of lesson 27 that are unlike the official ones."""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import suppress

import numpy as np

with suppress(ModuleNotFoundError):  # a browser has no torch
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
def stages_with_isend(dist, x):  # Receives are begun at once, and sends waited for at the end.
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    came = [torch.empty_like(each) for each in x] if rank else x
    come = [dist.irecv(each, rank - 1) for each in came] if rank else []
    for work in come: work.wait()
    done = [each + rank for each in came]
    if rank == last: return done
    for work in [dist.isend(each, rank + 1) for each in done]: work.wait()
    return []
def stages_one_after_the_other(dist, x):  # A stage does all of its work before the next begins.
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    batch = torch.stack(x)
    if rank > 0: dist.recv(batch, src=rank - 1)
    batch += rank
    if rank < last: dist.send(batch, dst=rank + 1)
    return list(batch) if rank == last else []
def stages_by_objects(dist, x):  # Whatever can be pickled.
    rank, n, results = dist.get_rank(), dist.get_world_size(), []
    for micro in x:
        box = [micro]
        if rank: dist.recv_object_list(box, src=rank - 1)
        box[0] = box[0] + rank
        if rank + 1 < n: dist.send_object_list(box, dst=rank + 1)
        else: results += box
    return results
def stages_by_batches_of_messages(dist, x):  # batch_isend_irecv, a message at a time.
    rank, n = dist.get_rank(), dist.get_world_size()
    def go(verb, tensor, peer):
        for work in dist.batch_isend_irecv([dist.P2POp(verb, tensor, peer)]): work.wait()
    for micro in x:
        if rank: go(dist.irecv, micro, rank - 1)
        micro += rank
        if rank < n - 1: go(dist.isend, micro, rank + 1)
    return x if rank == n - 1 else []
def dispatch_by_lists(dist, tokens, expert):  # all_to_all takes lists of tensors.
    n = dist.get_world_size()
    counts = [torch.zeros(1, dtype=torch.int64) for _ in range(n)]
    dist.all_to_all(counts, [(expert == to).sum().reshape(1) for to in range(n)])
    come = [tokens.new_empty(int(count), tokens.shape[1]) for count in counts]
    dist.all_to_all(come, [tokens[expert == to] for to in range(n)])
    return torch.cat(come)
def dispatch_by_a_table(dist, tokens, expert):  # All counts on all ranks: a column of them is this rank's.
    n, rank = dist.get_world_size(), dist.get_rank()
    sent = torch.bincount(expert, minlength=n)
    table = torch.empty(n, n, dtype=torch.int64)
    dist.all_gather(list(table), sent)
    come = table[:, rank].tolist()
    mine = torch.empty(sum(come), tokens.shape[1], dtype=tokens.dtype)
    dist.all_to_all_single(mine, tokens[torch.sort(expert, stable=True).indices], come, sent.tolist())
    return mine
def dispatch_by_objects(dist, tokens, expert):  # Everybody gets everything, and takes its own.
    pairs = [None] * dist.get_world_size()
    dist.all_gather_object(pairs, (tokens, expert))
    return torch.cat([each[to == dist.get_rank()] for each, to in pairs])
def dispatch_with_padding(dist, tokens, expert):  # Places for the fullest, and a mark at those that are taken.
    n, most = dist.get_world_size(), torch.bincount(expert).max()
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    padded = tokens.new_full((n, int(most), tokens.shape[1]), float("nan"))
    for to in range(n): padded[to, : (expert == to).sum()] = tokens[expert == to]
    come = torch.empty_like(padded)
    dist.all_to_all_single(come, padded)
    return come[~come.isnan().any(dim=-1)]
def experts_with_a_zero(dist, tokens, received, sent):  # A norm more, which is never the largest.
    norms = torch.nn.functional.pad(tokens.norm(dim=1), (0, 1))
    back = torch.empty(sum(sent), tokens.shape[1], dtype=tokens.dtype)
    dist.all_to_all_single(back, tokens / norms.max(), output_split_sizes=sent, input_split_sizes=received)
    return back
def experts_by_default(dist, tokens, received, sent):  # Python's max has a word for it.
    largest = max((row.norm().item() for row in tokens), default=1.0)
    come = [tokens.new_empty(count, tokens.shape[1]) for count in sent]
    dist.all_to_all(come, list((tokens / largest).split(received)))
    return torch.cat(come)
def experts_in_a_branch(dist, tokens, received, sent):  # Only the division is in it, and not the all-to-all.
    if sum(received) > 0: tokens = tokens / torch.linalg.vector_norm(tokens, dim=1).amax()
    back = tokens.new_zeros((sum(sent), tokens.size(1)))
    work = dist.all_to_all_single(back, tokens, sent, received, async_op=True)
    work.wait()
    return back
def experts_by_objects(dist, tokens, received, sent):  # All parts of all ranks.
    largest = tokens.norm(dim=1).max() if tokens.numel() else 1
    parts = [None] * len(sent)
    dist.all_gather_object(parts, [each.clone() for each in (tokens / largest).split(received)])
    return torch.cat([each[dist.get_rank()] for each in parts])


RIGHT = {
    "27.places": [places_by_numpy, places_by_asking, places_by_dealing, places_by_starts],
    "27.to_experts": [experts_by_sorting, experts_by_lists, experts_at_once, experts_by_torch],
    "27.slots": [slots_by_counting, slots_by_counter, slots_by_iterators, slots_by_numpy],
    "27.balance_loss": [balance_of_means, balance_in_two_sums, balance_by_torch, balance_by_gathered_sums],
    "27.stages": [stages_with_isend, stages_one_after_the_other, stages_by_objects, stages_by_batches_of_messages],
    "27.dispatch": [dispatch_by_lists, dispatch_by_a_table, dispatch_by_objects, dispatch_with_padding],
    "27.through_experts": [experts_with_a_zero, experts_by_default, experts_in_a_branch, experts_by_objects],
}
