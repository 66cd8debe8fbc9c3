"""``workbench class up`` and ``down``: what is refused, and a class of two with the real JupyterHub, signed in to."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from learners_python import learners_python

from workbench.cli.class_server import command, control, limits
from workbench.cli.class_server.place import Place
from workbench.course.classroom.learner import Learner
from workbench.errors import LaunchError

PASSWORD = "grove-stone-pine"


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_names_are_those_that_a_system_takes() -> None:
    """Umlauts are written out, spaces are hyphens; two that become one are refused, with both."""
    given = ["Jürgen Groß", "ada", "O'Neil.B", "Ju\u0308rgen", "José", "Søren Łukasz"]
    assert list(control._checked(given)) == ["juergen-gross", "ada", "oneil-b", "juergen", "jose", "soren-lukasz"]
    with pytest.raises(LaunchError, match="'Ada' and 'ada' would both sign in as ada"):
        control._checked(["Ada", "ada"])
    with pytest.raises(LaunchError, match="'…' has no letter or digit"):
        control._checked(["…"])
    with pytest.raises(LaunchError, match="--learners 30, or --names FILE"):
        control._checked([])


def test_names_from_a_file(tmp_path: Path) -> None:
    """A name in each line; without a file they are counted."""
    file = tmp_path / "names.txt"
    file.write_text("Ada\n\n Alan \n", encoding="utf-8")
    assert control.names(0, file) == ["Ada", "Alan"]
    assert control.names(2, None) == ["learner01", "learner02"]
    with pytest.raises(LaunchError, match="cannot be read"):
        control.names(0, tmp_path / "nothing")


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ({"password": "short"}, "at least 8 characters"),
        ({"cert": "/nowhere.pem"}, "/nowhere.pem is not there"),
        ({"cert": __file__}, "HTTPS needs both"),
        ({"port": 70_000}, "--port 70000: a port is a number from 1 to 65535"),
    ],
)
def test_what_is_refused_begins_nothing(wanted: dict[str, Any], told: str, tmp_path: Path) -> None:
    """And the folder is not made."""
    place = Place(tmp_path / "class", **{"port": free_port(), "host": "127.0.0.1", **wanted})
    with pytest.raises(LaunchError, match=re.escape(told)):
        control.up(place, ["ada"])
    assert not place.folder.exists()


def test_a_port_that_is_taken_is_named() -> None:
    """With the address, and what to do."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(LaunchError, match=rf"127\.0\.0\.1:{port} cannot be used.*--port"):
            control.up(Place(Path(f"/tmp/wb-none-{port}"), port, "127.0.0.1"), ["ada"])


def test_a_folder_with_other_things_is_not_taken(tmp_path: Path) -> None:
    """What is in it stays; what an earlier class has collected is no hindrance."""
    (tmp_path / "collected").mkdir()
    (tmp_path / "learners").mkdir()
    with pytest.raises(LaunchError, match="is not empty, and has no class in it"):
        control.up(Place(tmp_path, free_port(), "127.0.0.1"), ["ada"])
    assert sorted(os.listdir(tmp_path)) == ["collected", "learners"]


def test_a_class_whose_learners_could_not_be_made_ready_needs_some(tmp_path: Path) -> None:
    """It is remembered with none of them."""
    Place(tmp_path, free_port(), "127.0.0.1").write()
    with pytest.raises(LaunchError, match="--learners 30, or --names FILE"):
        control.up(Place(tmp_path, free_port(), "127.0.0.1"), [])


def test_what_cannot_be_collected_is_named_and_costs_the_others_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that cannot be written, a link; and a reader that does not end is not waited for."""
    place = Place(tmp_path, learners=["ada", "alan"])
    for name in place.learners:
        (place.home(name) / ".config").mkdir(parents=True)
        (place.home(name) / ".config" / "no-work").write_text("")
        (place.home(name) / "answer.txt").write_text(name)
    (place.home("ada") / "link").symlink_to("/etc/passwd")
    place.write()
    told = control.collect(tmp_path, tmp_path / "handed-in")
    assert told == [
        "ada: 'link' (Too many levels of symbolic links) was left out",
        f"2 files of 2 learners are in {tmp_path / 'handed-in'}.",
    ]
    monkeypatch.setattr(control, "_COLLECT_S", 0.0)
    with pytest.raises(LaunchError, match="alan: its files were not read within 0 s"):
        control.collect(tmp_path, tmp_path / "again")


def test_the_class_is_remembered_for_its_owner_alone(tmp_path: Path) -> None:
    """The password stands in it. A process that has the number of the hub by chance is not taken for it."""
    Place(tmp_path, 8000, "here", PASSWORD, ["ada"], pid=os.getpid(), begun=1.0).write()
    assert (tmp_path / "class.json").stat().st_mode & 0o077 == 0
    found = Place.read(tmp_path)
    assert (found.password, found.address, found.process()) == (PASSWORD, "http://here:8000/", None)
    with pytest.raises(LaunchError, match="has no class in it"):
        control.down(tmp_path / "nowhere")


def test_what_a_class_is_begun_with_are_words_of_the_command() -> None:
    """A folder may be called otherwise."""
    assert all(command.asked(["class", word, "x"]) for word in ("up", "down", "collect", "rehearse"))
    assert not command.asked(["class", "./up"])
    assert command.parser().parse_args(["up", "/srv/monday"]).folder == Path("/srv/monday")


# --- a real class -----------------------------------------------------------------------------------------


FORKS = """
children = []
try:
    while True:
        child = os.fork()
        if not child:
            time.sleep(60)
            os._exit(0)
        children.append(child)
