"""A traceback of a thousand frames, which IPython takes half a minute to write: an engine shows its beginning and end.

So it is with the text of an exception: each of 20 MB would be sent to the notebook three times, and laid out there.

For each frame IPython asks for the source's module, and that looks at every module there is: 10 ms once torch is
loaded. A RecursionError has a thousand frames, and an exception that was raised in one of them as many again.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

from workbench.common.text import cut

_FIRST, _LAST = 10, 20
_MOST = 60  # frames of an exception and those that it came from
_MOST_EXCEPTIONS = 8
MOST_TEXT = 20_000  # characters of an exception's text


class ShortTraceback:
    """Takes the place of two methods of IPython's formatter.

    Args:
        shell: IPython's.
    """

    def __init__(self, shell: Any) -> None:
        self._formatter = formatter = shell.InteractiveTB
        self._whole, self._records = formatter.structured_traceback, formatter.get_records
        self._chained = formatter.get_parts_of_chained_exception
        self._frames = self._exceptions = self._left_out = 0
        formatter.structured_traceback, formatter.get_records = self._structured, self._of_some
        formatter.get_parts_of_chained_exception = self._next

    def _structured(self, *args: Any, **options: Any) -> list[str]:
        self._frames = self._exceptions = self._left_out = 0
        lines = [cut(line, MOST_TEXT) for line in self._whole(*args, **options)]
        if self._left_out:
            lines.insert(len(lines) - 1, f"[{self._left_out} frames are left out]")
        return lines

    def _next(self, error: BaseException) -> Any:
        """The exception from which one came."""
        self._exceptions += 1
        return self._chained(error) if self._exceptions < _MOST_EXCEPTIONS else None

    def _of_some(self, trace: TracebackType, *args: Any) -> Any:
        """What IPython knows of each frame that is shown."""
        some, left_out = shortened(trace, _FIRST if self._frames < _MOST else 0, _LAST if self._frames < _MOST else 1)
        self._left_out += left_out
        found = self._records(some, *args)
        self._frames += len(found)
        return found


def number_cells(shell: Any, number: Callable[[], int]) -> None:
    """In tracebacks a cell has the number that it has in the notebook, not that of the cells which this engine has run.

    Args:
        shell: IPython's.
        number: of the cell that runs; 0 if nobody has said it.
    """
    cache = shell.compile.cache
    shell.compile.cache = lambda code, own=0, raw_code=None: cache(code, number() or own, raw_code)


def shortened(trace: TracebackType, first: int = _FIRST, last: int = _LAST) -> tuple[TracebackType, int]:
    """The first and the last frames of a traceback, and how many are left out.

    Example:
        >>> def down(n):
        ...     return down(n - 1) if n else 1 / 0
        >>> try:
        ...     down(100)
        ... except ZeroDivisionError as error:
        ...     short, left_out = shortened(error.__traceback__, first=1, last=2)
        >>> left_out, short.tb_frame.f_code.co_name, short.tb_next.tb_frame.f_locals["n"]
        (99, '<module>', 1)
    """
    frames = [trace]
    while (following := frames[-1].tb_next) is not None:
        frames.append(following)
    left_out = len(frames) - first - last
    if left_out <= 0:
        return trace, 0
    short = None
    for each in reversed(frames[:first] + frames[-last:]):
        short = TracebackType(short, each.tb_frame, each.tb_lasti, each.tb_lineno)
    assert short is not None
    return short, left_out


__all__ = ["MOST_TEXT", "ShortTraceback", "number_cells", "shortened"]
