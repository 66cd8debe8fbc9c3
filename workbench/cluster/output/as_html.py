"""Rows as HTML without a script: what notebooks show that do not have our extension, and when there is no kernel."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from workbench.cluster.output.as_text import plain
from workbench.cluster.output.rows import Row, folded
from workbench.cluster.output.screen import Bundle, Item, Line, together
from workbench.common.text import count, cut, rank_spans

_MOST_HIDDEN = 400  # lines of a row that are folded; the extension has all
_COLOUR = re.compile(r"\x1b\[([0-9;]*)m")
_NAMES = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
STYLE = (
    "<style>.wb-out{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:0 .8em;margin:0}"
    ".wb-out>b{color:var(--jp-ui-font-color2,#57606a);font:12px var(--jp-code-font-family,monospace);padding-top:1px}"
    ".wb-out pre{margin:0;padding:0;background:none;white-space:pre-wrap;overflow-wrap:anywhere}"
    ".wb-out .wb-err{background:var(--jp-rendermime-error-background,#fdd)}"
    ".wb-now{color:var(--jp-ui-font-color2,#57606a);grid-column:1/-1}</style>"
)


def as_html(rows: Sequence[Row], note: str = "", most: int = 40) -> str:
    """The rows; ``note`` is a line below them.

    Example:
        >>> as_html([Row((0, 1), (Line("a < b"),))]).partition("</style>")[2]
        '<div class="wb-out"><b>ranks 0, 1</b><div><pre>a &lt; b</pre></div></div>'
    """
    cells = [f"<b>{rank_spans(row.ranks)}</b><div>{_row(row, *parts)}</div>" for row, parts in folded(rows, most)]
    cells += [f'<div class="wb-now">{html.escape(note)}</div>'] if note else []
    return f'{STYLE}<div class="wb-out">{"".join(cells)}</div>' if cells else ""


def _row(row: Row, first: Sequence[Item], hidden: Sequence[Item], last: Sequence[Item]) -> str:
    between = ""
    if hidden:
        rest = len(hidden) - _MOST_HIDDEN
        cut = [Line(f"… {count(rest, 'more line')}, which a saved page does not have")] if rest > 0 else []
        inside = _block([*hidden[:_MOST_HIDDEN], *cut])
        label = f"{count(len(hidden), 'more line')} of {rank_spans(row.ranks)}"
        between = f"<details><summary>{label}</summary>{inside}</details>"
    return _block(first) + between + _block(last)


def _block(items: Sequence[Item]) -> str:
    return "".join(_bundle(each) if isinstance(each, Bundle) else _lines(each) for each in together(items))


def _lines(lines: Sequence[Line]) -> str:
    mark = ' class="wb-err"' if lines[0].error else ""
    return f"<pre{mark}>{coloured(chr(10).join(cut(each.text) for each in lines))}</pre>"


def _bundle(bundle: Bundle) -> str:
    if isinstance(markup := bundle.data.get("text/html"), str):
        return f"<div>{markup}</div>"
    for kind in _IMAGES:
        if isinstance(picture := bundle.data.get(kind), str):
            return f'<img alt="{html.escape(plain(bundle), quote=True)}" src="data:{kind};base64,{picture.strip()}">'
    if isinstance(drawing := bundle.data.get("image/svg+xml"), str):
        return f"<div>{drawing}</div>"
    return f"<pre>{html.escape(plain(bundle))}</pre>"


def coloured(text: str) -> str:
    r"""Text with a terminal's colours, as HTML.

    Example:
        >>> coloured("a \x1b[1;31mred\x1b[0m b")
        'a <span style="font-weight:bold;color:red">red</span> b'
    """
    parts, on = _COLOUR.split(text), False
    found = [html.escape(parts[0])]
    for code, rest in zip(parts[1::2], parts[2::2], strict=True):
        found += ["</span>"] if on else []
        style = ";".join(filter(None, (_style(int(each or 0)) for each in code.split(";"))))
        found += [f'<span style="{style}">'] if style else []
        on = bool(style)
        found.append(html.escape(rest))
    return "".join(found) + ("</span>" if on else "")


def _style(code: int) -> str:
    if code == 1:
        return "font-weight:bold"
    if 30 <= code <= 37:
        return f"color:{_NAMES[code - 30]}"
    return f"color:{_NAMES[code - 90]}" if 90 <= code <= 97 else ""
