"""Does a verdict say why? What is not known is said to be unknown, and nothing is guessed."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

from workbench.errors import WorkbenchError

UNKNOWN = "I cannot tell why; the first difference is: "
ERROR = "I cannot tell why; your function ends with an error: "
_COMPARED = re.compile(r"\byour (result|sizes|bound|threshold)\b|\bexpected\b")
_PYTHONS = re.compile(
    r"^(?:[^\n]*?: )?(Key|Index|ZeroDivision|Attribute|Name|UnboundLocal|Recursion|Assertion|Type|Value)Error\b"
)
_MORE = re.compile(r"; |[.?] (?=[A-Z])|[?]$")
_HERE = str(Path(__file__).resolve().parents[2])
_SAYS_ENOUGH = (
    "Is there a return?",
    "of type ",
    "has shape ",
    "has dtype ",
    "Traceback",
    "belongs to the caller",
    "ends the whole process",
)


def has_cause(text: str) -> bool:
    """Is there a sentence that says why, besides two values that differ?

    Example:
        >>> has_cause("n = 2: rank 0, index 0: your result is 0.5, expected 1.0")
        False
        >>> has_cause("n = 2: rank 0: your result is 0.5, expected 1.0. It was divided twice")
        True
    """
    first = text.partition("\n")[0]
    if any(words in first for words in _SAYS_ENOUGH):
        return True
    return bool(_MORE.search(first)) or not (_COMPARED.search(first) or _PYTHONS.search(first))


def honest(text: str, said_by_us: bool = False) -> str:
    """The text; where it does not say why, with a beginning that says so.

    Args:
        text: what is wrong.
        said_by_us: it is the course's own sentence, not an exception of Python's or numpy's.
    """
    if said_by_us or has_cause(text):
        return text
    return (ERROR if _PYTHONS.search(text.partition("\n")[0]) else UNKNOWN) + text


def is_ours(error: BaseException) -> bool:
    """Has the course raised it, with a sentence of its own?"""
    if isinstance(error, WorkbenchError):
        return True
    frames = traceback.extract_tb(error.__traceback__)
    here = frames and frames[-1].filename.startswith(_HERE) and not hasattr(error, "theirs")
    return bool(here and (frames[-1].line or "").startswith("raise "))
