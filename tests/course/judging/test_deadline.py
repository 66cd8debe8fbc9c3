"""A learner's function is broken off from outside, wherever it stands."""

from __future__ import annotations

import threading

import pytest

from workbench.course.simulator.deadline import Halt, halt


class EndsWith:
    """Raises when it is let go, where nobody can catch it."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __del__(self) -> None:
        raise self.error


@pytest.fixture
def halted() -> None:
    """A thread was broken off before."""
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    halt(thread.ident)


@pytest.mark.usefixtures("halted")
def test_a_halt_amid_a_callback_of_python_s_own_is_not_shown(capfd: pytest.CaptureFixture[str]) -> None:
    """It is lost there, and the next one comes: the learner reads nothing of it (and this test is no error)."""
    EndsWith(Halt())
    assert capfd.readouterr().err == ""


@pytest.mark.usefixtures("halted")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_else_is_raised_there_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only Halt is kept quiet."""
    seen: list[type[BaseException]] = []
    monkeypatch.setattr("sys.unraisablehook", lambda raised: seen.append(raised.exc_type))
    halt(threading.Thread(target=int).ident or 0)
    EndsWith(ValueError())
    EndsWith(Halt())
    assert seen == [ValueError]
