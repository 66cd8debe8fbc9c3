"""What a simulated run looks like: messages between ranks, waits in a circle, chunks of a ring, traffic, coverage.

All are SVG, the same bytes for the same run, with a text that says what is to be seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from workbench.common.text import count, size
from workbench.course.figures import number
from workbench.course.simulator import DeadlockError, Run, SimulatedMessage
from workbench.course.simulator.deadlock import cycle
from workbench.course.simulator.run import InVain
from workbench.observe import drawing_kit as kit
from workbench.observe.drawing import Arrow, svg
from workbench.observe.drawing_kit import clean, duration
from workbench.observe.figure import Figure
from workbench.observe.tracks import Bar, PhaseSpan, Track

_LETTER = 6.2
_CELL = 22.0  # of a chunk
_SAID = 8  # messages that one step names


def space_time(run: Run, title: str = "") -> Figure:
    """Rank × time: what each rank sends, receives, computes and waits for, and an arrow for every message.

    Example:
        >>> from workbench.course.simulator import simulate
        >>> space_time(simulate(2, lambda comm: comm.bcast(1.0)), "Broadcast")
        Broadcast: 1 message between 2 ranks, 20.0 µs; rank 0 sends 1, rank 1 sends 0
    """
    tracks, arrows = _tracks(run)
    deaths = "".join(f"rank {rank} is killed at {duration(_us(at_s))}; " for rank, at_s in sorted(run.died.items()))
    counts = ", ".join(f"rank {rank} sends {sent}" for rank, (sent, _) in enumerate(run.sent()))
    total = len(run.messages)
    text = (
        f"{title or 'Messages'}: {deaths}{count(total, 'message')} between {run.size} ranks, "
        f"{duration(run.time_s * 1e6)}; {counts}"
    )
    return Figure(svg(tracks, arrows, text), text)


def _tracks(run: Run) -> tuple[list[Track], list[Arrow]]:
    bars: list[list[Bar]] = [[] for _ in range(run.size)]
    free: list[list[float]] = [[] for _ in range(run.size)]
    arrows = []
    for i, one in enumerate(sorted(run.messages, key=lambda one: (one.begin, one.source, one.dest))):
        out = _bar(i, one, "send", one.held, free[one.source])
        into = _bar(i, one, "receive", one.awaited, free[one.dest])
        bars[one.source].append(out)
        bars[one.dest].append(into)
        took = f"{size(one.nbytes)}, {duration(_us(one.end - one.begin))}"
        words = f"rank {one.source} → rank {one.dest}: {took}"
        arrows.append(Arrow(one.source, out.row, _us(one.begin), one.dest, into.row, _us(one.end), words))
    computed = [
        tuple(PhaseSpan("compute", _us(one.begin), _us(one.end)) for one in run.computed if one.rank == rank)
        for rank in range(run.size)
    ]
    for wait in run.in_vain:
        bars[wait.rank].append(_vain(wait, free[wait.rank]))
    for rank, at_s in run.died.items():
        row = sum(until > at_s for until in free[rank])
        bars[rank].append(Bar((0, -1), "", ("",), 0, (), None, _us(at_s), row, "", "killed"))
    return [Track(rank, tuple(bars[rank]), computed[rank]) for rank in range(run.size)], arrows


def _bar(number: int, one: SimulatedMessage, verb: str, since: float, free: list[float]) -> Bar:
    spans = [PhaseSpan("wait", _us(since), _us(one.begin))] if since < one.begin else []
    spans.append(PhaseSpan(verb, _us(one.begin), _us(one.end)))
    begin = min(since, one.begin)
    row = next((row for row, until in enumerate(free) if until <= begin + 1e-12), len(free))
    free[row : row + 1] = [one.end]
    peer = one.dest if verb == "send" else one.source
    name = f"{'to' if verb == 'send' else 'from'} rank {peer}"
    return Bar(
        (0, number), verb, (name,), one.nbytes, tuple(spans), peer if since < one.begin else None, -1.0, row, "", ""
    )


def _vain(wait: InVain, free: list[float]) -> Bar:
    """A wait that no message ended."""
    name, peer = (f"rank {wait.peer}", wait.peer) if wait.peer >= 0 else ("any rank", None)
    row = next((row for row, until in enumerate(free) if until <= wait.begin + 1e-12), len(free))
    free[row : row + 1] = [wait.end]
    spans = (PhaseSpan("wait", _us(wait.begin), _us(wait.end)),)
    return Bar((0, -2), wait.verb, (name,), 0, spans, peer, -1.0, row, "", "")


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 6)


def wait_for(error: DeadlockError) -> Figure:
    """Who waits for whom, when nobody can go on; the circle is drawn thick."""
    n, ring = error.run.size, cycle(error.waits)
    radius, middle = 95.0, 150.0
    places = [
        (middle + radius * math.sin(2 * math.pi * rank / n), middle - radius * math.cos(2 * math.pi * rank / n))
        for rank in range(n)
    ]
    waiting = {wait.rank: wait for wait in error.waits}
    parts: list[str] = []
    for wait in error.waits:
        if wait.peer >= 0:
            parts += kit.edge(places[wait.rank], places[wait.peer], wait.rank in ring)
    for rank, (x, y) in enumerate(places):
        dashes = "" if rank in waiting else ' stroke-dasharray="3 3"'
        parts.append(f'<circle class="wbt-ground wbt-arrow" cx="{x:.1f}" cy="{y:.1f}" r="17"{dashes}/>')
        parts.append(kit.label(x, y + 5, str(rank), 14, "middle"))
    for line, rank in enumerate(sorted(waiting)[:10]):
        wait = waiting[rank]
        who = f"rank {wait.peer}" if wait.peer >= 0 else "any rank"
        what = f"waits in {wait.verb} for {who}" + (f", {size(wait.nbytes)}" if wait.sends else "")
        parts.append(kit.label(310, 70 + 18 * line, f"rank {rank} {what}", 12))
    gone = [rank for rank in range(n) if rank not in waiting]
    if gone:
        parts.append(kit.label(310, 70 + 18 * min(len(waiting), 10), f"returned: rank {', '.join(map(str, gone))}", 12))
    circle = f"in a circle: {' → '.join(map(str, (*ring, ring[0])))}" if ring else "not in a circle"
    text = f"Deadlock: {len(waiting)} of {n} ranks wait, {circle}"
    return kit.picture(text, 760, 300, parts)


def ring_chunks(n: int) -> Figure:
    """The ring allreduce step by step: how many ranks' sums each chunk of each rank holds; framed: it has just come.

    Example:
        >>> ring_chunks(3)
        Ring allreduce on 3 ranks: in 2 steps each rank gets one complete chunk, in 2 more all
    """
    held = [[{rank} for _ in range(n)] for rank in range(n)]
    width, step = 62.0, n * _CELL + 26.0
    parts = [kit.label(12, 75 + rank * _CELL, f"rank {rank}", 11) for rank in range(n)]
    columns = [62.0 + i * step + (chunk + 0.5) * _CELL for i in range(2 * n - 1) for chunk in range(n)]
    parts += [kit.label(x, 72 + n * _CELL, str(i % n), 10, "middle") for i, x in enumerate(columns)]
    parts.append(kit.label(12, 72 + n * _CELL, "chunk", 11))
    parts += _stage(held, [], "begin", "each rank has its own values", 0, width)
    for i in range(1, 2 * n - 1):
        half, number = (0, i) if i < n else (1, i - n + 1)
        moved = [(rank, (rank + half - number + 1) % n) for rank in range(n)]
        contents = [set(held[rank][chunk]) for rank, chunk in moved]
        came = [((rank + 1) % n, chunk) for rank, chunk in moved]
        for (rank, chunk), content in zip(came, contents, strict=True):
            held[rank][chunk] |= content
        name = f"{'add' if half == 0 else 'pass on'} {number}"
        says = ", ".join(f"chunk {chunk} to rank {rank}" for rank, chunk in came[:_SAID])
        more = f" and {n - _SAID} more" if n > _SAID else ""
        width += step
        parts += _stage(held, came, name, f"{says}{more}", i, width)
    text = f"Ring allreduce on {n} ranks: in {n - 1} steps each rank gets one complete chunk, in {n - 1} more all"
    return kit.picture(text, width + step - 12, 84 + n * _CELL, parts)


def _stage(
    held: Sequence[Sequence[set[int]]], came: Sequence[tuple[int, int]], name: str, says: str, step: int, x0: float
) -> list[str]:
    """All ranks' chunks after a step, for the player with the number of the step as its time."""
    n = len(held)
    says = clean(f"{name}: {says}")
    parts = [f'<g data-begin="{step}" data-end="{step}" data-says="{says}">', kit.label(x0, 52, name, 12)]
    for rank, chunks in enumerate(held):
        for chunk, ranks in enumerate(chunks):
            fill, ink = kit.shade((len(ranks) - 1) / max(1, n - 1))
            x, y, side = x0 + chunk * _CELL, 60 + rank * _CELL, _CELL - 2
            new = (rank, chunk) in came
            words = f"rank {rank}, chunk {chunk}: sum of {len(ranks)}{', has just come' if new else ''}"
            parts.append(
                f'<rect x="{x:g}" y="{y:g}" width="{side:g}" height="{side:g}" fill="{fill}">'
                f"<title>{words}</title></rect>"
            )
            if new:
                parts.append(
                    f'<rect class="wbt-new" x="{x + 2:g}" y="{y + 2:g}" width="{side - 4:g}" height="{side - 4:g}" '
                    f'fill="none" stroke="{ink}" stroke-width="1.5" pointer-events="none"/>'
                )
            parts.append(kit.label(x + side / 2, y + 15, str(len(ranks)), 11, "middle", f' fill="{ink}"'))
    return [*parts, "</g>"]


