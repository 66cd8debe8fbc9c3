"""``who_has`` and ``doctor()`` with real engines: idle, busy and dead ones, and in a real notebook."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from workbench import cluster, doctor, who_has
from workbench.cluster.cluster import Cluster
from workbench.errors import LaunchError

pytestmark = [pytest.mark.usefixtures("forked_engines"), pytest.mark.integration, pytest.mark.parallel]


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two engines for all tests of this file; the last ones break them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IPYTHONDIR", str(tmp_path_factory.mktemp("ipython")))
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


def test_a_busy_engine_holds_nobody_up(engines: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its line says busy, the others' are there; when it has finished, it answers as before."""
    engines.view.execute("x = 1", block=True)
    wait = f"import pathlib, time\nwhile not pathlib.Path({str(tmp_path / 'go')!r}).exists(): time.sleep(0.01)\nx = 2"
    cell = engines.client[1].execute(wait, block=False)
    table = who_has("x")
    assert table.rows == (("0", "yes", "int", "", "", "1"), ("1", "busy", "", "", "", ""))
    assert not doctor()
    assert "✗ engines      engine 1 gave no answer within" in capsys.readouterr().out
    (tmp_path / "go").touch()
    cell.get(60)
    assert who_has("x").column("value") == ["1", "2"]


def test_on_an_engine_there_is_no_cluster(engines: Cluster) -> None:
    """In a ``%%px`` cell ``who_has`` says that it belongs in the notebook, and the doctor starts no ranks on ranks."""
    for call, text in (("who_has('x')", "no cluster in this kernel"), ("doctor()", "is a rank of a job")):
        engines.view.execute(
            f"import workbench\ntry: workbench.{call}\nexcept workbench.errors.LaunchError as e: said = str(e)",
            block=True,
        )
        assert all(text in said for said in engines.view["said"])


def test_a_dead_engine_is_gone(engines: Cluster) -> None:
    """At once and later, without a wait for what cannot come; and without a cluster it says what to do."""
    os.kill(engines.pids()[1], signal.SIGKILL)
    assert who_has("mpi_rank").column("there")[1] == "gone"
    while 1 in engines.client.ids:
        time.sleep(0.02)
    assert who_has("mpi_rank").column("there")[1] == "gone"
    cluster.down()
    with pytest.raises(LaunchError, match=r"cluster\.up\(\)"):
        who_has("x")
