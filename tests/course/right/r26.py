"""Right answers of lesson 26 that are unlike the official ones."""

from __future__ import annotations

from contextlib import suppress

import numpy as np

with suppress(ModuleNotFoundError):  # a browser has no torch
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.experimental import implicit_replication
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
    from torch.utils.data import DataLoader
    from torch.utils.data.distributed import DistributedSampler


def loss_in_three_sums(comm, scores, first, targets):  # One message for each number.
    most = comm.allreduce(scores.max(axis=1), op=np.maximum)
    total = comm.allreduce(np.exp(scores - most[:, None]).sum(axis=1))
    right = [s[t - first] if 0 <= t - first < len(s) else 0.0 for s, t in zip(scores, targets, strict=True)]
    return np.mean(np.log(total) + most - comm.allreduce(np.array(right)))
def loss_by_logs(comm, scores, first, targets):  # Logarithms of sums are added as such: no largest score is needed.
    logs = comm.allreduce(np.logaddexp.reduce(scores, axis=1), op=np.logaddexp)
    place = targets - first
    right = np.array([scores[t, p] if 0 <= p < scores.shape[1] else 0.0 for t, p in enumerate(place)])
    return float(np.mean(logs - comm.allreduce(right)))
def loss_of_shifted(comm, scores, first, targets):  # The right score is shifted, too.
    shifted = scores - comm.allreduce(scores.max(axis=1), op=np.maximum)[:, None]
    onehot = targets[:, None] == first + np.arange(scores.shape[1])
    both = comm.allreduce(np.array([np.exp(shifted).sum(axis=1), np.where(onehot, shifted, 0.0).sum(axis=1)]))
    return (np.log(both[0]) - both[1]).mean()
def loss_by_gathered_sums(comm, scores, first, targets):  # Three numbers of each rank, for each token.
    most = scores.max(axis=1)
    onehot = targets[:, None] == first + np.arange(scores.shape[1])
    mine = np.stack([most, np.exp(scores - most[:, None]).sum(axis=1), (scores * onehot).sum(axis=1)])
    parts = np.array(comm.allgather(mine))
    top = parts[:, 0].max(axis=0)
    total = (parts[:, 1] * np.exp(parts[:, 0] - top)).sum(axis=0)
    return (np.log(total) + top - parts[:, 2].sum(axis=0)).mean()
def tokens_by_a_loop(comm, x, w1, w2):  # Each rank's tokens for themselves.
    parts = [np.maximum(theirs @ w1, 0) @ w2 for theirs in comm.allgather(x)]
    return np.sum(comm.alltoall(parts), axis=0)
def tokens_by_alltoall(comm, x, w1, w2):  # Gathered by the other verb: everybody gets the same.
    everything = np.vstack(comm.alltoall([x] * comm.size))
    parts = np.array_split(np.maximum(everything @ w1, 0) @ w2, comm.size)
    return sum(comm.alltoall(parts))
def tokens_by_torch(comm, x, w1, w2):  # The layers of torch.
    everything = torch.from_numpy(np.concatenate(comm.allgather(x)))
    part = torch.relu(everything @ torch.from_numpy(w1)) @ torch.from_numpy(w2)
    return np.add.reduce(comm.alltoall([one.numpy() for one in part.chunk(comm.size)]))
def tokens_in_turn(comm, x, w1, w2):  # A sum to each rank in turn.
    found = None
    for rank, theirs in enumerate(comm.allgather(x)):
        total = comm.reduce(np.maximum(theirs @ w1, 0) @ w2, root=rank)
        found = total if total is not None else found
    return found
def _passed_on(comm, key, value):
    """By whose keys and values come: (rank, key, value)."""
    n = comm.size
    for step in range(n):
        yield (comm.rank - step) % n, key, value
        if step < n - 1:
            both = comm.sendrecv(np.stack([key, value]), dest=(comm.rank + 1) % n, source=(comm.rank - 1) % n)
            key, value = both[0], both[1]
def _allowed(comm, rank, tokens):
    at = np.arange(tokens)
    return rank * tokens + at <= (comm.rank * tokens + at)[:, None]
def ring_by_logs(comm, query, key, value):  # Keeps the logarithm of the sum, and the mean so far.
    logs, found = np.full(len(query), -np.inf), np.zeros_like(value)
    for rank, k, v in _passed_on(comm, key, value):
        scores = np.where(_allowed(comm, rank, len(query)), query @ k.T / np.sqrt(query.shape[1]), -np.inf)
        new = np.logaddexp(logs, np.logaddexp.reduce(scores, axis=1))
        found = found * np.exp(logs - new)[:, None] + np.exp(scores - new[:, None]) @ v
        logs = new
    return found
