"""The page of ``workbench run --report``: how a job went, from what its ranks have written; one HTML file.

The picture and the shares of computing and waiting are of the last 512 collectives, which every rank keeps; the steps
are those of the whole job.
"""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from workbench.common.text import count, rank_list, size
from workbench.common.whole_file import write_whole
from workbench.errors import LaunchError, WorkbenchError
from workbench.observe.drawing import describe, svg
from workbench.observe.drawing_kit import INKS, duration
from workbench.observe.tracks import Track, length, tracks, waited_s
from workbench.runtime.trace.recorder import KEPT
from workbench.simulate.measured.prediction import Measured, predict

_SHOWN = 20  # batches in the picture
_POINTS = 120  # of a curve of steps
_DATA = re.compile(r'<script type="application/json" id="job">(.*?)</script>', re.DOTALL)
STYLE = """
:root { color-scheme: light dark; --ground: #fff; --ink: #1b1f24; --line: #d5dae0; --soft: #f2f4f6; }
@media (prefers-color-scheme: dark) { :root { --ground: #16191d; --ink: #e6edf3; --line: #3a4149; --soft: #22272e; } }
body { margin: 2em auto; max-width: 1100px; padding: 0 1em; background: var(--ground); color: var(--ink);
  font: 16px/1.45 system-ui, sans-serif; }
table { border-collapse: collapse; } th, td { border: 1px solid var(--line); padding: 0.2em 0.7em; text-align: right; }
th:first-child, td:first-child { text-align: left; } code, pre { background: var(--soft); }
pre { padding: 0.6em; overflow-x: auto; } svg { max-width: 100%; height: auto; } .scroll { overflow-x: auto; }
"""


@dataclass(frozen=True)
class Rank:
    """What is said of a rank.

    Args:
        number, host: who and where.
        steps: of all optimizers.
        step_s, slow_s: the median of a step, and what 95 of 100 do not exceed; 0 without steps.
        computing, waiting, sending: shares of the time of the last collectives: nothing in flight; for other ranks;
            all the rest.
        waited_for_s: how long others waited for it, during these.
        memory, gpu_memory: most bytes.
    """

    number: int
    host: str
    steps: int
    step_s: float
    slow_s: float
    computing: float
    waiting: float
    sending: float
    waited_for_s: float
    memory: int
    gpu_memory: int


def read(folder: Path) -> list[dict[str, Any]]:
    """What the ranks of the last epoch have written, by rank."""
    found = [json.loads(each.read_text(encoding="utf-8")) for each in folder.glob("*.json")]
    last = max((each["epoch"] for each in found), default=0)
    return sorted((each for each in found if each["epoch"] == last), key=lambda each: int(each["rank"]))


def ranks(found: Sequence[dict[str, Any]]) -> list[Rank]:
    """The rows of the table."""
    shown = tracks([each["snapshot"] for each in found], KEPT) if _is_complete(found) else []
    whole, waits = length(shown), waited_s(shown)
    empty = [Track(each["rank"], (), ()) for each in found]
    return [_rank(*both, whole, waits.get(both[0]["rank"], 0.0)) for both in zip(found, shown or empty, strict=True)]


def _is_complete(found: Sequence[dict[str, Any]]) -> bool:
    """Have all ranks written? Their records belong together."""
    return bool(found) and [each["rank"] for each in found] == [*range(found[0]["size"])]


def _rank(found: dict[str, Any], track: Track, whole: float, waited_for: float) -> Rank:
    steps = sorted(found["step_s"])
    slow = quantiles(steps, n=20, method="inclusive")[-1] if len(steps) > 1 else sum(steps)
    computing = sum(span.end - span.begin for span in track.compute)
    waiting = sum(bar.took("wait") for bar in track.bars if bar.row == 0)
    shares = (computing / whole, waiting / whole) if whole else (0.0, 0.0)
    return Rank(
        found["rank"],
        found["host"],
        found["steps"],
        median(steps) if steps else 0.0,
        slow,
        *shares,
        max(0.0, 1 - sum(shares)) if whole else 0.0,
        waited_for,
        found["memory"],
        found["gpu_memory"],
    )


_NO_RANK = "No rank has left the job in order, or none has called init(): there is nothing to report."
_NO_STEP = "No training step was seen: neither a step of an optimizer, nor a reduction of a tape's gradients."
_ONE_STEP = "There was one step, and a step's time is that from one to the next."


