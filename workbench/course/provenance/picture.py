"""The learner's own run as a grid: for each step the chunks of every rank, with the ranks that are in them.

A digit in a field is a rank whose chunk is in that sum; a rank that is in it twice stands there twice. Arrows between
two steps are messages. A framed field has just changed; what is wrong first is red, with the line that made it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from workbench.common.text import count
from workbench.course.provenance.coding import Coded, Content
from workbench.course.provenance.explain import Replay
from workbench.course.provenance.steps import Step, ranks
from workbench.course.provenance.words import differs
from workbench.course.simulator import DeadlockError, SimulatedMessage
from workbench.observe import drawing_kit as kit
from workbench.observe.drawing_kit import WIDTH, clean
from workbench.observe.figure import Figure

_LEFT, _ROW, _GUTTER, _LETTER = 82.0, 24.0, 34.0, 6.6
_FEWEST, _MOST = 3, 8  # letters in a field
_SAID = 6  # messages that a step names
_SMALL = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
_RED = ' class="wbt-wrong"'
_STYLE = (
    "<style>.wbt-wrong{stroke:#c8102e}.wbt-wrong-text{fill:#c8102e}@media(prefers-color-scheme:dark)"
    "{.wbt-wrong{stroke:#ff7b72}.wbt-wrong-text{fill:#ff7b72}}</style>"
)


@dataclass(frozen=True)
class _Grid:
    """One grid: what is in it, what is framed, what is red."""

    name: str
    says: str
    held: Mapping[tuple[int, int], Content]
    new: frozenset[tuple[int, int]] = frozenset()
    red: frozenset[tuple[int, int]] = frozenset()
    messages: tuple[SimulatedMessage, ...] = ()


def grid(run: Replay, name: str) -> Figure:
    """The picture of a run.

    Args:
        run: with coded inputs.
        name: of the exercise.
    """
    stages = list(_stages(run))
    letters = max([_FEWEST, *(len(_letters(each, chunk)) for one in stages for (_, chunk), each in one.held.items())])
    cell = _LETTER * min(letters, _MOST) + 8
    chunks = run.n if run.coded.chunked else 1
    step = max(chunks * cell, 52.0) + _GUTTER
    across = max(1, int((WIDTH - _LEFT) / step))
    tall = run.n * _ROW + 56.0
    text = f"{name} on {run.n} simulated ranks: {_summary(run)}"
    width = min(max(_LEFT + min(across, len(stages)) * step + 8, 500.0), WIDTH)
    top = 34.0 + 16 * len(kit.title(text, width)) - 16
    parts = [_STYLE]
    for i, stage in enumerate(stages):
        x, y = _LEFT + i % across * step, top + i // across * tall
        if i % across == 0:
            parts += [kit.label(8, y + 18 + (rank + 0.66) * _ROW, f"rank {rank}", 11) for rank in range(run.n)]
            if chunks > 1:
                parts.append(kit.label(8, y + 32 + run.n * _ROW, "chunk", 11))
        parts += _stage(stage, i, (x, y), cell, run)
    rows = -(-len(stages) // across)
    bottom = top + rows * tall
    parts += _legend(bottom, run.coded)
    return kit.picture(text, width, bottom + 24 + 16 * (run.wrong is not None), [*parts, *_line(run, bottom + 30)])


def _stages(run: Replay) -> Iterator[_Grid]:
    """The beginning, each step, and what was returned, or where it stands still."""
    where = None if run.wrong is None else (run.wrong.change.rank, run.wrong.change.chunk)
    for step in run.steps:
        new = frozenset((change.rank, change.chunk) for change in step.changes) if step.number else frozenset()
        is_wrong = run.wrong is not None and run.wrong.step == step.number and where is not None
        name = f"step {step.number}" if step.number else "begin"
        red = frozenset([where]) if is_wrong and where is not None else frozenset()
        yield _Grid(name, _said(step, run), step.held, new, red, tuple(step.messages))
    if isinstance(run.error, DeadlockError):
        waits = "; ".join(
            f"rank {wait.rank} waits in {wait.verb} for {f'rank {wait.peer}' if wait.peer >= 0 else 'any rank'}"
            for wait in run.error.waits[:_SAID]
        )
        yield _Grid("deadlock", waits, {}, red=frozenset((wait.rank, -1) for wait in run.error.waits))
    elif run.error is None:
        held = {
            (rank, chunk): content
            for rank, mine in enumerate(run.results)
            for chunk, content in mine.items()
            if content is not None
        }
        red = frozenset(place for place, content in held.items() if content != run.coded.right(*place, run.n))
        yield _Grid("returned", "; ".join(run.mistakes()[:2]) or "what was asked for", held, red=red)


def _said(step: Step, run: Replay) -> str:
    if run.wrong is not None and run.wrong.step == step.number:
        change = run.wrong.change
        return f"on rank {change.rank} {run.wrong.why}, in line {change.line}: {change.text}"
    if not step.number:
        return "each rank has its own values"
    told = [f"rank {one.source} to rank {one.dest}" for one in step.messages[:_SAID]]
    more = len(step.messages) - _SAID
    return ", ".join(told) + (f" and {more} more" if more > 0 else "")


def _summary(run: Replay) -> str:
    messages = sum(len(step.messages) for step in run.steps)
    steps = run.steps[-1].number if run.steps else 0
    told = f"{count(messages, 'message')} in {count(steps, 'step')}"
    if isinstance(run.error, DeadlockError):
        told += f", then nobody can go on: {ranks([wait.rank for wait in run.error.waits])} waits"
        told = told.replace(" waits", " wait") if len(run.error.waits) > 1 else told
    elif run.error is not None:
        told += f", then {type(run.error).__name__}"
    if run.wrong is not None:
        return f"{told}; first wrong in step {run.wrong.step}, on rank {run.wrong.change.rank}: {run.wrong.why}"
    if run.error is None:
        return f"{told}; {'; '.join(run.mistakes()[:1]) or 'each rank returns what was asked for'}"
    return told


def _stage(stage: _Grid, number: int, corner: tuple[float, float], cell: float, run: Replay) -> Iterator[str]:
    """All ranks' chunks, for the player with the number of the stage as its time."""
    x0, y0 = corner
    chunks = run.n if run.coded.chunked else 1
    yield f'<g data-begin="{number}" data-end="{number}" data-says="{_attribute(f"{stage.name}: {stage.says}")}">'
    yield kit.label(x0, y0 + 12, stage.name, 12)
    for message in stage.messages:
        yield from _arrow(message, x0, y0 + 18)
    for rank in range(run.n):
        y = y0 + 18 + rank * _ROW
        if (rank, -1) in stage.red:
            yield f'<text class="wbt-wrong-text" x="{x0:g}" y="{y + 16:g}" font-size="11">waits</text>'
        for chunk in range(chunks):
            yield from _field(stage, (rank, chunk), (x0 + chunk * cell, y), cell - 2, run)
    if chunks > 1:
        columns = (x0 + (chunk + 0.5) * cell - 1 for chunk in range(chunks))
        yield from (kit.label(x, y0 + 32 + run.n * _ROW, str(i), 10, "middle") for i, x in enumerate(columns))
    yield "</g>"


