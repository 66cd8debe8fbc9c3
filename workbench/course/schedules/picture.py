"""A step of training as a picture: what the ranks compute, what the network carries, and where the ranks wait."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from workbench.common.text import size
from workbench.course.schedules.played import on_the_network, waits
from workbench.observe import drawing_kit as kit
from workbench.observe.drawing import COLOURS
from workbench.observe.figure import Figure
from workbench.simulate.steps import TimedEvent

_LEFT, _WIDTH, _HEIGHT = 80.0, 700.0, 34.0
_ROWS = {"compute": 58.0, "network": 104.0}
_FILL = {"forward": "submit", "backward": "pack", "reduce": "reduce", "wait": "wait"}
_LETTER = 6.0
_BETWEEN, _HEAD = 134.0, 34.0  # from a step to the one below it; of its name


def step_picture(events: Sequence[TimedEvent], step_s: float, title: str) -> Figure:
    """One step, from its beginning to that of the next one.

    Args:
        events: of one step, as the simulator gives them.
        step_s: how long a step takes in the long run.
        title: what it shows.

    Raises:
        ValueError: there are no events of backward.

    Example:
        >>> phases = [("forward", 0, 1), ("backward", 1, 3), ("reduce", 3, 5)]
        >>> step = [TimedEvent(name, ("fc",), begin, end) for name, begin, end in phases]
        >>> step_picture(step, 5.0, "One layer")
        One layer: 5 s a step; the ranks wait 2 s, mostly for fc; the network works 2 s
    """
    if not any(event.what == "backward" for event in events):
        raise ValueError("There is no backward among the events: give those of one simulated step.")
    waited, carried = waits(events, step_s), on_the_network(events, step_s)
    text = f"{title}: {_took(step_s)} a step; {_waited(waited)}; the network works {_took(_sum(carried))}"
    return kit.picture(text, _LEFT + _WIDTH + 24, 176, [*_legend(), *_axis(step_s), *_rows(events, step_s, step_s)])


def lanes_picture(steps: Mapping[str, tuple[Sequence[TimedEvent], float]], text: str) -> Figure:
    """Several steps one below the other, over one axis.

    Args:
        steps: what stands above each, in one or two lines; its events, and how long it takes in the long run.
        text: what is to be seen.

    Example:
        >>> phases = [("forward", 0, 1), ("backward", 1, 3), ("reduce", 3, 5)]
        >>> step = [TimedEvent(name, ("fc",), begin, end) for name, begin, end in phases]
        >>> lanes_picture({"slow": (step, 5.0)}, "One layer, nothing hidden")
        One layer, nothing hidden
    """
    longest_s = max(step_s for _, step_s in steps.values())
    bottom = 48 + len(steps) * _BETWEEN
    parts = [*_legend(), *_axis(longest_s, bottom)]
    for number, (name, (events, step_s)) in enumerate(steps.items()):
        top = number * _BETWEEN
        lines = name.splitlines()
        parts += [kit.label(12, top + 68 + 16 * i, line, 12) for i, line in enumerate(lines)]
        parts += _rows(events, step_s, longest_s, top + _HEAD)
    return kit.picture(text, _LEFT + _WIDTH + 24, bottom + 30, parts)


def _rows(events: Sequence[TimedEvent], step_s: float, axis_s: float, top: float = 0.0) -> Iterator[str]:
    """What is computed and waited for, and what the network carries."""
    computed = [event for event in events if event.what != "reduce"]
    begin, scale = computed[0].begin_s, _WIDTH / axis_s
    yield from (kit.label(_LEFT - 8, top + y + 22, row, 12, "end") for row, y in _ROWS.items())
    for event in (*computed, *waits(events, step_s), *on_the_network(events, step_s)):
        yield _bar(event, begin, scale, top)


def _waited(waited: Sequence[TimedEvent]) -> str:
    if not waited:
        return "the ranks never wait"
    longest = max(waited, key=lambda event: event.end_s - event.begin_s)
    return f"the ranks wait {_took(_sum(waited))}, mostly for {longest.names[0]}"


def _sum(events: Sequence[TimedEvent]) -> float:
    return sum(event.end_s - event.begin_s for event in events)


def _took(seconds: float) -> str:
    return kit.duration(seconds * 1e6)


def _bar(event: TimedEvent, begin: float, scale: float, top: float) -> str:
    x, width = _LEFT + (event.begin_s - begin) * scale, max(0.6, (event.end_s - event.begin_s) * scale)
    fill, ink = COLOURS[_FILL[event.what]]
    y = top + _ROWS["network" if event.what == "reduce" else "compute"]
    names = event.names[0] if len(event.names) == 1 else f"{event.names[0]} to {event.names[-1]}"
    what = f"wait for {names}" if event.what == "wait" else f"{event.what} {names}"
    carried = f", {size(4 * event.values)}" if event.values else ""
    label = "wait" if event.what == "wait" else names
    inside = ""
    if width > _LETTER * len(label) + 6:
        inside = kit.label(x + width / 2, y + 21, label, 10, "middle", f' fill="{ink}"')
    tip = f"{what}: {kit.duration((event.end_s - event.begin_s) * 1e6)}{carried}"
    box = f'<rect x="{x:.2f}" y="{y:g}" width="{width:.2f}" height="{_HEIGHT:g}" fill="{fill}"/>'
    gap = min(0.8, width / 4)  # before the next box, in the ground's colour of the theme
    x += width - gap
    box += f'<rect class="wbt-ground" x="{x:.2f}" y="{y - 1:g}" width="{gap:.2f}" height="{_HEIGHT + 2:g}"/>'
    return f"<g><title>{kit.clean(tip)}</title>{box}{inside}</g>"


def _legend() -> Iterator[str]:
    x = _LEFT
    for what, phase in _FILL.items():
        yield f'<rect x="{x:g}" y="36" width="10" height="10" rx="2" fill="{COLOURS[phase][0]}"/>'
        yield kit.label(x + 14, 45, what)
        x += 34 + _LETTER * len(what)


def _axis(step_s: float, bottom: float = 146.0) -> Iterator[str]:
    tick_s = kit.round_step(step_s * 1e6) / 1e6
    for part in range(int(step_s / tick_s) + 1):
        x = _LEFT + _WIDTH * part * tick_s / step_s
        yield f'<line class="wbt-line" x1="{x:.1f}" x2="{x:.1f}" y1="54" y2="{bottom:g}"/>'
        yield kit.label(x, bottom + 18, _took(tick_s * part) if part else "0", 10, "middle")
