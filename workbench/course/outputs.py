"""Outputs of a notebook's cells: building a lesson twice changes nothing, and a busy machine's figures are refused."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from configparser import RawConfigParser
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Pattern = tuple[str, str]


def joined(outputs: Iterable[Any]) -> list[Any]:
    """Neighbouring pieces of one stream as one: how a kernel cuts its text is chance.

    Example:
        >>> from nbformat.v4 import new_output
        >>> [one.text for one in joined(new_output("stream", name="stdout", text=text) for text in ("a", "b"))]
        ['ab']
    """
    found: list[Any] = []
    for output in outputs:
        last = found[-1] if found else {}
        if output["output_type"] == last.get("output_type") == "stream" and output["name"] == last["name"]:
            last["text"] += output["text"]
        else:
            found.append(output)
    return found


def _sections(path: Path) -> RawConfigParser:
    parser = RawConfigParser()
    parser.read_string(path.read_text(encoding="utf-8"))
    return parser


def patterns(path: Path) -> list[Pattern]:
    """What differs from run to run, from a file in nbval's format: sections with ``regex`` and ``replace``."""
    parser = _sections(path)
    return [(parser[name]["regex"], parser[name]["replace"]) for name in parser.sections()]


@dataclass(frozen=True)
class Bound:
    """Between what a measured figure must be.

    Args:
        name: what it is.
        figure: a regex over the outputs, line by line. With two groups their quotient is the figure.
        least, most: it is between these.
    """

    name: str
    figure: str
    least: float
    most: float

    def broken(self, text: str) -> str:
        r"""What is wrong with the figures in a text; empty if nothing is.

        Example:
            >>> Bound("two ranks", r"speed-up ([\d.]+)", 1.4, 2.5).broken("speed-up 0.99")
            'two ranks: 0.99, in “speed-up 0.99”; expected 1.4 to 2.5'
        """
        found = list(re.finditer(self.figure, text, re.MULTILINE))
        for one in found:
            value = float(one[1]) / (float(one[2]) if one.re.groups == 2 else 1.0)
            if not self.least <= value <= self.most:
                said = one[0].strip()
                return f"{self.name}: {value:.3g}, in “{said}”; expected {self.least:g} to {self.most:g}"
        return "" if found else f"{self.name}: no output has this figure"


def bounds(path: Path, lesson: str) -> list[Bound]:
    """Of a lesson's figures, from ``lessons/bounds.cfg``; see its head."""
    parser = _sections(path)
    return [
        Bound(name, one["figure"], one.getfloat("least", -math.inf), one.getfloat("most", math.inf))
        for name, one in parser.items()
        if name.startswith(f"{lesson[:2]}:")
    ]


def outside(notebook: Any, expected: Iterable[Bound]) -> list[str]:
    """For each bound that a notebook's figures do not keep, what is wrong."""
    text = printed(notebook)
    return [wrong for bound in expected if (wrong := bound.broken(text))]


def printed(notebook: Any) -> str:
    """Everything that a notebook's cells printed, and their results in words."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return "".join(output.get("text") or output.get("data", {}).get("text/plain", "") + "\n" for output in outputs)


def keep_equal(notebook: Any, before: Any, differs: Sequence[Pattern]) -> None:
    """Let a notebook whose outputs differ from earlier ones in nothing but ``differs`` have the earlier ones.

    All of them or none: figures of two runs beside each other may contradict each other.

    Args:
        notebook: executed just now.
        before: the notebook as it was built earlier.
        differs: see :func:`patterns`.
    """
    new, old = ([cell for cell in each.cells if cell.get("outputs")] for each in (notebook, before))
    if [(each["id"], each["source"], _without(each["outputs"], differs)) for each in new] == [
        (each["id"], each["source"], _without(each["outputs"], differs)) for each in old
    ]:
        for cell, earlier in zip(new, old, strict=True):
            cell["outputs"] = earlier["outputs"]


def _without(value: Any, differs: Sequence[Pattern]) -> Any:
    """The same with all texts replaced as the patterns say."""
    if isinstance(value, dict):
        return {key: _without(each, differs) for key, each in value.items()}
    if isinstance(value, list):
        return [_without(each, differs) for each in value]
    if isinstance(value, str):
        for regex, replace in differs:
            value = re.sub(regex, replace, value)
    return value
