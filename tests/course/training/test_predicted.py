"""Predictions beside measurements in lesson 16: each training of the report once, with its own constants."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from workbench.course.training.predicted import REPORT, Cell, beside, cells, summary
from workbench.simulate.measured.prediction import Measured, predict


@pytest.mark.long
def test_each_training_of_the_report_is_there_once() -> None:
    """As many as rows and ways; measured as written, predicted as ``predict()`` says from the same row."""
    rows = json.loads(REPORT.read_text(encoding="utf-8"))["rows"]
    found = {(cell.rate, cell.ranks, cell.model, cell.way): cell for cell in cells()}
    assert len(found) == sum(len(row["step_s"]) for row in rows) == len(cells())
    for row in rows:
        cell = found[row["rate"], row["ranks"], row["model"], "plain"]
        assert cell.measured_s == row["step_s"]["plain"]
        assert cell.predicted_s == predict(Measured.of(row["measured"]["float32"]), [row["ranks"]]).rows[0].step_s


def test_the_summary_counts_by_hand() -> None:
    """Median, how many within 10 %, and the worst, whose sign does not matter."""
    mine = [Cell("1gbit", 2, "m", "plain", 1.0, said) for said in (1.05, 0.8, 1.1)]
    told = summary([*mine, Cell("1gbit", 2, "m", "fp16", 1.0, 1.0)])
    assert "plain     3 trainings, median error 10.0%, within 10 %: 2" in told
    assert "measured 1000 ms, predicted 800 ms" in told
    assert "fp16      1 trainings, median error  0.0%, within 10 %: 1" in told


def test_the_figure_says_the_extremes() -> None:
    """Its alternative text has each way's smallest and largest ratio; nothing to draw is an error."""
    alt = beside([Cell("1gbit", 2, "m", "plain", 1.0, said) for said in (2.0, 0.5)]).alt
    assert "plain, 2 points, ratios 0.5 to 2" in alt
    with pytest.raises(ValueError, match="no points"):
        beside([])


def test_without_a_report_it_says_which_file_is_missing(tmp_path: Path) -> None:
    """Not an empty table."""
    with pytest.raises(FileNotFoundError, match=r"none\.json"):
        cells(tmp_path / "none.json")
