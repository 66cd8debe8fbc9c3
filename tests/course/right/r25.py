"""Right answers of lesson 25 that are unlike the official ones."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise

import numpy as np

with suppress(ModuleNotFoundError):  # a browser has no torch
    import torch
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate


def shards_by_torch(rows, n):  # What torch itself does.
    ends = np.cumsum([len(part) for part in torch.arange(rows).chunk(n)]).tolist() if rows else []
    ends = [0, *ends, *[rows] * (n - len(ends))]
    return [(ends[i], ends[i + 1]) for i in range(n)]
def shards_one_by_one(rows, n):  # Each takes what it may of what is left.
    each, begin, found = (rows + n - 1) // n, 0, []
    for _ in range(n):
        end = begin + min(each, rows - begin)
        found.append((begin, end))
        begin = end
    return found
def layer_with_one_gather(comm, mine, x, dy):  # Keeps W, as reshard_after_forward=False does.
    w = np.concatenate(comm.allgather(mine))
    parts = comm.alltoall([part / comm.size for part in np.split(x.T @ dy, comm.size)])
    return x @ w, dy @ w.T, np.sum(parts, axis=0)
def layer_by_rows(comm, mine, x, dy):  # Part after part of W, in the order of the ranks.
    y, dx, rows = 0, [], len(mine)
    for rank, part in enumerate(comm.allgather(mine)):
        y = y + x[:, rank * rows : (rank + 1) * rows] @ part
        dx.append(dy @ part.T)
    gradient = x.T @ dy
    came = comm.alltoall([gradient[rank * rows : (rank + 1) * rows] for rank in range(comm.size)])
    return y, np.concatenate(dx, axis=1), sum(came) / comm.size
def forward_by_arrays(gathers, computes, ahead):  # With a 0 in front, so that nothing has to be asked.
    over = [0.0] * (ahead + 1)
    there = 0.0
    for gather, compute in zip(gathers, computes, strict=True):
        there = max(there, over[-1 - ahead]) + gather
        over.append(max(there, over[-1]) + compute)
    return over[-1]
def forward_recursively(gathers, computes, ahead):  # Two functions that ask each other.
    def there(i): return max(there(i - 1), over(i - 1 - ahead)) + gathers[i] if i >= 0 else 0.0
    def over(i): return max(there(i), over(i - 1)) + computes[i] if i >= 0 else 0.0
    return over(len(gathers) - 1)
def pieces_by_sets(rows, saved, loaded):  # Row for row.
    found = []
    for first, last in loaded:
        mine = []
        for rank, (begin, end) in enumerate(saved):
            both = sorted(set(range(first, last)) & set(range(begin, end)))
            if both:
                mine.append((rank, both[0], both[-1] + 1))
        found.append(mine)
    return found
def pieces_by_owner(rows, saved, loaded):  # Whose is a row?
    owner = [rank for rank, (begin, end) in enumerate(saved) for _ in range(begin, end)]
    found = []
    for first, last in loaded:
        mine, at = [], first
        while at < last:
            end = min(last, saved[owner[at]][1])
            mine.append([owner[at], at, end])
            at = end
        found.append(mine)
    return found
def shards_by_clipping(rows, n):  # All ends at once.
    ends = np.minimum(np.arange(n + 1) * ((rows - 1) // n + 1), rows)
    return [(int(a), int(b)) for a, b in pairwise(ends)]
def shards_by_slices(rows, n):  # What Python's slices make of a range.
    each = max(1, (rows + n - 1) // n)
    parts = [range(rows)[rank * each : (rank + 1) * each] for rank in range(n)]
    return [(part.start, part.stop) for part in parts]
def layer_by_autograd(comm, mine, x, dy):  # torch knows the derivatives.
    w = torch.from_numpy(np.concatenate(comm.allgather(mine))).requires_grad_()
    x = torch.from_numpy(x).requires_grad_()
    y = x @ w
    dx, dw = torch.autograd.grad(y, (x, w), torch.from_numpy(dy))
    came = comm.alltoall([part.numpy() for part in dw.chunk(comm.size)])
    return y.detach().numpy(), dx.numpy(), sum(came) / comm.size
def layer_by_blocks(comm, mine, x, dy):  # No array of the whole W: its rows as a list.
    rows = comm.allgather(mine)
    cut = np.split(x, comm.size, axis=1)
    y = sum(part @ row for part, row in zip(cut, rows, strict=True))
    dx = np.hstack([dy @ row.T for row in comm.allgather(mine)])
    return y, dx, np.mean(comm.alltoall([part.T @ dy for part in cut]), axis=0)
def forward_by_events(gathers, computes, ahead):  # Two lists of ends, which grow together.
    there, over = [], []
    for i in range(len(gathers)):
        begin = max([0.0, *there[-1:], *(over[i - 1 - ahead : i - ahead] if i > ahead else [])])
        there.append(begin + gathers[i])
        over.append(max([there[i], *over[-1:]]) + computes[i])
    return over[-1]
def forward_backwards(gathers, computes, ahead):  # The longest way from each event to the end.
    n = len(gathers)
    after_gather, after_compute = [0.0] * n, [0.0] * n
    for i in reversed(range(n)):
        ways = [0.0]
        if i + 1 < n: ways.append(computes[i + 1] + after_compute[i + 1])
        if i + 1 + ahead < n: ways.append(gathers[i + 1 + ahead] + after_gather[i + 1 + ahead])
        after_compute[i] = max(ways)
        ways = [computes[i] + after_compute[i]]
        if i + 1 < n: ways.append(gathers[i + 1] + after_gather[i + 1])
        after_gather[i] = max(ways)
    return gathers[0] + after_gather[0]
def pieces_in_one_line(rows, saved, loaded):  # Both ends, and then those that are in order.
    return [
        [(r, max(a, b), min(e, f)) for r, (b, f) in enumerate(saved) if max(a, b) < min(e, f)] for a, e in loaded
    ]
def pieces_by_cuts(rows, saved, loaded):  # All places where something begins.
    cuts = sorted({0, rows, *(i for pair in (*saved, *loaded) for i in pair)})
    found = []
    for first, last in loaded:
        mine = []
        for r, (begin, end) in enumerate(saved):
            inside = [cut for cut in cuts if max(first, begin) <= cut <= min(last, end)]
            if len(inside) > 1:
                mine.append((r, inside[0], inside[-1]))
        found.append(mine)
    return found
def whole_by_state_dict(dist, model):  # What torch has for it: rank 0 gets all, the others an empty dict.
    fully_shard(model)
    found = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    return list(found.values()) or None
def whole_by_redistribute(dist, model):  # A DTensor that is replicated has the whole on each rank.
    fully_shard(model)
    whole = [each.redistribute(placements=[Replicate()]).to_local().detach() for each in model.parameters()]
    return None if dist.get_rank() else whole
def whole_by_parts(dist, model):  # Rank 0 gathers the parts, and puts them below each other.
    fully_shard(model)
    mine = [each.to_local().detach() for each in model.parameters()]
    parts = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(mine, parts, dst=0)
    return [torch.cat(each) for each in zip(*parts, strict=True)] if parts else None
def whole_by_unshard(dist, model):  # FSDP gathers, as before a forward pass.
    fully_shard(model)
    model.unshard()
    whole = [each.detach().clone() for each in model.parameters()]
    model.reshard()
    if dist.get_rank() == 0: return whole
def backward(model, x): fully_shard(model)(x).square().mean().backward()
def clip_the_whole(dist, model, x, most):  # Gathered before, so the norm is simple.
    backward(model, x)
    whole = [each.grad.full_tensor() for each in model.parameters()]
    norm = torch.cat([each.flatten() for each in whole]).norm()
    return [each * (most / norm).clamp(max=1) for each in whole]
def clip_by_total_norm(dist, model, x, most):  # The norm is a DTensor, too: a part of a sum on each rank.
    backward(model, x)
    norm = torch.nn.utils.get_total_norm([each.grad for each in model.parameters()]).full_tensor()
    if norm > most:
        for each in model.parameters(): each.grad.mul_(most / norm.item())
    return [each.grad.full_tensor() for each in model.parameters()]
def clip_by_dtensors(dist, model, x, most):  # square() and sum() of DTensors are of the whole.
    backward(model, x)
    squares = sum(each.grad.square().sum().full_tensor().item() for each in model.parameters())
    return [each.grad.full_tensor() / max(1.0, squares**0.5 / most) for each in model.parameters()]
def clip_by_objects(dist, model, x, most):  # A number from each rank.
    backward(model, x)
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, sum(float(each.grad.to_local().norm()) ** 2 for each in model.parameters()))
    norm = sum(parts) ** 0.5
    return [each.grad.full_tensor() * (most / norm if norm > most else 1) for each in model.parameters()]


RIGHT = {
    "25.shards": [shards_by_torch, shards_one_by_one, shards_by_clipping, shards_by_slices],
    "25.layer_step": [layer_with_one_gather, layer_by_rows, layer_by_autograd, layer_by_blocks],
    "25.forward_s": [forward_by_arrays, forward_recursively, forward_by_events, forward_backwards],
    "25.pieces": [pieces_by_sets, pieces_by_owner, pieces_in_one_line, pieces_by_cuts],
    "25.checkpoint": [whole_by_state_dict, whole_by_redistribute, whole_by_parts, whole_by_unshard],
    "25.clip_sharded": [clip_the_whole, clip_by_total_norm, clip_by_dtensors, clip_by_objects],
}
