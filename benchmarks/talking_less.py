"""Plain averaging beside fp16, PowerSGD, local SGD and DiLoCo: bytes, loss after equal samples, seconds of a step.

As root, on hosts that it makes itself (some 6 minutes)::

    python benchmarks/talking_less.py --out benchmarks/results/talking_less.json

An MLP on Fashion-MNIST on two ranks. All ways begin with the same weights and see the same samples in the same order,
with the learning rate of the plain one. Bytes are counted twice: what the ranks reduce, by the recorder, and what
leaves the first host, by its network interface. Times are of ways in turns: over links of some rates, and on one host,
whose ranks share memory. Loss and bytes are exact. Times are as noisy as the machine is busy: its load is written down.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import torch
from shaped import hosts, tell
from torch import nn
from torch.nn import functional

import workbench.torch as hvd
from workbench import data
from workbench.data.sampler import batches
from workbench.job.context import HOLDER

_BATCH, _EVERY, _SIZES = 128, 32, (784, 512, 512, 10)  # of all ranks; H; layers
Inner = torch.optim.Optimizer
Named = list[tuple[str, nn.Parameter]]


@dataclass(frozen=True)
class Way:
    """One way to train.

    Args:
        wrap: makes the optimizer.
        period: steps after which everything recurs.
    """

    wrap: Callable[[Inner, Named], Any]
    period: int = 1


def compressed(compression: Any) -> Way:
    """Gradients in every step."""
    return Way(lambda inner, named: hvd.DistributedOptimizer(inner, named, compression=compression()))


WAYS: dict[str, Way] = {
    "plain": compressed(lambda: hvd.Compression.none),
    "fp16": compressed(lambda: hvd.Compression.fp16),
    **{f"powersgd({rank})": compressed(lambda rank=rank: hvd.Compression.powersgd(rank)) for rank in (1, 2, 4)},
    f"LocalSGD({_EVERY})": Way(lambda inner, _: hvd.LocalSGD(inner, every=_EVERY), _EVERY),
    f"DiLoCo({_EVERY})": Way(lambda inner, _: hvd.DiLoCo(inner, every=_EVERY), _EVERY),
}


def main() -> None:
    """On the ranks: one JSON line. Else: make the hosts, and start the ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rank", choices=["learn", "time"], help="this process is a rank")
    parser.add_argument("--rates", nargs="+", default=["100mbit", "1gbit", "none"])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.rank:
        hvd.init()
        torch.set_num_threads(1)
        (learn if given.rank == "learn" else timed)(given)
        hvd.shutdown()
        return
    found = on_hosts(given)
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n")