def bars(values: dict[str, float], unit: str, title: str, best: float | None = None) -> Figure:
    """One bar for each value, and a line at the best that is possible.

    Example:
        >>> bars({"ring": 24, "naive": 40}, "messages", "Traffic", best=24)
        Traffic: ring 24 messages, naive 40 messages; best possible 24
    """
    top = max([*values.values(), best or 0.0, 1e-12])
    line = math.inf if best is None else 520 * best / top
    left = max(160.0, 20 + 7.8 * max(map(len, values), default=0))
    parts = []
    for i, (name, value) in enumerate(values.items()):
        y, width = 48 + 30 * i, 520 * max(0.0, value) / top
        pattern = kit.INKS[i % len(kit.INKS)]
        parts.append(kit.label(left - 10, y + 15, name, 13, "end"))
        parts.append(f'<rect x="{left:g}" y="{y}" width="{width:.1f}" height="20" fill="{pattern}"/>')
        words = number(value)
        if width + 6 < line < width + 10 + 7.5 * len(words):  # it would cross the number, which goes into the bar
            parts.append(kit.label(left + width - 8, y + 15, words, 12, "end", kit.ink(pattern)))
        else:
            parts.append(kit.label(left + 8 + width, y + 15, words, 12))
    if best is not None:
        x = left + line
        parts.append(
            f'<line class="wbt-arrow" x1="{x:.1f}" x2="{x:.1f}" y1="40" y2="{48 + 30 * len(values)}" '
            'stroke-dasharray="5 3"/>'
        )
        parts.append(kit.label(x, 62 + 30 * len(values), "best possible", 11, "middle"))
    listed = ", ".join(f"{name} {number(value)} {unit}".rstrip() for name, value in values.items())
    text = f"{title}: {listed}" + (f"; best possible {number(best)}" if best is not None else "")
    return kit.picture(text, left + 630, (64 if best is None else 70) + 30 * len(values), parts)


