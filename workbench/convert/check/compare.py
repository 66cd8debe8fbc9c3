"""The script as it was against the converted one: are losses and weights the same?"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from workbench.convert.check.record import Record
from workbench.convert.check.recording import record
from workbench.convert.conversion import Converted
from workbench.launch.function import run

STEPS = 10
_ADDS = re.compile(r"Distributed\w+\(.*op=hvd\.Sum")
TOLERANCE, OF_CHANGE = 1e-6, 5e-3
_SAID = {
    "dropout": "Dropout was off in both runs: two ranks draw other masks than one.",
    "batch norm": "Batch norm uses the samples of one rank, so two ranks differ from one. hvd.SyncBatchNorm uses all.",
    "repeated samples": "The samples do not divide by the ranks, so DistributedSampler repeats some in each epoch.",
    "shuffle": "Keras shuffles each rank's share by itself, so shuffling was off in both runs.",
}


@dataclass(frozen=True)
class Comparison:
    """Two runs.

    Args:
        before: the records of the script as it was; one if it was for one process.
        after: of the converted one, by ranks.
        adds: is the loss a sum over samples?
    """

    before: list[Record]
    after: list[Record]
    adds: bool = False

    def losses(self) -> list[tuple[float, float]]:
        """(before, after) by steps: of all ranks together."""
        return list(zip(self._losses(self.before), self._losses(self.after), strict=False))

    def _losses(self, records: list[Record]) -> list[float]:
        share = 1 if self.adds else len(records)
        return [sum(each) / share for each in zip(*(one.losses for one in records), strict=False)]

    def weights(self) -> float:
        """The largest difference of a run's weights, as a part of their change; of their size if they did not change.

        Adam moves a weight by its rate, however small the gradient: where that is rounding, two right runs move one in
        different directions. Of the change of all weights together this is little.
        """
        one, *others = [*self.before, *self.after]
        far = [_length([a - b for a, b in zip(one.weights, each.weights, strict=True)]) for each in others]
        began = one.begin or [0 * each for each in one.weights]
        change = _length([a - b for a, b in zip(one.weights, began, strict=True)]) or _length(one.weights)
        return max(far, default=0.0) / change if change else float("nan")

    def steps(self) -> list[int]:
        """How many the runs made; one number if all made the same."""
        return sorted({each.steps for each in (*self.before, *self.after)})

    @property
    def agrees(self) -> bool:
        """Did both make the same steps?"""
        far = [abs(a - b) / max(1, abs(a)) for a, b in self.losses()]
        return len(self.steps()) == 1 and self.weights() <= OF_CHANGE and all(each <= TOLERANCE for each in far)


def _length(arrays: list[Any]) -> float:
    return float(sum(np.sum(np.abs(each)) for each in arrays))


def compare(converted: Converted, path: Path, words: list[str], n: int = 2, steps: int = STEPS) -> Comparison:
    """Run both.

    Args:
        converted: the script, and the converted one.
        path: of the script.
        words: its arguments.
        n: the number of ranks.
        steps: how many at most.

    Raises:
        ValueError: a run failed.
    """
    here = str(path.absolute())
    ranks, as_horovod = (1 if converted.was_alone else n), converted.kind == "Horovod"
    before = run(record, (converted.before, here, words, steps), np=ranks, as_horovod=as_horovod)
    _check(before, f"as it was, on {ranks} {'rank' if ranks == 1 else 'ranks'}")
    after = run(record, (converted.after, here, words, steps), np=n)
    _check(after, f"converted, on {n} ranks")
    return Comparison(before, after, converted.was_alone and bool(_ADDS.search(converted.after)))


def _check(found: list[Record], how: str) -> None:
    for rank, each in enumerate(found):
        if each.error:
            raise ValueError(f"The script failed {how} (rank {rank}):\n{each.error}")
        if not each.steps:
            raise ValueError(f"The script made no step {how}, so there is nothing to compare.")


def table(found: Comparison) -> str:
    """What is shown."""
    before, after = (f"{len(each)} rank{'s' * (len(each) > 1)}" for each in (found.before, found.after))
    lines = [f"step  loss as it was, {before}  converted, {after}  difference"]
    for step, (one, other) in enumerate(found.losses(), 1):
        lines.append(f"{step:>4}  {one:>23.7f}  {other:>18.7f}  {abs(one - other):>10.1e}")
    counts = found.steps()
    lines.append(f"Difference of the weights after {counts[-1]} steps: {found.weights():.1e} of their change.")
    if len(counts) > 1:
        lines.append(f"The ranks made different numbers of steps: {counts}.")
    lines += [_SAID[what] for what in sorted(set[str]().union(*(each.seen for each in (*found.before, *found.after))))]
    lines.append(
        f"✓ {after} train as {before} did."
        if found.agrees
        else f"✗ {after} do not train as {before} did: a loss differs by more than {TOLERANCE:g}, or the weights by "
        f"more than {OF_CHANGE:g} of their change."
    )
    return "\n".join(lines)
