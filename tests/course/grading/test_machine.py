"""``workbench grade`` as a whole: what lies beside a notebook, a kernel that confines less, odd files."""

from __future__ import annotations

import csv
import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from submissions import NAME, REFUSED, RIGHT, SETUP, write

pytestmark = pytest.mark.timeout(300)  # on a busy machine, too


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
    assert f"✓ {NAME}" in done.stdout, done
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
    assert [line["state"] for line in lines] == ["passed", "not in it", "not in it"]
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
