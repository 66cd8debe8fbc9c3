"""What runs a page's cells, here in CPython: output, values, errors; and what a site gets to run them with."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from workbench.course.browser import files
from workbench.course.browser.session import MOST, Session
from workbench.course.exercise import BOARD
from workbench.course.site import __main__ as site

pytestmark = pytest.mark.course

# As in a browser: none of what needs processes, other machines, or a compiler.
BARE = """
import sys, time
ABSENT = {"psutil", "cloudpickle", "mpi4py", "ipyparallel", "IPython", "torch", "zmq", "matplotlib", "anywidget",
          "fcntl", "resource", "ssl", "termios", "_multiprocessing", "_posixshmem"}
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Finder())
import numpy
begun = time.process_time()
import workbench.course.exercise, workbench.course.simulator, workbench.course.predictions, workbench.simulate.steps
import workbench.course.provenance.explain, workbench.course.browser.session
from workbench.course.exercise import check
print(time.process_time() - begun)
from workbench.course.tasks import names, task
for name in names():
    task(name)
"""


@pytest.fixture
def cells() -> tuple[Session, list[tuple[str, str]]]:
    """A session, and what it has sent."""
    sent: list[tuple[str, str]] = []
    return Session(lambda *message: sent.append(message)), sent


def test_exercises_import_with_numpy_alone(tmp_path: Path) -> None:
    """All of them, with what judges and draws them, and without what a browser lacks."""
    child = subprocess.run([sys.executable, "-c", BARE], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert child.returncode == 0, child.stderr[-3000:]


def test_names_stay_from_cell_to_cell(cells: tuple[Session, list[tuple[str, str]]]) -> None:
    """The last value is shown, unless it is None or the cell ends with a semicolon."""
    session, sent = cells
    assert all(session.run(text) for text in ("x = 20", "x + 1", "x;", "None", "print(x)\nx * 2"))
    assert sent == [("text", "21\n"), ("text", "20\n"), ("text", "40\n")]


def test_a_figure_is_shown_as_a_picture(cells: tuple[Session, list[tuple[str, str]]]) -> None:
    """With the seconds that its player takes; text that was printed before stands before it."""
    session, sent = cells
    assert session.run("from workbench.course import drawing\nprint('now')\ndrawing.ring_chunks(3)"), sent
    assert [kind for kind, _ in sent] == ["text", "html"]
    assert "<svg" in sent[1][1]


def test_errors_name_lines_of_cells(cells: tuple[Session, list[tuple[str, str]]]) -> None:
    """Also those of cells before, whose functions were called; and a SyntaxError, whose exercise is not judged."""
    session, sent = cells
    assert not session.run("def f(x):\n    return 1 / x\nf(0)")
    assert sent[-1] == (
        "error",
        "cell 1, line 3: f(0)\ncell 1, line 2: return 1 / x\nZeroDivisionError: division by zero",
    )
    assert not session.run("raise SystemExit(3)")
    assert sent[-1][1].endswith("SystemExit: 3")
    assert not session.run('@exercise("02.tree_broadcast")\ndef f(comm):\n    return (')
    assert sent[-1] == ("error", "line 3:     return (\nSyntaxError: '(' was never closed")
    assert "02.tree_broadcast" in BOARD.unread
    BOARD.unread.clear()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "%%px\nprint(1)",
            "%%px needs engines, and there is none in a browser: run this cell in a notebook on your computer.",
        ),
        ("!ls", "!ls needs a shell, and there is none"),
        ("import tensorflow_is_not_here", "No module named"),
        ("import math, keras\nkeras.Model()", "Keras is not there in a browser: run this cell"),
    ],
)
def test_what_is_not_there_is_said(cells: tuple[Session, list[tuple[str, str]]], text: str, said: str) -> None:
    """In a sentence, and not as a SyntaxError."""
    session, sent = cells
    assert not session.run(text)
    assert said in sent[-1][1]


def test_imports_of_what_is_not_there_take_nothing_else_along(cells: tuple[Session, list[tuple[str, str]]]) -> None:
    """A cell may import it beside others; who uses it, or what a cell made of it, is told so."""
    session, sent = cells
    assert session.run("import math\nfrom workbench import cluster, data\nimport ipyparallel as ipp\nmath.pi > 3")
    assert sent == [("text", "True\n")]
    assert not session.run("engines = cluster.up(n=4)")
    assert sent[-1][1].startswith("An engine is not there in a browser: ")
    session.skip("%%px --target 0\nlosses = [1]\ndef f(): pass")
    for name in ("engines", "losses", "f"):
        assert not session.run(f"print({name})")
        assert sent[-1][1].startswith(f"{name} comes from a cell that did not run here in a browser: ")
    assert not session.run("print(nobody)")
    assert "NameError" in sent[-1][1]


def test_a_flood_is_cut(cells: tuple[Session, list[tuple[str, str]]]) -> None:
    """Every cell has its room."""
    session, sent = cells
    for _ in range(2):
        sent.clear()
        assert session.run(f"print('x' * {MOST - 10})\nfor i in range(1000): print(i)")
        text = "".join(words for _, words in sent)
        assert MOST < len(text) < MOST + 100
        assert text.endswith("the rest is not shown\n")


def test_quiet_cells_say_nothing_but_errors(cells: tuple[Session, list[tuple[str, str]]]) -> None:
    """The page shows a form of its own in their place."""
    session, sent = cells
    assert session.run("print(1)\n2", True)
    assert sent == []


def test_the_package_for_a_browser_is_the_same_each_time(tmp_path: Path) -> None:
    """So a browser keeps it; it has what cells import, and nothing that grades or needs a framework."""
    for name in "ab":
        files.pack(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    with zipfile.ZipFile(tmp_path / "a") as archive:
        names = set(archive.namelist())
    assert {"workbench/course/exercise.py", "workbench/data/digits-images-idx3-ubyte.gz"} <= names
    assert not [name for name in names if name.startswith(("workbench/torch/", "workbench/course/grading/"))]
    assert (tmp_path / "a").stat().st_size < 1_300_000


def test_a_distribution_that_lacks_a_file_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also one whose package is named in its list and not there; nothing is built then."""
    for name in files.CORE:
        (tmp_path / name).write_text("{}")
    wheel = {"name": "numpy", "file_name": "numpy.whl", "depends": []}
    (tmp_path / "pyodide-lock.json").write_text(json.dumps({"packages": {"numpy": wheel}}))
    assert files.missing(tmp_path) == f"{tmp_path} has no numpy.whl"
    assert site.main(["--pyodide", str(tmp_path), "--out", str(tmp_path / "out")]) == 1
    assert "has no numpy.whl" in capsys.readouterr().err
    (tmp_path / "numpy.whl").write_text("wheel")
    assert files.missing(tmp_path) == ""
    loaded = files.place(tmp_path, tmp_path / "runtime")
    about = json.loads((tmp_path / "runtime" / "files.json").read_text())
    assert sum(about["page"]["sizes"].values()) == loaded
    assert {"pyodide.asm.wasm.gz", "numpy.whl", "workbench.zip"} <= set(about["page"]["sizes"])
    assert files.missing(tmp_path, files.OF_A_KERNEL) == f"{tmp_path} has no ipython"