def _field(
    stage: _Grid, place: tuple[int, int], corner: tuple[float, float], width: float, run: Replay
) -> Iterator[str]:
    content = stage.held.get(place)
    if content is None:
        return
    (x, y), (rank, chunk) = corner, place
    right = run.coded.right(rank, chunk, run.n)
    part = (len(content) - 1) / max(1, run.n - 1) if run.coded.sums else float(content == right)
    fill, ink = kit.shade(min(1.0, max(0.0, part)))
    if any(of != chunk for _, of in content):
        fill, ink = "#e6d36a", "#000000"
    where = f"rank {rank}" + (f", chunk {chunk}" if run.coded.chunked else "")
    holds = differs(content, {}, chunk)
    tip = f"{where}: {holds}" + (", has just changed" if place in stage.new else "")
    height = _ROW - 2
    box = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}"'
    yield f"<rect {box}><title>{clean(tip)}</title></rect>"
    if place in stage.red:
        yield (
            f'<rect{_RED} x="{x + 1:g}" y="{y + 1:g}" width="{width - 2:g}" height="{height - 2:g}" fill="none" '
            'stroke-width="3" pointer-events="none"/>'
        )
    elif place in stage.new:
        yield (
            f'<rect class="wbt-new" x="{x + 2:g}" y="{y + 2:g}" width="{width - 4:g}" height="{height - 4:g}" '
            f'fill="none" stroke="{ink}" stroke-width="1.2" pointer-events="none"/>'
        )
    yield kit.label(
        x + width / 2, y + 15, _letters(content, chunk), 11, "middle", f' fill="{ink}" pointer-events="none"'
    )


