"""The timeline as SVG, written by hand: the same tracks give the same bytes, and a bar's tooltip is its ``<title>``.

The picture has a ground of its own, light or dark as the reader's system is, so it can be read on any page.

What happens at a time says so, for the player (``player.py``): ``data-begin`` and ``data-end``, in µs. ``data-axis`` of
the document is where time begins, where it ends, and how long it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from workbench.common.text import count, size
from workbench.observe.drawing_kit import WIDTH, clean, document, duration, in_lines, round_step
from workbench.observe.tracks import PHASES, Bar, Mark, PhaseSpan, Track, length, waited_s

LEFT, RIGHT, TOP = 100.0, 18.0, 50.0  # where the axis of time begins and ends; above it the title and the legend
_STRIP, _ROW, _GAP, _MARGIN = 7.0, 18.0, 3.0, 16.0  # heights: compute, a bar, between bars, between tracks
_LETTER = 5.6  # width, in a label of a bar
_NAMED = 6  # tensors that a tooltip names

# Phase → (fill, letters on it), which differ in lightness too.
COLOURS = {
    "compute": ("#a8b0b8", "#1b1f24"),
    "submit": ("#7cc4ee", "#1b1f24"),
    "wait": ("#c24a32", "#ffffff"),
    "negotiate": ("#b392d6", "#1b1f24"),
    "queue": ("#e6d36a", "#1b1f24"),
    "pack": ("#eda540", "#1b1f24"),
    "reduce": ("#0b6e99", "#ffffff"),
    "unpack": ("#3f9c77", "#1b1f24"),
    "send": ("#0b6e99", "#ffffff"),
    "receive": ("#8fd0b5", "#1b1f24"),
}


@dataclass(frozen=True)
class Arrow:
    """A message from a bar of one track to a bar of another; times in µs, rows as the bars'.

    Args:
        tooltip: what it is, in words.
    """

    source: int
    source_row: int
    begin: float
    dest: int
    dest_row: int
    end: float
    tooltip: str = ""


def svg(
    tracks: Sequence[Track],
    arrows: Sequence[Arrow] = (),
    text: str = "",
    marks: Sequence[Mark] = (),
    noun: str = "rank",
) -> str:
    """The document.

    Args:
        tracks: what the ranks did.
        arrows: what went from one to another.
        text: what it shows, in words; found from the tracks if empty.
        marks: what happened to the job.
        noun: what a track is called.

    Example:
        >>> reduce = PhaseSpan("reduce", 0.0, 250.0)
        >>> bar = Bar((0, 0), "allreduce", ("x",), 4096, (reduce,), None, 0.0, 0, "MPI_ALLREDUCE", "")
        >>> document = svg([Track(0, (bar,), ())])
        >>> document.startswith("<svg"), "<title>reduce (MPI_ALLREDUCE): 250 µs" in document
        (True, True)
    """
    end = max(length(tracks), *(mark.us for mark in marks), 0.0) or 1.0
    text = text or describe(tracks, noun)
    title = in_lines(text, WIDTH)
    top = TOP + 14.0 * (len(title) - 1)
    tops, bottom = [], top
    for track in tracks:
        tops.append(bottom)
        bottom += _height(track) + _MARGIN
    bars = [line for track, top in zip(tracks, tops, strict=True) for line in _track(track, tracks, top, end, noun)]
    parts = [
        *(_text(12, 18 + 14 * i, line, size=12) for i, line in enumerate(title)),
        *_legend(tracks, top - 22),
        '<g class="wbt-axis">',
        *_axis(end, top, bottom - _MARGIN / 2),
        "</g>",
        *bars,
        *(line for mark in marks for line in _mark(mark, tracks, tops, bottom - _MARGIN / 2, end)),
        *(line for arrow in arrows for line in _arrow(arrow, tops, end)),
        *_names(tracks, tops, end, noun),  # above the arrows
    ]
    axis = f'data-axis="{LEFT:g} {WIDTH - RIGHT:g} {_number(end)}" data-top="{top - 8:g}"'
    return document(text, WIDTH, bottom + 22, parts, f'{axis} font-family="sans-serif" font-size="11"')


def describe(tracks: Sequence[Track], noun: str = "rank") -> str:
    """The picture in one line.

    Example:
        >>> describe([Track(0, (), ())])
        'Timeline: nothing recorded on 1 rank'
    """
    batches = {bar.batch for track in tracks for bar in track.bars}
    ranks = count(len(tracks), noun)
    if not batches:
        return f"Timeline: nothing recorded on {ranks}"
    waits = waited_s(tracks)
    culprit = max(waits, key=lambda rank: waits[rank])
    text = f"Timeline: {count(len(batches), 'collective')} of {ranks}, {duration(length(tracks))}"
    if not waits[culprit]:
        return text
    return f"{text}; the longest waits were for {noun} {culprit}: {duration(waits[culprit] * 1e6)} in all"


def caption(span: PhaseSpan, bar: Bar | None, noun: str = "rank") -> str:
    """A phase in a word or two."""
    return f"wait for {noun} {bar.last}" if bar is not None and span.phase == "wait" else span.phase


def _legend(tracks: Sequence[Track], y: float) -> Iterable[str]:
    x = 12.0
    used = {span.phase for track in tracks for bar in track.bars for span in bar.spans}
    messages = used & {"send", "receive"}
    for phase in ("compute", "wait", "send", "receive") if messages else PHASES:
        yield f'<rect x="{x:g}" y="{y:g}" width="10" height="10" rx="2" fill="{COLOURS[phase][0]}"/>'
        yield _text(x + 14, y + 9, phase)
        x += 34 + 5.6 * len(phase)
    if messages:
        return
    yield _marker(x + 4, y + 1, "")
    yield _text(x + 14, y + 9, "came last")


def _axis(end: float, top: float, bottom: float) -> Iterable[str]:
    step = round_step(end)
    for i in range(int(end / step) + 1):
        x = _x(i * step, end)
        yield f'<line class="wbt-line" x1="{x:.2f}" x2="{x:.2f}" y1="{top - 4:g}" y2="{bottom:g}"/>'
        yield _text(x, bottom + 14, duration(i * step) if i else "0", anchor="middle", size=10)


def _track(track: Track, tracks: Sequence[Track], top: float, end: float, noun: str) -> Iterable[str]:
    theirs = [bar for bar in track.bars if bar.last is not None]
    yield f'<g data-rank="{track.rank}">'
    yield _text(12, top + 14, f"{noun} {track.rank}", size=13)
    if theirs and theirs[0].announced >= 0:  # not so in a simulated run
        times = sum(bar.last == track.rank for bar in theirs)
        yield _text(12, top + 28, f"last in {times} of {len(theirs)}", size=10)
    for span in track.compute:
        idle = f"compute: {duration(span.end - span.begin)}, nothing in flight"
        yield _span(span, top, _STRIP, end, idle)
    for bar in track.bars:
        y = top + _STRIP + _GAP + bar.row * (_ROW + _GAP)
        for span in bar.spans:
            yield _span(span, y, _ROW, end, _tooltip(span, bar, noun))
        if bar.last == track.rank:
            mark = _marker(_x(bar.announced, end), y - 4, _last_words(bar, tracks, noun))
            yield f"<g{_times(bar.announced, bar.announced)}>{mark}</g>"
        if bar.error:
            words = _text(_x(bar.announced, end) + 3, y + 13, f"✕ {bar.error}", size=10, kind="mark")
            yield f"<g{_times(bar.announced, bar.announced)}>{words}</g>"
    yield "</g>"


def _arrow(arrow: Arrow, tops: Sequence[float], end: float) -> Iterable[str]:
    """From the middle of the sender's bar to the middle of the receiver's."""
    down = arrow.dest > arrow.source
    x1, x2 = _x(arrow.begin, end), _x(arrow.end, end)
    y1 = tops[arrow.source] + _STRIP + _GAP + arrow.source_row * (_ROW + _GAP) + (_ROW if down else 0.0)
    y2 = tops[arrow.dest] + _STRIP + _GAP + arrow.dest_row * (_ROW + _GAP) + (0.0 if down else _ROW)
    yield f'<g class="wbt-message"{_times(arrow.begin, arrow.end)}><title>{clean(arrow.tooltip)}</title>'
    yield f'<line class="wbt-arrow" x1="{x1:.2f}" y1="{y1:g}" x2="{x2:.2f}" y2="{y2:g}"/>'
    tip = -6.0 if down else 6.0
    yield f'<path class="wbt-head" d="M{x2:.2f} {y2:g}l-4 {tip:g}h6z"/></g>'


def _height(track: Track) -> float:
    rows = max((bar.row + 1 for bar in track.bars), default=1)
    return max(34.0, _STRIP + rows * (_ROW + _GAP))


def _span(span: PhaseSpan, y: float, height: float, end: float, tooltip: str) -> str:
    x, width = _x(span.begin, end), max(0.4, _x(span.end, end) - _x(span.begin, end))
    fill, _ = COLOURS[span.phase]
    box = f'<rect x="{x:.2f}" y="{y:g}" width="{width:.2f}" height="{height:g}" fill="{fill}"/>'
    return f"<g{_times(span.begin, span.end)}><title>{clean(tooltip)}</title>{box}</g>"


def _names(tracks: Sequence[Track], tops: Sequence[float], end: float, noun: str) -> Iterable[str]:
    """What each bar is, where it has room for that; a rim of the bar's colour keeps arrows out of the letters."""
    for track, top in zip(tracks, tops, strict=True):
        for bar, span in [(each, span) for each in track.bars for span in each.spans]:
            words = caption(span, bar, noun)
            x, width = _x(span.begin, end), _x(span.end, end) - _x(span.begin, end)
            if width > _LETTER * len(words) + 6:
                fill, ink = COLOURS[span.phase]
                y = top + _STRIP + _GAP + bar.row * (_ROW + _GAP) + 13
                inside = _text(x + width / 2, y, words, anchor="middle", size=10, fill=ink)
                rim = f'pointer-events="none" paint-order="stroke" stroke="{fill}" stroke-width="4"'
                yield f'<g class="wbt-name"{_times(span.begin, span.end)} {rim}>{inside}</g>'


