"""Lesson 10 of one's own file: for each step the lines that take it, and what would happen without it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from workbench.convert.conversion import Converted
from workbench.convert.steps import STEPS, WITHOUT

_COMMENT = re.compile(r"# Step (\d): (.*)")
_PRINTS = (
    "The loss that rank 0 prints is that of its own share of the samples. `hvd.allreduce` averages it over the ranks."
)


def explain(name: str, converted: Converted) -> str:
    """The lesson, as Markdown.

    Args:
        name: the script's.
        converted: its conversion.
    """
    new, old = converted.after.splitlines(), _places(converted)
    found = list(_commented(new))
    lines = [f"# {name}: from {converted.kind}, step by step", ""]
    for step, title in STEPS.items():
        mine = [(number, text) for number, which, text in found if which == step]
        lines += [f"## {step}. {title}", ""]
        for number, text in mine:
            code = new[number - 1].partition("  # Step ")[0].strip()
            lines.append(f"- line {number} (line {old[number - 1]} before): `{code}`: {text}")
        if not mine:
            lines.append("- nothing to change")
        lines += ["", f"Without it, {WITHOUT[step]}.", ""]
    notes = sorted(set(converted.edits.notes))
    lines += ["## Notes", "", f"- {_PRINTS}", *(f"- line {line} before: {text}" for line, text in notes)]
    return "\n".join(lines)


def _commented(lines: list[str]) -> Iterator[tuple[int, int, str]]:
    """(line, step, words) of each comment; the line is that of the code."""
    for index, line in enumerate(lines):
        if match := _COMMENT.search(line):
            number = index
            while lines[number].strip().startswith("#"):
                number += 1
            yield number + 1, int(match[1]), match[2]


def _places(converted: Converted) -> list[int]:
    """For each new line, the line of the old script at which it is."""
    before, after = converted.before.splitlines(), converted.after.splitlines()
    found: list[int] = []
    for tag, i, j, k, m in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        found += [i + 1 + (n if tag == "equal" else min(n, max(j - i - 1, 0))) for n in range(m - k)]
    return [min(each, len(before)) for each in found]