def _without_time(rows: Sequence[Rank]) -> str:
    """Why there is no time of a step; empty if there is one."""
    if not rows:
        return _NO_RANK
    if any(row.step_s for row in rows):
        return ""
    return _ONE_STEP if any(row.steps for row in rows) else _NO_STEP


def sentences(rows: Sequence[Rank], found: Sequence[dict[str, Any]]) -> list[str]:
    """What is worth knowing first."""
    if not rows:
        return [_NO_RANK]
    said = []
    if missing := sorted(set(range(found[0]["size"])) - {row.number for row in rows}):
        said.append(f"Nothing came from {rank_list(missing)}: killed, or on a host without this folder.")
    said += [f"Rank {each['rank']} ended with {each['error']}" for each in found if each["error"]]
    if not all(each["together"] for each in found):
        said.append("The ranks did not end together: an error, or a rank that was gone.")
    slowest = max(rows, key=lambda row: row.step_s)
    said.append(
        _without_time(rows) or f"A step took {_time(slowest.step_s)} (median of rank {slowest.number}, the slowest)."
    )
    computing = sum(row.computing for row in rows) / len(rows)
    if any(row.computing + row.waiting + row.sending for row in rows):
        said.append(f"During the last collectives the ranks computed {computing:.0%} of the time.")
        late = max(rows, key=lambda row: row.waited_for_s)
        if late.waited_for_s and max(row.waiting for row in rows) > 0.05:
            said.append(f"Others waited most for rank {late.number}: {_time(late.waited_for_s)} in all.")
    return said


def against_prediction(rows: Sequence[Rank], found: Sequence[dict[str, Any]], measured: str) -> str:
    """How the steps compare with what a measurement predicts.

    Args:
        rows, found: of the ranks.
        measured: what ``--measured`` names: a file of :meth:`workbench.simulate.measured.prediction.Measured.save`.
    """
    step_s = _step_s(rows)
    if not step_s:
        return ""
    if not measured:
        return (
            "To compare the steps with a prediction, call workbench.measure(model, batch).save('measured.json') once "
            "on such ranks, and start with --measured measured.json."
        )
    try:
        prediction = predict(Measured.load(measured), [found[0]["size"]], len({each["host"] for each in found}))
    except (OSError, WorkbenchError, ValueError) as error:
        return f"{measured} cannot be used: {error}"
    row = prediction.rows[0]
    return (
        f"Predicted from {measured}: {_time(row.step_s)} a step on {count(row.ranks, 'rank')}, of which computing "
        f"takes {_time(row.alone_s)}. Efficiency: {row.step_s / step_s:.0%} of the prediction, "
        f"{row.alone_s / step_s:.0%} of ranks that compute alone."
    )


def html(found: Sequence[dict[str, Any]], command: Sequence[str], measured: str = "") -> str:
    """The page."""
    rows = ranks(found)
    title = f"{shlex.join(command)} on {count(found[0]['size'] if found else 0, 'rank')}"
    said = [*sentences(rows, found), against_prediction(rows, found, measured)]
    parts = [f"<p>{escape(each)}</p>" for each in said if each]
    if found:
        began, ended = min(each["began"] for each in found), max(each["ended"] for each in found)
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(began))
        parts.append(f"<p>Began {when}, and took {ended - began:.1f} s in the job.</p>{_table(rows)}")
        parts.append(f'<h2>Steps</h2><div class="scroll">{_curves(found)}</div>')
        if _is_complete(found):
            last = tracks([each["snapshot"] for each in found], _SHOWN)
            parts.append(f"<h2>The last {_SHOWN} collectives</h2><p>{escape(describe(last))}</p>")
            parts.append(f'<div class="scroll">{svg(last)}</div>')
        versions = ", ".join(f"{name} {text}" for name, text in found[0]["versions"].items())
        parts.append(f"<h2>Command and versions</h2><pre>{escape(shlex.join(command))}</pre><p>{escape(versions)}</p>")
    data = json.dumps({"title": title, "ranks": [vars(row) for row in rows]}).replace("<", "\\u003c")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head><body><h1>{escape(title)}</h1>{''.join(parts)}"
        f'<script type="application/json" id="job">{data}</script></body></html>\n'
    )


_HEADS = ("rank", "host", "steps", "step", "95 %", "computing", "waiting", "rest", "waited for", "memory", "GPU memory")


_LEGEND = (
    f"<p>Shares are of the time of the last {KEPT} collectives at most. Computing: nothing is in flight. Waiting: "
    "another rank has not submitted the same tensors yet. Rest: announcing, packing, sending.</p>"
)


