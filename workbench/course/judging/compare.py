"""What differs between a learner's results and the right ones, and what an exception was: as one line each."""

from __future__ import annotations

import re
import threading
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from sysconfig import get_path
from typing import Any

import numpy as np

from workbench.common import text
from workbench.course.judging.plain import from_torch
from workbench.course.provenance.case import Case

_HERE = (str(Path(__file__).resolve().parents[2]), get_path("purelib"), threading.Thread.run.__code__.co_filename)
_DIGITS = 6  # that are shown of a number, if they tell it from the right one


def about(case: Case) -> str:
    """A case in some words."""
    return f"n = {case.n}, {case.label}" if case.label else f"n = {case.n}"


def compared(yours: Sequence[Any], expected: Sequence[Any], names: Sequence[str] = ()) -> str:
    """As :func:`difference`, whatever a learner's function has returned."""
    try:
        return difference(yours, expected, names)
    except Exception as error:  # noqa: BLE001 - of the learner's own objects
        return f"what was returned cannot be compared with {type(expected[0]).__name__}: {error}"


def difference(yours: Sequence[Any], expected: Sequence[Any], names: Sequence[str] = ()) -> str:
    """Where the results of the ranks differ first from what they should be; empty if nowhere.

    Args:
        yours, expected: by rank.
        names: of the result, or of its items if it has several: what a number is, in the lesson's words.

    Example:
        >>> difference([np.array([1.0]), np.array([2.0])], [np.array([1.0]), np.array([3.0])])
        'rank 1, index 0: your result is 2.0, expected 3.0'
        >>> difference([(0.5, 2)], [(0.5, 3)], ["the share", "the steps"])
        'rank 0, the steps: your result is 2, expected 3'
    """
    for rank, (mine, wanted) in enumerate(zip(yours, expected, strict=True)):
        wrong = unlike(mine, wanted)
        if wrong:
            return f"rank {rank}{_named(wrong, names)}"
    return ""


def _named(wrong: str, names: Sequence[str]) -> str:
    """With the name of the item, or of the result."""
    if len(names) == 1:
        return f", {names[0]}{wrong}"
    for i, name in enumerate(names):
        if re.match(rf", item {i}\b", wrong):
            return f", {name}{wrong.removeprefix(f', item {i}')}"
    return wrong


def as_author_meant(mine: Any, wanted: Any) -> Any:
    """A tensor as an array; an array of no dimension as a number, another one as a list, where that is wanted."""
    mine = from_torch(mine)
    if isinstance(mine, Iterator):
        mine = list(mine)
    if isinstance(mine, np.ndarray) and not isinstance(wanted, np.ndarray):
        if not mine.ndim:
            return mine.item()
        return list(mine) if isinstance(wanted, (list, tuple)) else mine
    return mine


