"""A step of training as a picture: what the ranks compute, what the network carries, and where the ranks wait."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from workbench.course.drawing import _label, _picture
from workbench.observe.drawing import COLOURS, clean, duration, size
from workbench.observe.figure import Figure
from workbench.simulate.steps import Event

_LEFT, _WIDTH, _HEIGHT = 80.0, 700.0, 34.0
_ROWS = {"compute": 58.0, "network": 104.0}
_FILL = {"forward": "submit", "backward": "compute", "reduce": "reduce", "wait": "wait"}
_LETTER = 6.0


def step_picture(events: Sequence[Event], step_s: float, title: str) -> Figure:
    """One step, from the end of a backward pass to the end of the next one.

    Args:
        events: of one step, as the simulator gives them.
        step_s: how long a step takes in the long run.
        title: what it shows.

    Raises:
        ValueError: there are no events of backward.

    Example:
        >>> step = [Event("forward", ("fc",), 0, 1), Event("backward", ("fc",), 1, 3), Event("reduce", ("fc",), 3, 5)]
        >>> step_picture(step, 5.0, "One layer")
        One layer: a step takes 5 s, computing 3 s of it, waiting 2 s; the network is busy for 2 s
    """
    computed = [event for event in events if event.what != "reduce"]
    reduced = [event for event in events if event.what == "reduce"]
    if not any(event.what == "backward" for event in computed):
        raise ValueError("There is no backward among the events: give those of one simulated step.")
    begin = min(event.begin_s for event in computed)
    end = max(event.end_s for event in events)
    busy_s, sent_s = (sum(event.end_s - event.begin_s for event in some) for some in (computed, reduced))
    text = (
        f"{title}: a step takes {_told(step_s)}, computing {_told(busy_s)} of it, waiting "
        f"{_told(step_s - busy_s)}; the network is busy for {_told(sent_s)}"
    )
    scale = _WIDTH / (end - begin)
    parts = [_label(_LEFT - 8, y + 22, row, 12, "end") for row, y in _ROWS.items()]
    parts += [_bar(event, begin, scale) for event in (*computed, *_waits(computed, begin + step_s), *reduced)]
    parts += _axis(begin, end, scale)
    return _picture(text, _LEFT + _WIDTH + 24, 196, [*_legend(), *parts])


def _waits(computed: Sequence[Event], until: float) -> Iterator[Event]:
    """Where nothing is computed: between two layers, and until the next step begins."""
    ends = [*computed, Event("forward", computed[0].names, until, until)]
    for before, after in pairwise(ends):
        if after.begin_s > before.end_s + 1e-9:
            yield Event("wait", after.names, before.end_s, after.begin_s)


def _bar(event: Event, begin: float, scale: float) -> str:
    x, width = _LEFT + (event.begin_s - begin) * scale, max(0.6, (event.end_s - event.begin_s) * scale)
    fill, ink = COLOURS[_FILL[event.what]]
    y = _ROWS["network" if event.what == "reduce" else "compute"]
    names = event.names[0] if len(event.names) == 1 else f"{event.names[0]} to {event.names[-1]}"
    what = f"wait for {names}" if event.what == "wait" else f"{event.what} {names}"
    carried = f", {size(4 * event.values)}" if event.values else ""
    label = "wait" if event.what == "wait" else names
    inside = ""
    if width > _LETTER * len(label) + 6:
        inside = _label(x + width / 2, y + 21, label, 10, "middle", f' fill="{ink}"')
    tip = f"{what}: {duration((event.end_s - event.begin_s) * 1e6)}{carried}"
    box = f'<rect x="{x:.2f}" y="{y:g}" width="{width:.2f}" height="{_HEIGHT:g}" fill="{fill}" stroke="#ffffff"/>'
    return f"<g><title>{clean(tip)}</title>{box}{inside}</g>"


def _legend() -> Iterator[str]:
    x = _LEFT
    for what, phase in _FILL.items():
        yield f'<rect x="{x:g}" y="36" width="10" height="10" rx="2" fill="{COLOURS[phase][0]}"/>'
        yield _label(x + 14, 45, what)
        x += 34 + _LETTER * len(what)


def _axis(begin: float, end: float, scale: float) -> Iterator[str]:
    for part in range(6):
        at = begin + (end - begin) * part / 5
        x = _LEFT + (at - begin) * scale
        yield f'<line class="wbt-line" x1="{x:.1f}" x2="{x:.1f}" y1="54" y2="146"/>'
        yield _label(x, 164, duration((at - begin) * 1e6) if part else "0", 10, "middle")


def _told(seconds: float) -> str:
    return "nothing" if seconds < 1e-9 else duration(seconds * 1e6)


__all__ = ["step_picture"]
