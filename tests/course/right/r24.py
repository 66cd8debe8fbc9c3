"""Right answers of lesson 24 that are unlike the official ones."""

from __future__ import annotations

import math
from contextlib import nullcontext, suppress

import numpy as np

with suppress(ModuleNotFoundError):  # a browser has no torch
    import torch
    import torch.nn.functional as F
    from torch.nn.parallel import DistributedDataParallel


def attention_by_torch(query, key, value):  # The function that everybody calls.
    query, key, value = (torch.from_numpy(each)[None] for each in (query, key, value))
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)[0]
def attention_by_rows(query, key, value):  # A token after the other.
    rows = []
    for t in range(len(query)):
        scores = key[: t + 1] @ query[t] / math.sqrt(len(query[t]))
        weights = np.exp(scores - scores.max())
        rows.append(weights / weights.sum() @ value[: t + 1])
    return np.array(rows)
def train_in_float64(weights, gradients, rate, bf16):  # Masters may have more digits still.
    return bf16(weights.astype(np.float64) - float(rate) * np.sum(np.array(gradients, dtype=np.float64), axis=0))
def train_with_a_rest(weights, gradients, rate, bf16):  # The rounding error is kept, and comes into the next step.
    rest = np.zeros_like(weights)
    for gradient in gradients:
        wanted = weights + rest - rate * gradient
        weights = bf16(wanted)
        rest = wanted - weights
    return weights
def scale_by_numbers(comm, weights, gradient, scale, good):  # The answer is a number, not a branch.
    mean = comm.allreduce(gradient) / comm.size
    finite = bool(np.isfinite(mean).all())
    good = (good + 1) * finite
    weights = weights - 0.1 * mean / scale if finite else weights
    return weights, scale * {0: 0.5, 3: 2.0}.get(good, 1.0), good % 3
def scale_by_unscaled(comm, weights, gradient, scale, good):  # Each rank takes the scale off before the sum.
    total = comm.allreduce(gradient / scale)
    if np.isnan(total).any() or np.isinf(total).any():
        return weights, scale * 0.5, 0
    done = good + 1
    return weights - 0.1 * (total / comm.size), scale * (2 if done == 3 else 1), done if done < 3 else 0
def segments_in_a_loop(layers, inside, between):  # Strictly lower alone replaces what was found.
    best, least = 1, layers * between + inside
    for length in range(2, layers + 1):
        peak = -(-layers // length) * between + length * inside
        if peak < least:
            best, least = length, peak
    return best, least
def segments_in_numpy(layers, inside, between):  # All lengths at once.
    lengths = np.arange(1, layers + 1)
    peaks = np.ceil(layers / lengths) * between + lengths * inside
    at = int(np.argmin(peaks))
    return int(lengths[at]), int(peaks[at])
def accumulate_by_weights(comm, gradients):  # The count first, then the weighted sum.
    samples = comm.allreduce(float(sum(n for _, n in gradients)))
    return comm.allreduce(sum(gradient * (n / samples) for gradient, n in gradients))
def accumulate_by_reduce(comm, gradients):  # One rank divides.
    both = comm.reduce(np.append(sum(g * n for g, n in gradients), sum(n for _, n in gradients)))
    return comm.bcast(both[:-1] / both[-1] if comm.rank == 0 else None)
def clip_by_a_vector(comm, gradients, most):  # All parts as one array.
    flat = np.concatenate(gradients)
    norm = math.sqrt(comm.allreduce(float(flat @ flat)))
    flat = flat * (most / norm if norm > most else 1)
    return np.split(flat, np.cumsum([len(part) for part in gradients])[:-1])
def clip_by_gathered_norms(comm, gradients, most):  # The norms of all ranks, as one vector.
    norms = comm.allgather(float(np.linalg.norm(np.concatenate(gradients))))
    return [part * min(1.0, most / np.linalg.norm(norms)) for part in gradients]
def attention_by_pairs(query, key, value):  # By the definition, with two loops.
    found = np.zeros_like(value)
    for t in range(len(query)):
        scores = [float(query[t] @ key[s]) / len(query[t]) ** 0.5 for s in range(t + 1)]
        weights = [math.exp(score - max(scores)) for score in scores]
        for s in range(t + 1):
            found[t] += weights[s] / sum(weights) * value[s]
    return found
def attention_by_logs(query, key, value):  # Normalised before exp().
    scores = np.where(np.tri(len(query), dtype=bool), query @ key.T * query.shape[1] ** -0.5, -np.inf)
    return np.exp(scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)) @ value
def train_by_a_total(weights, gradients, rate, bf16):  # What changes is added up first.
    change = np.zeros_like(weights)
    for gradient in gradients:
        change = change + rate * gradient
    return bf16(weights - change)
