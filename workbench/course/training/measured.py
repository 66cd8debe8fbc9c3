"""Figures that were measured on another machine: a lesson shows them with the machine and the date, or not at all."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_RESULTS = Path(__file__).resolve().parents[3] / "benchmarks" / "results"
GPU_REPORT, HOSTS_REPORT = _RESULTS / "gpu-report.json", _RESULTS / "hosts.json"
_MISSING = (
    "These figures have not been measured yet: there is no benchmarks/results/gpu-report.json.\n"
    "On a machine with an NVIDIA GPU, torch and cupy: make bench-gpu"
)

_MISSING_HOSTS = (
    "These figures have not been measured yet: there is no benchmarks/results/hosts.json.\n"
    "The head of benchmarks/hosts.py says how."
)


def gpu_figures(path: Path = GPU_REPORT) -> str:
    """The figures of the last ``make bench-gpu``; where there are none, that, and how to get them.

    Example:
        >>> print(gpu_figures(Path("nowhere.json")))
        These figures have not been measured yet: there is no benchmarks/results/gpu-report.json.
        On a machine with an NVIDIA GPU, torch and cupy: make bench-gpu
    """
    return told(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else _MISSING


def hosts_figures(path: Path = HOSTS_REPORT) -> str:
    """What ``benchmarks/hosts.py`` has measured on several hosts: for each verb its longest array, in ms.

    Example:
        >>> print(hosts_figures(Path("nowhere.json")))
        These figures have not been measured yet: there is no benchmarks/results/hosts.json.
        The head of benchmarks/hosts.py says how.
    """
    if not path.exists():
        return _MISSING_HOSTS
    report = json.loads(path.read_text(encoding="utf-8"))
    longest = {row["verb"]: row for row in report["rows"]}
    ways = [name for name in report["rows"][0]["ms"] if name not in ("ours bf16", "ours over MPI")]
    lines = [
        f"Measured on {report['hosts']} hosts with {report['ranks']} ranks, {report['gbit']:g} Gbit/s between them "
        f"(on one machine with {report['cores']} cores, shaped), {report['date']}",
        f"{'ms, medians':24}" + "".join(f"{name:>12}" for name in ("floor", *ways)),
    ]
    for verb, row in longest.items():
        cells = [row["floor_ms"], *(row["ms"][name] for name in ways)]
        lines.append(f"{verb + ', ' + str(row['bytes'] >> 20) + ' MiB':24}" + "".join(f"{ms:12.0f}" for ms in cells))
    return "\n".join(lines)


def told(report: Mapping[str, Any]) -> str:
    """A report as text: the machine in two lines, then each section with a line for each figure."""
    machine, versions = report["machine"], report["versions"]
    names = (("torch", "torch"), ("cupy", "cupy"), ("NCCL", "nccl"), ("CUDA", "cuda"))
    libraries = ", ".join(f"{name} {versions[key]}" for name, key in names if key in versions)
    count = f"{machine['gpus']} × " if machine["gpus"] > 1 else ""
    quick = ", a quick run" if report["quick"] else ""
    lines = [f"Measured on {count}{machine['gpu']}, {report['date'][:10]}{quick}", libraries]
    for section in report["sections"]:
        lines += ["", section["section"], *_lines(section)]
    return "\n".join(lines)


def _lines(section: Mapping[str, Any]) -> list[str]:
    """The figures of a section in columns, or why there are none."""
    if "failed" in section:
        return [f"  failed: {section['failed'].strip().splitlines()[0]}"]
    if "skipped" in section:
        return [f"  left out: {section['skipped']}"]
    return [
        f"  {each['name'][:70]:70} {_number(each['value']):>8} {each['unit']:9}{_judged(each)}".rstrip()
        for each in section["results"]
    ]


def _judged(result: Mapping[str, Any]) -> str:
    """``target ≤ 2: met``, if something was aimed at."""
    return f" target {result['target']}: {'met' if result['met'] else 'missed'}" if result["target"] else ""


def _number(value: float) -> str:
    """Three significant digits or more, never an exponent but for the tiniest.

    Example:
        >>> _number(0), _number(1.234), _number(98765.4), _number(0.00001)
        ('0', '1.23', '98,765', '1e-05')
    """
    whole = math.isfinite(value) and (value == int(value) or abs(value) >= 100)
    return f"{value:,.0f}" if whole else f"{value:.3g}"
