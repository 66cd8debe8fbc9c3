"""What a submission may do to the machine: leave something for the next one, reach other processes, fill the disk."""

from __future__ import annotations

import csv
import errno
import os
import shutil
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from submissions import RIGHT, SETUP, graded, state, write

from workbench.course.grading.apart.confine import landlock_abi

pytestmark = pytest.mark.timeout(300)  # on a busy machine, too

needs_landlock = pytest.mark.skipif(landlock_abi() < 6, reason="this kernel has no Landlock that bounds signals")
REFUSED = """
import ctypes, errno, platform, resource, signal, socket
libc, column = ctypes.CDLL(None, use_errno=True), ["x86_64", "aarch64"].index(platform.machine())
def refused(name, numbers, *args, error=errno.EPERM):
    if numbers[column] is None: return
    got = libc.syscall(numbers[column], *args)
    assert (got, ctypes.get_errno()) == (-1, error), (name, got, ctypes.get_errno())
def raises(function, *args):
    try: function(*args)
    except OSError: return
    raise SystemExit(f"{function} {args}")
"""
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


@needs_landlock
def test_nothing_reaches_other_processes_or_stays_for_the_next(tmp_path: Path) -> None:
    """No shared memory, queue, key or file is left, no process of the grader touched, no service of its user asked."""
    other, service = tmp_path / "lee.ipynb", tmp_path / "service"
    write(other, SETUP)
    mode = stat.S_IMODE(other.stat().st_mode)
    with socket.socket(socket.AF_UNIX) as listening:  # as that of the user's systemd, of D-Bus, of Docker
        listening.bind(str(service))
        listening.listen()
        ask = f"raises(socket.socket(socket.AF_UNIX).connect, {str(service)!r})"
        change = f"os.chmod({str(other)!r}, 0)\nos.utime({str(other)!r}, (0, 0))"  # as if it had worked
        who = f"GRADERS = [{os.getpid()}, os.getppid()]"
        sheet = graded(tmp_path / "kim.ipynb", REFUSED, LEFT, who, OTHERS, ask, change, RIGHT)
    assert (sheet.notes, sheet.unbounded, state(sheet)) == ({}, "", "✓")
    assert stat.S_IMODE(other.stat().st_mode) == mode
    assert other.stat().st_mtime > 0


def test_what_goes_on_for_ever_is_ended(tmp_path: Path) -> None:
    """Files that are each below the limit of a file, and together above that of the disk; and SIGSTOP."""
    fill = "import time\nfor i in range(400):\n    open(f'f{i}', 'wb').write(bytes(1 << 20))\n    time.sleep(0.02)"
    sheet = graded(tmp_path / "kim.ipynb", fill, "os.kill(os.getpid(), 19)", RIGHT, disk=32 << 20, step_s=6.0)
    assert sheet.notes == {2: "wrote more than 32 MiB", 3: "did not end within 6 s"}
    assert state(sheet) == "✓"


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


def test_a_process_leaves_no_module_for_the_next_one(tmp_path: Path) -> None:
    """A cell that writes modules into its folder and its home, and ends the process, changes nothing."""
    mark = f"MARK = {str(tmp_path / 'mark')!r}"
    sheet = graded(tmp_path / "kim.ipynb", mark, FOR_THE_NEXT, RIGHT)
    assert list(sheet.notes) == [3], sheet.notes
    assert (sheet.problem, state(sheet)) == ("", "✓")
    assert not (tmp_path / "mark").exists()


# --- the command, as a whole --------------------------------------------------------------------------


