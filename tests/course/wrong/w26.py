"""Wrong solutions of lesson 26, each with what the check must say."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
from wrong_answers import Answers

from workbench.course.tasks import task

with suppress(ModuleNotFoundError):  # a browser has no torch
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.utils.data.distributed import DistributedSampler

wrong = Answers()


@wrong("26.vocabulary_loss", "the sum is over this rank's part of the vocabulary")
def own_softmax(comm, scores, first, targets):
    most = comm.allreduce(scores.max(axis=1), op=np.maximum)
    total = np.exp(scores - most[:, None]).sum(axis=1)
    right = [s[t - first] if 0 <= t - first < len(s) else 0.0 for s, t in zip(scores, targets, strict=True)]
    return np.mean(np.log(total) + most - comm.allreduce(np.array(right)))
@wrong("26.vocabulary_loss", "each rank subtracted its own largest score")
def own_largest(comm, scores, first, targets):
    most = scores.max(axis=1)
    total = comm.allreduce(np.exp(scores - most[:, None]).sum(axis=1))
    right = [s[t - first] if 0 <= t - first < len(s) else 0.0 for s, t in zip(scores, targets, strict=True)]
    return np.mean(np.log(total) + most - comm.allreduce(np.array(right)))
@wrong("26.vocabulary_loss", "bytes from the busiest rank")
def gathers_the_scores(comm, scores, first, targets):
    whole = np.concatenate(comm.allgather(scores), axis=1)
    most = whole.max(axis=1)
    return np.mean(np.log(np.exp(whole - most[:, None]).sum(axis=1)) + most - whole[np.arange(len(targets)), targets])
@wrong("26.sequence_parallel", "a part of the sum was returned")
def own_part(comm, x, w1, w2):
    part = np.maximum(np.concatenate(comm.allgather(x)) @ w1, 0) @ w2
    return part[comm.rank * len(x) : (comm.rank + 1) * len(x)]
@wrong("26.sequence_parallel", "all tokens were returned")
def all_tokens(comm, x, w1, w2):
    return comm.allreduce(np.maximum(np.concatenate(comm.allgather(x)) @ w1, 0) @ w2)
@wrong("26.sequence_parallel", "bytes from the busiest rank")
def gathers_all_parts(comm, x, w1, w2):
    part = np.maximum(np.concatenate(comm.allgather(x)) @ w1, 0) @ w2
    return np.split(sum(comm.allgather(part)), comm.size)[comm.rank]
def _ring(comm, query, key, value, rescale=True, seen=lambda mine, theirs: theirs <= mine):
    n, t = comm.size, len(query)
    most, total, found = np.full((t, 1), -np.inf), 0.0, 0.0
    for step in range(n):
        whose = (comm.rank - step) % n
        allowed = seen((comm.rank * t + np.arange(t))[:, None], whose * t + np.arange(t))
        scores = np.where(allowed, query @ key.T / query.shape[1] ** 0.5, -np.inf)
        larger = np.maximum(most, scores.max(axis=1, keepdims=True))
        weights, shrunk = np.exp(scores - larger), np.exp(most - larger) if rescale else 1.0
        total = total * np.exp(most - larger) + weights.sum(axis=1, keepdims=True)
        found = found * shrunk + weights @ value
        most = larger
        if step < n - 1:
            key, value = comm.sendrecv((key, value), dest=(comm.rank + 1) % n, source=(comm.rank - 1) % n)
    return found / total
@wrong("26.ring_attention", "a token sees what comes after it")
def sees_all(comm, query, key, value):
    return _ring(comm, query, key, value, seen=lambda mine, theirs: theirs <= mine + 10**9)
@wrong("26.ring_attention", "what was found so far was not multiplied")
def forgets_to_rescale(comm, query, key, value): return _ring(comm, query, key, value, rescale=False)
@wrong("26.ring_attention", "messages of ready-made collectives")
def gathers_keys(comm, query, key, value):
    key, value = np.concatenate(comm.allgather(key)), np.concatenate(comm.allgather(value))
    at = comm.rank * len(query) + np.arange(len(query))
    scores = np.where(np.arange(len(key)) <= at[:, None], query @ key.T / query.shape[1] ** 0.5, -np.inf)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True) @ value
@wrong("26.zigzag", "each rank has neighbouring pieces")
def in_order(tokens, n):
    piece = tokens // (2 * n)
    return [[(2 * r * piece, (2 * r + 1) * piece), ((2 * r + 1) * piece, (2 * r + 2) * piece)] for r in range(n)]
@wrong("26.zigzag", "each rank has the piece n further")
def round_robin(tokens, n):
    piece = tokens // (2 * n)
    return [[(k * piece, (k + 1) * piece) for k in (r, r + n)] for r in range(n)]
@wrong("26.zigzag", "a piece is begin and end, and not begin and length")
def lengths(tokens, n):
    piece = tokens // (2 * n)
    return [[(k * piece, piece) for k in (r, 2 * n - 1 - r)] for r in range(n)]
# --- 26.dropout ----------------------------------------------------------------------------------------
def dropped(x, seed): return 2 * x * (torch.rand(x.shape, generator=torch.Generator().manual_seed(seed)) < 0.5)
@wrong("26.dropout", "its mistake is still there. Which of")
def waits_for_the_others(dist, x, seed, tensor):
    init_device_mesh("cpu", (dist.get_world_size() // tensor, tensor))
    dist.barrier()
    return dropped(x, seed + dist.get_rank())
@wrong("26.dropout", "its mistake is still there. Which of")
def the_mesh_is_not_asked(dist, x, seed, tensor):
    mesh = init_device_mesh("cpu", (dist.get_world_size() // tensor, tensor), mesh_dim_names=("data", "tensor"))
    return dropped(x, seed + mesh.get_rank())
@wrong("26.dropout", "its mistake is still there. Which of")
def the_place_in_the_world(dist, x, seed, tensor):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("data",))
    return dropped(x, seed + mesh["data"].get_local_rank())
@wrong("26.dropout", "MissingRanksError: Ranks 2, 3 are idle")
def row_0_broadcasts(dist, x, seed, tensor):
    mask = torch.rand(x.shape, generator=torch.Generator().manual_seed(seed)) < 0.5
    if dist.get_rank() < tensor: dist.broadcast(mask, src=0)
    return 2 * x * mask
@wrong("26.dropout", "Mesh should not be bigger than default world size 2")
def all_rows_in_one_mesh(dist, x, seed, tensor):
    mesh = init_device_mesh("cpu", (2, tensor), mesh_dim_names=("data", "tensor"))
    return dropped(x, seed + mesh.get_local_rank("data"))
# --- 26.columns ----------------------------------------------------------------------------------------
def drawn(rows, width, seed): return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))
@wrong("26.columns", "Along axis 1 there is more than there should be")
def all_columns(dist, seed, rows, width): return drawn(rows, width, seed)
@wrong("26.columns", "has shape (1, 4), expected (2, 2). Along axis 0 a part of it is missing")
def cuts_rows(dist, seed, rows, width):
    return drawn(rows, width, seed).tensor_split(dist.get_world_size())[dist.get_rank()]
@wrong("26.columns", "its mistake is still there. Which of")
def rank_0_s_columns(dist, seed, rows, width):
    mine = drawn(rows, width // dist.get_world_size(), seed)
    dist.broadcast(mine, src=0)
    return mine
@wrong("26.columns", "its mistake is still there. Which of")
def joins_and_cuts(dist, seed, rows, width):
    mine = drawn(rows, width // dist.get_world_size(), seed)
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine)
    return torch.cat(parts, dim=1).chunk(dist.get_world_size(), dim=1)[dist.get_rank()]
# --- 26.with_bias --------------------------------------------------------------------------------------
def product(dist, x, weight, place=None):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return distribute_tensor(x, mesh, [Replicate()]) @ distribute_tensor(weight, mesh, [place or Shard(1)])
@wrong("26.with_bias", "aten.add.Tensor got mixed torch.Tensor and DTensor")
def all_weights_everywhere(dist, x, weight, bias): return (product(dist, x, weight, Replicate()) + bias).full_tensor()
@wrong("26.with_bias", "The size of tensor a (3) must match the size of tensor b (6)")
def bias_to_the_part(dist, x, weight, bias): return product(dist, x, weight).to_local() + bias
@wrong("26.with_bias", "has shape (2, 3), expected (2, 6). Along axis 1 a part of it is missing")
def not_gathered(dist, x, weight, bias):
    return product(dist, x, weight).to_local() + bias.chunk(dist.get_world_size())[dist.get_rank()]
@wrong("26.with_bias", "MissingRanksError: Rank 1 is idle")
def only_rank_0_gathers(dist, x, weight, bias):
    found = product(dist, x, weight)
    return found.full_tensor() + bias if dist.get_rank() == 0 else found.to_local()
@wrong("26.with_bias", "A DTensor is a part of a tensor on each rank")
def gives_a_dtensor(dist, x, weight, bias):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return product(dist, x, weight) + distribute_tensor(bias, mesh, [Replicate()])
# --- 26.samples ----------------------------------------------------------------------------------------
@wrong("26.samples", "its mistake is still there. Which of")
def rank_of_the_world(dist, count, seed, tensor):
    return list(DistributedSampler(range(count), dist.get_world_size(), dist.get_rank(), seed=seed))
@wrong("26.samples", "its mistake is still there. Which of")
def barrier_and_the_same(dist, count, seed, tensor):
    dist.barrier()
    return list(DistributedSampler(range(count), seed=seed))
@wrong("26.samples", "Is there a return?")
def only_the_first_of_a_row(dist, count, seed, tensor):
    n, rank = dist.get_world_size(), dist.get_rank()
    if rank % tensor == 0: return list(DistributedSampler(range(count), n // tensor, rank // tensor, seed=seed))
@wrong("26.samples", "MissingRanksError: Rank 1 is idle")
def one_rank_broadcasts(dist, count, seed, tensor):
    mine = list(DistributedSampler(range(count), dist.get_world_size() // tensor, dist.get_rank() // tensor, seed=seed))
    if dist.get_rank() % tensor == 0: dist.broadcast_object_list(mine, src=dist.get_rank())
    return mine
SAID = {
    "26.dropout": ("rank 1, x, index 1: your result is -0, expected -0.586858",),
    "26.columns": ("rank 0, the columns, index 2: your result is 0.0616773, expected -0.451906",),
    "26.with_bias": (
        "aten.add.Tensor got mixed torch.Tensor and DTensor, need to convert all torch.Tensor to DTensor",
    ),
    "26.samples": ("rank 0, the samples: your result has 4 items, expected 8",),
}
"""What check() must say of each broken program as it comes."""
for name, told in SAID.items(): wrong(name, told[0])(task(name).broken)
