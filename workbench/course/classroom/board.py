"""How far a class is: learners × exercises, out of the progress files in their folders. Only read, never written.

The files are those that ``check()`` and ``predict()`` write. Whoever can write one can write anything into it, so
nothing there is believed beyond its type and its length, and a file that is no plain file is not opened.
"""

from __future__ import annotations

import json
import os
import re
import stat
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from textwrap import shorten
from typing import Any

from workbench.course.progress_file import FILE, PREDICTIONS
from workbench.course.tasks import names, task

STUCK_S = 600.0
"""Who has tried an exercise for longer, and nothing else since, is stuck."""
_LARGEST = 1 << 20  # bytes of a progress file
_DEEPEST, _FOLDERS = 4, 400  # where a learner's files are looked for
_LOOK_AGAIN_S = 10.0
_LONGEST = 160  # characters of a verdict, of an answer, and of a name
_READ = 10_000  # characters of a verdict in which its cause is looked for
_WHERE = re.compile(r"^[^:]*: ")  # a verdict's stage


@dataclass
class Learner:
    """One folder.

    Args:
        name: of the folder, or a number.
        folder: where the files are looked for.

    Attributes:
        entries: what is known of each exercise.
        guesses: what was guessed last, by question.
        problem: why nothing, or not all, could be read.
    """

    name: str
    folder: Path
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    guesses: dict[str, Any] = field(default_factory=dict)
    problem: str = ""
    _files: list[Path] = field(default_factory=list)
    _looked_at: float = float("-inf")
    _known: dict[Path, tuple[int, int, dict[str, Any]]] = field(default_factory=dict)

    def read(self) -> None:
        self.entries, self.guesses = {}, {}
        for found in self.contents():
            guesses = found.get(PREDICTIONS)
            self.guesses |= {n: g["last"] for n, g in _objects(guesses) if g.get("last") is not None}
            for name, entry in _objects(found):
                if name != PREDICTIONS and _tries(entry) >= _tries(self.entries.get(name, {})):
                    self.entries[name] = entry

    def contents(self) -> list[dict[str, Any]]:
        """What is in each progress file now."""
        self.problem = ""
        if time.monotonic() > self._looked_at + _LOOK_AGAIN_S:
            self._files, self._looked_at = list(self._search()), time.monotonic()
        return [self._contents(each) for each in self._files]

    def _search(self) -> Iterator[Path]:
        """The progress files in the folder and not far below it."""
        todo, seen = [(self.folder, 0)], 0
        while todo and seen < _FOLDERS:
            folder, depth = todo.pop(0)
            seen += 1
            try:
                inside = [each for each in os.scandir(folder) if each.is_dir(follow_symlinks=False)]
            except OSError as error:
                if folder == self.folder:
                    self.problem = f"cannot be read: {error.strerror}"
                continue
            if any(each.name == FILE.parent.name for each in inside):
                yield folder / FILE
            if depth < _DEEPEST:
                todo += [(Path(each.path), depth + 1) for each in inside if not each.name.startswith((".", "_"))]

    def _contents(self, path: Path) -> dict[str, Any]:
        """What is in a file now; what was in it, while it cannot be read."""
        before = self._known.get(path, (0, 0, {}))
        try:
            with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
                about = os.fstat(file.fileno())
                if not stat.S_ISREG(about.st_mode) or about.st_size > _LARGEST:
                    self.problem = f"{path.relative_to(self.folder)} is no progress file"
                    return before[2]
                if (about.st_mtime_ns, about.st_size) != before[:2]:
                    found = json.loads(file.read(_LARGEST))
                    self._known[path] = about.st_mtime_ns, about.st_size, found if isinstance(found, dict) else {}
        except FileNotFoundError:
            return before[2]
        except OSError as error:
            self.problem = f"{path.relative_to(self.folder)} cannot be read: {error.strerror}"
        except (ValueError, RecursionError):
            self.problem = f"{path.relative_to(self.folder)} is damaged"
        return self._known.get(path, before)[2]

    def state(self, name: str, now: float) -> str:
        """``passed``, ``stuck``, ``tried`` or ``open``."""
        entry = self.entries.get(name, {})
        if entry.get("passed") is True and (entry.get("cause") is True or not task(name).asks_cause):
            return "passed"
        if not _tries(entry):
            return "open"
        began = _number(entry.get("began"))
        later = (_number(each.get("began")) for other, each in self.entries.items() if other != name)
        stuck = 0 < began < now - STUCK_S and not any(other > began for other in later)
        return "stuck" if stuck else "tried"

    def mistake(self, name: str) -> str:
        """What the last check found wrong, without the numbers that differ from learner to learner."""
        said = self.entries.get(name, {}).get("verdict")
        return cause(said) if isinstance(said, str) else ""


