"""Outputs of a notebook's cells, so that building a lesson twice changes nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from configparser import RawConfigParser
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


def patterns(path: Path) -> list[Pattern]:
    """What differs from run to run, from a file in nbval's format: sections with ``regex`` and ``replace``."""
    parser = RawConfigParser()
    parser.read_string(path.read_text(encoding="utf-8"))
    return [(parser[name]["regex"], parser[name]["replace"]) for name in parser.sections()]


def keep_equal(notebook: Any, before: Any, differs: Sequence[Pattern]) -> None:
    """Let cells whose outputs differ from earlier ones in nothing but ``differs`` have the earlier ones.

    Args:
        notebook: executed just now.
        before: the notebook as it was built earlier.
        differs: see :func:`patterns`.
    """
    earlier = {cell["id"]: cell for cell in before.cells}
    for cell in notebook.cells:
        old = earlier.get(cell["id"])
        if not old or old["source"] != cell["source"] or not cell.get("outputs"):
            continue
        if _without(cell["outputs"], differs) == _without(old["outputs"], differs):
            cell["outputs"] = old["outputs"]


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
