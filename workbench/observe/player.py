"""Plays a picture in JupyterLab: step by step, at any speed, as large as wanted, with words at the pointer.

::

    run = simulate(4, ring)
    play(drawing.space_time(run))       # messages in the order of their times
    play(drawing.ring_chunks(4))        # step by step
    play(workbench.timeline())          # what was recorded on real ranks

It is the same picture, made by the same code: its parts say when they happen (``data-begin``, ``data-end``), and
``player.js`` hides what has not happened yet. So the picture is there where there is no player: its SVG is part of what
is shown, and a notebook that was not run, a forge or a page made of it shows that.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

from workbench.observe.figure import Figure

SECONDS = 8.0
_HERE = Path(__file__).parent


def play(figure: Figure, seconds: float = SECONDS) -> Any:
    """A player for a picture; where there is no anywidget, the picture.

    Args:
        figure: of ``drawing.space_time``, ``drawing.ring_chunks`` or ``workbench.timeline``.
        seconds: how long it plays from beginning to end, at speed 1.

    Raises:
        ValueError: nothing in the picture happens at a time.

    Example:
        >>> from workbench.course import drawing
        >>> play(drawing.ring_chunks(3))
        Ring allreduce on 3 ranks: in 2 steps each rank gets one complete chunk, in 2 more all
    """
    if not seconds > 0:
        raise ValueError(f"A player needs a positive number of seconds, not {seconds}.")
    if " data-begin=" not in figure.svg:
        raise ValueError(f"Nothing happens in this picture, so it cannot be played: {figure.alt}")
    try:
        player = _player_class()
    except ImportError:
        if sys.platform == "emscripten":  # the page has a player of its own
            return Played(figure.svg, figure.alt, seconds)
        print("There is no player here (pip install anywidget); this is the whole picture.")
        return figure
    return player(svg=figure.svg, alt=figure.alt, seconds=seconds)


class Played(Figure):
    """A picture for the player of a page; see :func:`play`."""

    def __init__(self, svg: str, alt: str, seconds: float) -> None:
        super().__init__(svg, alt)
        self.seconds = seconds

    def _repr_mimebundle_(self, **options: Any) -> Any:
        data = {"image/svg+xml": self.svg, "text/plain": self.alt}
        return data, {"workbench": {"seconds": self.seconds}}


@cache
def _player_class() -> Any:
    """The widget; anywidget is imported where it is needed, for the lessons work without it."""
    import anywidget
    import traitlets

    class Player(anywidget.AnyWidget):
        """A picture and the times in it; what the reader does with it stays in the page."""

        _esm = (_HERE / "player.js").read_text(encoding="utf-8")
        _css = (_HERE / "player.css").read_text(encoding="utf-8")
        svg = traitlets.Unicode().tag(sync=True)
        alt = traitlets.Unicode().tag(sync=True)
        seconds = traitlets.Float(SECONDS).tag(sync=True)

        def __repr__(self) -> str:
            return str(self.alt)

        def _repr_mimebundle_(self, **options: Any) -> Any:
            """The widget, and the picture for whoever cannot show widgets."""
            shown = super()._repr_mimebundle_(**options)
            data, metadata = shown if shown is not None else ({}, {})
            data = {**data, "image/svg+xml": self.svg, "text/plain": self.alt}
            return data, {**metadata, "workbench": {"seconds": self.seconds}}  # a page without a kernel plays it, too

    return Player
