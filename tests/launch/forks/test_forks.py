"""A fork server's forks are like new processes, and wherever one cannot be, a new process is."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from workbench.launch.forks import find
from workbench.launch.forks.find import Forks

pytestmark = [pytest.mark.process, pytest.mark.skipif(not find.possible(), reason="forks are for Linux")]

MODULES = ("decimal", "numpy.random")
ABOUT = """
import json, os, random, signal, sys, numpy
umask, ones = os.umask(0), numpy.ones((300, 300))
if len(sys.argv) > 2:
    os.write(int(sys.argv[2]), b"to the pipe")
print(json.dumps({
    "forked": "WORKBENCH_FORK_OF" in os.environ, "argv": sys.argv[1:], "cwd": os.getcwd(), "path": sys.path[:1],
    "own": os.environ.get("OWN"), "umask": umask, "files": sorted(map(int, os.listdir("/proc/self/fd")))[:-1],
    "random": [random.random(), float(numpy.random.rand())], "leads": os.getsid(0) == os.getpid(),
    "signals": [signal.getsignal(each).__class__.__name__ for each in (2, 3, 15, 17)],
    "environ": "OWN=" + os.environ.get("OWN", "") in open("/proc/self/environ").read().split("\\0"),
    "name": __name__,
    "cores": sorted(os.sched_getaffinity(0)),
    "threads": bool(ones.dot(ones).any()) and len(os.listdir("/proc/self/task")),
}))
sys.exit(7)
"""


class World:
    """A folder of modules, an environment, and a fork server of its own."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="wb-", dir="/tmp"))
        self.env = {name: text for name, text in os.environ.items() if name != "WORKBENCH_FORK"}
        self.env |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "2")
        self.env |= {"XDG_RUNTIME_DIR": str(self.folder), "PYTHONPATH": f"{self.folder}{os.pathsep}{os.getcwd()}"}
        self.module("about", ABOUT)

    def module(self, name: str, text: str) -> None:
        (self.folder / f"{name}.py").write_text(text)

    def forks(self, modules: tuple[str, ...] = MODULES) -> Forks:
        """With a server that listens."""
        until = time.monotonic() + 30
        while not (found := Forks(self.env, modules)).found:
            found.start()
            assert time.monotonic() < until
            time.sleep(0.02)
        return found

    def popen(self, forks: Forks, *words: str, **options: object) -> subprocess.Popen[str]:
        command = forks.command([sys.executable, "-m", *words])
        pipe = subprocess.PIPE
        given = {"env": self.env, "cwd": self.folder, "stdout": pipe, "stderr": pipe, "text": True} | options
        return subprocess.Popen(command, **given)  # type: ignore[call-overload,no-any-return]

    def about(self, forks: Forks, *words: str, **options: object) -> dict[str, object]:
        """What such a process says of itself."""
        import json

        process = self.popen(forks, "about", *words, **options)
        out, err = process.communicate(timeout=30)
        assert process.returncode == 7, err
        return dict(json.loads(out)) | {"err": err}

    def servers(self) -> list[psutil.Process]:
        """The server's processes, and its forks."""
        return [each for each in psutil.process_iter() if _of(each, str(self.folder))]

    def close(self) -> None:
        for each in self.servers():
            with contextlib.suppress(psutil.Error):
                each.kill()
        find.leave()
        shutil.rmtree(self.folder)


def _of(process: psutil.Process, folder: str) -> bool:
    with contextlib.suppress(psutil.Error):
        line = " ".join(process.cmdline())
        return "workbench.launch.forks.server" in line and folder in line
    return False


@pytest.fixture
def world() -> Iterator[World]:
    """One of its own; afterwards no process is left."""
    found = World()
    yield found
    found.close()


def until(done: Callable[[], bool]) -> None:
    """Wait for it."""
    end = time.monotonic() + 30
    while not done():
        assert time.monotonic() < end
        time.sleep(0.02)


def pid_of_server(world: World) -> int:
    """The server's own process: the parent of its forks."""
    found = world.servers()
    return next(each.pid for each in found if each.ppid() not in {other.pid for other in found})


def test_a_fork_is_like_a_new_process(world: World) -> None:
    """But for the session: words, folder, path, variables, mask, files, signals, cores and threads are the same."""
    world.env["OWN"] = "its own"
    forks = world.forks()
    take, give = os.pipe()
    options = {"pass_fds": [give], "stdin": subprocess.DEVNULL, "umask": 0o27}
    fork = world.about(forks, "word", str(give), **options)
    assert os.read(take, 100) == b"to the pipe"
    new = world.about(Forks({"WORKBENCH_FORK": "0"}), "word", str(give), **options)
    assert (fork.pop("forked"), new.pop("forked")) == (True, False)
    assert (fork.pop("leads"), new.pop("leads")) == (True, False)
    assert fork.pop("random") != new.pop("random")
    assert fork == new
    os.close(take)
    os.close(give)


def test_two_forks_draw_different_random_numbers(world: World) -> None:
    """From Python's and from numpy's generator."""
    forks = world.forks()
    first, second = (world.about(forks)["random"] for _ in range(2))
    assert all(one != other for one, other in zip(first, second, strict=True))  # type: ignore[call-overload]


def test_what_cannot_be_forked_is_a_new_process(world: World) -> None:
    """Where a variable that imports read differs, where a file hides a module; and the log says why."""
    forks = world.forks()
    assert world.about(forks)["forked"]
    other = world.about(forks, env=world.env | {"OMP_WAIT_POLICY": "active"})
    assert (other["forked"], "OMP_WAIT_POLICY is 'active', and None" in str(other["err"])) == (False, True)
    world.module("decimal", "")
    hidden = world.about(forks)
    assert (hidden["forked"], "decimal.py hides a module" in str(hidden["err"])) == (False, True)