def unlike(mine: Any, wanted: Any) -> str:
    """What differs between two values; empty if nothing does, up to rounding."""
    mine = as_author_meant(mine, wanted)
    if isinstance(wanted, np.ndarray):
        if mine is None:
            return ": your result is None. Is there a return?"
        if not isinstance(mine, (np.ndarray, np.generic, list, int, float)):
            return f": your result is of type {type(mine).__name__}, expected an array of shape {wanted.shape}"
        mine = np.asarray(mine)
        if mine.shape != wanted.shape:
            return f": your result has shape {mine.shape}, expected {wanted.shape}{_shapes(mine.shape, wanted.shape)}"
        if mine.dtype.kind not in "fiub" or not np.can_cast(wanted.dtype, mine.dtype, "safe"):
            few = mine.dtype.kind == wanted.dtype.kind and mine.dtype.itemsize < wanted.dtype.itemsize
            why = ". The shorter type keeps fewer digits: one of your lines rounds" if few else ""
            return f": your result has dtype {mine.dtype}, expected {wanted.dtype}{why}"
        wrong = np.flatnonzero(~np.isclose(mine, wanted, rtol=1e-9, atol=1e-9))
        if len(wrong):
            at = int(wrong[0])
            return f", index {at}: {_two(mine.reshape(-1)[at], wanted.reshape(-1)[at])}{_precision(mine, wanted)}"
        return ""
    if isinstance(mine, np.ndarray) and mine.ndim:
        what = text.count(len(wanted), "item") if isinstance(wanted, (list, tuple)) else repr(wanted)
        return f": your result is an array of shape {mine.shape}, expected {what}"
    if isinstance(wanted, float) and isinstance(mine, (int, float, np.number)):
        return "" if np.isclose(float(mine), wanted, rtol=1e-9) else f": {_two(mine, wanted)}"
    if isinstance(wanted, (list, tuple)) and isinstance(mine, (list, tuple)):
        if not mine and wanted:
            return f": your result is empty, expected {text.count(len(wanted), 'item')}. Was nothing put into it?"
        if len(mine) != len(wanted):
            return f": your result has {len(mine)} items, expected {len(wanted)}"
        return next(
            (f", item {i}{w}" for i, (a, b) in enumerate(zip(mine, wanted, strict=True)) if (w := unlike(a, b))), ""
        )
    if isinstance(wanted, (list, tuple)) and isinstance(mine, (int, float, np.number)):
        return f": your result is one number, {mine!r}, expected {text.count(len(wanted), 'item')}. What is left out?"
    if isinstance(wanted, int) and isinstance(mine, (float, np.floating)) and mine == wanted:
        return f": your result is {mine!r}, a float. Whole numbers are asked for: a float is no index"
    if mine is None and wanted is not None:
        has_arrays = isinstance(wanted, (list, tuple)) and any(isinstance(one, np.ndarray) for one in wanted)
        asked = text.count(len(wanted), "array") if has_arrays else repr(wanted)
        return f": your result is None, expected {asked}. Is there a return?"
    if isinstance(wanted, float) and isinstance(mine, str):
        return f": your result is of type str, expected a number, such as {wanted!r}"
    return (
        ""
        if (type(mine) is type(wanted) and mine == wanted) or mine == wanted
        else f": your result is {mine!r}, expected {wanted!r}"
    )


def described(error: BaseException, function: bool = True) -> str:
    """An exception in a line or two: what, and in which of the learner's lines.

    Args:
        error: the exception.
        function: a learner's function raised it; else one of the notebook's cells did.
    """
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_HERE)]
    lines = [f"{getattr(error, 'told_as', type(error).__name__)}: {error}"]
    if function and isinstance(error, SystemExit):
        lines = [f"it ends the whole process ({lines[0]}); a function ends by return"]
    if frames and frames[-1].line:
        place = "" if frames[-1].filename.startswith("<") else f"line {frames[-1].lineno}: "
        lines.append(f"    in {place}{frames[-1].line}")
    elif place := getattr(error, "place", ""):  # of another process, see course/grading
        lines.append(place)
    return "\n".join(lines)


def _shapes(mine: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    """What differs between two shapes, as the end of a sentence."""
    if len(mine) != len(wanted):
        return ". Was something summed over an axis?" if len(mine) < len(wanted) else ". There is an axis too many"
    if len(mine) > 1 and mine == wanted[::-1]:
        return ". The axes are the wrong way round: transpose"
    axis = next(i for i, (a, b) in enumerate(zip(mine, wanted, strict=True)) if a != b)
    few = mine[axis] < wanted[axis]
    return f". Along axis {axis} {'a part of it is missing' if few else 'there is more than there should be'}"


def _two(mine: Any, wanted: Any) -> str:
    """Two different numbers, as short as they can be told apart; what nan comes of."""
    yours, right = (repr(value.item() if isinstance(value, np.generic) else value) for value in (mine, wanted))
    if isinstance(mine, (float, np.floating)) and max(len(yours), len(right)) > _DIGITS + 2:
        short = [f"{float(value):.{_DIGITS}g}" for value in (mine, wanted)]
        yours, right = short if short[0] != short[1] else (yours, right)
    nan = ". Something was divided by 0, or inf was taken from inf" if mine != mine else ""
    return f"your result is {yours}, expected {right}{nan}"


def _precision(mine: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> str:
    """Were the right numbers rounded to fewer bits? Then all of yours fit into a shorter type, and theirs do not."""
    if mine.dtype != np.float64 or not np.allclose(mine, wanted, rtol=1e-2, atol=1e-3):
        return ""
    for shorter, bits in ((np.float16, 16), (np.float32, 32)):
        with np.errstate(over="ignore"):
            fit = [np.array_equal(each, each.astype(shorter)) for each in (mine, wanted)]
        if fit == [True, False]:
            return f". All of your numbers fit into {bits} bits: they were rounded, and {wanted.dtype} was asked for"
    return ""