def _tooltip(span: PhaseSpan, bar: Bar, noun: str) -> str:
    what = caption(span, bar, noun) + (f" ({bar.activity})" if span.phase == "reduce" else "")
    more = len(bar.names) - _NAMED
    names = ", ".join(bar.names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
    of, data = "" if bar.kind in ("send", "receive") else "of ", size(bar.nbytes) if bar.nbytes else "no data"
    lines = [f"{what}: {duration(span.end - span.begin)}", f"{bar.kind} {of}{names}", data]
    return "\n".join(lines + ([f"ended with {bar.error}"] if bar.error else []))


def _last_words(bar: Bar, tracks: Sequence[Track], noun: str) -> str:
    waits = {track.rank: other.took("wait") for track in tracks for other in track.bars if other.batch == bar.batch}
    waited = [f"{noun} {rank} waited {duration(us)}" for rank, us in waits.items() if us]
    return "\n".join([f"{noun} {bar.last} came last", *waited])


def _mark(mark: Mark, tracks: Sequence[Track], tops: Sequence[float], bottom: float, end: float) -> Iterable[str]:
    """A line through all tracks, or from its own track's top to its end."""
    x = _x(mark.us, end)
    above, below, y = min(tops, default=TOP) - 4, bottom, bottom + 4
    for track, top in zip(tracks, tops, strict=True):
        if track.rank == mark.rank:
            above, below, y = top, top + _height(track), top + 14
    yield f'<g class="wbt-moment"{_times(mark.us, mark.us)}><title>{clean(mark.text)}</title>'
    yield f'<rect class="wbt-mark" x="{x - 0.5:.2f}" y="{above:g}" width="1" height="{below - above:g}"/>'
    late = x > (LEFT + WIDTH) / 2
    words = mark.text if mark.told else ""
    yield _text(x + (-4 if late else 4), y, words, "end" if late else "", size=10, kind="mark") + "</g>"


def uncrowded(marks: Sequence[Mark], tracks: Sequence[Track]) -> list[Mark]:
    """The same marks; where words would cover those of an earlier one, only the pointer tells them.

    Example:
        >>> marks = [Mark(0, "one"), Mark(1, "two"), Mark(1, "two", rank=0), Mark(90, "three")]
        >>> [mark.told for mark in uncrowded(marks, [])]
        [True, False, True, True]
    """
    end = max(length(tracks), *(mark.us for mark in marks), 0.0) or 1.0
    taken: dict[int, list[tuple[float, float]]] = {}
    found = []
    for mark in marks:
        x, width = _x(mark.us, end), _LETTER * len(mark.text) + 4
        begin = x - width if x > (LEFT + WIDTH) / 2 else x
        others = taken.setdefault(mark.rank, [])
        told = all(begin + width < other[0] or other[1] < begin for other in others)
        if told:
            others.append((begin, begin + width))
        found.append(replace(mark, told=told))
    return found


def _marker(x: float, y: float, tooltip: str) -> str:
    title = f"<title>{clean(tooltip)}</title>" if tooltip else ""
    return f'<path class="wbt-mark" d="M{x - 4:.2f} {y:g}h8l-4 7z">{title}</path>'


def _text(x: float, y: float, words: str, anchor: str = "", size: int = 11, fill: str = "", kind: str = "text") -> str:
    place = f' text-anchor="{anchor}"' if anchor else ""
    paint = f' fill="{fill}"' if fill else f' class="wbt-{kind}"'
    return f'<text x="{x:.2f}" y="{y:g}" font-size="{size}"{place}{paint}>{clean(words)}</text>'


def _times(begin: float, end: float) -> str:
    return f' data-begin="{_number(begin)}" data-end="{_number(end)}"'


def _number(us: float) -> str:
    return f"{round(us, 6):.12g}"


def _x(us: float, end: float) -> float:
    return LEFT + us / end * (WIDTH - LEFT - RIGHT)
