"""The results as a picture: time over size for each peer, and training as a share of the limit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from figures import quartiles
from matplotlib.figure import Figure
from report import Result, share_of_limit

_INCHES = (6.4, 4.4)  # of one panel


def draw(results: Sequence[Result], path: Path) -> bool:
    """Write an SVG, a row of panels for each section; False if there is nothing to draw."""
    rows = [
        (panel, found)
        for section, panel in (("collectives", sizes), ("training", shares), ("rivals", shares))
        if (found := [each for each in results if each["section"] == section and each.get("cases")])
    ]
    if not rows:
        return False
    columns = max(len(found) for _, found in rows)
    figure = Figure(figsize=(_INCHES[0] * columns, _INCHES[1] * len(rows)), layout="constrained")
    grid = figure.subplots(len(rows), columns, squeeze=False)
    for line, (panel, found) in zip(grid, rows, strict=True):
        for axes, result in zip(line, found, strict=False):
            panel(axes, result)
        for axes in line[len(found) :]:
            axes.set_axis_off()
    figure.savefig(path, format="svg")
    return True


def sizes(axes: Any, result: Result) -> None:
    """Time over size, with the range between the quartiles."""
    for name in result["cases"][0]["seconds"]:
        spread = [quartiles(case["seconds"][name]) for case in result["cases"]]
        x = [case["bytes"] for case in result["cases"]]
        style = {"linestyle": "--", "color": "black"} if name == result["limit"] else {"marker": "o", "markersize": 4}
        line = axes.plot(x, [each.median * 1e3 for each in spread], label=name, **style)[0]
        low, high = [each.low * 1e3 for each in spread], [each.high * 1e3 for each in spread]
        axes.fill_between(x, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks([case["bytes"] for case in result["cases"]], [case["title"] for case in result["cases"]])
    axes.tick_params(axis="x", labelsize=8)
    axes.set(title=f"Allreduce, {result['ranks']} ranks", ylabel="ms")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def shares(axes: Any, result: Result) -> None:
    """Images per second as a share of the limit's, with the range between the quartiles."""
    cases, limit = result["cases"], result["limit"]
    names = [name for name in cases[0]["seconds"] if name != limit]
    width = 0.8 / len(names)
    for i, name in enumerate(names):
        spread = [quartiles(share_of_limit(case, name, limit)) for case in cases]
        heights = [each.median for each in spread]
        errors = [[each.median - each.low for each in spread], [each.high - each.median for each in spread]]
        places = [case + (i - (len(names) - 1) / 2) * width for case in range(len(cases))]
        axes.bar(places, heights, width, yerr=errors, label=name, error_kw={"linewidth": 1})
    axes.axhline(100, color="black", linestyle="--", linewidth=1, label=limit)
    axes.set_xticks(range(len(cases)), [case["title"] for case in cases], fontsize=8)
    axes.set(title=f"Training, {result['ranks']} ranks", ylabel="images/s, percent of the limit")
    axes.legend(fontsize=8, loc="lower right", framealpha=0.9)
