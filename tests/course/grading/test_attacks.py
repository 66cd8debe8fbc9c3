"""What a submission may try: it forges no row, changes no other submission, and leaves no process behind."""

from __future__ import annotations

import os
import socket
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from submissions import NAME, REFUSED, RIGHT, SETUP, WRONG, graded, living, state, write
from thorough import once_more

from workbench.cli.grade.submissions import read_all
from workbench.course.grading.apart.confine import landlock_abi
from workbench.course.tasks import task

pytestmark = pytest.mark.timeout(300)  # on a busy machine, too

ROW = f'{{"exercise": "{NAME}", "state": "passed", "text": "", "seconds": 0.1, "flags": []}}'


# --- forging a row ------------------------------------------------------------------------------------

EVERYWHERE = f"""
for fd in range(200):
    for text in ({ROW!r} + "\\n", '{{"seconds": "x"}}\\n', '{{"end": true}}\\n', "[" * 200_000):
        try: os.write(fd, text.encode())
        except OSError: pass
"""
FORGERIES = {
    "rows to every open descriptor": EVERYWHERE,
    "the judge's function": "from workbench.course.judging import judge\n"
    "judge.judge = lambda *args: iter([judge.Stage('right', True)])",
    "allclose, isclose, array_equal": "np.allclose = np.isclose = np.array_equal = lambda *a, **k: np.True_\n"
    "np.flatnonzero = lambda *a: np.array([])",
    "no cases at all": "from workbench.course.tasks import task\nt = task('08.break_even')\n"
    "object.__setattr__(t, 'cases', lambda: [])\nobject.__setattr__(t, 'points', 1000)",
    "builtins": "import builtins\nbuiltins.zip = lambda *a, **k: iter(())\nbuiltins.len = lambda x: 0",
    "sys.modules": "import types\n"
    "fake = types.ModuleType('judge'); fake.judge = lambda *a: iter(())\n"
    "sys.modules['workbench.course.judging.judge'] = sys.modules['numpy'] = fake",
    "the rows through /proc": f"row = {(ROW + chr(10))!r}.encode()\n"
    "for pid in filter(str.isdigit, os.listdir('/proc')):\n    for fd in range(12):\n"
    "        try: os.write(os.open(f'/proc/{pid}/fd/{fd}', os.O_WRONLY | os.O_NONBLOCK), row)\n"
    "        except OSError: pass",
}


FRAMES = """
import struct
def frame(text): return struct.pack('!II', len(text), 0) + text.encode()
ready = '{"lane": 0, "op": "ready", "f": {"functions": {"t": "dict", "v": []}}}'
answer = '{"lane": 1, "op": "return", "f": {"value": true}}'
odd = '{"lane": 0, "op": "at", "f": {"cell": 999, "statement": "x"}}'
for fd in range(3, 60):
    for text in (odd, answer, answer, answer, ready):
        try: os.write(fd, frame(text))
        except OSError: pass
"""
ALONE = ("builtins", "sys.modules")  # nothing goes on after these
TOGETHER = [text for name, text in FORGERIES.items() if name not in ALONE]


@pytest.mark.parametrize("attacks", [TOGETHER, [FRAMES], *(once_more([FORGERIES[name]]) for name in ALONE)])
def test_a_wrong_answer_does_not_pass(attacks: list[str], tmp_path: Path) -> None:
    """Whatever a cell replaces or writes, a wrong answer has no points, and the points are the task's.

    So it is with rows of a sheet, and with frames of the judge's protocol: a function that was not handed in, an answer
    before it is asked.
    """
    sheet = graded(tmp_path / "kim.ipynb", WRONG, *attacks)
    assert state(sheet) in ("✗" if attacks == TOGETHER else "✗–"), sheet
    assert (sheet.exercises[NAME].points, sheet.exercises[NAME].of) == (0, task(NAME).points)
    assert list(sheet.exercises) == [NAME]
    assert isinstance(sheet.exercises[NAME].seconds, float)


def test_what_was_known_before_gives_no_points(tmp_path: Path) -> None:
    """The package's solution, as it is, or behind a door, which is told; nor sums of the inputs of the cases.

    These can be found out beforehand; those of the last calls are made when it is graded.
    """
    cells = [
        "found = {one.name: one for one in gc.get_objects() if type(one).__name__ == 'PlainTask'}",
        f"exercise('{NAME}')(found['{NAME}'].reference)",
        "@exercise('08.ring_time')\ndef f(*numbers): return found['08.ring_time'].reference(*numbers)",
        "KNOWN = {}\nfor n in (1, 2, 3, 4, 7):\n    for length in {0, 1, n - 1, 1000, 100_000}:\n"
        "        random = np.random.default_rng([n, length])\n"
        "        KNOWN[n, length] = sum(random.normal(size=length) for _ in range(n))",
        "@exercise('03.ring_allreduce')\ndef f(comm, x):\n    return KNOWN[comm.size, len(x)]",
    ]
    sheet = graded(tmp_path / "kim.ipynb", *cells, f"check('{NAME}')")
    assert state(sheet) == "✗"
    assert state(sheet, "08.ring_time") == "✓", "it is the right function"
    assert any("reference" in flag or "gc" in flag for flag in sheet.exercises["08.ring_time"].flags)
    assert state(sheet, "03.ring_allreduce") == "✗", "it knows the inputs"
    said = sheet.exercises["03.ring_allreduce"].text
    assert said.startswith("once more: it is right with the exercise's own numbers")


