"""``overlap_forward=True`` beside a plain DistributedOptimizer: two hosts, a shaped link, a VGG-like model.

As root, on hosts that it makes itself (some 4 minutes)::

    python benchmarks/priority.py --out benchmarks/results/priority.json

Most of the model's parameters are in its last layers, whose gradients backward finishes first and the next forward
pass needs last. The two ways of training take turns in one job, on one model each, and at the end their weights are
compared. ``predicted`` is what the simulator says of the same step, from constants that were measured without it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch
from models import vgg_like
from shaped import hosts, in_turns, sgd, tell

import workbench.torch as hvd
from workbench.calibration.measure import measure
from workbench.job.context import HOLDER
from workbench.simulate.measured.prediction import predict
from workbench.simulate.steps import Overlap, Policy

WAYS: dict[str, dict[str, Any]] = {"plain": {}, "overlap_forward": {"overlap_forward": True}}
_BATCH = 96  # computing then takes about as long as 1 Gbit/s for the gradients


def main() -> None:
    """On the ranks: one JSON line. Else: make the hosts, and start the ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rank", action="store_true", help="this process is a rank")
    parser.add_argument("--rates", nargs="+", default=["500mbit", "1gbit", "1500mbit", "2gbit"])
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--steps", type=int, default=6, help="in each turn")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.rank:
        on_a_rank(given.turns, given.steps)
        return
    rows = on_hosts(given)
    if given.out:
        about = {
            "date": date.today().isoformat(),
            "cores": os.cpu_count(),
            "model": vgg_like(_BATCH).title,
            "rows": rows,
        }
        given.out.write_text(json.dumps(about, indent=1) + "\n")


class Training:
    """One way of training."""

    def __init__(self, options: dict[str, Any]) -> None:
        task = vgg_like(_BATCH)
        torch.manual_seed(0)
        self.model, self._data = task.make(), task.data(hvd.rank())
        self._optimizer = hvd.DistributedOptimizer(
            sgd(self.model.parameters()), self.model.named_parameters(), **options
        )

    def steps(self, number: int) -> float:
        """Seconds of one step in a longer training, the mean of so many; then the last updates are made."""
        hvd.barrier()
        for step in range(2 + number):
            if step == 2:
                begin = time.perf_counter()
            self._optimizer.zero_grad()
            torch.nn.functional.cross_entropy(self.model(self._data[0]), self._data[1]).backward()
            self._optimizer.step()
        seconds = (time.perf_counter() - begin) / number
        self._optimizer.state_dict()
        return seconds


def on_a_rank(turns: int, steps: int) -> None:
    """Both ways, in turns; then whether they have come to the same weights."""
    hvd.init()
    torch.set_num_threads(1)
    said = predicted()
    trainings = {way: Training(options) for way, options in WAYS.items()}
    seconds = in_turns({way: partial(one.steps, steps) for way, one in trainings.items()}, turns)
    plain, other = (list(training.model.parameters()) for training in trainings.values())
    differs = max(float((a - b).abs().max()) for a, b in zip(plain, other, strict=True))
    if hvd.rank() == 0:
        tell({"step_s": seconds, "predicted_s": said, "weights_differ_by": differs})
    hvd.shutdown()


def predicted() -> dict[str, float]:
    """Seconds of a step in each way, from the constants of the link and the layers of the model."""
    task = vgg_like(_BATCH)
    measured = measure(task.make(), task.data(hvd.rank()), optimizer=sgd, seconds=8.0, doubt=2.0)
    piece = HOLDER.get().settings.piece_bytes
    by_priority = Policy(
        Overlap.FORWARD, fusion_bytes=0, bucket_bytes=piece, announce_s=measured.links.announce_s,
        priority=True, piece_bytes=piece,
    )  # fmt: skip
    policies = {"plain": None, "overlap_forward": by_priority}
    return {way: predict(measured, [hvd.size()], policy=policy).rows[0].step_s for way, policy in policies.items()}


def on_hosts(given: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each rate."""
    rows, words = [], ["--rank", "--turns", str(given.turns), "--steps", str(given.steps)]
    with hosts("priority", given.rates[0]) as two:
        for rate in given.rates:
            two.set_rate(rate)
            (row,) = two.run("wb1:1,wb2:1", __file__, *words)
            rows.append({"rate": rate} | row)
            report(rows[-1])
    return rows


def report(row: dict[str, Any]) -> None:
    """Medians, and their ratio."""
    plain, other = (statistics.median(row["step_s"][way]) for way in WAYS)
    ratio = statistics.median(a / b for a, b in zip(*row["step_s"].values(), strict=True))
    print(
        f"{row['rate']:8} plain {plain * 1e3:6.1f} ms (predicted {row['predicted_s']['plain'] * 1e3:.1f}), "
        f"overlap_forward {other * 1e3:6.1f} ms ({row['predicted_s']['overlap_forward'] * 1e3:.1f}), "
        f"{ratio:.2f} times as fast; weights differ by {row['weights_differ_by']:.1e}",
        flush=True,
    )


if __name__ == "__main__":
    main()
