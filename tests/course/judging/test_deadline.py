"""A learner's function is broken off from outside, wherever it stands."""

from __future__ import annotations

import importlib
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from workbench.course.simulator import simulate
from workbench.course.simulator.deadline import LOOP, MOST_TIMES, Halt, Patience, halt, scheduled, within
from workbench.errors import DeadlineError


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


class Machine:
    """A clock, and a thread that gets a part of each second.

    Args:
        share: of a core that it gets, while it wants a whole one; None if it sleeps.
    """

    def __init__(self, share: float | None) -> None:
        self.now_s, self.share = 0.0, share

    def threads(self) -> dict[str, tuple[float, float]]:
        """Of that thread, and of one that does nothing."""
        ran_s = self.now_s * (self.share or 0.0)
        return {"1": (0.0, 0.0), "2": (ran_s, 0.0 if self.share is None else self.now_s - ran_s)}

    def passes(self, seconds: float) -> bool:
        """So much time; what is waited for does not come."""
        self.now_s += seconds
        return False


@pytest.mark.parametrize(
    ("share", "clock_s", "said"),
    [
        (1.0, 8.0, f"did not end within 8 s. {LOOP}"),
        (None, 8.0, f"did not end within 8 s. {LOOP}"),
        (0.25, 32.0, f"did not end within 32 s, in which this busy machine let it run for 8 s. {LOOP}"),
        (0.05, 8.0 * MOST_TIMES, "let it run for 4 s. End other programs, or check again later."),
    ],
)
def test_time_that_other_programs_take_does_not_count(share: float | None, clock_s: float, said: str) -> None:
    """A thread without a core has longer by the clock; a loop, and who sleeps on a quiet machine, ends at once."""
    machine = Machine(share)
    patience = Patience(8.0, lambda: machine.now_s, machine.threads)
    assert not patience.wait(machine.passes)
    assert machine.now_s == pytest.approx(clock_s)
    assert said in patience.late(LOOP)


def test_what_comes_in_time_is_no_delay() -> None:
    """Also if it comes while the last look is taken."""
    machine = Machine(1.0)
    patience = Patience(1.0, lambda: machine.now_s, machine.threads)
    assert patience.wait(lambda seconds: machine.passes(seconds) or machine.now_s >= 1.0)


@pytest.mark.skipif(sys.platform != "linux", reason="the system keeps no account of it")
def test_the_system_says_how_long_threads_waited_for_a_core() -> None:
    """For each thread of this process, this one among them."""
    assert str(threading.get_native_id()) in scheduled()


@pytest.mark.parametrize("way", ["alone", "on ranks"])
def test_an_import_that_was_broken_off_begins_anew(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next import is that of a fresh process: no module of the package is left from the first one."""
    name = f"half_{way.replace(' ', '_')}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "part.py").write_text(f"import {name}\n{name}.known.append('part')")
    forever = "while not ready.exists():\n    pass\n"
    ready = f"import pathlib\nready = pathlib.Path({str(tmp_path / 'ready')!r})\n"
    (tmp_path / name / "__init__.py").write_text(f"known = []\nfrom {name} import part\n{ready}{forever}")
    monkeypatch.syspath_prepend(tmp_path)

    def imports(*comm: Any) -> Any:
        return importlib.import_module(name).known

    with pytest.raises(DeadlineError):
        within(0.3, imports) if way == "alone" else simulate(1, imports, deadline_s=0.3)
    (tmp_path / "ready").touch()
    assert imports() == ["part"]
