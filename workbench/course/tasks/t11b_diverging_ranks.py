"""Lesson 11, find the bug: cards 5 to 7. A mismatch, a model for each rank, and a step that is not the serial one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

import numpy as np

from workbench.common.table import RankTable
from workbench.course.judging.card import CommCard, PlainCard
from workbench.course.judging.judge import about
from workbench.course.judging.rank_threads import as_ranks_do, on_ranks
from workbench.course.judging.task import Case

# --- 5 ------------------------------------------------------------------------------------------------


def restore(hvd: Any, weights: Any, path: Any) -> Any:
    """Give the saved weights to all ranks, as float32. The file is on rank 0 only.

    weights: as they are before, float32 on every rank.
    """
    if hvd.rank() == 0:
        weights = np.array(path.read_text().split(), dtype=np.float32)
    return hvd.broadcast(weights, root_rank=0, name="weights")


class File:
    """A small file of one machine.

    Args:
        text: what is in it; None where there is none.
    """

    def __init__(self, text: str | None) -> None:
        self.text = text

    def read_text(self) -> str:
        if self.text is None:
            raise FileNotFoundError("weights.txt is on rank 0 only")
        return self.text

    def exists(self) -> bool:
        return self.text is not None

    def open(self, mode: str = "r") -> IO[Any]:
        return Path(self).open(mode)

    def __fspath__(self) -> str:
        """For open(path) and np.loadtxt(path): a file with the text."""
        path = Path(_folder().name, "weights.txt")
        path.write_text(self.read_text())
        return str(path)


@cache
def _folder() -> TemporaryDirectory[str]:
    return TemporaryDirectory()


def _saved(n: int) -> Case:
    text = "0.5 -1.25 2.0 0.75"
    return Case(n, "4 weights", [(np.zeros(4, np.float32), File(None if rank else text)) for rank in range(n)])


def _loaded(case: Case) -> list[Any]:
    return [np.array(case.inputs[0][1].text.split(), np.float32)] * case.n


def float32_everywhere(function: Callable[..., Any]) -> str:
    """float32 on every rank."""
    case = _saved(2)
    kinds = [np.asarray(found).dtype.name for found in on_ranks(function, case.inputs)]
    wrong = [rank for rank, kind in enumerate(kinds) if kind != "float32"]
    if not wrong:
        return ""
    told = f"{about(case)}: rank {wrong[0]} returns {kinds[wrong[0]]}, expected float32"
    return f"{told}. The ranks agree, but the weights are asked for as they were before"


RESTORE = PlainCard(
    "11.restore",
    "it trains, but does not resume from its file",
    restore,
    properties=[*as_ranks_do(lambda: [_saved(n) for n in (2, 3)], _loaded, ("the weights",)), float32_everywhere],
)

# --- 6 ------------------------------------------------------------------------------------------------


def start(hvd: Any, seed: Any, batches: Any) -> Any:
    """Train, from rank 0's weights on, and return the weights.

    seed: a different one on each rank, because each rank must draw its own noise.
    """
    random = np.random.default_rng(seed)
    w = random.normal(size=2)
    w = hvd.broadcast(w, root_rank=0, name="w")
    for x, y in batches:
        x = x + 0.01 * random.normal(size=x.shape)
        gradient = 2 * x * (np.sum(x * w) - y)
        w = w - 0.1 * hvd.allreduce(gradient, name="gradient")
    return w


def _seeded(n: int, steps: int) -> Case:
    x = np.random.default_rng(0).normal(size=(n, steps, 2))
    batches = [[(one, float(one[0] - one[1])) for one in mine] for mine in x]
    return Case(n, f"{steps} steps", [(rank, batches[rank]) for rank in range(n)])


def _drawn(case: Case) -> list[Any]:
    """Each rank's own first weights."""
    return [np.random.default_rng(seed).normal(size=2) for seed, _ in case.inputs]


