"""Simulated classes with known answers: a two-parameter logistic model of learners and items.

``python tests/helpers/evidence_simulated.py`` writes ``instructors/simulated_class.csv``, which the notebook shows.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from workbench.course.evidence.export import COLUMNS
from workbench.course.evidence.items import LETTERS, all_items

K = 12
HARD = np.linspace(-1.6, 1.6, K)[[3, 0, 6, 1, 8, 4, 10, 2, 7, 5, 11, 9]]
SHARP = np.array([1.2, 2.0, 0.5, 1.6, 2.4, 0.9, 1.3, 0.6, 1.9, 2.2, 1.0, 1.5])
EXERCISES = {"02.tree_broadcast": 300, "03.ring_allreduce": 1200, "04.sgd_step": 500, "06.overlap": 700}
PREDICTIONS = {"02.rounds": 0.7, "03.bytes": 0.5, "04.uneven": 0.3}
FILE = Path(__file__).parents[2] / "instructors" / "simulated_class.csv"


def chance(ability: Any) -> Any:
    """Learners × items: how probably each is right."""
    return 1 / (1 + np.exp(-SHARP * (np.asarray(ability)[..., None] - HARD)))


def true_gain(shift: float) -> float:
    """The class gain of all learners that there are: abilities are normal, and all rise by ``shift``."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    before, after = (weights @ chance(nodes + each).mean(axis=1) / weights.sum() for each in (0.0, shift))
    return float((after - before) / (1 - before))


def drawn(n: int, shift: float, seed: int) -> tuple[Any, Any]:
    """Both tests of n learners: right or not, by item."""
    random = np.random.default_rng(seed)
    ability = random.normal(size=n)
    return tuple((random.random((n, K)) < chance(ability + each)) * 1.0 for each in (0.0, shift))  # type: ignore[return-value]


def rows(before: Any, after: Any, seed: int) -> list[tuple[str, ...]]:
    """As the export has them, with exercises and predictions; the last learner leaves after the first test."""
    random, found = np.random.default_rng(seed), []
    for learner, both in enumerate(zip(before, after, strict=True)):
        who = f"simulated-{learner:03}"
        for form, test in zip(("before", "after"), both, strict=True):
            for item, right in zip(all_items(), test, strict=True):
                wrong = random.choice([x for x in LETTERS if x != LETTERS[item.right]], p=[0.6, 0.3, 0.1])
                answer = (LETTERS[item.right] if right else wrong, f"{right:.0f}")
                left = form == "after" and learner == len(before) - 1
                found.append((who, form, f"{form}.{item.number}", *(("", "") if left else answer), ""))
        for name, typical in EXERCISES.items():
            outcome = ("passed", "1", f"{typical * random.lognormal(0, 0.5):.0f}")
            found.append((who, "exercise", name, *(outcome if random.random() < 0.9 else ("tried", "0", ""))))
        found += [(who, "prediction", each, "", f"{random.random() < p:d}", "") for each, p in PREDICTIONS.items()]
    return found


def write(path: Path, data: list[tuple[str, ...]]) -> None:
    """As the command writes them."""
    path.write_text("".join(f"{','.join(row)}\n" for row in [COLUMNS, *data]), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if sys.argv[1:] else FILE, rows(*drawn(31, 1.0, 1), 1))