def _cells(row: Rank) -> list[str]:
    shares = [f"{share:.0%}" for share in (row.computing, row.waiting, row.sending)]
    return [
        *(str(row.number), row.host, f"{row.steps:,}", _time(row.step_s), _time(row.slow_s)),
        *(*shares, _time(row.waited_for_s), size(row.memory), size(row.gpu_memory) if row.gpu_memory else "–"),
    ]


def _table(rows: Sequence[Rank]) -> str:
    head = "".join(f"<th>{each}</th>" for each in _HEADS)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in _cells(row))}</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>{_LEGEND}'


def _time(seconds: float) -> str:
    return duration(seconds * 1e6) if seconds else "–"


def _curves(found: Sequence[dict[str, Any]]) -> str:
    """Step times over the job: a line for each rank, of medians."""
    lines = {each["rank"]: _medians(each["step_s"]) for each in found if each["step_s"]}
    top = max((value for line in lines.values() for value in line), default=0.0)
    if not top:
        return "<p>None was seen.</p>"
    parts = []
    for i, (rank, line) in enumerate(lines.items()):
        ink = INKS[i % len(INKS)]
        step = 960 / max(1, len(line) - 1)
        points = " ".join(f"{70 + k * step:.1f},{190 - 160 * value / top:.1f}" for k, value in enumerate(line))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{ink}" stroke-width="1.5"/>')
        if i < len(INKS):
            parts.append(f'<text x="{70 + 80 * i}" y="14" font-size="12" fill="{ink}">rank {rank}</text>')
    axis = '<path d="M70 30V190H1030" stroke="currentColor" fill="none"/>'
    marks = f'<text x="64" y="36" font-size="12" text-anchor="end" fill="currentColor">{_time(top)}</text>'
    label = "Time of a step, from the first to the last"
    return (
        f'<svg viewBox="0 0 1050 210" width="1050" role="img" aria-label="{label}">{axis}{marks}{"".join(parts)}'
        f'<text x="70" y="206" font-size="12" fill="currentColor">{label}</text></svg>'
    )


def _medians(values: Sequence[float]) -> list[float]:
    each = max(1, -(-len(values) // _POINTS))
    return [median(values[k : k + each]) for k in range(0, len(values), each)]


def compared(paths: Sequence[str]) -> list[str]:
    """The reports of several jobs, a line for each, and the ratio to the first; then which have no time of a step.

    Raises:
        LaunchError: one is no report.
    """
    jobs = {path: _loaded(path) for path in paths}
    first = _step_s(jobs[paths[0]])
    head = f"{'report':30} {'ranks':>5} {'step':>10} {'ratio':>6} {'computing':>9} {'waiting':>8} {'memory':>10}"
    lines = [head]
    for path in paths:
        rows, step = jobs[path], _step_s(jobs[path])
        ratio = f"{step / first:.2f}" if first and step else "–"
        name = path if len(path) <= 30 else f"…{path[-29:]}"
        computing = sum(row.computing for row in rows) / max(1, len(rows))
        waiting = sum(row.waiting for row in rows) / max(1, len(rows))
        memory = size(max((row.memory for row in rows), default=0))
        lines.append(
            f"{name:30} {len(rows):5} {_time(step):>10} {ratio:>6} {computing:9.0%} {waiting:8.0%} {memory:>10}"
        )
    return lines + [f"{path}: {why}" for path, rows in jobs.items() if (why := _without_time(rows))]


def _step_s(rows: Sequence[Rank]) -> float:
    """Of the slowest rank."""
    return max((row.step_s for row in rows), default=0.0)


def _loaded(path: str) -> list[Rank]:
    try:
        data = _DATA.search(Path(path).read_text(encoding="utf-8"))
        rows = [Rank(**each) for each in json.loads(data[1])["ranks"]] if data else None
    except OSError as error:
        raise LaunchError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, TypeError, KeyError) as error:
        raise LaunchError(f"{path} cannot be read: {error}") from None
    if rows is None:
        raise LaunchError(f"{path} is no report of workbench run --report.")
    return rows


def main(words: Sequence[str]) -> int:
    """``make FOLDER PAGE MEASURED COMMAND…`` or ``compare PAGE…``: the command ``workbench`` starts it by its name."""
    what, *rest = words
    if what == "make":
        folder, page, measured, *command = rest
        write_whole(Path(page), html(read(Path(folder)), command, measured).encode())
    else:
        print("\n".join(compared(rest)))
    return 0