def ring_that_keeps(comm, query, key, value):  # Keeps all scores and values, and takes the softmax at the end.
    scores, values = [], []
    for rank, k, v in _passed_on(comm, key, value):
        scores.append(np.where(_allowed(comm, rank, len(query)), query @ k.T / query.shape[1] ** 0.5, -np.inf))
        values.append(v)
    scores, values = np.concatenate(scores, axis=1), np.concatenate(values)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return (weights / weights.sum(axis=1, keepdims=True)) @ values
def ring_in_order(comm, query, key, value):  # Puts what came back into the text's order, and asks torch.
    parts = {rank: (k, v) for rank, k, v in _passed_on(comm, key, value)}
    keys, values = (np.concatenate([parts[rank][i] for rank in sorted(parts)]) for i in (0, 1))
    first = comm.rank * len(query)
    mask = torch.ones(len(query), len(keys), dtype=torch.bool).tril(first)
    found = torch.nn.functional.scaled_dot_product_attention(
        *(torch.from_numpy(each)[None] for each in (query, keys, values)), attn_mask=mask
    )
    return found[0].numpy()
def ring_that_skips(comm, query, key, value):  # What comes after this rank's tokens is passed on, and not computed.
    most, total, found = np.full((len(query), 1), -np.inf), np.zeros((len(query), 1)), np.zeros_like(value)
    for rank, k, v in _passed_on(comm, key, value):
        if rank > comm.rank:
            continue
        scores = query @ k.T / np.sqrt(query.shape[1])
        if rank == comm.rank:
            scores[np.triu_indices(len(scores), 1)] = -np.inf
        larger = np.maximum(most, scores.max(axis=1, keepdims=True))
        weights = np.exp(scores - larger)
        total = total * np.exp(most - larger) + weights.sum(axis=1, keepdims=True)
        found = found * np.exp(most - larger) + weights @ v
        most = larger
    return found / total
def zigzag_by_folding(tokens, n):  # The list of pieces, folded in its middle.
    ends = list(range(0, tokens + 1, tokens // (2 * n)))
    pieces = [(ends[i], ends[i + 1]) for i in range(2 * n)]
    return [[front, back] for front, back in zip(pieces[:n], pieces[: n - 1 : -1], strict=True)]
def zigzag_from_behind(tokens, n):  # From both ends of the text.
    piece = tokens // n // 2
    return [
        [(r * piece, r * piece + piece), (tokens - (r + 1) * piece, tokens - r * piece)] for r in range(n)
    ]
def zigzag_by_numpy(tokens, n):  # Pieces as rows of an array.
    pieces = np.arange(tokens).reshape(2 * n, -1)
    return [[(int(pieces[i, 0]), int(pieces[i, -1]) + 1) for i in (r, -1 - r)] for r in range(n)]
def zigzag_by_dealing(tokens, n):  # Dealt out, there and back.
    hands = [[] for _ in range(n)]
    piece = tokens // (2 * n)
    for i, rank in enumerate([*range(n), *reversed(range(n))]):
        hands[rank].append((i * piece, (i + 1) * piece))
    return hands
def drop_by_division(dist, x, seed, tensor):  # No mesh: the row is a quotient.
    chance = torch.Generator().manual_seed(seed + dist.get_rank() // tensor)
    return torch.where(torch.rand(x.shape, generator=chance) < 0.5, 2 * x, 0.0)
def drop_by_coordinate(dist, x, seed, tensor):  # The place in the mesh.
    mesh = init_device_mesh("cpu", (dist.get_world_size() // tensor, tensor))
    chance = torch.Generator()
    chance.manual_seed(seed + mesh.get_coordinate()[0])
    return x.mul(2).masked_fill(torch.empty(x.shape).uniform_(generator=chance) >= 0.5, 0)
def drop_by_broadcast(dist, x, seed, tensor):  # The first of each row draws, and the others hear it.
    mesh = init_device_mesh("cpu", (dist.get_world_size() // tensor, tensor), mesh_dim_names=("rows", "places"))
    kept = torch.empty(x.shape)
    if mesh.get_local_rank("places") == 0:
        chance = torch.Generator().manual_seed(seed + mesh.get_local_rank("rows"))
        kept = (torch.rand(x.shape, generator=chance) < 0.5).float()
    dist.broadcast(kept, group=mesh.get_group("places"), group_src=0)
    return x * kept * 2
def drop_by_counting(dist, x, seed, tensor):  # Row after row.
    ranks = torch.arange(dist.get_world_size()).view(-1, tensor)
    row = int((ranks == dist.get_rank()).nonzero()[0, 0])
    numbers = torch.rand(x.shape, generator=torch.Generator().manual_seed(seed + row))
    return (x + x) * numbers.lt(0.5)
def columns_by_slice(dist, seed, rows, width):  # From one column to another.
    whole = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))
    each = width // dist.get_world_size()
    return whole[:, dist.get_rank() * each : (dist.get_rank() + 1) * each]
def columns_by_distribute(dist, seed, rows, width):  # A DTensor's part.
    whole = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))
    return distribute_tensor(whole, init_device_mesh("cpu", (dist.get_world_size(),)), [Shard(1)]).to_local()
def columns_by_scatter(dist, seed, rows, width):  # Rank 0 draws, and hands out.
    mine, parts = torch.empty(rows, width // dist.get_world_size()), None
    if dist.get_rank() == 0:
        whole = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))
        parts = [each.contiguous() for each in whole.hsplit(dist.get_world_size())]
    dist.scatter(mine, parts, src=0)
    return mine
def columns_by_broadcast(dist, seed, rows, width):  # The whole is sent, and each cuts.
    whole = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed + dist.get_rank()))
    dist.broadcast(whole, src=0)
    each = width // dist.get_world_size()
    return whole.narrow(1, dist.get_rank() * each, each)
