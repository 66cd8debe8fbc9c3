"""The form and the answer as a notebook shows them; what the browser does with them is in tests/browser."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from workbench.course import progress_file
from workbench.course.predictions import ask, predict, reveal, widget
from workbench.course.predictions.book import Book

FOLDER = Path(widget.__file__).parent
CHOICES = ["2 MB", "8 MB", "12 MB"]
CELLS = [
    "from workbench.course.predictions import predict, guess, reveal",
    'predict("99.bytes", "How many?", choices=["2 MB", "12 MB"])',
    'reveal("99.bytes", "12 MB", "because")',
    'guess("99.bytes", 1)',
    'reveal("99.bytes", "12 MB", "because")',
]


@pytest.fixture
def _learner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Somebody sits at a notebook with widgets, in a folder of the test's own."""
    pytest.importorskip("anywidget")
    widget._widget_class.cache_clear()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ask, "BOOK", Book())
    monkeypatch.setattr(ask, "is_somebody_there", lambda: True)
    from ipywidgets.widgets.widget import _instances

    others = set(_instances)  # of other tests, whose comms may be those of a kernel
    yield
    for each in set(_instances) - others:
        _instances[each].close()


def send(form: Any, value: Any) -> None:
    """What arrives when a form is submitted."""
    form.answer = {"value": value, "at": time.monotonic()}


@pytest.mark.usefixtures("_learner")
def test_an_answer_opens_with_the_guess() -> None:
    """With "run all" the answer's cell comes first: it tells nothing, until the form is submitted; then all stays."""
    form = predict("03.bytes", "How many?", choices=CHOICES)
    answer = reveal("03.bytes", "12 MB", "because")
    state = json.dumps(answer.get_state(), default=str) + json.dumps(answer._repr_mimebundle_()[0], default=str)
    assert "12 MB" not in state
    assert "because" not in state
    assert answer.due.startswith("First make a guess")
    send(form, "8 MB")
    assert (answer.told["guess"], answer.told["fact"], answer.told["right"]) == ("8 MB", "12 MB", False)
    assert form.told is True
    send(form, "12 MB")
    assert "your guess stays as it was: 8 MB" in form.message
    assert json.loads(progress_file.FILE.read_text())["predictions"]["03.bytes"]["last"] == "8 MB"
    assert "Guess: 8 MB. Fact: 12 MB." in answer._repr_mimebundle_()[0]["text/plain"]


@pytest.mark.usefixtures("_learner")
def test_a_guess_can_be_changed_until_it_is_told() -> None:
    """The form shows what is stored; what is no answer is refused in words, and changes nothing."""
    form = predict("03.bytes", "How many?", choices=CHOICES)
    send(form, "2 MB")
    send(form, "13 MB")
    assert "none of the choices" in form.message
    before = form.handled
    send(form, "13 MB")
    assert form.handled != before  # the form hears that it was looked at, though it is told the same again
    assert form.stored == "2 MB"
    send(form, "12 MB")
    assert form.stored == "12 MB"
    assert form.told is False
    again = predict("03.bytes", "How many?", choices=CHOICES)  # the cell is run again
    assert again.stored == "12 MB"
    assert reveal("03.bytes", "12 MB").told["right"] is True
    assert again.told is True


@pytest.mark.parametrize("name", ["form.js", "judge.js", "predictions.js", "predictions.css"])
def test_nothing_comes_from_elsewhere(name: str) -> None:
    """The form loads nothing, sends nothing, and makes no markup of texts."""
    text = (FOLDER / name).read_text(encoding="utf-8")
    wrong = r"https?:|\bimport\b|fetch\(|XMLHttp|WebSocket|@import|eval\(|innerHTML|insertAdjacent|url\("
    assert re.findall(wrong, text) == []


@pytest.mark.course
@pytest.mark.parametrize("is_asked", [True, False], ids=["learner", "nobody"])
def test_a_kernel_knows_whether_somebody_can_answer(is_asked: bool, tmp_path: Path) -> None:
    """In a real kernel: a frontend that allows questions gets a form and no fact; a build gets the fact, no file."""
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3", cwd=str(tmp_path), startup_timeout=50)
    try:
        shown: list[str] = []
        for cell in CELLS:
            found: list[Any] = []
            client.execute_interactive(cell, allow_stdin=is_asked, timeout=50, output_hook=found.append)
            contents = [one["content"] for one in found]
            shown.append("".join(one.get("text", "") or one.get("data", {}).get("text/plain", "") for one in contents))
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert "Predict 99.bytes: How many?" in shown[1]
    assert ("12 MB" in shown[2]) is not is_asked
    if is_asked:
        assert "Guess: 2 MB. Fact: 12 MB." in shown[4]
    assert (tmp_path / progress_file.FILE).exists() is is_asked
