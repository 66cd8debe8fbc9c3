"""The figures of a GPU in lesson 12: shown with machine and date, or said to be missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from workbench.course.training.measured import GPU_REPORT, gpu_figures, told

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


def test_what_is_committed_can_be_shown() -> None:
    """The lesson's own file, if there is one by now."""
    if not GPU_REPORT.exists():
        pytest.skip("no figures of a GPU have been committed yet")
    assert gpu_figures().startswith("Measured on ")


@pytest.mark.parametrize("value", [0, 1e-9, 0.5, 99.94, 12345.6, float("nan"), float("inf"), -0.3])
def test_any_number_can_be_shown(value: float) -> None:
    """In its column."""
    sections = [{"section": "s", "results": [RESULT | {"value": value}]}]
    assert len(told(REPORT | {"sections": sections}).splitlines()[-1]) <= 120
