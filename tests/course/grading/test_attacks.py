"""What a submission may try: it forges no row, changes no other submission, and leaves no process behind."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from submissions import RIGHT, SETUP, WRONG, graded, living, state, write
from thorough import once_more

from workbench.cli.grade.grade import Grading, How
from workbench.cli.grade.submissions import read
from workbench.course.grading.apart.confine import landlock_abi
from workbench.course.tasks import task

pytestmark = pytest.mark.timeout(300)  # on a busy machine, too

ROW = '{"exercise": "03.ring_allreduce", "state": "passed", "text": "", "seconds": 0.1, "flags": []}'
needs_landlock = pytest.mark.skipif(not landlock_abi(), reason="this kernel has no Landlock")


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
    "no cases at all": "from workbench.course.tasks import task\nt = task('03.ring_allreduce')\n"
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


TOGETHER = "\n".join(text for name, text in FORGERIES.items() if name not in ("builtins", "sys.modules"))


@pytest.mark.parametrize(
    "attack", [TOGETHER, *(once_more(text) for text in FORGERIES.values())], ids=["together", *FORGERIES]
)
def test_a_wrong_answer_does_not_pass(attack: str, tmp_path: Path) -> None:
    """Whatever a cell replaces or writes, a wrong ring has no points, and the points are the task's."""
    sheet = graded(tmp_path / "kim.ipynb", WRONG, attack)
    assert state(sheet) == "✗", sheet
    assert (sheet.exercises["03.ring_allreduce"].points, sheet.exercises["03.ring_allreduce"].of) == (0, 3)
    assert list(sheet.exercises) == ["03.ring_allreduce"]
    assert isinstance(sheet.exercises["03.ring_allreduce"].seconds, float)


def test_frames_of_the_judge_s_protocol_do_not_help(tmp_path: Path) -> None:
    """A cell that says it has handed in another function, or that answers before it is asked, has still to be right."""
    attack = (
        "import struct\n"
        "def frame(text): return struct.pack('!II', len(text), 0) + text.encode()\n"
        'ready = \'{"lane": 0, "op": "ready", "f": {"functions": {"t": "dict", "v": []}}}\'\n'
        'answer = \'{"lane": 1, "op": "return", "f": {"value": true}}\'\n'
        'odd = \'{"lane": 0, "op": "at", "f": {"cell": 999, "statement": "x"}}\'\n'
        "for fd in range(3, 60):\n"
        "    for text in (odd, answer, answer, answer, ready):\n"
        "        try: os.write(fd, frame(text))\n"
        "        except OSError: pass"
    )
    assert state(graded(tmp_path / "kim.ipynb", WRONG, attack)) in "✗–"


def test_the_reference_found_in_memory_is_flagged_or_fails(tmp_path: Path) -> None:
    """The package's own solution gives no points as it is, and a door to it is told."""
    search = (
        "found = [one for one in gc.get_objects() if type(one).__name__ == 'CommTask' "
        "and one.name == '03.ring_allreduce']\nexercise('03.ring_allreduce')(found[0].reference)"
    )
    sheet = graded(tmp_path / "kim.ipynb", search, "check('03.ring_allreduce')")
    assert state(sheet) == "✗"
    wrapped = "@exercise('03.ring_allreduce')\ndef f(comm, x): return found[0].reference(comm, x)"
    sheet = graded(tmp_path / "lee.ipynb", search.splitlines()[0], wrapped)
    assert state(sheet) == "✓", "it is the right function"
    assert any("reference" in flag or "gc" in flag for flag in sheet.exercises["03.ring_allreduce"].flags)


def test_a_sum_that_was_known_before_does_not_pass(tmp_path: Path) -> None:
    """The inputs of the cases can be found out beforehand; those of the last calls are made when it is graded."""
    shared = "@exercise('03.ring_allreduce')\ndef f(comm, x):\n    return KNOWN[comm.size, len(x)]"
    known = (
        "KNOWN = {}\nfor n in (1, 2, 3, 4, 7):\n    for length in {0, 1, n - 1, 1000, 100_000}:\n"
        "        random = np.random.default_rng([n, length])\n"
        "        KNOWN[n, length] = sum(random.normal(size=length) for _ in range(n))"
    )
    sheet = graded(tmp_path / "kim.ipynb", known, shared)
    assert state(sheet) == "✗", "it knows the inputs"
    assert sheet.exercises["03.ring_allreduce"].text.startswith(
        "once more: it is right with the exercise's own numbers"
    )


# --- the others ---------------------------------------------------------------------------------------


@needs_landlock
def test_no_other_file_is_written_or_read(tmp_path: Path) -> None:
    """Beside its own folder a submission writes nothing, and another's notebook it cannot read."""
    other = tmp_path / "lee.ipynb"
    write(other, SETUP, WRONG)
    before = other.read_bytes()
    attack = (
        "open('own.txt', 'w').write('mine')\n"
        f"for path in ('../x', '../../x', {str(other)!r}, '/tmp/x-of-a-submission', os.path.expanduser('~/../x')):\n"
        "    try: open(path, 'a').write('x')\n"
        "    except OSError: continue\n"
        "    raise SystemExit('wrote ' + path)\n"
        f"try: open({str(other)!r}).read()\n"
        "except OSError: pass\n"
        "else: raise SystemExit('read it')\n"
        f"try: os.unlink({str(other)!r})\n"
        "except OSError: pass\n"
        "else: raise SystemExit('deleted it')"
    )
    sheet = graded(tmp_path / "kim.ipynb", attack, RIGHT)
    assert (sheet.notes, state(sheet)) == ({}, "✓")
    assert other.read_bytes() == before
    assert not Path("/tmp/x-of-a-submission").exists()