def bias_that_is_cut(dist, x, weight, bias):  # As the columns are.
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    weight, bias = distribute_tensor(weight, mesh, [Shard(1)]), distribute_tensor(bias, mesh, [Shard(0)])
    return (distribute_tensor(x, mesh, [Replicate()]) @ weight + bias).full_tensor()
def bias_after_gathering(dist, x, weight, bias):  # Two tensors again.
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    product = distribute_tensor(x, mesh, [Replicate()]) @ distribute_tensor(weight, mesh, [Shard(1)])
    return product.full_tensor() + bias
def bias_by_columns(dist, x, weight, bias):  # torch's plan for a layer.
    layer = torch.nn.Linear(*weight.shape).double()
    layer.load_state_dict({"weight": weight.T, "bias": bias})
    plan = ColwiseParallel(output_layouts=Replicate())
    return parallelize_module(layer, init_device_mesh("cpu", (dist.get_world_size(),)), plan)(x)
def bias_implicitly(dist, x, weight, bias):  # Tensors count as replicated here.
    weight = distribute_tensor(weight, init_device_mesh("cpu", (dist.get_world_size(),)), [Shard(1)])
    with implicit_replication(): return (x @ weight + bias).full_tensor()
def samples_by_division(dist, count, seed, tensor):  # No mesh.
    rows, row = dist.get_world_size() // tensor, dist.get_rank() // tensor
    return list(DistributedSampler(range(count), num_replicas=rows, rank=row, seed=seed, drop_last=True))
def samples_by_hand(dist, count, seed, tensor):  # What the sampler does.
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    return order[dist.get_rank() // tensor :: dist.get_world_size() // tensor]
def samples_by_broadcast(dist, count, seed, tensor):  # The first of a row tells the others.
    mesh = init_device_mesh("cpu", (dist.get_world_size() // tensor, tensor), mesh_dim_names=("d", "t"))
    told = list(DistributedSampler(range(count), mesh.size(0), mesh.get_coordinate()[0], seed=seed))
    if mesh["t"].get_local_rank(): told = [0] * len(told)
    dist.broadcast_object_list(told, group=mesh["t"].get_group(), group_src=0)
    return told
def samples_by_a_loader(dist, count, seed, tensor):  # As in training.
    mesh = init_device_mesh("cpu", (dist.get_world_size() // tensor, tensor), mesh_dim_names=("d", "t"))
    sampler = DistributedSampler(range(count), mesh["d"].size(), mesh.get_local_rank("d"), seed=seed)
    return [number for batch in DataLoader(range(count), batch_size=2, sampler=sampler) for number in batch.tolist()]


RIGHT = {
    "26.vocabulary_loss": [loss_in_three_sums, loss_by_logs, loss_of_shifted, loss_by_gathered_sums],
    "26.sequence_parallel": [tokens_by_a_loop, tokens_by_alltoall, tokens_by_torch, tokens_in_turn],
    "26.ring_attention": [ring_by_logs, ring_that_keeps, ring_in_order, ring_that_skips],
    "26.zigzag": [zigzag_by_folding, zigzag_from_behind, zigzag_by_numpy, zigzag_by_dealing],
    "26.dropout": [drop_by_division, drop_by_coordinate, drop_by_broadcast, drop_by_counting],
    "26.columns": [columns_by_slice, columns_by_distribute, columns_by_scatter, columns_by_broadcast],
    "26.with_bias": [bias_that_is_cut, bias_after_gathering, bias_by_columns, bias_implicitly],
    "26.samples": [samples_by_division, samples_by_hand, samples_by_broadcast, samples_by_a_loader],
}
