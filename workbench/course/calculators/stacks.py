"""The second calculator's picture: a rank's bytes, plain and in three ways of sharding, beside what the rank has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from workbench.course.calculators import units
from workbench.course.calculators.memory import MemorySettings, MemoryUse, Sharding, calculate
from workbench.observe import drawing_kit as kit
from workbench.observe.drawing import COLOURS
from workbench.observe.drawing_kit import clean
from workbench.observe.figure import Figure

_LEFT, _WIDTH, _BAR = 92.0, 420.0, 18.0
_ROW, _HEAD, _TOP = 23.0, 44.0, 56.0
_PARTS = {"parameters": "reduce", "gradients": "submit", "optimizer": "pack", "activations": "compute"}
_SAID = {"optimizer": "optimizer's state"}
_LETTER = 6.0


def stacks(
    settings: Mapping[str, MemorySettings], title: str = "A rank's memory, plain and sharded (ZeRO 1, 2, 3)"
) -> Figure:
    """Four bars for each setting; a line where the device ends. Each setting has a scale of its own.

    Args:
        settings: by name.
        title: what they have in common.

    Example:
        >>> stacks({"7.5 billion, Adam": MemorySettings(parameters=7_500_000_000, ranks=64)})
        A rank's memory, plain and sharded (ZeRO 1, 2, 3): 7.5 billion, Adam: 120 GB, 31.4 GB, 16.6 GB, 1.88 GB
    """
    parts, told, top = list(_legend()), list[str](), _TOP
    for name, job in settings.items():
        found = {sharding: calculate(job, sharding) for sharding in Sharding}
        told.append(f"{name}: " * bool(name) + ", ".join(units.nbytes(memory.total) for memory in found.values()))
        parts += _setting(name, job, found, top)
        top += _HEAD + len(found) * _ROW + 12
    return kit.picture(f"{title}: {'; '.join(told)}", _LEFT + _WIDTH + 290, top, parts)


def described(job: MemorySettings) -> str:
    """The setting in a line.

    Example:
        >>> described(MemorySettings())
        '1.5 billion parameters, Adam, mixed precision, no activations; n = 8, 32 GB a rank'
    """
    kept = job.activation_bytes * job.batch
    activations = f"{units.nbytes(kept)} of activations" if kept else "no activations"
    return (
        f"{units.count(job.parameters)} parameters, {job.optimizer}, {job.precision}, {activations}; "
        f"n = {job.ranks}, {units.nbytes(job.device_bytes)} a rank"
    )


def _setting(name: str, job: MemorySettings, found: Mapping[Sharding, MemoryUse], top: float) -> Iterator[str]:
    yield from (
        kit.label(12, top + 16 + 16 * i, line, 12) for i, line in enumerate(filter(None, (name, described(job))))
    )
    largest = max(memory.total for memory in found.values())
    shown = job.device_bytes <= 1.3 * largest  # a device that is much larger would leave the bars too short to read
    scale = _WIDTH / max(largest, job.device_bytes if shown else 0)
    for row, (sharding, memory) in enumerate(found.items()):
        yield from _bar(sharding, memory, job, scale, top + _HEAD + row * _ROW)
    if shown:
        x, bottom = _LEFT + job.device_bytes * scale, top + _HEAD + len(found) * _ROW
        yield f'<line class="wbt-arrow" x1="{x:.1f}" x2="{x:.1f}" y1="{top + _HEAD - 4:g}" y2="{bottom:g}"'
        yield f' stroke-dasharray="5 3"><title>the device has {clean(units.nbytes(job.device_bytes))}</title></line>'


def _bar(sharding: Sharding, memory: MemoryUse, job: MemorySettings, scale: float, y: float) -> Iterator[str]:
    yield kit.label(_LEFT - 8, y + 13, sharding.value, 12, "end")
    x = _LEFT
    for part, phase in _PARTS.items():
        nbytes: float = getattr(memory, part)
        width, (fill, ink) = nbytes * scale, COLOURS[phase]
        words = units.nbytes(nbytes)
        yield f"<g><title>{clean(f'{sharding.value}, {_SAID.get(part, part)}: {words}')}</title>"
        yield f'<rect x="{x:.2f}" y="{y:g}" width="{width:.2f}" height="{_BAR:g}" fill="{fill}"/>'
        if width > _LETTER * len(words) + 6:
            yield kit.label(x + width / 2, y + 13, words, 10, "middle", f' fill="{ink}"')
        yield "</g>"
        x += width
    much = "" if memory.total <= job.device_bytes else ", too much"
    words = f"{units.nbytes(memory.total)}{much}; sends {units.nbytes(memory.sent)} a step"
    yield kit.label(_LEFT + _WIDTH + 10, y + 13, words, 11)


def _legend() -> Iterator[str]:
    x = 12.0
    for part, phase in _PARTS.items():
        words = _SAID.get(part, part)
        yield f'<rect x="{x:g}" y="40" width="10" height="10" rx="2" fill="{COLOURS[phase][0]}"/>'
        yield kit.label(x + 14, 49, words, 11)
        x += 40 + _LETTER * len(words)
    yield kit.label(x, 49, "dashed: what the device has", 11)
