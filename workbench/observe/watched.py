"""The page of ``workbench run --watch``: what each rank called last, where it stood, and why nobody could go on."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from workbench.common.whole_file import write_whole
from workbench.observe.drawing_kit import duration
from workbench.observe.report import STYLE, read

_COLUMNS = ("call", "group", "tensors", "line", "began", "took", "state")


def page(found: Sequence[dict[str, Any]], command: str) -> str:
    """One HTML file without links, of what the ranks have written; one that was killed has written nothing."""
    written = {each["rank"]: each for each in found}
    start = min((call["began"] for each in found for call in each["calls"]), default=0.0)
    versions = ", ".join(f"{name} {version}" for name, version in found[0]["versions"].items())
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(command)}</title><style>{STYLE}</style>",
        "<h1>Why the job ended</h1>",
        *(f"<pre>{escape(each)}</pre>" for each in dict.fromkeys(each["error"] for each in found) if each),
        f"<p><code>{escape(command)}</code> · {escape(versions)}</p>",
    ]
    for rank in range(found[0]["size"]):
        parts += (
            _rank(written[rank], start)
            if rank in written
            else [f"<h2>Rank {rank} has written nothing: it was killed</h2>"]
        )
    return "".join(parts)


def _rank(part: dict[str, Any], start: float) -> list[str]:
    rows = [
        call | {"began": f"{call['began'] - start:.3f} s", "took": duration(1e6 * call["took"]) if call["took"] else ""}
        for call in part["calls"]
    ]
    variables = "\n".join(f"{name}={value}" for name, value in sorted(part["environment"].items()))
    return [
        f"<h2>Rank {part['rank']} on {escape(part['host'])}</h2><div class=scroll><table>",
        *(_row("th", _COLUMNS), *(_row("td", [row[column] for column in _COLUMNS]) for row in rows)),
        f"</table></div><p>Its main thread stood at:</p><pre>{escape(part['stack'])}\n\n{escape(variables)}</pre>",
    ]


def _row(cell: str, texts: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{cell}>{escape(text)}</{cell}>' for text in texts)}</tr>"


def main(words: Sequence[str]) -> int:
    """``make PARTS FILE "" COMMAND…`` writes the page if a rank has failed."""
    _, parts, path, _, *command = words
    found = read(Path(parts))
    if any(each["error"] for each in found):
        write_whole(Path(path), page(found, " ".join(command)).encode())
        print(f"The last calls of all ranks: {path}", file=sys.stderr)
    return 0
