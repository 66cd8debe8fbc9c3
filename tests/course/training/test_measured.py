"""The figures of a GPU in lesson 12: shown with machine and date, or said to be missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from workbench.course.training.measured import gpu_figures, talking_less, told
from workbench.errors import DataNotFoundError

RESULT = {"name": "pack", "value": 91.234, "low": 90.0, "high": 92.0, "unit": "%", "target": "≥ 80", "met": True}
REPORT: dict[str, Any] = {
    "kind": "gpu-report",
    "quick": False,
    "date": "2026-11-22T08:00:00+00:00",
    "machine": {"gpu": "NVIDIA H100", "gpus": 1, "cpu": "a CPU"},
    "versions": {"torch": "2.11.0", "cupy": "14.2.0", "nccl": "2.28.9"},
    "sections": [
        {"section": "packing", "ranks": 1, "results": [RESULT, RESULT | {"name": "host", "target": "", "met": None}]},
        {"section": "overhead", "ranks": 1, "results": [RESULT | {"name": "over", "target": "≤ 2", "met": False}]},
        {"section": "two ranks", "ranks": 2, "skipped": "NCCL is too old"},
        {"section": "broken", "ranks": 1, "failed": "gpu_copy.py: exit code 1:\nTraceback\n"},
    ],
}


def test_figures_come_with_the_machine_and_the_date(tmp_path: Path) -> None:
    """Each with its unit, and what was aimed at; a section that failed or was left out says so in one line."""
    path = tmp_path / "gpu-report.json"
    path.write_text(json.dumps(REPORT), encoding="utf-8")
    text = gpu_figures(path)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[:2] == ["Measured on NVIDIA H100, 2026-11-22", "torch 2.11.0, cupy 14.2.0, NCCL 2.28.9"]
    for line in (
        "pack 91.2 % target ≥ 80: met",
        "host 91.2 %",
        "over 91.2 % target ≤ 2: missed",
        "left out: NCCL is too old",
        "failed: gpu_copy.py: exit code 1:",
    ):
        assert line in lines
    assert "Traceback" not in text
    assert "How to read it" in lines
    assert all(len(line) <= 120 for line in text.splitlines())


def test_a_quick_run_and_several_gpus_are_told() -> None:
    """Both change what the figures mean."""
    machine = REPORT["machine"] | {"gpus": 4}
    assert told(REPORT | {"quick": True, "machine": machine}).startswith(
        "Measured on 4 × NVIDIA H100, 2026-11-22, a quick run\n"
    )


def test_missing_figures_are_said_to_be_missing(tmp_path: Path) -> None:
    """And how they are measured."""
    text = gpu_figures(tmp_path / "gpu-report.json")
    assert "have not been measured yet" in text
    assert "make bench-gpu" in text


def test_checks_that_are_all_right_are_one_line(tmp_path: Path) -> None:
    """What was timed, went wrong or was left out is told in full."""
    counted = {"name": "results checked", "value": 4741, "low": None, "unit": "", "target": "", "met": None}
    right = {"section": "verbs", "ranks": 1, "results": [counted, counted | {"name": "wrong", "value": 0, "met": True}]}
    wrong = {"section": "late", "ranks": 1, "results": [counted | {"name": "wrong", "value": 3, "met": False}]}
    path = tmp_path / "gpu-report.json"
    path.write_text(json.dumps(REPORT | {"sections": [right, *REPORT["sections"], wrong]}), encoding="utf-8")
    text = gpu_figures(path)
    assert "\n1 checks: all right; 4,741 results compared\n" in text
    assert "verbs" not in text
    assert all(section["section"] in text for section in (*REPORT["sections"], wrong))


@pytest.mark.parametrize("value", [0, 1e-9, 0.5, 99.94, 12345.6, float("nan"), float("inf"), -0.3])
def test_any_number_can_be_shown(value: float) -> None:
    """In its column."""
    sections = [{"section": "s", "results": [RESULT | {"value": value}]}]
    assert len(told(REPORT | {"sections": sections}).splitlines()[-1]) <= 120


def test_each_way_to_talk_less_has_a_line(tmp_path: Path) -> None:
    """Bytes, loss and accuracy of each way, and its median in each place, under the machine's date and load."""
    report = {
        "date": "2026-11-24", "cores": 2, "model": "an MLP", "data": "digits",
        "learnt": [{"way": "plain", "reduced_bytes_per_step": 2_500_000.0, "test_loss": 0.25, "accuracy": 0.9}],
        "times": [
            {"where": "two hosts, 100mbit", "step_s": {"plain": [0.3, 0.2, 0.9]}, "load": 3.6},
            {"where": "one host", "step_s": {"plain": [0.01, 0.02, 0.03]}, "load": 1.0},
        ],
    }  # fmt: skip
    path = tmp_path / "talking_less.json"
    path.write_text(json.dumps(report), encoding="utf-8")
    found = talking_less(path)
    lines = [" ".join(line.split()) for line in found.table().splitlines()]
    assert lines[1] == "Measured 2026-11-24 on 2 cores, which others used, too (load up to 4)"
    assert lines[2:4] == ["A: two hosts, 100 Mbit/s", "B: one host"]
    assert lines[-1] == "plain 2,500.0 0.250 90.0% 300.0 20.0"
    with pytest.raises(DataNotFoundError, match=r"benchmarks/talking_less\.py makes it"):
        talking_less(tmp_path / "nowhere.json")