except OSError:
    print("refused:", len(children) < 150)
for child in children:
    os.kill(child, 9)
    os.waitpid(child, 0)
"""


def workbench_class(python: Path, *words: str) -> str:
    """The command, of the Python that learners may run."""
    done = subprocess.run([str(python), "-m", "workbench.cli.main", "class", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def python() -> Iterator[Path]:
    """A Python of their own, for all tests of the class."""
    with learners_python() as made:
        yield made


@pytest.fixture(scope="module")
def running(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A class of two, in a folder that learners can reach."""
    folder = Path(f"/tmp/wb-class-{os.getpid()}")
    names = tmp_path_factory.mktemp("names") / "names"
    names.write_text("Ada\nJürgen Groß\n")  # other classes may run here
    words = ("--names", str(names), "--host", "127.0.0.1", "--port", str(free_port()), "--password", PASSWORD)
    told = workbench_class(python, "up", str(folder), *words, "--memory", "1500", "--disk", "200", "--processes", "150")
    assert "A class for 2 at http://127.0.0.1:" in told
    place = Place.read(folder)
    try:
        yield place
    finally:
        if (folder / "class.json").exists():
            workbench_class(python, "down", str(folder))
        subprocess.run(["rm", "-r", str(folder)], check=False)


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(400)
def test_a_class_of_two_is_kept_apart_and_leaves_nothing(running: Place, python: Path) -> None:
    """Both sign in and have the lessons; one cannot read, end, or fill up the other; ``down`` collects the work."""
    people = [Learner(running.address, name) for name in (*running.learners, "stranger")]
    with contextlib.ExitStack() as stack:
        for each in people:
            stack.enter_context(contextlib.closing(each))
        kept_apart(running, *people)
        hands_over(running, python, people[0])
        goes_on(running, python, people[1])

    told = workbench_class(python, "down", str(running.folder))
    assert "files of 2 learners" in told
    (collected,) = (running.folder / "collected").iterdir()
    assert (collected / running.learners[1] / "mine.txt").read_text() == "42"
    assert os.listdir(running.folder) == ["collected"]
    assert (running.folder / "collected").stat().st_mode & 0o077 == 0
    assert not limits.taken(running.learners)
    assert str(running.folder) not in Path("/proc/mounts").read_text()


def kept_apart(running: Place, ada: Learner, alan: Learner, stranger: Learner) -> None:
    """Who may sign in; what they have; and what the first one cannot do to the second."""
    assert stranger.sign_in(PASSWORD) == ada.sign_in("wrong-password") == 403
    for each in (ada, alan):
        assert each.sign_in(PASSWORD) == 200
        each.lab()
        each.kernel()
    assert ada.run("import os, time; print({'exercises', 'notebooks'} <= {*os.listdir()})") == "True"
    assert ada.run("import workbench; from workbench.course.simulator import simulate") == ""
    assert ada.run("print(simulate(2, lambda comm: comm.allreduce(comm.rank)).results)") == "[1, 1]"
    pid = alan.run("import os; open('mine.txt', 'w').write('42'); print(os.getpid())")

    others = running.home(running.learners[1])
    assert "PermissionError" in ada.run(f"os.listdir({str(others)!r})")
    assert "PermissionError" in ada.run(f"open({str(running.folder / 'class.json')!r})")
    assert "PermissionError" in ada.run(f"os.kill({pid}, 9)")
    assert "OSError" in ada.run("file = open('big', 'wb')\nwhile True: file.write(bytes(1 << 24)); file.flush()")
    ada.run("file = None; os.remove('big')")
    assert ada.run(FORKS) == "refused: True"
    assert ada.run("x = bytearray(3 << 30)") == "the kernel has died"
    assert alan.run("print(6 * 7)") == "42"


def hands_over(running: Place, python: Path, ada: Learner) -> None:
    """What is collected is what was written: no link is followed, no pipe waited for, no hole taken for bytes."""
    ada.kernel()
    ada.run("import os; os.symlink('/etc/shadow', 'marks.txt'); os.mkfifo('pipe'); os.symlink('/etc', 'etc')")
    ada.run("open('Übung 1.txt', 'w').write('done'); file = open('hole', 'w'); file.truncate(1 << 33); file.close()")
    target = running.folder / "handed-in"
    told = workbench_class(python, "collect", str(running.folder), "--into", str(target))
    name = running.learners[0]
    assert f"{name}: 'hole' (8589934592 bytes) was left out" in told
    assert (target / name / "Übung 1.txt").read_text() == "done"
    assert not {"marks.txt", "pipe", "etc", "hole"} & {each.name for each in (target / name).iterdir()}
    ada.run("os.remove('hole')")
    subprocess.run(["rm", "-r", str(target)], check=True)


def goes_on(running: Place, python: Path, alan: Learner) -> None:
    """The hub is killed, and begun again: with the same address and password, and a kernel that knows its variables."""
    hub = Place.read(running.folder).process()
    assert hub is not None
    alan.run("kept = 7")
    alan.socket.close()
    hub.kill()
    psutil.wait_procs([hub])
    told = workbench_class(python, "up", str(running.folder), "--disk", "0", "--password", "is-not-looked-at")
    assert f"A class for 2 at {running.address}" in told
    assert PASSWORD in told
    alan.lab()
    alan.connect()
    assert alan.run("print(kept, open('mine.txt').read())") == "7 42"