def test_all_are_read_before_the_first_runs(tmp_path: Path) -> None:
    """What a submission does to another's file does not change the other's mark."""
    lee = write(tmp_path / "lee.ipynb", SETUP, RIGHT)
    submissions = [read(write(tmp_path / "kim.ipynb", SETUP, WRONG)), read(lee)]
    Path(lee).write_text("gone")
    assert [state(Grading(one, How(60.0)).run()) for one in submissions] == ["✗", "✓"]


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


def test_each_attack_costs_its_cell_alone(tmp_path: Path, new_children: Callable[[], list[psutil.Process]]) -> None:
    """A notebook of attacks, with a right answer at its end.

    1. Daemons in sessions of their own, with nothing in their environment, end with the sheet.
    2. Whoever runs `workbench grade` cannot be signalled, not even by root's notebook.
    3. 10 GB and an endless file are errors of their cells; names of 2,000 parts are not read.
    4. A cell that kills its parent costs itself.
    """
    cells = {
        "orphans": ORPHAN,
        "sleeps": "time.sleep(0.3)",
        "signal": f"os.kill({os.getpid()}, 18)",  # SIGCONT: harmless if it comes
        "memory": "x = bytearray(10 << 30)",
        "file": "f = open('f', 'wb')\nfor i in range(40): f.write(bytes(1 << 20))",
        "nested": f"def g(): a{'.b' * 2000}",
        "parent": "os.kill(os.getppid(), 9)",
    }
    sheet = graded(tmp_path / "kim.ipynb", *cells.values(), RIGHT, memory=4 << 30, file=16 << 20)
    assert state(sheet) == "✓", sheet
    notes = {name: sheet.notes[number] for number, name in enumerate(cells, 2) if number in sheet.notes}
    assert set(notes) - {"nested"} == {"signal", "memory", "file", "parent"} - (
        {"signal"} if landlock_abi() < 6 else set()
    )
    assert notes.get("signal", "PermissionError").startswith("PermissionError")
    assert notes["memory"].startswith("MemoryError")
    assert "File too large" in notes["file"]
    assert living("876543") == []
    assert new_children() == []


@pytest.mark.thorough
def test_nothing_outside_is_killed(tmp_path: Path, new_children: Callable[[], list[psutil.Process]]) -> None:
    """A cell that kills its group costs itself; the answer after it is judged."""
    sheet = graded(tmp_path / "kim.ipynb", "os.killpg(0, 9)", RIGHT)
    assert state(sheet) == "✓", sheet
    assert list(sheet.notes) == [2]
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


def test_a_fork_bomb_is_bounded(tmp_path: Path, new_children: Callable[[], list[psutil.Process]]) -> None:
    """More processes than allowed end the statement, and nothing of it is left."""
    bomb = "for i in range(7):\n    os.fork()\ntime.sleep(5)"  # 128 at most, should the bound fail
    sheet = graded(tmp_path / "kim.ipynb", bomb, RIGHT, processes=40)
    assert state(sheet) == "✓", sheet
    assert "more than 40 processes" in sheet.notes[2] or "Resource temporarily unavailable" in sheet.notes[2]
    assert new_children() == []


WAYS_OUT = {
    "02.shift_right": ("os._exit(0)", "ended the whole process"),
    "02.tree_broadcast": ("raise SystemExit('passed')", "SystemExit"),
    "03.reduce_scatter": ("os.kill(os.getpid(), 9)", "ended the whole process"),
    "03.ring_allreduce": ("return np.zeros(40_000_000)", "larger than"),
    "04.average_gradients": ("return [[[]]] * 3_000_000", "more than"),
    "04.sgd_step": ("return comm.__class__", "expected an array"),
    "05.weighted_mean": ("return comm._world", "AttributeError"),
    "06.overlap": ("comm.post_send(np.ones(3), 0, 0, 'send')", "AttributeError"),
}


@pytest.mark.slow
def test_a_function_s_ways_out_fail(tmp_path: Path) -> None:
    """A function that ends the process, answers with too much or reaches behind ``comm`` fails, and says why."""
    cells = [f'@exercise("{name}")\ndef f(comm, *x):\n    {body}' for name, (body, _) in WAYS_OUT.items()]
    cells.append(task("07.plan_buckets").cell(solved=True))
    sheet = graded(tmp_path / "kim.ipynb", *cells, step_s=30.0)
    assert state(sheet, "07.plan_buckets") == "✓"
    for name, (_, words) in WAYS_OUT.items():
        assert state(sheet, name) == "✗"
        assert words in sheet.exercises[name].text, name


def test_zero_stages_are_a_failure() -> None:
    """Where the judge has looked at nothing, nothing has passed."""
    from workbench.course.grading.sheet import first_red

    assert first_red(iter(()))[0] == "failed"
