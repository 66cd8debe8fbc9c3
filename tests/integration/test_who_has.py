"""``who_has`` and ``doctor()`` with real engines: idle, busy and dead ones, and in a real notebook."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import nbclient
import nbformat
import pytest

from workbench import cluster, doctor, who_has
from workbench.cluster.cluster import Cluster
from workbench.errors import LaunchError
from workbench.launch.start import mpi

pytestmark = [pytest.mark.integration, pytest.mark.parallel]


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Cluster]:
    """Two engines."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    yield cluster.up(2, quiet=True)
    cluster.down()


def test_names_on_engines(engines: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """What is there, of which type and shape, and whether the bits are the same; the doctor finds both well."""
    engines.view.execute("import numpy as np; same = np.arange(9.); own = same + mpi_rank", block=True)
    engines.client[1].execute("only_here = 'yes'", block=True)
    same, own = who_has("same"), who_has("own")
    assert same.column("there") == own.column("there") == ["yes", "yes"]
    assert (same.column("type"), same.column("shape")) == (["numpy.ndarray"] * 2, ["(9,)"] * 2)
    assert len(set(same.column("value"))) == 1
    assert len(set(own.column("value"))) == 2
    assert who_has("only_here").rows == (("0", "no", "", "", "", ""), ("1", "yes", "str", "", "", "'yes'"))
    assert who_has("mpi_rank").column("value") == ["0", "1"]
    assert "<td>numpy.ndarray</td>" in same._repr_html_()
    assert doctor()
    text = capsys.readouterr().out
    assert "✓ engines      all 2 answer; engine id = MPI rank, size 2\n" in text
    assert "✓ GPUs" in text or "! GPUs" in text
    assert "✓ ranks" not in text


def test_all_names(engines: Cluster) -> None:
    """Each variable of the user: one line where all ranks have the same, else one for each value."""
    engines.view.execute("import numpy as np\nsame = np.arange(9.)\nown = 10 + mpi_rank\ndef f(): pass", block=True)
    engines.client[1].execute("only_here = 'yes'", block=True)
    table = who_has()
    found = [row for row in table.rows if {"same", "own", "only_here"} & {row[0]} or row[:2] == ("", "1")]
    assert [row[:3] for row in found if row[0] == "same"] == [("same", "0, 1", "numpy.ndarray")]
    assert [(row[0], row[1], row[5]) for row in found if row[5] in ("10", "11")] == [
        ("own", "0", "10"),
        ("", "1", "11"),
    ]
    assert [row[1] for row in found if row[0] == "only_here"] == ["1"]
    assert not {"np", "f", "get_ipython", "In", "Out"} & set(table.column("name"))


def test_a_busy_engine_holds_nobody_up(engines: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """Its line says busy after 2 s, the others' are there; when it has finished, it answers as before."""
    engines.view.execute("x = 1", block=True)
    cell = engines.client[1].execute("import time; time.sleep(9); x = 2")
    begun = time.monotonic()
    table = who_has("x")
    assert 1.5 < time.monotonic() - begun < 4
    assert table.rows == (("0", "yes", "int", "", "", "1"), ("1", "busy", "", "", "", ""))
    assert not doctor()
    assert "✗ engines      engine 1 gave no answer within" in capsys.readouterr().out
    cell.get(20)
    assert who_has("x").column("value") == ["1", "2"]


def test_a_dead_engine_is_gone(engines: Cluster) -> None:
    """At once and later, without a wait for what cannot come."""
    os.kill(engines.pids()[1], signal.SIGKILL)
    for _ in range(2):
        begun = time.monotonic()
        assert who_has("mpi_rank").column("there")[1] == "gone"
        assert time.monotonic() - begun < 2
        time.sleep(1)


def test_on_an_engine_there_is_no_cluster(engines: Cluster) -> None:
    """In a ``%%px`` cell ``who_has`` says that it belongs in the notebook, and the doctor starts no ranks on ranks."""
    for call, text in (("who_has('x')", "no cluster in this kernel"), ("doctor()", "is a rank of a job")):
        engines.view.execute(
            f"import workbench\ntry: workbench.{call}\nexcept workbench.errors.LaunchError as e: said = str(e)",
            block=True,
        )
        assert all(text in said for said in engines.view["said"])
    cluster.down()
    with pytest.raises(LaunchError, match=r"cluster\.up\(\)"):
        who_has("x")


def test_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a real kernel: tables as text and HTML, a fingerprint on the ranks, the doctor without and with engines."""
    cells = [
        "from workbench import cluster, doctor, who_has\ndoctor()",
        "c = cluster.up(2)",
        "%%px\nimport workbench, numpy as np\nworkbench.init()\nw = {'w': np.ones(3) * mpi_rank}",
        "%%px\nprint(workbench.fingerprint(w).agree, workbench.fingerprint({'w': np.ones(3)}).agree)",
        "who_has('w')",
        "doctor()",
        "c.down()",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    monkeypatch.setenv("PYTHONPATH", mpi.environment(1).get("PYTHONPATH", ""))
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=50, kernel_name="python3", resources=resources).execute()
    outputs = [cell.outputs for cell in notebook.cells]
    texts = ["".join(each.get("text", "") for each in found) for found in outputs]
    assert "2 ranks (0, 1) talk over MPI" in texts[0]
    assert texts[3] == "[stdout:0] \nFalse True\n[stdout:1] \nFalse True\n"
    shown = outputs[4][-1]["data"]
    assert set(shown) == {"text/plain", "text/html"}
    assert "checksum" not in shown["text/plain"]
    assert shown["text/html"].count("<tr>") == 3
    assert "all 2 answer" in texts[5]
    assert outputs[5][-1]["data"]["text/plain"].endswith("checks: all is well")
