"""Figures that were measured on another machine: a lesson shows them with the machine and the date, or not at all."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.errors import DataNotFoundError

_RESULTS = Path(__file__).resolve().parents[3] / "benchmarks" / "results"
GPU_REPORT, HOSTS_REPORT = _RESULTS / "gpu-report.json", _RESULTS / "hosts.json"
TALKING_LESS = _RESULTS / "talking_less.json"
_MISSING = (
    "These figures have not been measured yet: there is no benchmarks/results/gpu-report.json.\n"
    "On a machine with an NVIDIA GPU, torch and cupy: make bench-gpu"
)

_HOW_TO_READ = """
How to read it
  over plain torch: what a step costs more with the workbench than without
  the whole way: on one rank: hooks, buckets, engine and NCCL, with no other rank to wait for; DDP does the same
  pack and unpack: many gradients into one buffer and back, with one launch each; a plain copy is the best possible"""

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
    if not path.exists():
        return _MISSING
    report = json.loads(path.read_text(encoding="utf-8"))
    told_in_full = [one for one in report["sections"] if _timed(one) or not _all_right(one)]
    checks = [one for one in report["sections"] if one not in told_in_full]
    compared = sum(each["value"] for one in checks for each in one["results"] if each["name"] == "results checked")
    summary = f"\n{len(checks)} checks: all right" + (f"; {compared:,} results compared" if compared else "")
    head, _, figures = told(report | {"sections": told_in_full}).partition("\n\n")
    return "\n".join([head, *([summary] if checks else []), "", figures, _HOW_TO_READ])


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
        f"Measured {report['date']} with {report['ranks']} ranks on {report['hosts']} hosts, "
        f"{report['gbit']:g} Gbit/s between them",
        f"(hosts and link are on one machine with {report['cores']} cores, the link's rate is shaped)",
        f"{'ms, medians':24}" + "".join(f"{name.removesuffix(' ring'):>10}" for name in ("floor", *ways)),
    ]
    for verb, row in longest.items():
        cells = [row["floor_ms"], *(row["ms"][name] for name in ways)]
        lines.append(f"{verb + ', ' + str(row['bytes'] >> 20) + ' MiB':24}" + "".join(f"{ms:10.0f}" for ms in cells))
    return "\n".join(lines)


@dataclass(frozen=True)
class TalkingLess:
    """What ``benchmarks/talking_less.py`` has measured.

    Args:
        about: machine, model and date.
        learnt: of each way to train, bytes and losses.
        step_ms: of each place and way, the median of a step.
    """

    about: str
    learnt: Mapping[str, Mapping[str, Any]]
    step_ms: Mapping[str, Mapping[str, float]]

    def table(self) -> str:
        """A line for each way: bytes of a step, loss and accuracy after equal samples, and its milliseconds."""
        places = list(self.step_ms)
        lines = [self.about, *(f"  {letter}: {place}" for letter, place in zip("ABCDEF", places, strict=False))]
        heads = "".join(f"{letter:>8}" for letter, _ in zip("ABCDEF", places, strict=False))
        lines.append(f"{'':13}{'kB a step':>10}{'test loss':>11}{'accuracy':>10}{heads}  (ms a step)")
        for way, row in self.learnt.items():
            cells = "".join(f"{self.step_ms[place][way]:8.1f}" for place in places)
            kilobytes = row["reduced_bytes_per_step"] / 1e3
            lines.append(f"{way:13}{kilobytes:10,.1f}{row['test_loss']:11.3f}{row['accuracy']:10.1%}{cells}")
        return "\n".join(lines)


def talking_less(path: Path = TALKING_LESS) -> TalkingLess:
    """The figures of the last run.

    Raises:
        DataNotFoundError: there are none yet.
    """
    if not path.exists():
        raise DataNotFoundError(f"There is no {path.name} in benchmarks/results: benchmarks/talking_less.py makes it.")
    report = json.loads(path.read_text(encoding="utf-8"))
    step_ms = {
        _place(row["where"]): {way: 1e3 * statistics.median(seconds) for way, seconds in row["step_s"].items()}
        for row in report["times"]
    }
    load = max(row["load"] for row in report["times"])
    about = (
        f"{report['model']}; {report['data']}\n"
        f"Measured {report['date']} on {report['cores']} cores, which others used, too (load up to {load:.0f})"
    )
    return TalkingLess(about, {row["way"]: row for row in report["learnt"]}, step_ms)


def _place(where: str) -> str:
    """Where it was measured, with the link's rate in words.

    Example:
        >>> _place("two hosts, 100mbit"), _place("two hosts, none")
        ('two hosts, 100 Mbit/s', 'two hosts, no limit')
    """
    rates = {"100mbit": "100 Mbit/s", "1gbit": "1 Gbit/s", "none": "no limit"}
    return ", ".join(rates.get(part, part) for part in where.split(", "))


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


def _timed(section: Mapping[str, Any]) -> bool:
    """Has it figures of several rounds?"""
    return any(each["low"] is not None for each in section.get("results", []))


def _all_right(section: Mapping[str, Any]) -> bool:
    """Was it run, and was nothing wrong?"""
    return "results" in section and all(each["met"] is not False for each in section["results"])


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
