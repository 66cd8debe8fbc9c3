"""What all pictures are drawn with: a ground, colours for light and dark pages, labels, arrows, numbers for a reader.

A picture is a text of SVG, written by hand, and the same bytes for the same data.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import Any
from xml.sax.saxutils import escape

from workbench.observe.figure import Figure

WIDTH = 820.0
"""JupyterLab shows an SVG as large as it says, and in a window 1,280 wide it has room for 830."""
INKS = ("#0b6e99", "#e07b39", "#5b8c5a", "#8e5572", "#c9a227", "#3d5a80", "#a4243b", "#6c757d")
"""Colours of things of one kind, each with letters on it that can be read: :func:`ink`."""
STYLE = (
    ".wbt-ground{fill:#ffffff}.wbt-text{fill:#24292f}.wbt-line{stroke:#d5dae0}.wbt-mark{fill:#c8102e}"
    ".wbt-arrow{stroke:#24292f;stroke-width:1.2}.wbt-head{fill:#24292f}"
    "@media(prefers-color-scheme:dark)"
    "{.wbt-ground{fill:#16191d}.wbt-text{fill:#e6edf3}.wbt-line{stroke:#3a4149}.wbt-mark{fill:#ff7b72}"
    ".wbt-arrow{stroke:#e6edf3}.wbt-head{fill:#e6edf3}}"
)
"""Classes of a picture's parts: they follow the reader's system, light or dark."""
LETTER = 6.2
"""Width of a letter of a title."""
_FONT = 'font-family="sans-serif"'
_CONTROL = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def picture(text: str, width: float, height: float, parts: Sequence[Any]) -> Figure:
    """A document with the text as its title, on a ground of its own."""
    width = max(width, 24 + LETTER * len(text)) if len(text) < 110 else max(width, 700.0)
    return Figure(document(text, width, height, [*title(text, width), *parts]), text)


def document(text: str, width: float, height: float, parts: Sequence[str], attributes: str = _FONT) -> str:
    """The SVG of a picture on a ground of its own, at most :data:`WIDTH` wide."""
    shown = min(1.0, WIDTH / width)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{shown * width:g}" '
        f'height="{shown * height:g}" style="max-width:100%;height:auto" role="img" aria-label="{clean(text)}" '
        f"{attributes}>"
    )
    ground = f'<rect class="wbt-ground" width="{width:g}" height="{height:g}" rx="6"/>'
    return "\n".join([head, f"<style>{STYLE}</style>", ground, *parts, "</svg>"]) + "\n"


def title(text: str, width: float) -> list[str]:
    """The text above a picture, in two lines where one has no room for it."""
    lines = in_lines(text, width)
    tops = [22] if len(lines) == 1 else [15, 31]
    return [label(12, y, line, 12) for y, line in zip(tops, lines, strict=True)]


def label(x: float, y: float, words: str, points: int = 11, anchor: str = "start", ink: str = "") -> str:
    """Words at a place, in the page's colour or in that of :func:`ink`."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{points}" text-anchor="{anchor}"'
        f"{ink or ' class=' + chr(34) + 'wbt-text' + chr(34)}>{clean(words)}</text>"
    )


def edge(start: tuple[float, float], end: tuple[float, float], thick: bool, aside: float = 5) -> Iterable[str]:
    """An arrow from one circle to another, a little to the right, so that one back does not cover it."""
    (x1, y1), (x2, y2) = start, end
    away = math.hypot(x2 - x1, y2 - y1) or 1.0
    ux, uy = (x2 - x1) / away, (y2 - y1) / away
    x1, y1, x2, y2 = x1 + 18 * ux, y1 + 18 * uy, x2 - 20 * ux, y2 - 20 * uy
    x1, y1, x2, y2 = x1 - aside * uy, y1 + aside * ux, x2 - aside * uy, y2 + aside * ux
    width = ' style="stroke-width:3"' if thick else ""
    yield f'<line class="wbt-arrow" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"{width}/>'
    bx, by = x2 - 10 * ux, y2 - 10 * uy
    yield (
        f'<path class="wbt-head" d="M{x2:.1f} {y2:.1f}L{bx - 5 * uy:.1f} {by + 5 * ux:.1f}'
        f'L{bx + 5 * uy:.1f} {by - 5 * ux:.1f}z"/>'
    )


def ink(fill: str) -> str:
    """Letters that can be read on a colour: white or black, whichever differs more from it."""
    parts = (int(fill[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return f' fill="{"#ffffff" if 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.179 else "#1b1f24"}"'


def shade(part: float) -> tuple[str, str]:
    """From nearly white to full colour, and the ink that can be read on it, on light and dark pages alike.

    Example:
        >>> shade(0.0), shade(1.0)
        (('#dfeef5', '#000000'), ('#0b6e99', '#ffffff'))
    """
    rgb = [round(a + (b - a) * part) for a, b in ((223, 11), (238, 110), (245, 153))]
    linear = [(c / 255 / 12.92 if c < 10 else ((c / 255 + 0.055) / 1.055) ** 2.4) for c in rgb]
    dark = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] < 0.179
    return "#" + "".join(f"{c:02x}" for c in rgb), "#ffffff" if dark else "#000000"


def in_lines(text: str, width: float) -> list[str]:
    """A title, in two lines where one has no room for it.

    Example:
        >>> in_lines("one two three", 60)
        ['one', 'two …']
    """
    return wrap(text, max(1, int((width - 24) / LETTER)), max_lines=2, placeholder=" …")


def clean(words: str) -> str:
    r"""A text as it stands in XML, which has no control characters.

    Example:
        >>> print(clean("a<b & \x00"))
        a&lt;b &amp; �
    """
    return escape(_CONTROL.sub("�", words))


def duration(us: float) -> str:
    """Microseconds for a reader.

    Example:
        >>> duration(3.21), duration(1234.5), duration(2.5e6)
        ('3.2 µs', '1.23 ms', '2.5 s')
    """
    for limit, unit in ((1e6, "s"), (1e3, "ms")):
        if us >= limit:
            return f"{us / limit:.3g} {unit}"
    return f"{us:.1f} µs" if us < 100 else f"{us:.0f} µs"


def round_step(end: float) -> float:
    """A round number of µs, so that there are 4 to 10 of them in ``end``."""
    power = 1.0
    while power * 10 <= end / 4:
        power *= 10
    while power > end / 4:
        power /= 10
    return next(power * factor for factor in (5, 2, 1) if power * factor <= end / 4)