@pytest.mark.parametrize("changes", ["OMP_SCHEDULE", "PYTHONHASHSEED", "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH"])
def test_another_environment_is_another_server(world: World, changes: str) -> None:
    """What imports read names the server; the number of threads and the rank do not."""
    name = find.path(world.env, MODULES)
    assert find.path(world.env | {changes: "1"}, MODULES) != name
    assert find.path(world.env | {"OMP_NUM_THREADS": "7", "PMI_RANK": "1", "WORKBENCH_CLUSTER": "f00"}, MODULES) == name


def test_an_edited_module_is_a_new_server(world: World) -> None:
    """The server that has the old one is not found any more, and ends with its last user."""
    world.module("edited", "VALUE = 1")
    modules = (*MODULES, "edited")
    world.forks(modules)
    server = pid_of_server(world)
    world.module("edited", "VALUE = 22")
    assert not Forks(world.env, modules).found
    until(lambda: not psutil.pid_exists(server))
    assert world.about(world.forks(modules))["forked"]


def test_a_server_with_a_second_thread_forks_nothing(world: World) -> None:
    """It ends instead, and is not started again for an hour."""
    begins = "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    world.module("threaded", f"import threading, time; {begins}")
    Forks(world.env, ("threaded",)).start()
    until(lambda: bool(world.servers()))
    until(lambda: not world.servers())
    assert not Forks(world.env, ("threaded",)).found
    Forks(world.env, ("threaded",)).start()
    time.sleep(0.3)
    assert not world.servers()


def test_the_server_ends_with_its_last_user_and_leaves_nothing(world: World) -> None:
    """No process and no file."""
    world.forks()
    assert len(world.servers()) == 1
    find.leave()
    until(lambda: not world.servers())
    assert not list(world.folder.glob("workbench-forks-*/*"))


def test_the_server_ends_when_its_user_is_killed(world: World) -> None:
    """A kernel that gets SIGKILL says no goodbye."""
    script = f"""
import os, signal
from workbench.launch.forks.find import Forks
while not (forks := Forks(os.environ, {MODULES!r})).found:
    forks.start()
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", script], env=world.env, timeout=30)
    until(lambda: not world.servers())


def test_a_fork_outlives_the_server_and_its_stand_in_ends_with_it(world: World) -> None:
    """SIGKILL for the server amid the run."""
    world.module("waits", "import sys; print('runs', flush=True); sys.stdin.read(); print('ends', flush=True)")
    with world.popen(world.forks(), "waits", stdin=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdin
        assert process.stdout.readline() == "runs\n"
        os.kill(pid_of_server(world), signal.SIGKILL)
        time.sleep(0.2)
        assert process.poll() is None
        process.stdin.close()
        assert process.stdout.readline() == "ends\n"
        assert process.wait(30) == 1  # its code was the server's to know


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_fork_ends_with_its_stand_in(world: World, number: int) -> None:
    """Whoever kills the process that it has started kills the fork."""
    world.module("waits", "import sys, time; print('runs', flush=True); time.sleep(60)")
    process = world.popen(world.forks(), "waits")
    assert process.stdout
    assert process.stdout.readline() == "runs\n"
    assert len(world.servers()) == 2
    process.send_signal(number)
    until(lambda: len(world.servers()) == 1)
    process.communicate()


def test_a_stand_in_ends_by_the_signal_that_ended_its_fork(world: World) -> None:
    """So a launcher says the same of it as of a new process."""
    world.module("killed", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    process = world.popen(world.forks(), "killed")
    process.communicate(timeout=30)
    assert process.returncode == -9


def test_without_an_answer_a_new_process_is_started(world: World) -> None:
    """A server that is stopped, or was killed after it had been found."""
    forks = world.forks()
    server = pid_of_server(world)
    os.kill(server, signal.SIGSTOP)
    stopped = world.about(forks)
    assert (stopped["forked"], "not forked: timed out" in str(stopped["err"])) == (False, True)
    os.kill(server, signal.SIGKILL)
    until(forks.lost)
    assert not world.about(forks)["forked"]
    assert "has ended" in forks.note()
    assert world.about(world.forks())["forked"]


def test_a_stranger_s_words_do_no_harm(world: World) -> None:
    """What is no request is refused, cut off, or waited for; others are served meanwhile."""
    forks = world.forks()
    visitors = []
    for data in (
        b"",
        b"\x05",
        b"\x05\0\0\0fork\0",
        b"\xff\xff\xff\xff" + b"x" * 99,
        b"\x03\0\0\0abc",
        b"\x01\0\0\0\x80",
    ):
        visitor = socket.socket(socket.AF_UNIX)
        visitor.connect(find.path(world.env, MODULES))
        visitor.sendall(data)
        visitors.append(visitor)
        assert world.about(forks)["forked"]
    for visitor in visitors:
        visitor.close()
    assert world.about(forks)["forked"]


def test_a_folder_that_others_may_enter_is_not_used(world: World) -> None:
    """Nor a link."""
    folder = world.folder / f"workbench-forks-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o755)
    assert not find.path(world.env, MODULES)
    folder.rmdir()
    folder.symlink_to(world.folder)
    assert not find.path(world.env, MODULES)
    assert Forks(world.env).command(["python", "-m", "this"]) == ["python", "-m", "this"]