def run(folder: Path, *words: str, first: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """``workbench grade`` in a folder; ``first`` is Python that runs before it, in the same process."""
    program = f"{first}\nimport sys\nfrom workbench.cli.main import main\nsys.exit(main(sys.argv[1:]))"
    words = (sys.executable, "-P" if sys.version_info >= (3, 11) else "-I", "-c", program, "grade", "--as-root", *words)
    given: dict[str, Any] = {"cwd": folder, "env": os.environ | env, "timeout": 250}
    return subprocess.run(words, capture_output=True, text=True, check=False, **given)


def table(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_what_lies_beside_a_notebook_is_not_run(tmp_path: Path) -> None:
    """Modules, a package of our name, start-up files of Python and IPython: nothing of it is imported by anybody."""
    mark = tmp_path / "ran"
    text = f"open({str(mark)!r}, 'w')\nraise SystemExit('from the submission')"
    for name in ("workbench/__init__.py", "sitecustomize.py", "numpy.py", "json.py", "startup.py", "conftest.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    startup = tmp_path / ".ipython" / "profile_default" / "startup" / "0.py"
    startup.parent.mkdir(parents=True)
    startup.write_text(text)
    write(tmp_path / "kim.ipynb", SETUP, RIGHT)
    here = str(tmp_path)
    done = run(tmp_path, ".", PYTHONSTARTUP=f"{here}/startup.py", HOME=here, IPYTHONDIR=f"{here}/.ipython")
    assert "✓ 03.ring_allreduce" in done.stdout, done
    assert done.returncode == 0
    assert not mark.exists()


NO_LANDLOCK = f"""
from workbench.course.grading.apart.filter import refuse
assert refuse({{"landlock_create_ruleset": {errno.ENOSYS}}})
"""
STILL = """
raises(os.kill, os.getppid(), signal.SIGSTOP)
raises(os.kill, -1, 0)
raises(resource.prlimit, os.getppid(), resource.RLIMIT_CPU, (1, 1))
raises(socket.socket, socket.AF_INET)
refused("ptrace", (101, 117), 16, os.getppid(), 0, 0)
open(OUTSIDE, "w")  # this it can do now
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="seccomp is Linux's")
def test_a_kernel_without_landlock_is_said(tmp_path: Path) -> None:
    """Signals, tracing and the network stay bounded; files do not, and the table and each line of the CSV say so."""
    outside = tmp_path / "outside"
    where = f"OUTSIDE = {str(outside)!r}"
    kim = write(tmp_path / "kim.ipynb", SETUP, REFUSED, where, STILL, RIGHT)
    done = run(tmp_path, kim, "--csv", "marks.csv", first=NO_LANDLOCK)
    assert "code cell" not in done.stdout, done.stdout
    assert "not confined: files (this kernel has no Landlock)" in done.stdout
    assert "Not confined: files" in done.stderr
    lines = table(tmp_path / "marks.csv")
    assert [line["state"] for line in lines] == ["passed", "not in it"]
    assert all(line["confined"].startswith("no: files") for line in lines)
    assert outside.exists()


@pytest.mark.skipif(shutil.which("mkfifo") is None, reason="no named pipes")
def test_odd_files_and_names(tmp_path: Path) -> None:
    """Pipes, devices and links are not graded; names that lie are shown as they are; two of one name are two."""
    for name in ("kim/03.ipynb", "lee/03.ipynb"):
        (tmp_path / name).parent.mkdir()
        write(tmp_path / name, "x = 1")
    os.mkfifo(tmp_path / "pipe.ipynb")
    (tmp_path / "link.ipynb").symlink_to("lee/03.ipynb")
    (tmp_path / "device.ipynb").symlink_to("/dev/zero")
    (tmp_path / "twin").mkdir()
    os.link(tmp_path / "kim" / "03.ipynb", tmp_path / "twin" / "03.ipynb")
    liar = "x\n  ✓ 03.ring_allreduce  3 of 3\u202e.ipynb"
    (tmp_path / liar).write_text("{}")
    (tmp_path / "=1+1.ipynb").write_text("{}")
    os.close(os.open(os.fsencode(tmp_path) + b"/\xff.ipynb", os.O_CREAT | os.O_WRONLY))
    names = sorted(one.name for one in tmp_path.glob("*.ipynb"))
    done = run(tmp_path, *names, "kim", "lee", "twin", "--csv", "marks.csv", "--junit", "marks.xml")
    assert "Traceback" not in done.stderr, done.stderr
    lines = {line["file"]: line["remark"] for line in table(tmp_path / "marks.csv")}
    assert lines["lee/03.ipynb"].startswith("no exercise is in it")
    assert lines["kim/03.ipynb"] == "it is one file with twin/03.ipynb: whose is it?"
    assert lines["twin/03.ipynb"] == "it is one file with kim/03.ipynb: whose is it?"
    assert lines["link.ipynb"].startswith("it is a link")
    assert lines["device.ipynb"].startswith("it is a link")
    assert lines["pipe.ipynb"] == "it is not a file"
    assert "x\\n  ✓ 03.ring_allreduce  3 of 3\\u202e.ipynb" in lines
    assert "'=1+1.ipynb" in lines
    assert "\\udcff.ipynb" in lines
    assert "\n  ✓ 03.ring_allreduce" not in done.stdout
    assert len(lines) == len(names) + 3


def test_a_huge_output_is_said(tmp_path: Path) -> None:
    """Outputs are not read; what is larger than 32 MiB is not either, nor more than 4 MiB of code."""
    from workbench.cli.grade.submissions import code_cells

    output = b'{"cells": [{"cell_type": "code", "source": "x", "outputs": ["%s"]}]}'
    assert code_cells(output % bytes(b"y" * (31 << 20))) == ["x"]
    with pytest.raises(ValueError, match="larger than 32 MiB: clear its outputs"):
        code_cells(output % bytes(b"y" * (33 << 20)))
    with pytest.raises(ValueError, match="more than 4 MiB of code"):
        code_cells(b'{"cells": [{"cell_type": "code", "source": "%s"}]}' % bytes(b"y" * (5 << 20)))