# --- the others ---------------------------------------------------------------------------------------


def test_all_are_read_before_the_first_runs(tmp_path: Path) -> None:
    """What a submission does to another's file does not change what the other is marked for."""
    paths = [write(tmp_path / f"{name}.ipynb", SETUP, answer) for name, answer in (("kim", WRONG), ("lee", RIGHT))]
    submissions = read_all(paths)
    Path(paths[1]).write_text("gone")
    assert [one.cells for one in submissions] == [(SETUP, WRONG), (SETUP, RIGHT)]


LEFT = """
refused("shmget", (29, 194), 0x4242, 4096, 0o1666)
refused("msgget", (68, 186), 0x4242, 0o1666)
refused("semget", (64, 190), 0x4242, 1, 0o1666)
refused("mq_open", (240, 180), b"left", 0o102, 0o666, None)
refused("add_key", (248, 217), b"user", b"left", b"data", 4, -4)
refused("memfd_create", (319, 279), b"hidden", 0, error=errno.ENOSYS)
raises(open, "/dev/shm/left", "w")
raises(open, "/tmp/left-by-a-submission", "w")
raises(open, "/var/tmp/left-by-a-submission", "w")
"""
OTHERS = """
for who in GRADERS:
    raises(os.kill, who, signal.SIGSTOP)
    raises(resource.prlimit, who, resource.RLIMIT_CPU, (1, 1))
    raises(os.sched_setaffinity, who, {0})
    raises(os.setpriority, os.PRIO_PROCESS, who, 19)
    raises(open, f"/proc/{who}/environ")
    raises(open, f"/proc/{who}/mem", "rb")
    raises(os.listdir, f"/proc/{who}/root/")
    refused("ptrace", (101, 117), 16, who, 0, 0)
refused("unshare", (272, 97), 0x10000000)
refused("mount", (165, 40), b"none", b"/mnt", b"tmpfs", 0, None)
refused("io_uring_setup", (425, 425), 4, ctypes.create_string_buffer(120), error=errno.ENOSYS)
raises(open, "/dev/tty")
raises(open, "/dev/pts/0")
raises(socket.socket, socket.AF_INET, socket.SOCK_DGRAM)
raises(socket.socket, socket.AF_INET)
raises(socket.sethostname, "x")
"""


# --- ending the run, or staying -----------------------------------------------------------------------

ORPHAN = """
import subprocess
for _ in range(2):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execve('/bin/sleep', ['sleep', '876543'], {})
        os._exit(0)
"""


