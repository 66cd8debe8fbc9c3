"""A traceback of a thousand frames, which IPython takes half a minute to write: an engine shows its beginning and end.

So it is with the text of an exception: each of 20 MB would be sent to the notebook three times, and laid out there.

For each frame IPython asks for the source's module, and that looks at every module there is: 10 ms once torch is
loaded. A RecursionError has a thousand frames, and an exception that was raised in one of them as many again. How many
exceptions there are is left as it is: a chain of a hundred takes as many times as long as one.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

from workbench.common.text import cut

_FIRST, _LAST = 10, 20
MOST_TEXT = 20_000  # characters of an exception's text


def shorten_tracebacks(formatter: Any) -> None:
    """Have IPython's formatter show no more than 30 frames of an exception, and say how many there are besides."""
    whole, get_records, left_out = formatter.structured_traceback, formatter.get_records, 0

    def structured(*args: Any, **options: Any) -> list[str]:
        nonlocal left_out
        left_out = 0
        lines = [cut(line, MOST_TEXT) for line in whole(*args, **options)]
        if left_out:
            lines.insert(-1, f"[{left_out} frames are left out]")
        return lines

    def records_of_some(trace: TracebackType, *args: Any) -> Any:
        nonlocal left_out
        short, more = shortened(trace)
        left_out += more
        return get_records(short, *args)

    formatter.structured_traceback, formatter.get_records = structured, records_of_some


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
