"""What ``workbench.predict()`` said of trainings between shaped hosts, beside what was measured then."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from workbench.course import figures
from workbench.observe.figure import Figure
from workbench.simulate.measured.prediction import Measured, predict

REPORT = Path(__file__).resolve().parents[3] / "benchmarks" / "results" / "prediction.json"
_CLOSE = 0.1


@dataclass(frozen=True)
class Cell:
    """One training.

    Args:
        rate: of the link between the two hosts.
        ranks: on both together.
        model: its name.
        way: in which the gradients travelled.
        measured_s, predicted_s: of a step.
    """

    rate: str
    ranks: int
    model: str
    way: str
    measured_s: float
    predicted_s: float

    @property
    def error(self) -> float:
        """By which part the prediction is too long."""
        return self.predicted_s / self.measured_s - 1

    def __str__(self) -> str:
        return (
            f"{self.model}, {self.ranks} ranks, {self.rate}, {self.way}: measured {self.measured_s * 1e3:.0f} ms, "
            f"predicted {self.predicted_s * 1e3:.0f} ms"
        )


def cells(path: Path = REPORT) -> list[Cell]:
    """All trainings of ``benchmarks/prediction.py``'s report; see :func:`predicted`.

    Args:
        path: of the report.

    Raises:
        FileNotFoundError: there is no such report.
    """
    return predicted(json.loads(path.read_text(encoding="utf-8"))["rows"])


def predicted(rows: Sequence[dict[str, Any]]) -> list[Cell]:
    """All trainings of these rows of the report, each predicted anew."""
    found = []
    for row in rows:
        for way, seconds in row["step_s"].items():
            measured = Measured.of(row["measured"]["float16" if way == "fp16" else "float32"])
            said_s = predict(measured, [row["ranks"]], sharded=way == "sharded").rows[0].step_s
            found.append(Cell(row["rate"], row["ranks"], row["model"], way, seconds, said_s))
    return found


def summary(chosen: Sequence[Cell]) -> str:
    """For each way the errors' median and its worst training.

    Example:
        >>> pair = [Cell("1gbit", n, "cnn", "plain", measured_s=0.010, predicted_s=0.008 + n / 1000) for n in (2, 4)]
        >>> print(summary(pair))
        plain     2 trainings, median error 10.0%, within 10 %: 1
                worst: cnn, 4 ranks, 1gbit, plain: measured 10 ms, predicted 12 ms
    """
    lines = []
    for way in dict.fromkeys(cell.way for cell in chosen):
        mine = [cell for cell in chosen if cell.way == way]
        errors = [abs(cell.error) for cell in mine]
        worst = max(mine, key=lambda cell: abs(cell.error))
        lines.append(
            f"{way:8} {len(mine):2} trainings, median error {median(errors):5.1%}, within 10 %: "
            f"{sum(error <= _CLOSE + 1e-9 for error in errors)}\n{'worst:':>14} {worst}"
        )
    return "\n".join(lines)


def beside(chosen: Sequence[Cell]) -> Figure:
    """Predicted over measured, in milliseconds, with a line where both are equal."""
    points = {
        way: [(cell.measured_s * 1e3, cell.predicted_s * 1e3) for cell in chosen if cell.way == way]
        for way in dict.fromkeys(cell.way for cell in chosen)
    }
    return figures.points(points, "measured, ms", "predicted, ms", "A step, predicted beside measured")
