"""``workbench run --check``: what the ranks have recorded, as a report with the lines of the script."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from workbench.common.text import count
from workbench.diagnostics.finding import Severity
from workbench.diagnostics.first_steps.mistakes import Event, Mistake, find
from workbench.diagnostics.first_steps.script import read


@contextmanager
def recorded() -> Iterator[tuple[Path, dict[str, str]]]:
    """A folder, and the variables with which ranks record in it while the block runs; it is deleted after it."""
    folder = tempfile.mkdtemp(prefix="workbench-check-")
    begin = {"WORKBENCH_CHECK": folder, "WORKBENCH_AT_START": "workbench.diagnostics.first_steps.begin"}
    try:
        yield Path(folder), {**begin, "WORKBENCH_COMPARE_STEPS": "0"}  # the report compares, and says more
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def events(folder: Path, n: int) -> list[list[Event]]:
    """By rank, what it has recorded: of its processes the one that has most."""
    found: list[list[Event]] = []
    for rank in range(n):
        files = [[json.loads(line) for line in _whole(path)] for path in folder.glob(f"{rank}.*.jsonl")]
        found.append(max(files, key=lambda each: (_steps(each), len(each)), default=[]))
    return found


def _whole(path: Path) -> list[str]:
    """The lines that are whole: a rank may have been killed amid one."""
    *lines, _ = path.read_text(encoding="utf-8").split("\n")
    return lines


def _steps(seen: Sequence[Event]) -> int:
    return sum(each["what"] == "step" for each in seen)


def mistakes(ranks: Sequence[Sequence[Event]]) -> list[Mistake]:
    """Those that the events show, and those that the script's text shows."""
    path = next((each["path"] for seen in ranks for each in seen if each["what"] == "script"), "")
    script = read(path) if path else None
    found = find(ranks)
    if script is not None:
        if script.library and not any(each["what"] == "init" for seen in ranks for each in seen):
            found = [replace(each, at=script.library) if each.at_start else each for each in found]
        writes = {
            each["at"][1] for seen in ranks for each in seen if each["what"] == "write" and each["at"][:1] == [path]
        }
        found += script.mistakes(frozenset(writes))
    return sorted(found, key=lambda each: each.note)


def report(ranks: Sequence[Sequence[Event]], code: int = 0) -> tuple[list[str], int]:
    """The lines of the report, and 1 if there are mistakes, else 0.

    Args:
        ranks: by rank, what it has recorded.
        code: the job's exit code.
    """
    found, lines = mistakes(ranks), list[str]()
    for each in found:
        lines += _shown(each)
    steps = min(map(_steps, ranks), default=0)
    graph = any(each["what"] == "graph" for seen in ranks for each in seen)
    wrong = sum(not each.note for each in found)
    nothing = "its steps are not checked" if code and not steps else "no mistake found"
    verdict = count(wrong, "mistake") if wrong else nothing
    notes = f", {count(len(found) - wrong, 'note')}" if len(found) > wrong else ""
    if steps:
        lines.append(f"--check: {count(steps, 'step')} on each of {count(len(ranks), 'rank')}: {verdict}{notes}.")
    else:
        why = (
            "a graph of TensorFlow 1 or JAX cannot be looked into"
            if graph
            else f"the job has ended with exit code {code} before its first step"
            if code
            else "no rank has taken a step with torch or Keras 3"
        )
        lines.append(f"--check: only the text of the script, for {why}: {verdict}{notes}.")
    return lines, int(bool(wrong))


def _shown(mistake: Mistake) -> list[str]:
    symbol = (Severity.WARNING if mistake.note else Severity.FAILURE).value
    where = f"{os.path.relpath(mistake.at[0])}:{mistake.at[1]}: {mistake.at[2]}" if mistake.at else "the script"
    return [f"{symbol} {where}", f"    {mistake.text}", f"    → {mistake.cure}"]
