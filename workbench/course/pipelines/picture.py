"""A pipeline's step as a picture: a row for each stage, a box for each forward and backward, and the idle time."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.common.text import count
from workbench.course.pipelines.played import PlayedSchedule
from workbench.course.simulator.run import Computed
from workbench.observe import drawing_kit as kit
from workbench.observe.drawing import COLOURS
from workbench.observe.drawing_kit import clean
from workbench.observe.figure import Figure

_LEFT, _WIDTH, _TOP, _ROW = 70.0, 620.0, 64.0, 34.0
_FILL = {"F": COLOURS["submit"], "B": COLOURS["pack"]}
_WORDS = {"F": "forward", "B": "backward"}
_IDLE = 'fill="#8b949e" fill-opacity="0.25"'


def pipeline_picture(played: PlayedSchedule, title: str) -> Figure:
    """Stage × time. The number in a box is the micro-batch; the grey is idle: the bubble.

    Example:
        >>> from workbench.course.pipelines.played import gpipe, play
        >>> pipeline_picture(play(gpipe, 2, 3), "GPipe")
        GPipe: 2 stages, 3 micro-batches; the step takes 12, idle 25.0 %; at most 3, 3 micro-batches kept
    """
    kept = ", ".join(map(str, played.peaks))
    ended = f"the step takes {played.step_s:g}, idle {100 * played.bubble:.1f} %"
    came = f"deadlock: {played.stuck}" if played.stuck else ended
    sizes = f"{count(played.stages, 'stage')}, {count(played.microbatches, 'micro-batch')}"
    text = f"{title}: {sizes}; {came}; at most {kept} micro-batches kept"
    length = max(played.step_s, 1.0)
    bottom = _TOP + _ROW * played.stages
    parts = [*_legend(), *_axis(length, bottom)]
    for stage, peak in enumerate(played.peaks):
        y = _TOP + _ROW * stage
        parts.append(kit.label(_LEFT - 8, y + 20, f"stage {stage}", 12, "end"))
        parts.append(f'<rect x="{_LEFT:g}" y="{y:g}" width="{_WIDTH:g}" height="{_ROW - 6:g}" {_IDLE}/>')
        parts += [_box(one, y, _WIDTH / length) for one in played.run.computed if one.rank == stage]
        parts.append(kit.label(_LEFT + _WIDTH + 10, y + 20, str(peak), 12))
    return kit.picture(text, _LEFT + _WIDTH + 60, bottom + 30, parts)


def _box(one: Computed, y: float, scale: float) -> str:
    what, _, microbatch = one.label.partition(" ")
    fill, ink = _FILL[what]
    x, width = _LEFT + one.begin * scale, (one.end - one.begin) * scale
    tip = f"stage {one.rank}: {_WORDS[what]} of micro-batch {microbatch}, from {one.begin:g} to {one.end:g}"
    inside = kit.label(x + width / 2, y + 19, microbatch, 11, "middle", f' fill="{ink}"') if width > 9 else ""
    box = f'<rect x="{x:.1f}" y="{y:g}" width="{width:.1f}" height="{_ROW - 6:g}" fill="{fill}" stroke="#ffffff"/>'
    return f"<g><title>{clean(tip)}</title>{box}{inside}</g>"


def _legend() -> Iterator[str]:
    x = _LEFT
    for words, fill in (*((_WORDS[what], f'fill="{_FILL[what][0]}"') for what in "FB"), ("idle: the bubble", _IDLE)):
        yield f'<rect x="{x:g}" y="42" width="11" height="11" rx="2" {fill}/>'
        yield kit.label(x + 16, 52, words)
        x += 40 + 6.2 * len(words)
    yield kit.label(_LEFT + _WIDTH + 10, 52, "kept")


def _axis(length: float, bottom: float) -> Iterator[str]:
    tick = next(size for size in (1, 2, 5, 10, 20, 50, 100, 1000) if length / size <= 14 or size == 1000)
    for time in range(0, int(length) + 1, tick):
        x = _LEFT + _WIDTH * time / length
        yield f'<line class="wbt-line" stroke="#8b949e" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 4:g}" y2="{bottom:g}"/>'
        yield kit.label(x, bottom + 16, str(time), 10, "middle")
