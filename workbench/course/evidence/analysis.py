"""What the data of a class say: gain and items. Pure functions; ``instructors/analysis.ipynb`` shows them.

Too few learners: below ``FEWEST`` with both tests there is no interval, because a bootstrap over so few is too narrow.
Below ``ENOUGH`` an item's discrimination says little: that of an item without any is within ±2/√n, 0.37 of 30.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.errors import WorkbenchError

FEWEST, ENOUGH = 10, 30
Array = NDArray[np.float64]
Rows = list[dict[str, str]]


def read(path: Path) -> Rows:
    """The rows of a file that ``python -m workbench.course.evidence`` has written; a WorkbenchError if it is none."""
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    if not rows or any(None in (*row, *row.values()) or row.get("right") not in ("", "0", "1") for row in rows):
        raise WorkbenchError(f"{path} has no data of a class: let python -m workbench.course.evidence write them.")
    return rows


def scored(rows: Rows, kind: str) -> tuple[list[str], Array]:
    """The names of one kind, and a table of learners × names: 1 right, 0 not, NaN open."""
    cells = {(row["learner"], row["name"]): float(row["right"] or "nan") for row in rows if row["kind"] == kind}
    who, names = sorted({each for each, _ in cells}), list(dict.fromkeys(name for _, name in cells))
    table = [[cells.get((each, name), np.nan) for name in names] for each in who]
    return names, np.array(table, dtype=float).reshape(len(who), len(names))


def paired(rows: Rows, upto: int = 12) -> tuple[Array, Array, dict[str, int]]:
    """Both tests of those who have taken both (learners × items), and how many have not.

    A test is taken if at least half of its items are answered; an open item of it is not right.
    """
    before, after = (scored(rows, form)[1][:, :upto] for form in ("before", "after"))
    answered = np.isfinite([before, after]).sum(axis=2)
    a, b = taken = 2 * answered >= upto
    counts = {"learners": len(before), "both tests": a & b, "only before": a & ~b, "only after": b & ~a}
    counts |= {"neither": ~a & ~b, "tests that are less than half filled": (answered > 0) & ~taken}
    return np.nan_to_num(before[a & b]), np.nan_to_num(after[a & b]), {key: int(np.sum(n)) for key, n in counts.items()}


def class_gain(before: Array, after: Array) -> Any:
    """Hake's normalised gain <g>: of what the class could gain on average, the part that it did.

    Hake, American Journal of Physics 66 (1998) 64. Below 0.3 he calls it low, from 0.7 on high.

    ``before`` and ``after`` are the learners' shares of right answers; resamples are dimensions in front.

    Example:
        >>> round(float(class_gain(np.array([0.5, 1.0]), np.array([0.75, 1.0]))), 3)
        0.5
    """
    room = 1 - before.mean(axis=-1)
    return (after.mean(axis=-1) - before.mean(axis=-1)) / np.where(room > 0, room, np.nan)


def mean_gain(before: Array, after: Array) -> Any:
    """The mean of the learners' own gains, without those who could gain nothing.

    It differs from :func:`class_gain` where gain depends on the score before: Bao, American Journal of Physics 74
    (2006) 917. Who had almost all right and loses one has a gain far below 0, which counts as much as any other.
    """
    can = before < 1
    gains = np.where(can, (after - before) / np.where(can, 1 - before, 1), 0)
    return gains.sum(axis=-1) / np.where(can.any(axis=-1), can.sum(axis=-1), np.nan)


def interval(gain: Callable[[Array, Array], Any], before: Array, after: Array, seed: int = 0) -> tuple[float, float]:
    """The bootstrap's 95 % percentile interval of a gain, over 4,000 resamples of the learners.

    A resample has n - 3 learners: with n the interval of few is too narrow. The factor n/(n - 3) in the variance is
    that of a t distribution with n - 1 degrees of freedom, and of an unbiased variance. Too few: a WorkbenchError.
    """
    if (n := len(before)) < FEWEST:
        raise WorkbenchError(f"{n} learners have both tests: fewer than {FEWEST} give no interval. Add another class.")
    chosen = np.random.default_rng(seed).integers(n, size=(4000, n - 3))
    low, high = np.nanquantile(gain(before[chosen], after[chosen]), [0.025, 0.975])
    return float(low), float(high)


def discrimination(table: Array) -> Array:
    """Of each item, the correlation with the share right of the other items: the corrected point-biserial.

    Ebel (Essentials of Educational Measurement, 1972): from 0.40 on very good, from 0.30 good, from 0.20 to be
    improved, below poor. Below 0 the key may be wrong. NaN where all gave one answer, or fewer than three any.
    """
    found = np.full(table.shape[1], np.nan)
    for i, item in enumerate(table.T):
        others = np.delete(table, i, axis=1)
        use = np.isfinite(item) & np.isfinite(others).any(axis=1)
        rest = np.nanmean(others[use], axis=1)
        if use.sum() > 2 and item[use].std() > 0 and rest.std() > 0:
            found[i] = np.corrcoef(item[use], rest)[0, 1]
    return found


def kr20(table: Array) -> float:
    """Kuder and Richardson's formula 20: how reliable a test of right and wrong answers is; Cronbach's alpha of it."""
    k, variance = table.shape[1], table.sum(axis=1).var()
    return float(k / (k - 1) * (1 - table.var(axis=0).sum() / variance)) if k > 1 and variance > 0 else float("nan")
