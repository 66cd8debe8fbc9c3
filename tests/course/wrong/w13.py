"""Wrong solutions of lesson 13, each with what the check must say."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from wrong_answers import Answers

from workbench.data.sampler import batches, epoch_order

wrong = Answers()


def _parts(hvd, n, batch, epoch): return batches(n, hvd.rank(), hvd.size(), batch, epoch=epoch, uneven="keep")
def _loss(hvd, output, labels, whole): return F.cross_entropy(output, labels, reduction="sum") * hvd.size() / whole
def _mean(hvd, output, labels, whole): return F.cross_entropy(output, labels)
def _train(
    hvd: Any, model: Any, digits: Any, batch: int, epochs: int, parts: Any = _parts, loss: Any = _loss, **options: Any
) -> None:
    hvd.init()
    images, labels = torch.from_numpy(digits.train_x).double(), torch.from_numpy(digits.train_y)
    if options.get("broadcast", True): hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    kind = options.get("kind", torch.optim.SGD)
    own = {name: options[name] for name in ("betas", "weight_decay") if name in options}
    own |= {} if "betas" in own else {"momentum": 0.9}
    optimizer: Any = kind(model.parameters(), lr=options.get("lr", 0.2), **own)
    if options.get("wrap", True):
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    for epoch in range(epochs):
        for step, mine in enumerate(parts(hvd, len(images), batch, epoch)):
            if options.get("zero", True): optimizer.zero_grad()
            loss(hvd, model(images[mine]), labels[mine], min(batch, len(images) - step * batch)).backward()
            optimizer.step()
def _right(model, digits, part: slice):
    with torch.no_grad(): guesses = model(torch.from_numpy(digits.test_x[part]).double()).argmax(dim=1)
    return guesses == torch.from_numpy(digits.test_y[part])
def _accuracy(model, digits): return float(_right(model, digits, slice(None)).double().mean())
@wrong("13.capstone", "✗ The weights are those of one process, within 1e-6: 2 ranks: a weight differs by")
def means_of_uneven_parts(hvd, model, digits, batch, epochs):
    _train(hvd, model, digits, batch, epochs, loss=_mean)
    return _accuracy(model, digits)
@wrong("13.capstone", "✗ Each sample once per epoch, in a new order: 2 ranks: epoch 0: sample ")
def drops_the_rest(hvd, model, digits, batch, epochs):
    def parts(hvd, n, batch, epoch): return batches(n, hvd.rank(), hvd.size(), batch, epoch=epoch, uneven="drop")
    _train(hvd, model, digits, batch, epochs, parts, _mean)
    return _accuracy(model, digits)
@wrong("13.capstone", "was seen 2 times")
def pads_the_rest(hvd, model, digits, batch, epochs):
    def parts(hvd, n, batch, epoch): return batches(n, hvd.rank(), hvd.size(), batch, epoch=epoch)
    _train(hvd, model, digits, batch, epochs, parts, _mean)
    return _accuracy(model, digits)
@wrong("13.capstone", "epoch 1 has the order of epoch 0")
def forgets_the_epoch(hvd, model, digits, batch, epochs):
    _train(hvd, model, digits, batch, epochs, lambda hvd, n, batch, epoch: _parts(hvd, n, batch, 0))
    return _accuracy(model, digits)
@wrong("13.capstone", "2 ranks: rank 0 of 2 is rank 0 of 1 to itself; init() makes them meet")
def trains_without_hvd(hvd, model, digits, batch, epochs):
    images, labels = torch.from_numpy(digits.train_x).double(), torch.from_numpy(digits.train_y)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    for epoch in range(epochs):
        for mine in batches(len(images), 0, 1, batch, epoch=epoch, uneven="keep"):
            optimizer.zero_grad()
            F.cross_entropy(model(images[mine]), labels[mine]).backward()
            optimizer.step()
    return _accuracy(model, digits)
@wrong("13.capstone", "✗ Each sample once per epoch, in a new order: 2 ranks: epoch 0: sample 0 was seen 2")
def everybody_takes_all(hvd, model, digits, batch, epochs):
    _train(hvd, model, digits, batch, epochs, lambda hvd, n, batch, epoch: batches(n, 0, 1, batch, epoch=epoch))
    return _accuracy(model, digits)
@wrong("13.capstone", "2 ranks: step 0 takes 144 samples on all ranks, and not 72: batch is that of all ranks together")
def takes_a_batch_per_rank(hvd, model, digits, batch, epochs):
    _train(hvd, model, digits, batch * hvd.size() if hvd.init() is None else 0, epochs)
    return _accuracy(model, digits)
@wrong("13.capstone", "2 ranks: step 0: rank 0 has 41 samples, rank 1 31")
def gives_rank_zero_more(hvd, model, digits, batch, epochs):
    def parts(hvd, n, batch, epoch):
        order, rank, size = epoch_order(n, epoch=epoch), hvd.rank(), hvd.size()
        whole = [order[start : start + batch] for start in range(0, n, batch)]
        share = batch // size - 5
        return [
            one[: len(one) - share * (size - 1)] if rank == 0 else one[len(one) - share * rank :][:share]
            for one in whole
        ]
    _train(hvd, model, digits, batch, epochs, parts)
    return _accuracy(model, digits)
@wrong("13.capstone", "2 ranks: rank 1 begins with other weights than rank 0")
def forgets_to_broadcast(hvd, model, digits, batch, epochs):
    _train(hvd, model, digits, batch, epochs, broadcast=False)
    return _accuracy(model, digits)
@wrong("13.capstone", "2 ranks: rank 1 ends with other weights than rank 0")
def forgets_the_optimizer(hvd, model, digits, batch, epochs):
    _train(hvd, model, digits, batch, epochs, wrap=False)
    return _accuracy(model, digits)
@wrong("13.capstone", "2 ranks: rank 1 made 0 training passes in 3 epochs")
def trains_on_rank_zero(hvd, model, digits, batch, epochs):
    hvd.init()
    if hvd.rank() == 0: _train(hvd, model, digits, batch, epochs, broadcast=False, wrap=False)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    return _accuracy(model, digits)
@wrong("13.capstone", "✗ All ranks report the accuracy on all test data: 2 ranks: rank 0 reports nan")
def reports_nan(hvd, model, digits, batch, epochs):
    _train(hvd, model, digits, batch, epochs)
    return float("nan")
@wrong("13.capstone", "✗ All ranks report the accuracy on all test data: 2 ranks: rank 0 reports 0.")
def reports_its_shard(hvd, model, digits, batch, epochs):
    _train(hvd, model, digits, batch, epochs)
    return float(_right(model, digits, slice(hvd.rank(), None, hvd.size())).double().mean())
@wrong("13.capstone", "is it another optimizer, or another rate?")
def learns_too_slowly(hvd, model, digits, batch, epochs):
    _train(hvd, model, digits, batch, epochs, lr=0.001)
    return _accuracy(model, digits)
@wrong("13.capstone", "✗ Each step is one of SGD with lr 0.2 and momentum 0.9, on the mean loss of its samples: ")
def trains_with_adam(hvd, model, digits, batch, epochs):
    _train(hvd, model, digits, batch, epochs, kind=torch.optim.Adam, lr=0.01, betas=(0.9, 0.999))
    return _accuracy(model, digits)
@wrong("13.capstone", "of the largest weight away from where that leads: is it another optimizer")
def decays_its_weights(hvd, model, digits, batch, epochs):
    _train(hvd, model, digits, batch, epochs, weight_decay=1e-3)
    return _accuracy(model, digits)
@wrong("13.capstone", "✗ Each step is one of SGD with lr 0.2 and momentum 0.9, on the mean loss of its samples")
def divides_by_the_full_batch(hvd, model, digits, batch, epochs):
    def loss(hvd, output, labels, whole): return F.cross_entropy(output, labels, reduction="sum") * hvd.size() / batch
    _train(hvd, model, digits, batch, epochs, loss=loss)
    return _accuracy(model, digits)
@wrong("13.capstone", "each step is 2 times too long")
def rate_times_ranks(hvd, model, digits, batch, epochs):
    _train(hvd, model, digits, batch, epochs, lr=0.2 * hvd.size() if hvd.init() is None else 0)
    return _accuracy(model, digits)
@wrong("13.capstone", "each step is 2 times too short")
def forgets_the_size(hvd, model, digits, batch, epochs):
    def loss(hvd, output, labels, whole): return F.cross_entropy(output, labels, reduction="sum") / whole
    _train(hvd, model, digits, batch, epochs, loss=loss)
    return _accuracy(model, digits)
@wrong("13.capstone", "the ranks' means were added up")
def adds_the_means(hvd, model, digits, batch, epochs):
    def loss(hvd, output, labels, whole): return F.cross_entropy(output, labels) * hvd.size()
    _train(hvd, model, digits, batch, epochs, loss=loss)
    return _accuracy(model, digits)
@wrong("13.capstone", "zero_grad() is missing")
def never_zeroes(hvd, model, digits, batch, epochs):
    _train(hvd, model, digits, batch, epochs, zero=False)
    return _accuracy(model, digits)
@wrong("13.capstone", "do all ranks deal from one order?")
def seeds_by_rank(hvd, model, digits, batch, epochs):
    def parts(hvd, n, batch, epoch):
        return batches(n, hvd.rank(), hvd.size(), batch, epoch=epoch, seed=hvd.rank(), uneven="keep")
    _train(hvd, model, digits, batch, epochs, parts)
    return _accuracy(model, digits)
