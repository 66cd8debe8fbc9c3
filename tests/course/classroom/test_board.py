"""The board of a class: what learners' own checks have written, read by somebody who trusts none of it."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from workbench.course import progress_file
from workbench.course.classroom import board as class_board
from workbench.course.classroom import server as board_server
from workbench.course.tasks import names
from workbench.errors import LaunchError

NOW = 2_000_000_000.0
# A learner's hour in a process of its own: one exercise passed, one wrong, one prediction.
HOUR = """
from workbench.course.exercise import BOARD, check, exercise, solution
from workbench.course.predictions.book import Book, Guess
from workbench.course.tasks import task

exercise("03.reduce_scatter")(task("03.reduce_scatter").reference)
check("03.reduce_scatter")

@exercise("04.average_gradients")
def average_gradients(comm, gradient):
    return gradient
check("04.average_gradients")
book = Book()
book.keep()
book.guesses["03.bytes"] = Guess("8 MB", "8 MB")
book.save("03.bytes")
"""


def entry(**values: Any) -> dict[str, Any]:
    """As a check writes one."""
    return {
        "attempts": 1,
        "passed": False,
        "began": NOW - 60,
        "verdict": "right: n = 2: own data only; rank 0",
    } | values


def write(folder: Path, contents: Any) -> None:
    """A progress file."""
    (folder / ".workbench").mkdir(parents=True, exist_ok=True)
    (folder / progress_file.FILE).write_text(contents if isinstance(contents, str) else json.dumps(contents))


def row(folder: Path, name: str = "03.ring_allreduce") -> tuple[str, str]:
    """An exercise's state, and what is wrong with the learner's files."""
    found = class_board.state(class_board.learners([folder]), {}, NOW)["rows"][0]
    return found["states"][names().index(name)], found["problem"]


@pytest.mark.parametrize(
    ("contents", "state"),
    [
        ({}, "open"),
        ({"03.ring_allreduce": entry(attempts=0)}, "open"),
        ({"03.ring_allreduce": entry()}, "tried"),
        ({"03.ring_allreduce": entry(began=NOW - 601)}, "stuck"),
        ({"03.ring_allreduce": entry(began=NOW - 601), "03.other": entry(began=NOW - 30)}, "tried"),
        ({"03.ring_allreduce": entry(began=NOW - 9000, passed=True)}, "passed"),
        ({"03.ring_allreduce": entry(began="yesterday", attempts=True)}, "open"),
        ({"03.ring_allreduce": [1, 2]}, "open"),
        ([1, 2], "open"),
    ],
    ids=["nothing", "a hint alone", "tried", "stuck", "gone on", "passed", "wrong types", "no entry", "a list"],
)
def test_the_state_of_an_exercise(contents: Any, state: str, tmp_path: Path) -> None:
    """Stuck is who has tried for more than ten minutes, and nothing else since."""
    write(tmp_path / "my" / "exercises", contents)
    assert row(tmp_path) == (state, "")


def damaged(folder: Path) -> None:
    """Half of a file."""
    write(folder, '{"03.ring_all')


def deep(folder: Path) -> None:
    """Python's JSON gives up."""
    write(folder, "[" * 100_000)


def large(folder: Path) -> None:
    """Nobody's progress is so long."""
    write(folder, json.dumps({"x": "x" * 2_000_000}))


def pipe(folder: Path) -> None:
    """Who opens it waits for ever."""
    (folder / ".workbench").mkdir()
    os.mkfifo(folder / progress_file.FILE)


def link(folder: Path) -> None:
    """Another's file."""
    (folder / ".workbench").mkdir()
    (folder / progress_file.FILE).symlink_to("/etc/passwd")


def closed(folder: Path) -> None:
    """A folder."""
    write(folder, {})
    (folder / progress_file.FILE).unlink()
    (folder / progress_file.FILE).mkdir()


@pytest.mark.parametrize("spoil", [damaged, deep, large, pipe, link, closed])
def test_a_file_that_is_none_is_said(spoil: Any, tmp_path: Path) -> None:
    """At that learner alone, at once, and the others are shown."""
    (tmp_path / "a").mkdir()
    spoil(tmp_path / "a")
    write(tmp_path / "b", {"03.ring_allreduce": entry(passed=True)})
    found = class_board.state(class_board.learners([tmp_path]), {}, NOW)["rows"]
    assert [each["name"] for each in found] == ["a", "b"]
    assert ".workbench/progress.json" in found[0]["problem"]
    assert found[1]["states"][names().index("03.ring_allreduce")] == "passed"


def test_what_was_known_stays_while_a_file_is_damaged(tmp_path: Path) -> None:
    """And what comes after it is taken."""
    write(tmp_path, {"03.ring_allreduce": entry()})
    found = class_board.learners([tmp_path])
    states = []
    for contents in ({"03.ring_allreduce": entry()}, "{", {"03.ring_allreduce": entry(passed=True)}):
        write(tmp_path, contents)
        states.append(class_board.state(found, {}, NOW)["rows"][0]["states"][names().index("03.ring_allreduce")])
    assert states == ["tried", "tried", "passed"]


