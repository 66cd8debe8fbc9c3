"""Images per second of Keras' ``fit``: ``mpiexec -n 2 python benchmarks/keras_fit.py`` (KERAS_BACKEND chooses which).

Four ways take turns, round after round, each rank on a core of its own: one rank alone while the others sleep, without
XLA and with it, as ``compile()`` has it by default where it can; a copy of its own on every rank, without a word to the
others, which is the limit; and all ranks together. The batch of a rank is always the same.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import keras
import machine
import numpy as np
from mpi4py import MPI
from peers import pin

import workbench.keras as hvd

ALONE, XLA, COPIES, TOGETHER = "1 rank", "1 rank, XLA", "independent copies", "workbench"


def cnn() -> Any:
    """A small convolutional network for 28 × 28 images; 225,000 parameters."""
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((28, 28, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ]
    )


def ways(images: Any, labels: Any, batch: int) -> dict[str, Callable[[], None]]:
    """Each way as a function that trains for one epoch."""

    def way(jit: bool, distributed: bool) -> Callable[[], None]:
        keras.utils.set_random_seed(0)
        model, optimizer = cnn(), keras.optimizers.SGD(0.01, momentum=0.9)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(hvd.DistributedOptimizer(optimizer) if distributed else optimizer, loss, jit_compile=jit)
        return lambda: model.fit(images, labels, batch_size=batch, epochs=1, shuffle=False, verbose=0)

    # JAX compiles everything anyway, and torch nothing.
    xla = keras.backend.backend() == "tensorflow"
    plain = keras.backend.backend() == "jax"
    found = {ALONE: way(plain, False), XLA: way(True, False)} if xla else {ALONE: way(plain, False)}
    return {**found, COPIES: way(plain, False), TOGETHER: way(plain, True)}


def main() -> None:
    """Measure on all ranks; rank 0 prints, and writes a JSON file if one is named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, default=64, help="of a rank")
    parser.add_argument("--batches", type=int, default=20, help="of a round")
    parser.add_argument("--out", help="a JSON file")
    args = parser.parse_args()
    comm = MPI.COMM_WORLD.Dup()
    pin(comm.rank)
    hvd.init()
    rng = np.random.default_rng(comm.rank)
    images = rng.random((args.batch * args.batches, 28, 28, 1), np.float32)
    labels = rng.integers(0, 10, len(images))
    train = ways(images, labels, args.batch)
    for step in train.values():
        step()  # compiles
    rates: dict[str, list[float]] = {name: [] for name in train}
    begun = time.monotonic(), machine.ours_s(), machine.busy_s()
    for r in range(args.rounds):
        order = list(train)[r % len(train) :] + list(train)[: r % len(train)]
        for name in order:
            rates[name].append(rate(comm, train[name], len(images), alone=name in (ALONE, XLA)))
    # To the measure the other ranks are others, too.
    seconds, mine = time.monotonic() - begun[0], comm.allreduce(machine.ours_s() - begun[1])
    busy = 100 * (machine.busy_s() - begun[2] - mine) / seconds / (os.cpu_count() or 1)
    report(comm, rates, round(max(0.0, busy), 1), args.out)
    hvd.shutdown()


def rate(comm: MPI.Intracomm, step: Callable[[], None], count: int, alone: bool) -> float:
    """Images per second of all ranks that train, until the slowest has done."""
    hvd.barrier()
    begun = time.perf_counter()
    if not alone or comm.rank == 0:
        step()
    hvd.barrier()  # nobody spins here, as a rank in an MPI barrier would
    seconds = comm.bcast(time.perf_counter() - begun)
    return count * (1 if alone else comm.size) / seconds


def report(comm: MPI.Intracomm, rates: dict[str, list[float]], others: float, out: str | None) -> None:
    """Medians, and ratios of neighbours in time."""
    if comm.rank != 0:
        return
    ratio = {
        name: statistics.median(ours / theirs for ours, theirs in zip(rates[TOGETHER], rates[name], strict=True))
        for name in rates
    }
    print(f"{keras.backend.backend()}, {comm.size} ranks; others took {others} % of the CPU time")
    for name, each in rates.items():
        print(f"{name:20} {statistics.median(each):8.0f} images/s   workbench: x {ratio[name]:.2f}")
    if out:
        about = {"section": "keras", "backend": keras.backend.backend(), "keras": keras.__version__, "ranks": comm.size}
        figures = {"rates": rates, "ratios": ratio, "others_percent": others, "machine": machine.about()}
        with open(out, "w", encoding="utf-8") as file:
            json.dump({**about, **figures}, file, indent=1)
            file.write("\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