@dataclass
class Training:
    """One way at work.

    Args:
        way: which.
        images, labels: all samples of the training.
    """

    way: Way
    images: torch.Tensor
    labels: torch.Tensor
    done: int = 0
    model: nn.Module = field(init=False)
    optimizer: Any = field(init=False)

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        first, second, third, last = _SIZES
        linear = [nn.Linear(first, second), nn.ReLU(), nn.Linear(second, third), nn.ReLU(), nn.Linear(third, last)]
        self.model = nn.Sequential(nn.Flatten(), *linear)
        inner = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.optimizer = self.way.wrap(inner, list(self.model.named_parameters()))

    def steps(self, number: int) -> None:
        """So many more."""
        for _ in range(number):
            mine = self._mine(self.done)
            self.done += 1
            self.optimizer.zero_grad()
            functional.cross_entropy(self.model(self.images[mine]), self.labels[mine]).backward()
            self.optimizer.step()

    def _mine(self, step: int) -> Any:
        """This rank's samples of a step."""
        epoch, place = divmod(step, len(self.labels) // _BATCH)
        return _order(len(self.labels), epoch)[place]

    def end(self) -> None:
        """What ranks have not exchanged yet."""
        if self.way.period > 1:
            self.optimizer.synchronize()


_ORDERS: dict[tuple[int, int], Any] = {}


def _order(samples: int, epoch: int) -> Any:
    """This rank's part of all steps of an epoch."""
    key = samples, epoch
    if key not in _ORDERS:
        _ORDERS[key] = batches(samples, hvd.rank(), hvd.size(), _BATCH, epoch=epoch, uneven="drop")
    return _ORDERS[key]


def fashion(samples: int | None = None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images and labels, for training and for the test."""
    found = data.fashion_mnist()
    return tuple(  # type: ignore[return-value]
        torch.from_numpy(array[:samples].copy()) for array in (found.train_x, found.train_y, found.test_x, found.test_y)
    )


def learn(given: Any) -> None:
    """Bytes of a step, and what has been learnt after equal samples; no times."""
    x, y, test_x, test_y = fashion()
    for name, way in WAYS.items():
        training = Training(way, x, y)
        training.steps(2 * way.period)  # the first step has no buckets yet
        reduced, sent = counted(lambda training=training, way=way: training.steps(way.period))
        steps = given.epochs * (len(y) // _BATCH)
        training.steps(steps - training.done)
        training.end()
        with torch.no_grad():
            out = training.model(test_x)
            loss = float(functional.cross_entropy(out, test_y))
            right = float((out.argmax(1) == test_y).double().mean())
            seen = float(functional.cross_entropy(training.model(x[:10_000]), y[:10_000]))
        flat = torch.cat([param.detach().reshape(-1) for param in training.model.parameters()])
        everyone = hvd.allgather(flat[None], name="everyone")
        if hvd.rank() == 0:
            tell({
                "way": name, "steps": steps, "reduced_bytes_per_step": reduced / way.period,
                "sent_bytes_per_step": sent / way.period, "train_loss": seen, "test_loss": loss, "accuracy": right,
                "ranks_equal": bool((everyone == everyone[0]).all()),
            })  # fmt: skip


def counted(work: Callable[[], None]) -> tuple[int, int]:
    """Bytes of all collectives meanwhile, and bytes that have left this host's interfaces but loopback."""
    recorder = HOLDER.get().timeline.recorder
    hvd.barrier()
    before, left = recorder.snapshot(1)["collectives"][-1]["index"], _left_host()
    work()
    hvd.barrier()
    reduced = sum(one["bytes"] for one in recorder.snapshot(400)["collectives"] if one["index"] > before)
    return reduced, _left_host() - left


def _left_host() -> int:
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    counts = (line.split(":") for line in lines)
    return sum(int(numbers.split()[8]) for name, numbers in counts if name.strip() != "lo")


def timed(given: Any) -> None:
    """Seconds of a step of each way, in turns; the slowest rank counts."""
    x, y, _, _ = fashion(12_800)
    trainings = {name: Training(way, x, y) for name, way in WAYS.items()}
    seconds: dict[str, list[float]] = {name: [] for name in trainings}
    for turn in range(-1, given.turns):
        for name, training in trainings.items():
            hvd.barrier()
            begin = time.perf_counter()
            number = max(8, training.way.period)
            training.steps(number)
            mine = torch.tensor([(time.perf_counter() - begin) / number], dtype=torch.float64)
            slowest = float(hvd.allreduce(mine, op=hvd.Max)[0])
            if turn >= 0:
                seconds[name].append(slowest)
    if hvd.rank() == 0:
        tell({"step_s": seconds, "load": os.getloadavg()[0]})


def on_hosts(given: Any) -> dict[str, Any]:
    """All figures."""
    epochs, turns = ["--epochs", str(given.epochs)], ["--turns", str(given.turns)]
    with hosts("talking-less", "none") as two:
        learnt = two.run("wb1:1,wb2:1", __file__, "--rank", "learn", *epochs)
        for row in learnt:
            print(_said(row), flush=True)
        times = []
        for where, layout, rate in _places(given.rates):
            two.set_rate(rate)
            (row,) = two.run(layout, __file__, "--rank", "time", *turns)
            times.append({"where": where, "rate": rate} | row)
            print(where, {name: f"{1e3 * statistics.median(all_):.1f} ms" for name, all_ in row["step_s"].items()})
    return {
        "date": date.today().isoformat(),
        "cores": os.cpu_count(),
        "model": f"MLP {' - '.join(map(str, _SIZES))}, float32; SGD, lr 0.05, momentum 0.9; 2 ranks x {_BATCH // 2}",
        "data": f"Fashion-MNIST, {given.epochs} epochs",
        "learnt": learnt,
        "times": times,
    }


def _places(rates: list[str]) -> Iterator[tuple[str, str, str]]:
    for rate in rates:
        yield f"two hosts, {rate}", "wb1:1,wb2:1", rate
    yield "one host, shared memory", "wb1:2", "none"


def _said(row: dict[str, Any]) -> str:
    return (
        f"{row['way']:13} {row['reduced_bytes_per_step']:11,.0f} bytes reduced, {row['sent_bytes_per_step']:11,.0f} "
        f"sent per step; loss {row['train_loss']:.4f}, test {row['test_loss']:.4f}, {row['accuracy']:.2%}; "
        f"ranks equal: {row['ranks_equal']}"
    )


if __name__ == "__main__":
    main()
