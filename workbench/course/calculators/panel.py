"""Sliders around a picture: what they say is given to a function, and its picture is shown below them.

The widget is ipywidgets'. Its static picture is part of what is shown, so a notebook that was not run, a forge or a
page made of it shows that; where ipywidgets is missing, there is only the picture.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from workbench.observe.figure import Figure

Draw = Callable[[Mapping[str, Any]], Figure]


@dataclass(frozen=True)
class Knob:
    """One thing to be set.

    Args:
        name: of the value that it sets.
        label: what is written beside it.
        stops: what can be chosen, by the words in which it is shown; in order where it is a slider.
        value: at the beginning; one of ``stops``.
        slides: else a list to choose from.

    Raises:
        ValueError: ``value`` is none of the stops.
    """

    name: str
    label: str
    stops: Mapping[str, Any]
    value: Any
    slides: bool = True

    def __post_init__(self) -> None:
        if self.value not in self.stops.values():
            raise ValueError(f"{self.name} begins at {self.value!r}, which is none of {', '.join(self.stops)}.")


def stops(values: Sequence[Any], words: Callable[[Any], str]) -> dict[str, Any]:
    """What a knob can be set to, by its words.

    Example:
        >>> stops([1, 2], lambda n: f"{n} ranks")
        {'1 ranks': 1, '2 ranks': 2}
    """
    return {words(value): value for value in values}


def nearest(stops: Mapping[str, float], value: float) -> float:
    """The stop that is nearest by its ratio; 0 only to 0.

    Example:
        >>> nearest({"none": 0, "1 MB": 1e6, "10 MB": 1e7}, 2e6)
        1000000.0
    """
    far = {
        stop: abs(math.log(stop / value)) if stop and value else (0.0 if stop == value else math.inf)
        for stop in stops.values()
    }
    return min(far, key=lambda stop: far[stop])


def slider(of: object, name: str, label: str, stops: Mapping[str, float]) -> Knob:
    """A knob for an attribute; it begins at the stop that is nearest."""
    return Knob(name, label, stops, nearest(stops, getattr(of, name)))


def choice(of: object, name: str, label: str, names: Iterable[str]) -> Knob:
    """A list of names for an attribute that has one of them."""
    return Knob(name, label, {each: each for each in names}, getattr(of, name), slides=False)


def panel(knobs: Sequence[Knob], draw: Draw, still: Figure) -> Any:
    """Sliders with a picture below them; where there is no ipywidgets, the still picture.

    Args:
        knobs: what can be set.
        draw: the picture of what the knobs say, by their names.
        still: what a page without a kernel shows.
    """
    try:
        kind = _panel_class()
    except ImportError:
        print("There are no sliders here (pip install ipywidgets); this picture shows some settings.")
        return still
    return kind(knobs, draw, still)


@cache
def _panel_class() -> Any:
    """The widget; ipywidgets is imported where it is needed, because the lessons work without it."""
    import ipywidgets

    class Panel(ipywidgets.VBox):  # type: ignore[misc]
        """Knobs in rows, a picture below."""

        def __init__(self, knobs: Sequence[Knob], draw: Draw, still: Figure) -> None:
            self.knobs = {knob.name: _control(knob) for knob in knobs}
            self._draw, self._still = draw, still
            self.shown = ipywidgets.HTML()
            rows = ipywidgets.Layout(display="grid", grid_template_columns="repeat(auto-fill, minmax(380px, 1fr))")
            super().__init__([ipywidgets.Box(list(self.knobs.values()), layout=rows), self.shown])
            for control in self.knobs.values():
                control.observe(self._redraw, "value")
            self._redraw()

        def _redraw(self, _: Any = None) -> None:
            figure = self._draw({name: control.value for name, control in self.knobs.items()})
            self.shown.value = figure.svg

        def __repr__(self) -> str:
            return self._still.alt

        def _repr_mimebundle_(self, **options: Any) -> Any:
            """The widget, and the still picture for whoever cannot show widgets."""
            data = super()._repr_mimebundle_(**options) or {}
            return {**data, "image/svg+xml": self._still.svg, "text/plain": self._still.alt}

    return Panel


def _control(knob: Knob) -> Any:
    import ipywidgets

    kind = ipywidgets.SelectionSlider if knob.slides else ipywidgets.Dropdown
    return kind(
        options=list(knob.stops.items()),
        value=knob.value,
        description=knob.label,
        style={"description_width": "150px"},
        layout={"width": "98%"},
        **({"continuous_update": True} if knob.slides else {}),
    )
