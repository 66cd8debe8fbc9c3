"""The way of a gradient as a picture: downwards the calls, and in each column the thread that ran them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from workbench.course.followed.places import PHASES, STOPS
from workbench.course.followed.trace import Passed
from workbench.observe import drawing_kit as kit
from workbench.observe.drawing import COLOURS
from workbench.observe.drawing_kit import clean
from workbench.observe.figure import Figure

_THREADS = {"main": "main thread", "engine": "engine's thread", "coordinator": "coordinator's thread, on rank 0"}
_LEFT, _COLUMN, _TOP, _ROW, _BOX = 120.0, 225.0, 66.0, 27.0, 200.0


def way_picture(passed: Sequence[Passed], title: str) -> Figure:
    """What ran on which thread.

    Args:
        passed: as a follower tells them.
        title: whose way.

    Example:
        >>> from workbench.course.followed.places import PLACES
        >>> hook = Passed(PLACES[0].path, "hook", "main", 0, ())
        >>> way_picture([hook, Passed(PLACES[5].path, "announcement", "engine", 1, ())], "One gradient")
        One gradient: hook on the main thread, announcement on the engine's thread
    """
    threads = {stop: list(dict.fromkeys(one.thread for one in passed if one.stop == stop)) for stop in STOPS}
    told = [f"{stop} on {_listed(on)}" for stop, on in threads.items() if on]
    places = [(_LEFT + _COLUMN * _column(one), _TOP + _ROW * row) for row, one in enumerate(passed)]
    bottom = _TOP + _ROW * len(passed) + 8
    parts = [*_lanes(bottom), *_stops(passed)]
    parts += [line for here, there in pairwise(places) for line in _arrow(here, there)]
    parts += [_box(one, x, y) for one, (x, y) in zip(passed, places, strict=True)]
    return kit.picture(f"{title}: {', '.join(told)}", _LEFT + _COLUMN * len(_THREADS), bottom + 6, parts)


def _listed(threads: Sequence[str]) -> str:
    return " and ".join(f"the {_THREADS.get(one, one)}".split(",")[0] for one in threads)


def _column(one: Passed) -> int:
    return list(_THREADS).index(one.thread) if one.thread in _THREADS else 0


def _lanes(bottom: float) -> Iterator[str]:
    for column, words in enumerate(_THREADS.values()):
        x = _LEFT + _COLUMN * column
        yield kit.label(x + _BOX / 2, 54, words, 12, "middle")
        yield (
            f'<rect x="{x - 6:g}" y="{_TOP - 4:g}" width="{_BOX + 12:g}" height="{bottom - _TOP:g}" rx="4" '
            'fill="#8b949e" fill-opacity="0.12"/>'
        )


def _stops(passed: Sequence[Passed]) -> Iterator[str]:
    before = ""
    for row, one in enumerate(passed):
        if one.stop != before:
            yield kit.label(12, _TOP + _ROW * row + 15, one.stop, 12)
        before = one.stop


def _box(one: Passed, x: float, y: float) -> str:
    fill, ink = COLOURS[PHASES[one.stop]]
    tip = clean(f"{one.path.replace(':', '.')}, on the {_THREADS.get(one.thread, one.thread)}: {STOPS[one.stop]}")
    words = kit.label(x + _BOX / 2, y + 14, one.name, 10, "middle", f' fill="{ink}"')
    box = f'<rect x="{x:g}" y="{y:g}" width="{_BOX:g}" height="20" rx="3" fill="{fill}"/>'
    return f"<g><title>{tip}</title>{box}{words}</g>"


def _arrow(here: tuple[float, float], there: tuple[float, float]) -> Iterator[str]:
    """From the bottom of a box to the next one; where the thread changes, from side to side."""
    (x1, y1), (x2, y2) = here, there
    if x1 == x2:
        yield f'<line class="wbt-arrow" x1="{x1 + _BOX / 2:g}" y1="{y1 + 20:g}" x2="{x2 + _BOX / 2:g}" y2="{y2:g}"/>'
        return
    right = x2 > x1
    tip = x2 if right else x2 + _BOX
    start, mid = (x1 + _BOX if right else x1), y2 + 10
    yield (
        f'<path class="wbt-arrow" fill="none" d="M{start:g} {y1 + 10:g}C{(start + tip) / 2:g} {y1 + 10:g} '
        f'{(start + tip) / 2:g} {mid:g} {tip:g} {mid:g}"/>'
    )
    back = -7 if right else 7
    yield f'<path class="wbt-head" d="M{tip:g} {mid:g}l{back} -4l0 8z"/>'
