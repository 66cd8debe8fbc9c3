"""Wrong solutions of lesson 24, each with what the check must say."""

from __future__ import annotations

from contextlib import nullcontext, suppress

import numpy as np
from wrong_answers import Answers

from workbench.course.tasks import task

with suppress(ModuleNotFoundError):  # a browser has no torch
    import torch
    from torch.nn.parallel import DistributedDataParallel

wrong = Answers()


def softmax(scores): return np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
@wrong("24.attention", "a token sees what comes after it")
def sees_everything(query, key, value):
    return softmax(query @ key.T / np.sqrt(query.shape[1])) @ value
@wrong("24.attention", "large scores overflow in exp()")
def without_a_maximum(query, key, value):
    seen = np.where(np.tri(len(query)) > 0, query @ key.T / np.sqrt(query.shape[1]), -np.inf)
    return softmax(seen) @ value
@wrong("24.attention", "the scores above the diagonal are 0, and exp(0) is 1")
def zeros_are_scores(query, key, value):
    return softmax(np.tril(query @ key.T / query.shape[1] ** 0.5)) @ value
@wrong("24.attention", "those are the weights, (1, 1)")
def returns_the_weights(query, key, value):
    return softmax(query @ key.T / np.sqrt(query.shape[1]))
@wrong("24.train", "each step was rounded")
def rounds_each_step(weights, gradients, rate, bf16):
    for gradient in gradients:
        weights = bf16(weights - rate * gradient)
    return weights
@wrong("24.train", "the result was not rounded")
def stays_exact(weights, gradients, rate, bf16): return weights - rate * np.sum(gradients, axis=0)
@wrong("24.train", "the array that was given was changed")
def in_place(weights, gradients, rate, bf16):
    for gradient in gradients:
        weights -= rate * gradient
    return bf16(weights)