def learners(folders: Iterable[Path], numbered: bool = False) -> list[Learner]:
    """A learner for each folder; of a folder of folders, one for each in it.

    Args:
        folders: of learners, or of classes.
        numbered: call them by numbers, and not by their folders' names.

    Example:
        >>> [each.problem for each in learners([Path("/no/such/folder")])]
        ['']
    """
    found: list[Path] = []
    for folder in folders:
        try:
            inside = sorted(each for each in folder.iterdir() if each.is_dir() and not each.name.startswith((".", "_")))
        except OSError:
            inside = []
        own = (folder / FILE.parent).exists() or any((folder / kind).exists() for kind in ("my", "exercises"))
        found += [folder] if own or not inside else inside
    unique = list(dict.fromkeys(each.absolute() for each in found))
    return [Learner(f"learner {k}" if numbered else each.name[:_LONGEST], each) for k, each in enumerate(unique, 1)]


def cause(verdict: str) -> str:
    r"""A verdict without its stage and its case: what is wrong, as far as it is the same for all who do it.

    Example:
        >>> cause("right: n = 2: the sum was not divided; rank 0, index 0: your result is 0.5, expected 1.0")
        'the sum was not divided'
        >>> cause("right: the chunk that comes replaces this rank's own: add it\n n = 2: rank 0, chunk 1: your result")
        "the chunk that comes replaces this rank's own: add it"
        >>> cause("It holds: x = [1, 2]: your result is 3, expected 2. Look again: the first epoch is counted")
        'the first epoch is counted'
    """
    text = " ".join(verdict[:_READ].partition("\n")[0].split())
    if "Look again: " in text:
        return _short(text.partition("Look again: ")[2])
    text = re.sub(r"^n = \d+(, [^:]*)?: ", "", _WHERE.sub("", text))
    text = re.sub(r"^rank \d+(, \w+ \d+)*: ", "", re.split(r"; | \(", text)[0])
    return _short(re.sub(r"-?\d[\d.,e+-]*", "…", text))


def _short(text: str) -> str:
    """Cut between words; a word that is longer than all there is room for is cut."""
    return shorten(text, _LONGEST, placeholder=" …") if " " in text[:_LONGEST] else text[:_LONGEST]


Questions = Mapping[str, Mapping[str, Any]]
"""Of predictions by name: ``question``, and ``options``, which a number has none of."""


def questions(notebooks: Path) -> dict[str, dict[str, Any]]:
    """The questions of the built lessons.

    Args:
        notebooks: their folder.
    """
    found = {}
    for path in sorted(notebooks.glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        outputs = [each for cell in cells for each in cell.get("outputs", ())]
        shown = ["".join(each.get("data", {}).get("text/html", "")) for each in outputs]
        for data in re.findall(r"data-predict=[\"']([^\"']*)[\"']", "\n".join(shown)):
            one = json.loads(unescape(data))
            found[one["name"]] = {"question": one["question"], "options": one.get("options") or []}
    return found


def state(found: Sequence[Learner], asked: Questions, now: float | None = None) -> dict[str, Any]:
    """All that the board shows, as JSON can hold it. Reads the files.

    Args:
        found: see :func:`learners`.
        asked: see :func:`questions`.
        now: in seconds since 1970.
    """
    now = time.time() if now is None else now
    for each in found:
        each.read()
    rows = [
        {
            "name": each.name,
            "problem": each.problem,
            "states": [each.state(name, now) for name in names()],
            "tries": [_tries(each.entries.get(name, {})) for name in names()],
            "mistakes": [each.mistake(name) for name in names()],
        }
        for each in found
    ]
    columns: list[dict[str, Any]] = [{"name": name, "title": task(name).title} for name in names()]
    for k, column in enumerate(columns):
        wrong = Counter(str(row["mistakes"][k]) for row in rows if row["states"][k] in ("tried", "stuck"))
        column["mistakes"] = [[n, text] for text, n in wrong.most_common(3) if text]
    return {"columns": columns, "rows": rows, "predictions": list(_histograms(found, asked))}


def _histograms(found: Sequence[Learner], asked: Questions) -> Iterator[dict[str, Any]]:
    """For each question that somebody has answered, how often each answer was given."""
    for name in sorted({name for each in found for name in each.guesses if name in asked}):
        answers = Counter(_answer(each.guesses[name]) for each in found if name in each.guesses)
        options = [str(each) for each in asked[name]["options"]]
        others = sorted((each for each in answers if each not in options), key=_as_number)
        counted = [[each, answers[each]] for each in [*options, *others[:20]]]
        yield {"name": name, "question": asked[name]["question"], "answers": counted}


def _answer(guess: Any) -> str:
    return _short(" → ".join(map(str, guess)) if isinstance(guess, list) else f"{guess}")


def _as_number(text: str) -> tuple[float, str]:
    try:
        return float(text), text
    except ValueError:
        return float("inf"), text


def _objects(found: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(found, dict):
        yield from ((name, each) for name, each in found.items() if isinstance(each, dict))


def _number(value: Any) -> float:
    return (
        float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e12 else 0.0
    )


def _tries(entry: Mapping[str, Any]) -> int:
    return int(_number(entry.get("attempts")))
