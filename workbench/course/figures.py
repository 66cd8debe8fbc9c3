"""Figures of the lessons, as SVG.

Sharp at any size, shown by every forge, and the same bytes for the same data, so a test can compare them.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from workbench.observe.figure import Figure

_STABLE: Any = {"svg.hashsalt": "workbench", "svg.fonttype": "none", "font.family": "sans-serif"}
COLOURS = ("#0b6e99", "#e07b39", "#5b8c5a", "#8e5572")


# Matplotlib writes its colours into each element, so on a dark page they are overruled; what is grey or has a colour of
# its own stays. An SVG's style holds for the whole page: hence the class.
_DARK = (
    "<style>.wbf{color:#000000}@media(prefers-color-scheme:dark){.wbf{color:#e6edf3}"
    '.wbf [style*="fill: #ffffff"]{fill:#16191d!important}.wbf text{fill:currentColor}}</style>'
)


def curves(
    series: Mapping[str, Sequence[float]],
    xlabel: str,
    ylabel: str,
    title: str,
    x: Sequence[float] | None = None,
    *,
    doubling: bool = False,
) -> Figure:
    """Several curves over one axis; later ones are thinner and dashed, so that equal curves both show.

    Args:
        series: the values by name.
        xlabel, ylabel, title: what is written on the picture.
        x: where the values lie; 0, 1, 2 … without it.
        doubling: each x is twice the one before: they are drawn at equal distances, with all their labels.

    Example:
        >>> curves({"a": [3, 2, 1]}, "step", "loss", "Falling")
        Falling: a from 3 to 1
    """
    with Canvas() as (figure, axes):
        for i, (label, values) in enumerate(series.items()):
            axes.plot(
                range(len(values)) if x is None else x,
                values,
                label=label,
                color=COLOURS[i % len(COLOURS)],
                lw=4 / (1 + i),
                ls="-" if i == 0 else "--",
            )
        axes.set(xlabel=xlabel, ylabel=ylabel, title=title)
        if doubling and x is not None:
            axes.set_xscale("log", base=2)
            axes.set_xticks(list(x), [number(one) for one in x])
        axes.legend(frameon=False)
        ends = "; ".join(f"{label} from {values[0]:.3g} to {values[-1]:.3g}" for label, values in series.items())
        return finished(figure, f"{title}: {ends}")


def points(series: Mapping[str, Sequence[tuple[float, float]]], xlabel: str, ylabel: str, title: str) -> Figure:
    """Points on logarithmic axes, and a line where both values are equal.

    Args:
        series: pairs of values by name.
        xlabel, ylabel, title: what is written on the picture.

    Raises:
        ValueError: there is no point.

    Example:
        >>> points({"a": [(1.0, 1.0), (10.0, 20.0)]}, "measured", "predicted", "Both")
        Both: a, 2 points, ratios 1 to 2
    """
    if not any(series.values()):
        raise ValueError("There are no points to draw.")
    with Canvas() as (figure, axes):
        every = [value for pairs in series.values() for pair in pairs for value in pair]
        axes.plot([min(every), max(every)], [min(every), max(every)], color="grey", ls=":", label="equal")
        for i, (label, pairs) in enumerate(series.items()):
            axes.scatter(*zip(*pairs, strict=True), s=14, label=label, color=COLOURS[i % len(COLOURS)])
        axes.set(xlabel=xlabel, ylabel=ylabel, title=title, xscale="log", yscale="log")
        axes.legend(frameon=False)
        ratios = {label: sorted(y / x for x, y in pairs) for label, pairs in series.items() if pairs}
        told = "; ".join(
            f"{label}, {len(each)} points, ratios {each[0]:.3g} to {each[-1]:.3g}" for label, each in ratios.items()
        )
        return finished(figure, f"{title}: {told}")


class _Row(Protocol):
    @property
    def engines(self) -> int: ...
    @property
    def speedup(self) -> float: ...


class SpeedupTable(Protocol):
    """See :class:`workbench.course.training.timing.SpeedupTable`."""

    @property
    def rows(self) -> Sequence[_Row]: ...


def speedup(table: SpeedupTable) -> Figure:
    """Measured speed-up beside the ideal."""
    with Canvas() as (figure, axes):
        engines = [row.engines for row in table.rows]
        axes.plot(engines, engines, color="grey", ls=":", label="ideal")
        axes.bar(engines, [row.speedup for row in table.rows], width=0.5, color=COLOURS[0], label="measured")
        axes.set(xlabel="engines", ylabel="speed-up", title="Speed-up", xticks=engines)
        axes.legend(frameon=False)
        return finished(figure, "Speed-up: " + ", ".join(f"{row.speedup:.2f} with {row.engines}" for row in table.rows))


def number(value: float) -> str:
    """A figure, short.

    Example:
        >>> number(24.0), number(1.25e-5), number(12345678), number(75202.56)
        ('24', '1.25e-05', '12,345,678', '75,203')
    """
    return f"{value:,.0f}" if float(value).is_integer() or value >= 1000 else f"{value:.3g}"


class Canvas:
    """A small figure under settings that make its bytes reproducible."""

    def __enter__(self) -> tuple[Any, Any]:
        import matplotlib
        from matplotlib.figure import Figure as Drawing

        self._settings = matplotlib.rc_context(_STABLE)
        self._settings.__enter__()
        drawing = Drawing(figsize=(5.5, 3.2), layout="tight")
        axes = drawing.add_subplot()
        axes.spines[["top", "right"]].set_visible(False)
        return drawing, axes

    def __exit__(self, *error: Any) -> None:
        self._settings.__exit__(*error)


def finished(figure: Any, alt: str) -> Figure:
    """Matplotlib's figure as SVG, with a text that says what is to be seen."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Title": alt})
    head, root, rest = out.getvalue().partition("<svg ")
    attributes, _, content = rest.partition(">")
    content = content.replace("stroke: #000000", "stroke: currentColor")  # marks of an axis inherit nothing else
    return Figure(f'{head}{root}class="wbf" {attributes}>{_DARK}{content}', alt)
