"""The data of a class for its analysis: a row for each learner and item, exercise or prediction; no names."""

from __future__ import annotations

import hmac
import os
import secrets
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any
from unicodedata import normalize

from workbench.common.text import count
from workbench.course.classroom import board
from workbench.course.evidence import CONSENT, YES
from workbench.course.evidence.items import FORMS, LETTERS, all_items
from workbench.course.exercise import entries
from workbench.course.predictions.book import Guess, guesses
from workbench.course.predictions.names import NAMES
from workbench.course.tasks import names
from workbench.errors import WorkbenchError

COLUMNS = ("learner", "kind", "name", "answer", "right", "seconds")
Row = tuple[str, ...]
"""``kind`` is ``before``, ``after``, ``exercise`` or ``prediction``; ``right`` is 1, 0, or empty where open."""


def made_key(path: Path) -> bytes:
    """The instructor's key; made where there is none. A WorkbenchError if others can read it, or it is no key."""
    if not path.exists():
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
    if path.stat().st_mode & 0o077:
        raise WorkbenchError(f"Others can read the key {path}, and with it find out who is who: chmod 600 {path}")
    text = path.read_bytes().strip()
    if len(text) != 64 or text.strip(b"0123456789abcdef"):
        raise WorkbenchError(f"{path} is no key: 64 hexadecimal digits. For a new one name another file: --key FILE")
    return bytes.fromhex(text.decode())


def pseudonym(key: bytes, name: str) -> str:
    """What a folder's name is called in the data: its HMAC-SHA256, the same whenever the key is the same."""
    return hmac.new(key, normalize("NFC", name).encode(), "sha256").hexdigest()[:12]


def collect(folders: Sequence[Path], key: bytes) -> tuple[list[Row], list[str]]:
    """The rows of all who have agreed, and what cannot be used: it is said and counted. A WorkbenchError for no folder.

    One name in several folders is one learner: the test before may lie in another folder than the test after. Where
    answers differ, the first file counts. A file without consent is not used. Whose file is damaged is left out, for it
    may hold a "no". Folders are those of learners or classes, as for ``workbench class``.
    """
    people, rows, said = defaultdict[str, list[board.Learner]](list), list[Row](), list[str]()
    if missing := [f"{each}" for each in folders if not each.is_dir()]:
        raise WorkbenchError(f"There is no folder {', '.join(missing)}: name a learner's, or one with one for each.")
    for learner in board.learners(folders):
        people[learner.folder.name].append(learner)
    left = {"not readable": 0, "without a progress file": 0, "have not agreed": 0}
    for name in sorted(people, key=lambda name: pseudonym(key, name)):
        files = [each for learner in people[name] for each in learner.contents() if each]
        if len(people[name]) > 1:
            said.append(f"{name}: in {len(people[name])} folders; taken for one learner")
        if problem := next((learner.problem for learner in people[name] if learner.problem), ""):
            said.append(f"{name}: {problem}; left out")
            left["not readable"] += 1
        elif {guesses(each).get(CONSENT, Guess()).last for each in files} - {None} != {YES}:  # a no anywhere is a no
            left["have not agreed" if files else "without a progress file"] += 1
        else:
            found, problems = _rows([each for each in files if guesses(each).get(CONSENT, Guess()).last == YES])
            rows += [(pseudonym(key, name), *each) for each in found]
            said += [f"{pseudonym(key, name)}: {each}" for each in problems]
    inside, counted = len(people) - sum(left.values()), ", ".join(f"{n} {why}" for why, n in left.items())
    return rows, [*said, f"{count(len(people), 'learner')}: {inside} in the data; left out: {counted}"]


def _rows(files: list[dict[str, Any]]) -> tuple[list[Row], list[str]]:
    given, differ = dict[str, Guess](), 0
    for name, guess in (pair for each in files for pair in guesses(each).items()):
        if guess.last is not None:
            differ += given.setdefault(name, guess).last != guess.last
    rows = list[Row]()
    for form, item in product(FORMS, all_items()):  # also what stayed open
        name = f"{form}.{item.number}"
        letter = item.letter(form, given[name].last) if name in given else ""
        rows.append((form, name, letter, str(int(letter == LETTERS[item.right])) if letter else "", ""))
    strange = sum(not row[2] and row[1] in given for row in rows)
    said = [f"{count(differ, 'answer')} in another file differ; the first counts"] if differ else []
    said += [f"{count(strange, 'answer')} to the test no choice of it; taken as open"] if strange else []
    answered = {form: sum(row[0] == form and row[2] != "" for row in rows) for form in FORMS}
    said += [f"{form}: {n} of {len(all_items())} answered" for form, n in answered.items() if n < len(all_items())]
    told = [(name, given[name].right) for name in NAMES if name in given and given[name].told]
    rows += [("prediction", name, "", str(int(right)), "") for name, right in told]
    return rows + list(_exercises(files)), said


def _exercises(files: list[dict[str, Any]]) -> Iterator[Row]:
    found = [entries(each) for each in files]
    for name in names():
        if tried := [each[name] for each in found if name in each and each[name].attempts > 0]:
            best = max(tried, key=lambda each: (each.passed, each.attempts))
            known = best.passed and 0 < best.spent < 1e6  # files of older versions do not have it
            marks = ("passed", "1") if best.passed else ("tried", "0")
            yield "exercise", name, *marks, f"{best.spent:.0f}" if known else ""
