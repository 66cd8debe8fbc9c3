"""What a process tells the engine about its own end, without getting in the way of other hooks."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable

import pytest

from workbench.common.cell_numbers import CellNumbers
from workbench.runtime.faults.notebook_hooks import watch_cells, watch_exceptions


class Listener:
    """In the place of a job: keeps what is reported."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def script_raised(self, traceback: str) -> None:
        """Keep it."""
        self.events.append(traceback)

    def cell_begins(self, numbers: CellNumbers | None = None) -> None:
        """Keep it; this shell's cells have no numbers."""
        assert numbers is None
        self.events.append("begins")

    def cell_ends(self) -> None:
        """Keep it."""
        self.events.append("ends")

    def cell_raised(self, traceback: str) -> None:
        """Keep the last line."""
        self.events.append(traceback.rstrip().splitlines()[-1])


class Shell:
    """The few parts of IPython's shell that are used: events and their callbacks."""

    def __init__(self) -> None:
        self.callbacks: dict[str, list[Callable[..., None]]] = {}
        self.events = types.SimpleNamespace(
            register=lambda name, call: self.callbacks.setdefault(name, []).append(call)
        )

    def run(self, error: Exception | None, before: bool = False) -> None:
        """A cell that ends with ``error``."""
        for call in self.callbacks.get("pre_execute", []):
            call()
        result = types.SimpleNamespace(
            error_before_exec=error if before else None, error_in_exec=None if before else error
        )
        for call in self.callbacks.get("post_execute", []):
            call()
        for call in self.callbacks.get("post_run_cell", []):
            call(result)


def uncaught(error: BaseException) -> None:
    """What the interpreter does with an exception that nobody caught."""
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001 - SystemExit and Ctrl-C are among those tested
        sys.excepthook(type(caught), caught, caught.__traceback__)


@pytest.fixture
def before(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """Exceptions that reach the hook that was there first."""
    seen: list[BaseException] = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: seen.append(error))
    return seen


def test_an_uncaught_exception_is_reported(before: list[BaseException]) -> None:
    """The traceback goes to the other ranks, marked as the end of this one, and then to the hook that was there."""
    listener, error = Listener(), KeyError("lr")
    watch_exceptions(lambda: listener)
    uncaught(error)
    (traceback,) = listener.events
    assert traceback.startswith("Traceback")
    assert traceback.rstrip().endswith("KeyError: 'lr'")
    assert before == [error]


def test_it_is_reported_once_however_often_init_is_called(before: list[BaseException]) -> None:
    """A second installation changes nothing."""
    listener = Listener()
    for _ in range(3):
        watch_exceptions(lambda: listener)
    uncaught(ValueError("x"))
    assert len(listener.events) == len(before) == 1


def test_the_latest_job_is_asked(before: list[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the package was imported anew, its own job hears of exceptions and cells, each once."""
    shell, old, new = Shell(), Listener(), Listener()
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    for listener in (old, new):
        watch_exceptions(lambda listener=listener: listener)
        watch_cells(lambda listener=listener: listener)
    shell.run(KeyError("lr"))
    uncaught(ValueError("x"))
    assert old.events == []
    assert new.events[:3] == ["begins", "ends", "KeyError: 'lr'"]
    assert len(new.events) == 4
    assert len(before) == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1)], ids=["Ctrl-C", "exit"])
def test_an_intended_end_is_no_failure(before: list[BaseException], error: BaseException) -> None:
    """Ctrl-C and exit are not reported as exceptions of the script; the old hook sees them."""
    listener = Listener()
    watch_exceptions(lambda: listener)
    uncaught(error)
    assert listener.events == []
    assert before == [error]


def test_without_a_job_nothing_is_reported(before: list[BaseException]) -> None:
    """After shutdown() an exception is the process's own affair."""
    watch_exceptions(lambda: None)
    uncaught(ValueError("x"))
    assert len(before) == 1


@pytest.mark.parametrize("at_once", [False, True], ids=["while it ran", "before it ran"])
def test_a_failed_cell_and_the_next_one_are_reported(monkeypatch: pytest.MonkeyPatch, at_once: bool) -> None:
    """Each cell's begin and end are told, once, and what it raised."""
    shell, listener = Shell(), Listener()
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    for _ in range(2):
        watch_cells(lambda: listener)
    shell.run(None)
    assert listener.events == ["begins", "ends"]
    shell.run(ValueError("cell"), before=at_once)
    assert listener.events[2:] == ["begins", "ends", "ValueError: cell"]


@pytest.mark.parametrize("status", ["ok", "error"])
def test_what_view_apply_runs_is_a_cell_too(monkeypatch: pytest.MonkeyPatch, status: str) -> None:
    """IPython has no events for it: the kernel's method is wrapped, and gives back what it gave before."""
    shell, listener = Shell(), Listener()
    reply = {"status": status, "ename": "KeyError", "evalue": "'lr'"}
    shell.kernel = types.SimpleNamespace(do_apply=lambda *words: (listener.events.append("runs"), (reply, words))[1])
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    watch_cells(lambda: listener)
    assert shell.kernel.do_apply(1, 2) == (reply, (1, 2))
    assert listener.events == ["begins", "runs", "ends", *(["KeyError: 'lr'"] if status == "error" else [])]


def test_outside_a_notebook_there_are_no_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without IPython, or with it but without a shell, there is nothing to watch."""
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    watch_cells(lambda: None)
    assert "IPython" not in sys.modules
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: None))
    watch_cells(lambda: None)