FOR_THE_NEXT = """
import atexit, site
text = "import os; os.write(2, b'imported'); os._exit(3)"
for folder in (".", site.getusersitepackages(), "workbench"):
    os.makedirs(folder, exist_ok=True)
    for name in ("sitecustomize", "usercustomize", "numpy", "json", "__init__"):
        open(f"{folder}/{name}.py", "w").write(text)
    open(f"{folder}/a.pth", "w").write(text)
atexit.register(lambda: open(MARK, "w"))
os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.skipif(landlock_abi() < 6, reason="this kernel has no Landlock that bounds signals")
def test_each_attack_costs_its_cell_alone(tmp_path: Path, new_children: Callable[[], list[psutil.Process]]) -> None:
    """A notebook of attacks, with a right answer at its end.

    1. Beside its own folder a submission writes nothing, and another's notebook it neither reads nor changes.
    2. No shared memory, queue, key or file is left; no process of the grader is touched, not even by root's notebook,
       and no service of its user is asked.
    3. Daemons in sessions of their own, with nothing in their environment, end with the sheet.
    4. 10 GB and an endless file are errors of their cells; names of 2,000 parts are not read; a fork bomb is bounded.
    5. A cell that kills its parent costs itself; so does one that ends the process, with modules for the next one.
    """
    other, service, mark = tmp_path / "lee.ipynb", tmp_path / "service", tmp_path / "mark"
    write(other, SETUP, WRONG)
    before, mode = other.read_bytes(), stat.S_IMODE(other.stat().st_mode)
    files = (
        "open('own.txt', 'w').write('mine')\n"
        f"for path in ('../x', '../../x', {str(other)!r}, '/tmp/x-of-a-submission', os.path.expanduser('~/../x')):\n"
        "    raises(open, path, 'a')\n"
        f"raises(open, {str(other)!r})\nraises(os.unlink, {str(other)!r})\n"
        f"os.chmod({str(other)!r}, 0)\nos.utime({str(other)!r}, (0, 0))"  # as if it had worked
    )
    cells = {
        "refused": REFUSED,
        "files": files,
        "left": LEFT,
        "who": f"GRADERS = [{os.getpid()}, os.getppid()]",
        "others": OTHERS,
        "service": f"raises(socket.socket(socket.AF_UNIX).connect, {str(service)!r})",
        "orphans": ORPHAN,
        "sleeps": "time.sleep(0.3)",
        "memory": "x = bytearray(10 << 30)",
        "file": "f = open('f', 'wb')\nfor i in range(40): f.write(bytes(1 << 20))",
        "nested": f"def g(): a{'.b' * 2000}",
        "parent": "os.kill(os.getppid(), 9)",
        "modules": f"MARK = {str(mark)!r}{FOR_THE_NEXT}",
        "bomb": "for i in range(7):\n    os.fork()\ntime.sleep(5)",  # 128 at most, should the bound fail
    }
    with socket.socket(socket.AF_UNIX) as listening:  # as that of the user's systemd, of D-Bus, of Docker
        listening.bind(str(service))
        listening.listen()
        limits = {"memory": 4 << 30, "file": 16 << 20, "processes": 40}
        sheet = graded(tmp_path / "kim.ipynb", *cells.values(), RIGHT, **limits)
    assert (state(sheet), sheet.problem, sheet.unbounded) == ("✓", "", ""), sheet
    notes = {name: sheet.notes[number] for number, name in enumerate(cells, 2) if number in sheet.notes}
    assert set(notes) - {"nested"} == {"memory", "file", "parent", "modules", "bomb"}, notes
    assert notes["memory"].startswith("MemoryError")
    assert "File too large" in notes["file"]
    assert "more than 40 processes" in notes["bomb"] or "Resource temporarily unavailable" in notes["bomb"]
    assert (other.read_bytes(), stat.S_IMODE(other.stat().st_mode)) == (before, mode)
    assert other.stat().st_mtime > 0
    assert not mark.exists()
    assert not Path("/tmp/x-of-a-submission").exists()
    assert living("876543") == []
    assert new_children() == []


def _asleep(judge: psutil.Process) -> bool:
    """Is it at the cell that sleeps?"""
    return any(one.name() == "sleep" for one in judge.children(recursive=True))


def test_a_judge_that_is_killed_costs_one_statement(tmp_path: Path) -> None:
    """Where a kernel lets a notebook kill its judge, the next judge goes on without that statement."""
    own = psutil.Process()

    def kill() -> None:
        until = time.monotonic() + 40
        while time.monotonic() < until and not (tmp_path / "killed").exists():
            for one in own.children(recursive=True):
                with suppress(psutil.Error):
                    if one.cmdline()[1:] == ["-m", "workbench.course.grading"] and _asleep(one):
                        one.kill()
                        (tmp_path / "killed").touch()
                        return
            time.sleep(0.05)

    killer = threading.Thread(target=kill)
    killer.start()
    sheet = graded(tmp_path / "kim.ipynb", "import subprocess\nsubprocess.run(['sleep', '8'])", RIGHT)
    killer.join()
    assert (tmp_path / "killed").exists()
    assert state(sheet) == "✓", sheet
    assert sheet.notes == {2: "ended the process that grades it"}


WAYS_OUT = {
    "02.shift_right": ("os._exit(0)", "ended the whole process"),
    "02.tree_broadcast": ("raise SystemExit('passed')", "SystemExit"),
    "03.ring_allreduce": ("return np.zeros(40_000_000)", "larger than"),
    "04.average_gradients": ("return [[[]]] * 3_000_000", "more than"),
    "04.sgd_step": ("return comm.__class__", "expected an array"),
    "05.weighted_mean": ("return comm._world", "AttributeError"),
    "06.overlap": ("comm.post_send(np.ones(3), 0, 0, 'send')", "AttributeError"),
    "08.ring_time": ("time.sleep(1000)", "runs: did not end within 15 s"),  # in C
}


@pytest.mark.slow
def test_a_function_s_ways_out_fail(tmp_path: Path) -> None:
    """A function that ends the process, never ends, answers with too much or reaches behind ``comm`` fails."""
    cells = [f'@exercise("{name}")\ndef f(comm, *x):\n    {body}' for name, (body, _) in WAYS_OUT.items()]
    cells.append(task("07.plan_buckets").cell(solved=True))
    sheet = graded(tmp_path / "kim.ipynb", *cells, step_s=15.0)
    assert state(sheet, "07.plan_buckets") == "✓"
    for name, (_, words) in WAYS_OUT.items():
        assert state(sheet, name) == "✗"
        assert words in sheet.exercises[name].text, name


def test_zero_stages_are_a_failure() -> None:
    """Where the judge has looked at nothing, nothing has passed."""
    from workbench.course.grading.sheet import first_red

    assert first_red(iter(()))[0] == "failed"
