"""From what a worker of ``gpu_report.py`` printed to named figures with their targets. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, TypedDict

from figures import Quartiles, quartiles

PLAIN, OURS, PATH, DDP, TUNED = "plain torch", "workbench", "workbench, whole way", "DDP", "DDP tuned"
Found = Sequence[Any]  # by rank


class Result(TypedDict):
    """One figure.

    Args:
        name: unique in its section.
        value: the median of the rounds, where there were several; low and high are their quartiles then, else None.
        unit: of all three.
        target: "≤ 2", "≥ 80", "= 0", or "" where nothing is aimed at.
        met: None without a target.
    """

    name: str
    value: float
    low: float | None
    high: float | None
    unit: str
    target: str
    met: bool | None


def result(name: str, value: float | Quartiles, unit: str = "", target: str = "") -> Result:
    """A figure, judged.

    Example:
        >>> result("overhead", 1.5, "%", "≤ 2")["met"], result("wrong", 1, "", "= 0")["met"]
        (True, False)
    """
    middle, low, high = value if isinstance(value, Quartiles) else (value, None, None)
    met = None
    if target:
        sign, limit = target.split()
        met = {"≤": middle <= float(limit), "≥": middle >= float(limit), "=": middle == float(limit)}[sign]
    return {"name": name, "value": middle, "low": low, "high": high, "unit": unit, "target": target, "met": met}


def verbs(found: Found) -> list[Result]:
    """Of ``tests/gpu/verbs.py``."""
    wrong, checks = sum(len(each["wrong"]) for each in found), sum(each["checks"] for each in found)
    return [result("results checked", checks), result("wrong", wrong, "", "= 0")]


def rounds(found: Found) -> list[Result]:
    """Of ``tests/gpu/late.py``: wrong rounds, all kinds together or each by itself."""
    return [result(f"wrong, {kind}", sum(each[kind] for each in found), "rounds", "= 0") for kind in found[0]]


def mutant(found: Found) -> list[Result]:
    """Of the same, with a wait left out: something must be wrong, or the rounds above show nothing."""
    return [result(f"wrong without the wait, {kind}", found[0][kind], "rounds", "≥ 1") for kind in found[0]]


def trained(found: Found) -> list[Result]:
    """Of ``tests/gpu/trains.py``."""
    return [
        result("largest difference from a serial run", max(each["from_serial"] for each in found), "", "≤ 1e-4"),
        result("ranks with other weights", sum(not each["ranks_equal"] for each in found), "", "= 0"),
        result("gradients outside of buckets", max(e["gradients"] - e["in_buckets"] for e in found), "", "= 0"),
    ]


def copies(found: Found) -> list[Result]:
    """Of ``gpu_copy.py``: bandwidth counts bytes read and bytes written, for all three alike."""
    (one,) = found
    results = [result("wrong", int(not one["right"]), "", "= 0")]
    for name, ms in one["ms"].items():
        speed = quartiles([2 * one["bytes"] / each / 1e6 for each in ms])
        results.append(result({"copy": "device to device copy"}.get(name, name), speed, "GB/s"))
    for i, name in enumerate(("pack", "unpack")):
        share = quartiles([100 * copy / mine for copy, mine in zip(one["ms"]["copy"], one["ms"][name], strict=True)])
        results.append(result(f"{name}: share of the copy's bandwidth", share, "%", "≥ 80"))
        results.append(result(f"{name}: launches for {one['gradients']} gradients", one["launches"][i], "", "= 1"))
        results.append(result(f"{name}: CPU until it is queued", one["host_us"][name], "µs"))
    return results


def training(found: Found) -> list[Result]:
    """Of ``gpu_training.py``: what a step costs more than with plain torch, and than with DDP at its best."""
    one = found[0]
    seconds, ranks, unit = one["seconds"], one["ranks"], one["unit"]
    rate = quartiles([ranks * one["batch"] / each for each in seconds[OURS]])
    copies_rate = quartiles([ranks * one["batch"] / each for each in seconds[PLAIN]])
    results = [
        result(f"plain torch, {ranks} × {one['batch']} {unit}", copies_rate, f"{unit}/s"),
        result(f"workbench, {ranks} × {one['batch']} {unit}", rate, f"{unit}/s"),
        result("ranks with other weights", sum(not each["weights_equal"] for each in found), "", "= 0"),
    ]
    for name in (OURS, PATH, DDP, TUNED):
        if name in seconds:
            target = "≤ 2" if name in (OURS, PATH) else ""
            results.append(result(f"{name}: over plain torch", beyond(seconds[name], seconds[PLAIN]), "%", target))
    ddp = [min(each) for each in zip(seconds[DDP], seconds[TUNED], strict=True)]
    for name in (OURS, PATH):
        if name in seconds:
            results.append(result(f"{name}: over the better DDP", beyond(seconds[name], ddp), "%", "≤ 0"))
    step_ms = statistics.median(seconds[PLAIN]) * 1e3
    reduce = quartiles(one["reduce_ms"])
    share = Quartiles(*(100 * each / step_ms for each in reduce))
    results.append(result(f"all {one['gradients']} gradients by one call, nothing beside it", reduce, "ms"))
    results.append(result("the same, of a step of plain torch", share, "%"))
    return results


def beyond(mine: Sequence[float], base: Sequence[float]) -> Quartiles:
    """Percent that a peer takes longer, round by round.

    Example:
        >>> beyond([1.5, 3.0], [1.0, 2.0]).median
        50.0
    """
    return quartiles([100 * (each / its - 1) for each, its in zip(mine, base, strict=True)])


def speedup(one: Sequence[Result], many: Sequence[Result], ranks: int) -> list[Result]:
    """Images per second of N ranks over those of one, from the results of :func:`training`."""
    alone = next(each["value"] for each in one if each["name"].startswith("plain torch,"))
    together = next(each["value"] for each in many if each["name"].startswith("workbench,"))
    return [
        result(f"{ranks} ranks over one", together / alone, "times"),
        result("efficiency", 100 * together / alone / ranks, "%"),
    ]