def _letters(content: Content, chunk: int) -> str:
    """The ranks in a sum, each as often as it is in it; of another chunk with its number.

    Example:
        >>> _letters({(0, 1): 2, (2, 1): 1}, 1), _letters({(3, 0): 1}, 1)
        ('002', '3₀')
    """
    own = "".join(str(rank) * times for (rank, of), times in sorted(content.items()) if of == chunk)
    for other in sorted({of for _, of in content if of != chunk}):
        own += "".join(str(rank) * times for (rank, of), times in sorted(content.items()) if of == other)
        own += str(other).translate(_SMALL)
    return own if len(own) <= _MOST else own[: _MOST - 1] + "…"


def _arrow(message: SimulatedMessage, x0: float, y0: float) -> Iterator[str]:
    """In the gap before a grid, from the sender's row to the receiver's."""
    x1, x2 = x0 - _GUTTER + 4, x0 - 5
    y1, y2 = (y0 + (rank + 0.46) * _ROW for rank in (message.source, message.dest))
    words = f"rank {message.source} → rank {message.dest}"
    away = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
    ux, uy = (x2 - x1) / away, (y2 - y1) / away
    bx, by = x2 - 6 * ux, y2 - 6 * uy
    yield f"<g><title>{words}</title>"
    yield f'<line class="wbt-arrow" x1="{x1:.1f}" y1="{y1:.1f}" x2="{bx:.1f}" y2="{by:.1f}"/>'
    yield (
        f'<path class="wbt-head" d="M{x2:.1f} {y2:.1f}L{bx - 3 * uy:.1f} {by + 3 * ux:.1f}'
        f'L{bx + 3 * uy:.1f} {by - 3 * ux:.1f}z"/></g>'
    )


def _legend(y: float, coded: Coded) -> Iterator[str]:
    if coded.sums and not coded.chunked:
        words = "digits: the ranks in that sum; framed: has just changed; red: wrong"
    elif coded.sums:
        words = "digits: the ranks in that sum; framed: has just changed; yellow: of another chunk, the small digit; "
        words += "red: wrong"
    else:
        words = "digit: whose value; dark: the one that is wanted; framed: has just changed; red: wrong"
    yield kit.label(8, y + 8, words, 10)


def _line(run: Replay, y: float) -> Iterator[str]:
    """The learner's line that was wrong first."""
    if run.wrong is not None:
        change = run.wrong.change
        words = f"step {run.wrong.step}, rank {change.rank}, line {change.line} of your function: {change.text}"
        room = int((WIDTH - 16) / 5.8)
        shown = words if len(words) <= room else words[: room - 1] + "…"
        yield f'<text class="wbt-wrong-text" x="8" y="{y:g}" font-size="11">{clean(shown)}</text>'


def _attribute(words: str) -> str:
    return clean(words).replace('"', "&quot;")