def _trained(case: Case, weights: Sequence[Any]) -> list[Any]:
    """By rank, the weights after all steps; each rank begins at its own, and has noise of its own."""
    randoms = [np.random.default_rng(seed) for seed, _ in case.inputs]
    for random in randoms:
        random.normal(size=2)  # the first weights
    for parts in zip(*(batches for _, batches in case.inputs), strict=True):
        noisy = [(x + 0.01 * random.normal(size=2), y) for random, (x, y) in zip(randoms, parts, strict=True)]
        found = [2 * x * (np.sum(x * w) - y) for w, (x, y) in zip(weights, noisy, strict=True)]
        weights = [w - 0.1 * np.mean(found, axis=0) for w in weights]
    return list(weights)


def _from_rank_0(case: Case) -> list[Any]:
    return _trained(case, [_drawn(case)[0]] * case.n)


def _other_starts(case: Case) -> Iterator[tuple[list[Any], str]]:
    """What else one may return."""
    drawn = _drawn(case)
    yield [_trained(case, [np.mean(drawn, axis=0)] * case.n)[0]] * case.n, "training began at the ranks' average"
    late = _trained(case, drawn)[0]
    yield [late] * case.n, "all ranks have rank 0's weights, but only since the end of the training"
    same = Case(case.n, case.label, [(case.inputs[0][0], batches) for _, batches in case.inputs])
    yield _trained(same, _drawn(same)), "all ranks had one seed, so their noise was the same"


def _starts() -> list[Case]:
    return [_seeded(2, 0), _seeded(3, 5)]


def one_model(function: Callable[..., Any]) -> str:
    """one model on all ranks."""
    for case in _starts():
        weights = on_ranks(function, case.inputs)
        prints = on_ranks(lambda hvd, w: hvd.fingerprint({"w": w}), [(w,) for w in weights])[0]
        if not prints:
            columns = ("rank", "weights", "largest difference")
            rows = list(zip(*map(prints.table.column, columns), strict=True))
            return f"{about(case)}: the fingerprints differ.\n{RankTable(columns, rows, foot=prints.table.foot)}"
    return ""


_RUNS, _RIGHT = as_ranks_do(_starts, _from_rank_0, ("the weights",), _other_starts)

START = PlainCard(
    "11.start",
    "no error, but a bad accuracy, different on every rank",
    start,
    properties=[_RUNS, one_model, _RIGHT],
)

# --- 7 ------------------------------------------------------------------------------------------------


def clip(comm: Any, w: Any, gradient: Any, longest: Any) -> Any:
    """Make the step of one process that has all ranks' data: the average gradient, no longer than `longest`."""
    gradient = comm.allreduce(gradient) / comm.size
    length = np.linalg.norm(gradient)
    if length > longest:
        gradient = gradient * longest / length
    return w - gradient


def _lengths(lengths: Sequence[float], angles: Sequence[float]) -> Case:
    found = [length * np.array([np.cos(a), np.sin(a)]) for length, a in zip(lengths, angles, strict=True)]
    label = f"gradients of length {' and '.join(f'{length:g}' for length in lengths)}, at most 1"
    return Case(len(lengths), label, [(np.zeros(2), one, 1.0) for one in found])


def _clipped(case: Case) -> list[Any]:
    w, _, longest = case.inputs[0]
    mean = np.mean([one for _, one, _ in case.inputs], axis=0)
    return [w - mean * min(1.0, longest / np.linalg.norm(mean))] * case.n


CLIP = CommCard(
    "11.clip",
    "no error, but four ranks do not train as one does",
    clip,
    cases=lambda: [
        _lengths((0.5, 0.25), (0.0, 1.5)),
        _lengths((4.0, 0.5), (0.0, 1.5)),
        _lengths((4.0, 4.0), (0.0, 3.0)),
        _lengths((9.0, 0.5, 0.25, 3.0), (0.0, 1.0, 2.0, 3.0)),
    ],
    expected=_clipped,
    names=("the weights",),
    shown=_lengths((9.0, 0.5, 0.25, 3.0), (0.0, 1.0, 2.0, 3.0)),
)

TASKS = [RESTORE, START, CLIP]
