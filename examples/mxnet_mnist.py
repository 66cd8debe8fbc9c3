"""MXNet: Gluon's training loop, unchanged but for the optimizer, the broadcast, and each rank's own images.

MXNet is retired; `make legacy-test` makes the environment that it needs. Start it there::

    .venv-legacy/bin/workbench run --as-horovod -np 2 .venv-legacy/bin/python examples/mxnet_mnist.py
    ... examples/mxnet_mnist.py --data fashion-mnist --limit 6000 --epochs 2

It is written for Horovod, and `--as-horovod` lets the import find the workbench. Every rank keeps its batch size, so
the global batch grows with the ranks (weak scaling), and the learning rate with it.
"""

from __future__ import annotations

import argparse

import horovod.mxnet as hvd
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from workbench import data


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", choices=["digits", "fashion-mnist"], default="digits", help="real images, no network")
    parser.add_argument("--limit", type=int, metavar="N", help="at most N images for training, and N for testing")
    parser.add_argument("--batch-size", type=int, default=32, help="per rank")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=0.05, help="for one rank")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=42)
    return parser.parse_args()


def make_model(classes: int) -> gluon.nn.HybridSequential:
    """Two convolutions, two dense layers. Their inputs' shapes become known with the first batch."""
    model = gluon.nn.HybridSequential()
    model.add(
        gluon.nn.Conv2D(16, 3, padding=1, activation="relu"), gluon.nn.MaxPool2D(),
        gluon.nn.Conv2D(32, 3, padding=1, activation="relu"), gluon.nn.MaxPool2D(),
        gluon.nn.Dense(64, activation="relu"), gluon.nn.Dense(classes),
    )  # fmt: skip
    return model


def train(model, context, train_data, trainer, batch_size: int) -> float:
    """One epoch; this rank's mean loss."""
    loss_fn, losses = gluon.loss.SoftmaxCrossEntropyLoss(), []
    train_data.reset()
    for batch in train_data:
        image = batch.data[0].as_in_context(context)
        label = batch.label[0].as_in_context(context)
        with autograd.record():
            loss = loss_fn(model(image), label)
        loss.backward()
        trainer.step(batch_size)
        losses.append(loss.mean().asscalar())
    return sum(losses) / len(losses)


def test(model, context, images: data.Data) -> tuple[int, int]:
    """How many of all test images are right, and how many there are: each rank looks at its own."""
    guess = model(mx.nd.array(images.test_x, ctx=context)).argmax(axis=1).asnumpy()
    mine = mx.nd.array([(guess == images.test_y).sum(), len(guess)])
    right, count = hvd.allreduce(mine, average=False, name="test").asnumpy()
    return int(right), int(count)


def main() -> None:
    """Train, and test after each epoch."""
    args = options()
    hvd.init()
    context = mx.gpu(hvd.local_rank()) if mx.context.num_gpus() else mx.cpu()
    mx.random.seed(args.seed + hvd.rank())
    np.random.seed(args.seed + hvd.rank())  # MXNet's readers shuffle with it
    images = data.digits() if args.data == "digits" else data.fashion_mnist()  # if it must be loaded, one rank does it
    if args.limit:
        images = images.limit(min(args.limit, len(images.train_x)), min(args.limit, len(images.test_x)))
    images = images.shard(hvd.rank(), hvd.size(), shuffle=True, seed=args.seed)
    train_data = mx.io.NDArrayIter(images.train_x, images.train_y, args.batch_size, shuffle=True)

    model = make_model(len(images.classes))
    model.hybridize()
    # Horovod: a learning rate for the global batch, and an optimizer that averages the gradients.
    opt = mx.optimizer.create("sgd", learning_rate=args.lr * hvd.size(), momentum=args.momentum)
    opt = hvd.DistributedOptimizer(opt)

    model.initialize(mx.init.Xavier(), ctx=context)
    # Horovod: all start with rank 0's parameters; here as soon as the first batch has given them their shapes.
    params = model.collect_params()
    if params is not None:
        hvd.broadcast_parameters(params, root_rank=0)

    trainer = gluon.Trainer(params, opt, kvstore=None)
    for epoch in range(1, args.epochs + 1):
        loss = train(model, context, train_data, trainer, args.batch_size)
        right, count = test(model, context, images)
        if hvd.rank() == 0:
            print(f"Epoch: {epoch}  Loss: {loss:.6f}  Accuracy: {right}/{count} = {right / count:.4f}", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
