"""What an engine shows of an exception with very many frames: as IPython shows it, less what nobody reads."""

from __future__ import annotations

import re
from typing import Any

import pytest
from IPython.core.ultratb import VerboseTB

from workbench.launch.ranks.short_traceback import shorten_tracebacks


def down(n: int) -> int:
    """A recursion of two functions, which IPython does not fold."""
    return along(n - 1) if n else 1 // 0


def along(n: int) -> int:
    """The other one."""
    return down(n)


def again(n: int) -> None:
    """Each level raises an exception of its own, from the one below."""
    try:
        again(n - 1) if n else 1 // 0
    except (ArithmeticError, ValueError) as error:
        raise ValueError(n) from error


def shown(call: Any, short: bool) -> tuple[str, int]:
    """What IPython writes about a call's exception, and how many frames it has looked at."""
    formatter = VerboseTB(theme_name="nocolor", include_vars=False)
    whole, looked_at = formatter.get_records, []

    def get_records(*args: Any) -> Any:
        records = whole(*args)
        looked_at.extend(records)
        return records

    formatter.get_records = get_records
    if short:
        shorten_tracebacks(formatter)
    try:
        call()
    except (ArithmeticError, ValueError) as error:
        return "\n".join(formatter.structured_traceback(type(error), error, error.__traceback__)), len(looked_at)
    raise AssertionError


def test_a_deep_traceback_shows_its_beginning_and_its_end() -> None:
    """The caller's line, the line that raised, the exception, and how many frames there are besides."""
    text, frames = shown(lambda: down(150), short=True)
    assert frames <= 30
    assert "lambda: down(150), short=True" in text
    assert "ZeroDivisionError: integer division or modulo by zero" in text
    left_out = re.search(r"\[(\d+) frames are left out\]", text)
    assert left_out
    assert int(left_out[1]) + 30 == 2 + 301  # this test's two, and a pair for each level


@pytest.mark.parametrize("call", [lambda: down(3), lambda: again(2)], ids=["frames", "exceptions"])
def test_a_short_traceback_is_as_it_was(call: Any) -> None:
    """To the letter."""
    assert shown(call, short=True) == shown(call, short=False)
