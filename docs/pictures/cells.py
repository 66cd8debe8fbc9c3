"""Moving pictures for the README and docs/: cells that ran on four engines, with their outputs and seconds.

``python docs/pictures/cells.py`` writes two of each beside itself, such as ``ddp-light.svg`` and ``ddp-dark.svg``. A
test compares what they show with what the cells print.
"""

from __future__ import annotations

import html
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from pygments.lexers.python import PythonLexer
from pygments.token import Comment, Keyword, Number, String, Token

HERE = Path(__file__).parent
UP = "from workbench import cluster\n\nengines = cluster.up(n=4)"


@dataclass(frozen=True)
class Story:
    """What a picture shows: its title, the cells before those that are seen, and these."""

    title: str
    before: tuple[str, ...]
    shown: tuple[str, ...]


STORIES = {
    "front-door": Story(
        "A cell on four engines: rank 2 leaves a loop; soon an error names it, and the line where the others wait. "
        "The next cell works.",
        (
            UP,
            "%%px\nimport numpy as np\nimport workbench as hvd\n\nhvd.init()\nrank = hvd.rank()\n"
            "x = np.full(3, float(rank))",
        ),
        (
            "%%px\nfor step in range(100):\n    if rank == 2 and step == 40:\n        break  # rank 2 leaves the loop"
            '\n    x = hvd.allreduce(x, name=f"step {step}")',
            '%%px\nprint(f"rank {rank} goes on: {x}")',
        ),
    ),
    "ddp": Story(
        "DDP in a cell on four engines: rank 2 has a batch less; soon an error names it, and the line where the others "
        "wait. The next cell trains on.",
        (
            UP,
            "%%px\nimport torch, torch.distributed as dist\nfrom torch import nn\n\ntorch.manual_seed(0)\n"
            'dist.init_process_group("workbench")\nrank = dist.get_rank()\n'
            "model = nn.parallel.DistributedDataParallel(nn.Linear(8, 1))\nx = torch.ones(16, 8)",
        ),
        (
            "%%px\nfor step in range(40 - (rank == 2)):  # rank 2 has a batch less\n"
            "    model(x).square().mean().backward()",
            '%%px\nmodel(x).square().mean().backward()\nprint(f"rank {rank} trains on")',
        ),
    ),
}
WIDTH, LINE, SIZE, COLUMNS = 880, 18, 13, 100
LOOP_S, READ_S, TYPE_S = 16.0, 6.0, 1.5
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"
COLOURS = ("page", "cell", "line", "text", "dim", "error")
THEMES = {
    "light": dict(zip(COLOURS, ("#ffffff", "#f6f8fa", "#d0d7de", "#1f2328", "#59636e", "#a40e26"), strict=True)),
    "dark": dict(zip(COLOURS, ("#0d1117", "#161b22", "#3d444d", "#e6edf3", "#9198a1", "#ff9492"), strict=True)),
}
TOKENS = {
    "light": {Keyword: "#a40e26", String: "#0a3069", Number: "#0550ae", Comment: "#59636e"},
    "dark": {Keyword: "#ff9492", String: "#a5d6ff", Number: "#91cbff", Comment: "#9198a1"},
}


@dataclass(frozen=True)
class Cell:
    """What was run, what it said, and how long that took."""

    source: str
    output: str
    seconds: float
    failed: bool


def run(story: Story) -> list[Cell]:
    """The shown cells, run in a kernel of their own."""
    cells = [nbformat.v4.new_code_cell(source) for source in [*story.before, *story.shown, "engines.down()"]]
    client = NotebookClient(nbformat.v4.new_notebook(cells=cells), timeout=120, kernel_name="python3")
    done = []
    with client.setup_kernel():
        for number, cell in enumerate(cells):
            begun, failed = perf_counter(), False
            try:
                client.execute_cell(cell, number)
            except CellExecutionError:
                failed = True
            done.append(Cell(cell.source, said(cell.outputs), perf_counter() - begun, failed))
    return done[len(story.before) : -1]


def said(outputs: list[Any]) -> str:
    """The text of a cell's outputs, without colours, rulers and the names of the streams."""
    text = "".join(each.get("text", "") or "\n".join(each.get("traceback", [])) for each in outputs)
    for nothing in (r"\x1b\[[0-9;]*m", r"^\[stdout:\d+\] *\n", r"^-+\n", r"^\w+Error +Traceback.*\n.*\n"):
        text = re.sub(nothing, "", text, flags=re.MULTILINE)
    return text.strip()