def train_by_elements(weights, gradients, rate, bf16):  # A number after the other, with Python's own.
    masters = [float(weight) for weight in weights]
    for gradient in gradients:
        masters = [master - float(rate) * float(g) for master, g in zip(masters, gradient, strict=True)]
    return bf16(masters)
def scale_with_a_flag(comm, weights, gradient, scale, good):  # A flag travels with the gradient.
    bad = not np.isfinite(gradient).all()
    both = comm.allreduce(np.append(np.where(np.isfinite(gradient), gradient, 0.0), float(bad)))
    if both[-1]:
        return weights, scale / 2, 0
    new = weights - 0.1 * both[:-1] / comm.size / scale
    return (new, 2 * scale, 0) if good + 1 == 3 else (new, scale, good + 1)
def scale_by_gathering(comm, weights, gradient, scale, good):  # All ranks see all gradients, which are short here.
    mean = np.mean(comm.allgather(gradient), axis=0)
    if np.isfinite(mean).all():
        good = (good + 1) % 3
        return weights - 0.1 * mean / scale, scale if good else scale * 2, good
    return weights, scale / 2, 0
def segments_by_pairs(layers, inside, between):  # The peak first, so that min() compares it, then the length.
    peak, length = min((math.ceil(layers / k) * between + k * inside, k) for k in range(1, layers + 1))
    return length, peak
def segments_by_counts(layers, inside, between):  # By the number of segments; many lengths have the same.
    found = {}
    for length in range(layers, 0, -1):
        count = len(range(0, layers, length))
        found[length] = count * between + length * inside
    least = min(found.values())
    return min(length for length, peak in found.items() if peak == least), least
def accumulate_in_a_loop(comm, gradients):  # A running mean, then weighed by its samples.
    mean, seen = 0.0, 0
    for gradient, samples in gradients:
        seen += samples
        mean = mean + (gradient - mean) * samples / seen
    parts = comm.allreduce(np.concatenate([mean * seen, [seen]]))
    return parts[:-1] / parts[-1]
def accumulate_by_tuples(comm, gradients):  # A reduction of pairs.
    mine = (sum(g * n for g, n in gradients), sum(n for _, n in gradients))
    total, count = comm.allreduce(mine, op=lambda a, b: (a[0] + b[0], a[1] + b[1]))
    return total / count
def clip_by_squares(comm, gradients, most):  # Compares squares, and takes the root only if it must.
    square = comm.allreduce(float(np.concatenate([part**2 for part in gradients]).sum()))
    if square <= most**2:
        return list(gradients)
    return [part * most / math.sqrt(square) for part in gradients]
def clip_by_hypot(comm, gradients, most):  # A reduction of norms that are added as the sides of a triangle.
    norm = comm.allreduce(math.hypot(*np.concatenate(gradients).tolist()), op=math.hypot)
    return [part / max(1.0, norm / most) for part in gradients]
def mean_by_a_flag(dist, model, batches):  # What no_sync() sets, set by hand.
    ddp = DistributedDataParallel(model)
    for k, x in enumerate(batches, 1):
        ddp.require_backward_grad_sync = k == len(batches)
        ddp(x).square().mean().backward()
    return [each.grad / len(batches) for each in model.parameters()]
def mean_by_a_context(dist, model, batches):  # One loop, and no_sync() in all its turns but the last.
    ddp = DistributedDataParallel(model)
    for left in reversed(range(len(batches))):
        with ddp.no_sync() if left else nullcontext():
            (ddp(batches[left]).square().mean() / len(batches)).backward()
    return [each.grad for each in model.parameters()]
def mean_without_ddp(dist, model, batches):  # All gradients as one vector.
    for x in batches: model(x).square().mean().backward()
    flat = torch.cat([each.grad.flatten() for each in model.parameters()]) / len(batches)
    dist.all_reduce(flat, op=dist.ReduceOp.AVG)
    parts = flat.split([each.numel() for each in model.parameters()])
    return [part.view_as(each) for part, each in zip(parts, model.parameters(), strict=True)]
def mean_of_one_loss(dist, model, batches):  # One backward for all micro-batches.
    ddp = DistributedDataParallel(model)
    torch.stack([ddp(x).square().mean() for x in batches]).mean().backward()
    return [each.grad for each in model.parameters()]
def tune_by_a_mask(dist, model, x, frozen):  # A tensor of the same size on all ranks.
    mask = torch.tensor([float(layer in frozen) for layer in range(len(model))])
    dist.broadcast(mask, src=0)
    for layer, is_frozen in zip(model, mask.bool().tolist(), strict=True): layer.requires_grad_(not is_frozen)
    ddp = DistributedDataParallel(model)
    ddp(x).square().mean().backward()
    trained = [(name, each.grad) for name, each in model.named_parameters() if each.grad is not None]
    return [name for name, _ in trained], torch.cat([each.flatten() for _, each in trained]).norm().item()