def test_mistakes_and_guesses_are_counted(tmp_path: Path) -> None:
    """Equal mistakes are one, whatever their numbers; answers that nobody was offered are counted, too."""
    for k in range(5):
        said = f"right: n = {k + 2}: own data only; rank {k}: your result is {k}"
        guesses = {"03.bytes": {"last": ["8 MB", "8 MB", "12 MB", 3, None][k]}, "no.such": {"last": 1}}
        write(tmp_path / f"l{k}", {"03.ring_allreduce": entry(verdict=said), "predictions": guesses})
    asked = {"03.bytes": {"question": "How many?", "options": ["8 MB", "12 MB", "24 MB"]}}
    found = class_board.state(class_board.learners([tmp_path], numbered=True), asked, NOW)
    assert [each["name"] for each in found["rows"]] == [f"learner {k}" for k in range(1, 6)]
    assert found["columns"][names().index("03.ring_allreduce")]["mistakes"] == [[5, "own data only"]]
    answers = [["8 MB", 2], ["12 MB", 1], ["24 MB", 0], ["3", 1]]
    assert found["predictions"] == [{"name": "03.bytes", "question": "How many?", "answers": answers}]


def test_a_long_cause_is_cut_between_words() -> None:
    """What stands on the board are whole words of the verdict, then a mark that there was more."""
    words = [f"word{'s' * (i % 7)}" for i in range(60)]
    *shown, mark = class_board.cause(f"right: {' '.join(words)}").split(" ")
    assert (shown, mark) == (words[: len(shown)], "…")


def test_the_questions_are_those_of_the_lessons() -> None:
    """With their answers to choose from."""
    found = class_board.questions(Path(__file__).resolve().parents[3] / "notebooks")
    assert len(found) >= 50
    assert all(each["question"] for each in found.values())
    assert sum(len(each["options"]) > 1 for each in found.values()) >= 30


@pytest.fixture
def board(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A class of thirty, and the address of its board: the command itself."""
    for k in range(30):
        (tmp_path / f"learner-{k:02}" / "exercises").mkdir(parents=True)
    words = [sys.executable, "-m", "workbench.cli.main", "class", str(tmp_path)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert "(30 learners; Ctrl-C ends it)" in line
    yield tmp_path, line.split()[0]
    process.terminate()
    process.wait(20)
    process.stdout.close()


def get(address: str, **headers: str) -> Any:
    """What the server answers."""
    with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=20) as answer:
        return answer.read().decode()


def test_a_learner_s_work_is_on_the_board(board: tuple[Path, str]) -> None:
    """As soon as it is done, by the names that the checks give; the page is only for who has its address."""
    folder, address = board
    home = folder / "learner-07" / "exercises"
    subprocess.run([sys.executable, "-c", HOUR], cwd=home, check=True, capture_output=True, timeout=60)
    until = time.monotonic() + 30
    while True:
        found = json.loads(get(f"{address}state.json"))
        mine = dict(zip(names(), found["rows"][7]["states"], strict=True))
        if mine["04.average_gradients"] != "open":
            break
        assert time.monotonic() < until
        time.sleep(0.2)
    assert (mine["03.reduce_scatter"], mine["04.average_gradients"]) == ("passed", "tried")
    assert found["columns"][names().index("04.average_gradients")]["mistakes"][0][0] == 1
    assert [each["name"] for each in found["predictions"]] == ["03.bytes"]
    assert "<title>Class board</title>" in get(address)
    root = address.rsplit("/", 2)[0]
    for other, headers in ((f"{root}/", {}), (f"{root}/guess/state.json", {}), (address, {"Host": "evil.example:80"})):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(other, **headers)


@pytest.mark.parametrize("port", [-1, 65536, 99999])
def test_a_port_that_is_none_is_refused(port: int) -> None:
    """With what ports are."""
    with pytest.raises(LaunchError, match=f"Port {port} cannot be used: ports are 0 to 65535"):
        board_server.server(dict, port)


def test_readers_who_go_or_say_nothing_cost_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One who goes while the board is read leaves no traceback, and a silent one is left after a while."""
    monkeypatch.setattr(board_server._Board, "timeout", 0.5)
    gone = threading.Event()
    pages, address = board_server.server(lambda: {"large": "x" * 5_000_000} if gone.wait(20) else {})
    serves = threading.Thread(target=pages.serve_forever, daemon=True)
    serves.start()
    try:
        place = ("127.0.0.1", pages.server_port)
        with socket.create_connection(place) as leaves:
            path, host = urllib.parse.urlsplit(address).path, urllib.parse.urlsplit(address).netloc
            leaves.sendall(f"GET {path}state.json HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            leaves.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # it closes with a reset
        gone.set()
        with socket.create_connection(place, timeout=20) as silent:
            assert silent.recv(1) == b""
        assert "large" in get(f"{address}state.json")
    finally:
        pages.shutdown()
        pages.server_close()
    assert "Traceback" not in capsys.readouterr().err