def wrapped(text: str) -> list[str]:
    """Lines that fit."""
    return [
        part
        for line in text.splitlines()
        for part in textwrap.wrap(line, COLUMNS, subsequent_indent="    ", drop_whitespace=False) or [""]
    ]


def coloured(source: str, theme: str) -> list[str]:
    """The lines of a source as SVG text with colours."""
    magic, _, code = source.partition("\n")
    lines = [f'<tspan fill="{THEMES[theme]["dim"]}">{magic}</tspan>', ""]
    for kind, value in PythonLexer().get_tokens(code):
        colour = next((each for token, each in TOKENS[theme].items() if kind in token), "")
        for i, part in enumerate(value.split("\n")):
            if i:
                lines.append("")
            if part:
                shown = html.escape(part).replace(" ", "\u00a0")
                lines[-1] += f'<tspan fill="{colour}">{shown}</tspan>' if colour and kind is not Token.Text else shown
    return lines[:-1] if not lines[-1] else lines


STILL = "g{animation:none!important;opacity:1!important}.past{opacity:0!important}"


def picture(title: str, cells: list[Cell], theme: str) -> str:
    """The SVG: each cell appears, its output after the seconds that it took; then it begins again."""
    colours, parts, styles = THEMES[theme], list[str](), list[str]()
    at, y = 0.4, 16
    for number, cell in enumerate(cells, 3):
        code, output = coloured(cell.source, theme), wrapped(cell.output)
        answer, height = at + TYPE_S + cell.seconds, len(code) * LINE + 14
        box = f'<rect x="70" y="{y}" width="{WIDTH - 86}" height="{height}" rx="4" '
        box += f'fill="{colours["cell"]}" stroke="{colours["line"]}"/>'
        parts.append(group(styles, at, box + lines(code, 82, y + 20, colours["text"])))
        parts.append(group(styles, at, lines(["[*]:"], 16, y + 20, colours["dim"]), until=answer))
        shown = lines([f"[{number}]:"], 16, y + 20, colours["dim"])
        if cell.failed:
            shown += lines([f"after {cell.seconds:.1f} s"], WIDTH - 112, y + height - 10, colours["dim"])
        y += height + 8
        said_now = [html.escape(line).replace(" ", "\u00a0") for line in output]
        shown += lines(said_now, 82, y + 16, colours["error" if cell.failed else "text"])
        parts.append(group(styles, answer, shown))
        y += len(output) * LINE + 18
        at = answer + READ_S
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" viewBox="0 0 {WIDTH} {y}" role="img">'
        f"<title>{title}</title><style>text{{font:{SIZE}px {FONT};white-space:pre}}{''.join(styles)}"
        f"@media (prefers-reduced-motion:reduce){{{STILL}}}</style>"
        f'<rect width="100%" height="100%" fill="{colours["page"]}"/>{"".join(parts)}</svg>\n'
    )


def group(styles: list[str], begin: float, body: str, until: float = LOOP_S) -> str:
    """A part that is seen from ``begin`` until ``until`` in each loop."""
    name, first, last = f"k{len(styles)}", 100 * begin / LOOP_S, 100 * min(until, LOOP_S) / LOOP_S
    hidden = f"{last:.2f}%,100%{{opacity:0}}" if until < LOOP_S else "100%{opacity:1}"
    styles.append(
        f"@keyframes {name}{{0%,{first:.2f}%{{opacity:0}}{first + 0.01:.2f}%{{opacity:1}}{hidden}}}"
        f".{name}{{animation:{name} {LOOP_S:g}s step-end infinite}}"
    )
    past = " past" if until < LOOP_S else ""
    return f'<g class="{name}{past}">{body}</g>'


def lines(texts: list[str], x: int, y: int, colour: str) -> str:
    """Lines of text, one below the other."""
    return "".join(f'<text x="{x}" y="{y + i * LINE}" fill="{colour}">{text}</text>' for i, text in enumerate(texts))


if __name__ == "__main__":
    for name, story in STORIES.items():
        found = run(story)
        for each in THEMES:
            (HERE / f"{name}-{each}.svg").write_text(picture(story.title, found, each), encoding="utf-8")
        print(*(f"{cell.seconds:.1f} s: {cell.output}" for cell in found), sep="\n")