@wrong("24.loss_scale", "each rank looks at its own gradient")
def each_for_itself(comm, weights, gradient, scale, good):
    finite = np.isfinite(gradient).all()
    mean = comm.allreduce(gradient) / comm.size
    if not finite:
        return weights, scale / 2, 0
    good += 1
    return weights - 0.1 * mean / scale, scale * (1 + good // 3), good % 3
@wrong("24.loss_scale", "the gradients were not divided by the scale")
def scaled_steps(comm, weights, gradient, scale, good):
    mean = comm.allreduce(gradient) / comm.size
    if not np.isfinite(mean).all():
        return weights, scale / 2, 0
    return (weights - 0.1 * mean, *((scale * 2, 0) if good == 2 else (scale, good + 1)))
@wrong("24.loss_scale", "bytes from the busiest rank")
def gathers_everything(comm, weights, gradient, scale, good):
    all_gradients = comm.allgather(np.tile(gradient, 16))
    mean = np.mean([each[: len(gradient)] for each in all_gradients], axis=0)
    if not np.isfinite(mean).all():
        return weights, scale / 2, 0
    weights = weights - 0.1 * mean / scale
    return (weights, scale * 2, 0) if good == 2 else (weights, scale, good + 1)
@wrong("24.segments", "the last, shorter segment was not counted")
def rounds_down(layers, inside, between):
    peaks = {k: max(1, layers // k) * between + k * inside for k in range(1, layers + 1)}
    best = min(peaks, key=peaks.get)
    return best, peaks[best]
@wrong("24.segments", "the two results are the wrong way round")
def peak_first(layers, inside, between):
    return min((-(-layers // k) * between + k * inside, k) for k in range(1, layers + 1))
@wrong("24.segments", "your result is one number, 11, expected 2 items")
def only_the_peak(layers, inside, between):
    return min(-(-layers // k) * between + k * inside for k in range(1, layers + 1))
@wrong("24.accumulate", "the mean of the micro-batches' means was taken")
def mean_of_means(comm, gradients):
    total = comm.allreduce(np.append(sum(gradient for gradient, _ in gradients), len(gradients)))
    return total[:-1] / total[-1]
@wrong("24.accumulate", "each rank's mean was averaged over the ranks")
def mean_of_ranks(comm, gradients):
    total = sum(gradient * n for gradient, n in gradients) / sum(n for _, n in gradients)
    return comm.allreduce(total) / comm.size
@wrong("24.accumulate", "bytes from the busiest rank")
def sends_each(comm, gradients):
    pairs = [pair for rank in comm.allgather(gradients) for pair in rank]
    return sum(gradient * n for gradient, n in pairs) / sum(n for _, n in pairs)
@wrong("24.clip", "each rank clips by the norm of its own part")
def each_its_own(comm, gradients, most):
    norm = np.linalg.norm(np.concatenate(gradients))
    return [part * min(1.0, most / norm) for part in gradients]
@wrong("24.clip", "the norms of the ranks were added up")
def adds_norms(comm, gradients, most):
    norm = comm.allreduce(np.linalg.norm(np.concatenate(gradients)))
    return [part * min(1.0, most / norm) for part in gradients]
@wrong("24.clip", "short gradients were made longer")
def always(comm, gradients, most):
    norm = comm.allreduce(np.sum([np.sum(part**2) for part in gradients])) ** 0.5
    return [part * most / norm for part in gradients]
@wrong("24.clip", "bytes from the busiest rank")
def gathers(comm, gradients, most):
    whole = np.concatenate([part for rank in comm.allgather(gradients) for part in rank])
    return [part * min(1.0, most / np.linalg.norm(whole)) for part in gradients]
# --- 24.accumulate_ddp ---------------------------------------------------------------------------------
@wrong("24.accumulate_ddp", "its mistake is still there. Which of")
def waits_in_a_barrier(dist, model, batches):
    ddp = DistributedDataParallel(model)
    with ddp.no_sync():
        for x in batches: ddp(x).square().mean().backward()
    dist.barrier()
    return [each.grad / len(batches) for each in model.parameters()]
@wrong("24.accumulate_ddp", "its mistake is still there. Which of")
def backward_alone_is_outside(dist, model, batches):
    ddp = DistributedDataParallel(model)
    with ddp.no_sync(): losses = [ddp(x).square().mean() for x in batches]
    torch.stack(losses).mean().backward()
    return [each.grad for each in model.parameters()]
@wrong("24.accumulate_ddp", "only rank 0's numbers are in these results")
def rank_0s_for_all(dist, model, batches):
    for x in batches: model(x).square().mean().backward()
    for each in model.parameters(): dist.broadcast(each.grad, src=0)
    return [each.grad / len(batches) for each in model.parameters()]
@wrong("24.accumulate_ddp", "MissingRanksError: Rank 1 is idle")
def only_rank_0_sends(dist, model, batches):
    ddp = DistributedDataParallel(model)
    for k, x in enumerate(batches):
        with ddp.no_sync() if dist.get_rank() or k < len(batches) - 1 else nullcontext():
            ddp(x).square().mean().backward()
    return [each.grad / len(batches) for each in model.parameters()]
# --- 24.fine_tune --------------------------------------------------------------------------------------
def trained(model):
    found = {name: each.grad for name, each in model.named_parameters() if each.requires_grad}
    return list(found), torch.nn.utils.get_total_norm(found.values()).item()
@wrong("24.fine_tune", "Rank 0 has 2 params, while rank 1 has inconsistent 4 params")
def unused_parameters(dist, model, x, frozen):
    for layer in frozen: model[layer].requires_grad_(False)
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    ddp(x).square().mean().backward()
    return trained(model)
@wrong("24.fine_tune", "MissingRanksError: Rank 0 is idle")
def frozen_behind_ddp(dist, model, x, frozen):
    ddp = DistributedDataParallel(model)
    for layer in frozen: model[layer].requires_grad_(False)
    ddp(x).square().mean().backward()
    return trained(model)
@wrong("24.fine_tune", "One rank did an allgather, but another rank did an broadcast")
def only_rank_0_tells(dist, model, x, frozen):
    if dist.get_rank() == 0: dist.broadcast_object_list([frozen], src=0)
    for layer in frozen: model[layer].requires_grad_(False)
    ddp = DistributedDataParallel(model)
    ddp(x).square().mean().backward()
    return trained(model)
@wrong("24.fine_tune", "One rank had type int64, but another rank had type float32")
def tensors_of_two_sizes(dist, model, x, frozen):
    layers = torch.tensor(frozen)
    dist.broadcast(layers, src=0)
    for layer in layers.tolist(): model[layer].requires_grad_(False)
    ddp = DistributedDataParallel(model)
    ddp(x).square().mean().backward()
    return trained(model)
# --- 24.scaled_step ------------------------------------------------------------------------------------
@wrong("24.scaled_step", "One rank did an allreduce, but another rank did an barrier")
def waits_before_it_leaves(dist, weights, gradient, scale):
    if not gradient.isfinite().all():
        dist.barrier()
        return weights, scale / 2
    dist.all_reduce(gradient)
    return weights - 0.1 * gradient / dist.get_world_size() / scale, scale
@wrong("24.scaled_step", "A collective failed on rank 0, and the function caught the error")
def catches_what_comes(dist, weights, gradient, scale):
    if not gradient.isfinite().all(): return weights, scale / 2
    try: dist.all_reduce(gradient)
    except RuntimeError: return weights, scale / 2
    return weights - 0.1 * gradient / dist.get_world_size() / scale, scale
@wrong("24.scaled_step", "One rank had type float64, but another rank had type float32")
def asks_in_the_branch(dist, weights, gradient, scale):
    bad = torch.zeros(())
    if not gradient.isfinite().all():
        bad += 1
        dist.all_reduce(bad, op=dist.ReduceOp.MAX)
    if bad: return weights, scale / 2
    dist.all_reduce(gradient)
    return weights - 0.1 * gradient / dist.get_world_size() / scale, scale
@wrong("24.scaled_step", "Expected parameter `tensor` of type torch.Tensor")
def counts_as_a_number(dist, weights, gradient, scale):
    bad = not gradient.isfinite().all()
    dist.all_reduce(bad, op=dist.ReduceOp.MAX)
    if bad: return weights, scale / 2
    dist.all_reduce(gradient)
    return weights - 0.1 * gradient / dist.get_world_size() / scale, scale
SAID = {
    "24.accumulate_ddp": ("rank 0, the gradients, item 0, index 0: your result is 0.245093, expected 0.262218",),
    "24.fine_tune": (
        "DDP expects same model across all ranks, but Rank 0 has 2 params, while rank 1 has inconsistent 4 params",
    ),
    "24.scaled_step": (
        "MissingRanksError: Rank 1 is idle, so 'allreduce.0.0'",
        "ranks 0, 2: waiting in the cell, line",
    ),
}
"""What check() must say of each broken program as it comes."""
for name, told in SAID.items(): wrong(name, told[0])(task(name).broken)