def coverage(
    owner: Sequence[Sequence[Sequence[int]]], samples: int, title: str = "Coverage", rows: Sequence[str] = ()
) -> Figure:
    """Sample × epoch: which rank sees which sample, by colour; empty: nobody, struck through: several.

    Args:
        owner: by epoch and rank, the samples.
        samples: how many there are.
        title: of the picture.
        rows: names of the rows, where they are no epochs.

    Example:
        >>> coverage([[[0, 1], [2, 2]]], samples=4)
        Coverage: epoch 0: 3 of 4 samples seen, 1 more than once
    """
    cell_x, cell_y = min(18.0, 720 / max(1, samples)), 26.0
    parts, words = [], []
    names = rows or [f"epoch {epoch}" for epoch in range(len(owner))]
    for epoch, (name, ranks) in enumerate(zip(names, owner, strict=True)):
        seen: dict[int, list[int]] = {}
        for rank, mine in enumerate(ranks):
            for sample in mine:
                seen.setdefault(int(sample), []).append(rank)
        y = 46 + epoch * cell_y
        parts.append(kit.label(62, y + 15, name, 12, "end"))
        for sample in range(samples):
            ranks_of = seen.get(sample, [])
            x = 70 + sample * cell_x
            fill = kit.INKS[ranks_of[0] % len(kit.INKS)] if ranks_of else "none"
            tip = f"sample {sample}: " + (f"rank {', '.join(map(str, ranks_of))}" if ranks_of else "nobody")
            parts.append(
                f'<rect x="{x:.1f}" y="{y:g}" width="{cell_x:.1f}" height="{cell_y - 4:g}" fill="{fill}" '
                f'class="wbt-line"><title>{tip}</title></rect>'
            )
            if len(ranks_of) > 1:
                parts.append(
                    f'<line class="wbt-arrow" x1="{x:.1f}" x2="{x + cell_x:.1f}" y1="{y + cell_y - 4:g}" y2="{y:g}"/>'
                )
            elif ranks_of and cell_x > 11:
                parts.append(kit.label(x + cell_x / 2, y + 15, str(ranks_of[0]), 10, "middle", kit.ink(fill)))
        twice = sum(len(one) > 1 for one in seen.values())
        words.append(f"{name}: {len(seen)} of {samples} samples seen, {twice} more than once")
    text = f"{title}: " + "; ".join(words[:3]) + (" …" if len(words) > 3 else "")
    width, below = max(80 + samples * cell_x + 16, 420.0), 62 + len(owner) * cell_y
    legend, lines = _colours(max(map(len, owner), default=0), width, below)
    return kit.picture(text, width, below + 18 * lines, [*parts, *legend])


def _colours(n: int, width: float, y: float) -> tuple[list[str], int]:
    """What the colours of a coverage mean, and how many lines that takes."""
    words = [*(f"rank {rank}" for rank in range(n)), "nobody", "several ranks"]
    parts, x, row = [], 70.0, 0
    for i, name in enumerate(words):
        if x + 26 + _LETTER * len(name) > width:
            x, row = 70.0, row + 1
        top = y + 18 * row
        fill = kit.INKS[i % len(kit.INKS)] if i < n else "none"
        parts.append(f'<rect x="{x:g}" y="{top - 10:g}" width="12" height="12" fill="{fill}" class="wbt-line"/>')
        if i == n + 1:
            parts.append(f'<line class="wbt-arrow" x1="{x:g}" x2="{x + 12:g}" y1="{top + 2:g}" y2="{top - 10:g}"/>')
        parts.append(kit.label(x + 17, top, name, 11))
        x += 34 + _LETTER * len(name)
    return parts, row + 1
