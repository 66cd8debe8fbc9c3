"""Wrong solutions of lesson 25, each with what the check must say."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
from wrong_answers import Answers

from workbench.course.tasks import task

with suppress(ModuleNotFoundError):  # a browser has no torch
    import torch
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.fsdp import fully_shard

wrong = Answers()


@wrong("25.shards", "the rows were divided as evenly as possible")
def as_even_as_possible(rows, n):
    ends = np.cumsum([0, *(len(part) for part in np.array_split(np.arange(rows), n))])
    return list(zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True))
@wrong("25.shards", "the number of rows was rounded down")
def rounds_down(rows, n): return [(r * (rows // n), min(rows, (r + 1) * (rows // n))) for r in range(n)]
@wrong("25.shards", "the last parts end behind the last row")
def behind_the_end(rows, n):
    each = (rows + n - 1) // n
    return [(min(i, rows), i + each) for i in range(0, n * each, each)]
@wrong("25.layer_step", "the gradient is this rank's own")
def own_gradient(comm, mine, x, dy):
    w = np.concatenate(comm.allgather(mine))
    return x @ w, dy @ w.T, np.split(x.T @ dy, comm.size)[comm.rank]
@wrong("25.layer_step", "the gradients were added up, and not divided")
def sums(comm, mine, x, dy):
    w = np.concatenate(comm.allgather(mine))
    return x @ w, dy @ w.T, sum(comm.alltoall(np.split(x.T @ dy, comm.size)))
@wrong("25.layer_step", "bytes from the busiest rank")
def gathers_gradients(comm, mine, x, dy):
    w = np.concatenate(comm.allgather(mine))
    mean = np.mean(comm.allgather(x.T @ dy), axis=0)
    return x @ w, dy @ w.T, np.split(mean, comm.size)[comm.rank]
@wrong("25.forward_s", "nothing holds the gathering back")
def all_at_once(gathers, computes, ahead):
    there = over = 0.0
    for gather, compute in zip(gathers, computes, strict=True):
        there += gather
        over = max(over, there) + compute
    return over
@wrong("25.forward_s", "layers are gathered one less ahead than may be there")
def one_less(gathers, computes, ahead):
    there, over = 0.0, []
    for i in range(len(gathers)):
        behind = i - ahead
        there = max(there, over[behind] if 0 <= behind < i else 0.0) + gathers[i]
        over.append(max(there, over[-1] if over else 0.0) + computes[i])
    return over[-1]
@wrong("25.forward_s", "all but the first gathering was hidden")
def hides_all_but_the_first(gathers, computes, ahead): return gathers[0] + sum(computes)
@wrong("25.pieces", "begin and end count from the first row of the file")
def from_the_file(rows, saved, loaded):
    return [
        [(r, max(first, b) - b, min(last, e) - b) for r, (b, e) in enumerate(saved) if max(first, b) < min(last, e)]
        for first, last in loaded
    ]
@wrong("25.pieces", "a rank reads whole files")
def whole_files(rows, saved, loaded):
    return [
        [(r, b, e) for r, (b, e) in enumerate(saved) if max(first, b) < min(last, e)] for first, last in loaded
    ]
@wrong("25.pieces", "empty pieces were returned")
def also_empty(rows, saved, loaded):
    found = [[(r, max(f, b), min(g, e)) for r, (b, e) in enumerate(saved)] for f, g in loaded]
    return [[piece for piece in pieces if piece[1] <= piece[2]] for pieces in found]
# --- 25.checkpoint -------------------------------------------------------------------------------------
@wrong("25.checkpoint", "One rank did an allgather, but another rank did an barrier")
def the_others_wait_in_a_barrier(dist, model):
    fully_shard(model)
    tensors = [each.full_tensor() for each in model.parameters()] if dist.get_rank() == 0 else None
    dist.barrier()
    return tensors
@wrong("25.checkpoint", "has shape (2, 4), expected (3, 4). Along axis 0 a part of it is missing")
def rank_0s_rows(dist, model):
    fully_shard(model)
    if dist.get_rank() == 0: return [each.to_local() for each in model.state_dict().values()]
@wrong("25.checkpoint", "MissingRanksError: Rank 1 is idle")
def full_state_on_rank_0(dist, model):
    fully_shard(model)
    if dist.get_rank() > 0: return None
    return list(get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)).values())
@wrong("25.checkpoint", "Rank 0 was sent other sizes than it expects")
def gathers_parts_of_two_sizes(dist, model):
    fully_shard(model)
    found = []
    for each in model.parameters():
        mine = each.to_local().detach()
        parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.gather(mine, parts if dist.get_rank() == 0 else None)
        found.append(torch.cat(parts))
    return found if dist.get_rank() == 0 else None
@wrong("25.checkpoint", "A collective failed on rank 0, and the function caught the error")
def catches_the_error(dist, model):
    fully_shard(model)
    if dist.get_rank(): return None
    try: return [each.full_tensor() for each in model.parameters()]
    except RuntimeError: return [each.to_local() for each in model.parameters()]
@wrong("25.checkpoint", "A DTensor is a part of a tensor on each rank")
def gives_dtensors(dist, model):
    fully_shard(model)
    if dist.get_rank() == 0: return list(model.state_dict().values())
# --- 25.clip_sharded -----------------------------------------------------------------------------------
def backward(model, x): fully_shard(model)(x).square().mean().backward()
@wrong("25.clip_sharded", "its mistake is still there. Which of")
def barrier_before_the_root(dist, model, x, most):
    backward(model, x)
    squares = sum(each.grad.to_local().square().sum() for each in model.parameters())
    dist.barrier()
    factor = min(1.0, most / squares.sqrt().item())
    return [factor * each.grad.full_tensor() for each in model.parameters()]
@wrong("25.clip_sharded", "its mistake is still there. Which of")
def sums_into_another(dist, model, x, most):
    backward(model, x)
    norm = torch.cat([each.grad.to_local().flatten() for each in model.parameters()]).norm()
    total = norm.square()
    dist.all_reduce(total)
    return [min(1.0, most / norm.item()) * each.grad.full_tensor() for each in model.parameters()]
@wrong("25.clip_sharded", "has shape (2, 4), expected (3, 4). Along axis 0 a part of it is missing")
def gives_its_rows(dist, model, x, most):
    backward(model, x)
    torch.nn.utils.clip_grad_norm_(model.parameters(), most)
    return [each.grad.to_local() for each in model.parameters()]
@wrong("25.clip_sharded", "One rank did an allgather, but another rank did an allreduce")
def rank_0_clips(dist, model, x, most):
    backward(model, x)
    if dist.get_rank() == 0: torch.nn.utils.clip_grad_norm_(model.parameters(), most)
    return [each.grad.full_tensor() for each in model.parameters()]
@wrong("25.clip_sharded", "aten.mul.Tensor got mixed torch.Tensor and DTensor")
def mixes_two_kinds(dist, model, x, most):
    backward(model, x)
    norm = torch.nn.utils.get_total_norm([each.grad for each in model.parameters()])
    return [each.grad.full_tensor() * torch.clamp(most / norm, max=1) for each in model.parameters()]
SAID = {
    "25.checkpoint": (
        "MissingRanksError: Rank 1 is idle, so 'allgather.0.0'",
        "each.full_tensor() for each in model.state_dict().values()",
    ),
    "25.clip_sharded": ("rank 0, the gradients, item 0, index 0: your result is 3.74469e+07, expected 3.62215e+07",),
}
"""What check() must say of each broken program as it comes."""
for name, told in SAID.items(): wrong(name, told[0])(task(name).broken)
