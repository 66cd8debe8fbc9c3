"""A learner's own copies of the lessons: ``my/`` beside ``notebooks/``, without outputs.

The figures of a lesson give away what it asks first. And as long as nobody changes a published notebook, ``git pull``
has nothing to merge. The folders below ``my/`` are those of the lessons, so links and files that a cell reads are found
there. ``lab.sh`` starts this module as a program.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

FOLDER = "my"
KINDS = ("notebooks", "exercises")
PROGRESS = Path(".workbench") / "progress.json"
STATES = Path(".workbench") / "lessons.json"


def prepare(root: Path) -> list[Path]:
    """Copy what is not there yet, and take the learner's progress along. Returns what was written.

    Args:
        root: the folder of the lessons.

    Raises:
        OSError: the folder cannot be written.
    """
    written = []
    for kind in KINDS:
        for source in sorted(path for path in (root / kind).rglob("*") if path.is_file()):
            name = source.relative_to(root)
            target = root / FOLDER / name
            if any(part.startswith((".", "__")) for part in name.parts) or target.exists():
                continue
            try:
                text = without_outputs(source.read_text(encoding="utf-8")) if source.suffix == ".ipynb" else None
            except ValueError:
                print(f"{name} is no notebook any more, so it is not copied to {FOLDER}/.", file=sys.stderr)
                continue
            _write(target, source, text)
            written.append(target)
        _progress(root, kind)
        _remember(root, kind, written)
    return written


def newer(root: Path) -> list[str]:
    """The lessons that have changed since they were copied; of copies that say nothing of it none is meant."""
    found = []
    for kind in KINDS:
        states = _states(root, kind)
        found += [f"{kind}/{name}" for name, each in sorted(states.items()) if each["copied"] != each["published"]]
    return found


def without_outputs(text: str) -> str:
    """The same notebook as if none of its cells had run.

    Raises:
        ValueError: this is no notebook.

    Example:
        >>> cell = {"cell_type": "code", "execution_count": 3, "outputs": ["8 MB"]}
        >>> json.loads(without_outputs(json.dumps({"cells": [cell], "metadata": {}})))["cells"]
        [{'cell_type': 'code', 'execution_count': None, 'outputs': []}]
    """
    notebook = json.loads(text)
    try:
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                cell.update(outputs=[], execution_count=None)
        notebook["metadata"].pop("widgets", None)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError("this is no notebook") from error
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def _remember(root: Path, kind: str, written: Sequence[Path]) -> None:
    """Which state of each lesson was copied, and which one is published now: the side bar compares them."""
    old, new = _states(root, kind), dict[str, dict[str, str]]()
    for source in sorted((root / kind).glob("*.ipynb")):
        try:
            now = _state(source.read_text(encoding="utf-8"))
        except (ValueError, KeyError, TypeError):
            continue
        fresh = root / FOLDER / kind / source.name in written
        new[source.stem] = {
            "copied": old.get(source.stem, {}).get("copied", now) if not fresh else now,
            "published": now,
        }
    if new != old:
        _write(root / FOLDER / kind / STATES, root / kind, json.dumps(new, indent=1))


def _states(root: Path, kind: str) -> dict[str, dict[str, str]]:
    try:
        found = json.loads((root / FOLDER / kind / STATES).read_text(encoding="utf-8"))
        return {name: {"copied": each["copied"], "published": each["published"]} for name, each in found.items()}
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return {}


def _state(text: str) -> str:
    """Equal for notebooks with the same cells."""
    cells = [[cell["cell_type"], "".join(cell["source"])] for cell in json.loads(text)["cells"]]
    return hashlib.sha256(json.dumps(cells).encode()).hexdigest()


def _write(target: Path, source: Path, text: str | None) -> None:
    """All of a file or nothing of it: half a copy would stay for ever."""
    target.parent.mkdir(parents=True, exist_ok=True)
    new = target.with_name(f".{target.name}.new")
    if text is None:
        shutil.copyfile(source, new)  # who may not write to the lessons may write here
    else:
        new.write_text(text, encoding="utf-8")
    os.replace(new, target)


def _progress(root: Path, kind: str) -> None:
    """The side bar asks for this file, so there is one from the beginning: what was done before there were copies."""
    before, target = root / kind / PROGRESS, root / FOLDER / kind / PROGRESS
    if not target.exists():
        _write(target, before, None if before.exists() else "{}")


def main(root: Path) -> None:
    """Prepare the copies, and say where they are if any is new."""
    try:
        written = prepare(root)
    except OSError as error:
        raise SystemExit(
            f"workbench: {root / FOLDER} cannot be written: {error.strerror}. JupyterLab works, without your own "
            "copies of the lessons and without the course in its side bar."
        ) from None
    if written:
        print(f"Your own copies of the lessons, without outputs: {root / FOLDER}")
    if found := newer(root):
        print(f"Newer than your copy: {', '.join(found)}. The side bar takes a new one, and keeps yours beside it.")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