def tune_by_union(dist, model, x, frozen):  # Whoever has read a number: all hear it.
    told = [None] * dist.get_world_size()
    dist.all_gather_object(told, frozen)
    for layer in {one for each in told for one in each}:
        for each in model[layer].parameters(): each.requires_grad = False
    ddp = DistributedDataParallel(model)
    ddp(x).square().mean().backward()
    mine = [each for each in model.parameters() if each.requires_grad]
    names = [name for name, each in model.named_parameters() if each.requires_grad]
    return names, torch.nn.utils.get_total_norm([each.grad for each in mine]).item()
def tune_by_scatter(dist, model, x, frozen):  # Rank 0 hands the list out.
    told = [None]
    dist.scatter_object_list(told, [frozen] * dist.get_world_size() if dist.get_rank() == 0 else None, src=0)
    names = [name for name, _ in model.named_parameters() if int(name.split(".")[0]) not in told[0]]
    mine = [model.get_parameter(name) for name in names]
    gradients = torch.autograd.grad(model(x).square().mean(), mine)
    for each in gradients: dist.all_reduce(each, op=dist.ReduceOp.AVG)
    return names, float(sum(float((each**2).sum()) for each in gradients) ** 0.5)
def tune_by_max(dist, model, x, frozen):  # A 1 on any rank freezes; the norm is what clipping returns.
    flags = torch.zeros(len(model), dtype=torch.int64)
    flags[frozen] = 1
    dist.all_reduce(flags, op=dist.ReduceOp.MAX)
    for layer in flags.nonzero().flatten().tolist(): model[layer].requires_grad_(False)
    ddp = DistributedDataParallel(model)
    ddp(x).square().mean().backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
    return [name for name, each in model.named_parameters() if each.requires_grad], norm.item()
def scaled_by_the_sum(dist, weights, gradient, scale):  # The infinity is in the sum: all ranks see it.
    dist.all_reduce(gradient, op=dist.ReduceOp.AVG)
    if gradient.isfinite().all(): return weights - 0.1 * (gradient / scale), scale
    return weights, scale / 2
def scaled_by_min(dist, weights, gradient, scale):  # Is it finite everywhere?
    good = gradient.isfinite().all().int()
    dist.all_reduce(good, op=dist.ReduceOp.MIN)
    if not good: return weights, 0.5 * scale
    dist.all_reduce(gradient)
    return weights.sub(gradient, alpha=0.1 / (dist.get_world_size() * scale)), scale
def scaled_by_objects(dist, weights, gradient, scale):  # All flags, as Python's own.
    flags = [None] * dist.get_world_size()
    dist.all_gather_object(flags, bool(torch.isinf(gradient).any()))
    if any(flags): return weights, scale / 2
    dist.all_reduce(gradient)
    return weights - gradient / scale / len(flags) * 0.1, scale
def scaled_with_a_flag(dist, weights, gradient, scale):  # One message: the flag travels behind the numbers.
    bad = gradient.isinf().any()
    both = torch.cat([gradient.nan_to_num(posinf=0.0, neginf=0.0) / scale, bad.double().reshape(1)])
    dist.all_reduce(both)
    if both[-1] > 0: return weights, scale / 2
    return weights - 0.1 * both[:-1] / dist.get_world_size(), scale


RIGHT = {
    "24.attention": [attention_by_torch, attention_by_rows, attention_by_pairs, attention_by_logs],
    "24.train": [train_in_float64, train_with_a_rest, train_by_a_total, train_by_elements],
    "24.loss_scale": [scale_by_numbers, scale_by_unscaled, scale_with_a_flag, scale_by_gathering],
    "24.segments": [segments_in_a_loop, segments_in_numpy, segments_by_pairs, segments_by_counts],
    "24.accumulate": [accumulate_by_weights, accumulate_by_reduce, accumulate_in_a_loop, accumulate_by_tuples],
    "24.clip": [clip_by_a_vector, clip_by_gathered_norms, clip_by_squares, clip_by_hypot],
    "24.accumulate_ddp": [mean_by_a_flag, mean_by_a_context, mean_without_ddp, mean_of_one_loss],
    "24.fine_tune": [tune_by_a_mask, tune_by_union, tune_by_scatter, tune_by_max],
    "24.scaled_step": [scaled_by_the_sum, scaled_by_min, scaled_by_objects, scaled_with_a_flag],
}
