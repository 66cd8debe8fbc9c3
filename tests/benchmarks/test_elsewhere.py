"""Horovod in an environment of its own: the same worker in two jobs, in turns. None of these is the real Horovod."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from loading import BENCHMARKS, load

from workbench.errors import LaunchError

if TYPE_CHECKING:
    from running import Runner

elsewhere, history = load("elsewhere"), load("history")
ROOT = BENCHMARKS.parent
# Horovod's verbs for a job of one, and nothing else that is ours.
ALONE = """
import torch
Sum, __version__ = "sum", "of one"
def init(): pass
def shutdown(): pass
def rank(): return 0
def size(): return 1
def allreduce_(tensor, name, op): return tensor
def allreduce_async_(tensor, name, op): return tensor
def synchronize(handle): return handle
"""
ONE_RANK = '[ "$1" = --version ] && echo MPICH && exit; shift 2; exec "$@"'  # mpirun -n 1 python …
STANDS_IN = "from workbench.torch import *\n__version__ = '0'\n"


def environment(folder: Path, horovod: str, mpirun: str, *hidden: str) -> dict[str, str]:
    """An environment with such a horovod, in which some modules cannot be imported: the variables that name it."""
    (folder / "bin").mkdir()
    (folder / "lib" / "horovod").mkdir(parents=True)
    (folder / "lib" / "horovod" / "__init__.py").touch()
    (folder / "lib" / "horovod" / "torch.py").write_text(horovod)
    for name in hidden:
        (folder / "lib" / f"{name}.py").write_text("raise ImportError('not in this environment')\n")
    path = f"{folder / 'lib'}" + (" TORCH_DEVICE_BACKEND_AUTOLOAD=0" if "workbench" in hidden else f":{ROOT}")
    for name, text in (("python", f'PYTHONPATH={path} exec {sys.executable} "$@"'), ("mpirun", mpirun)):
        script = folder / "bin" / name
        script.write_text(f"#!/bin/sh\n{text}\n")
        script.chmod(0o755)
    return {"HOROVOD_PYTHON": str(folder / "bin" / "python")}


def measured(job: Any, out: Path, section: str) -> dict[str, Any]:
    """The result of a section in what the driver wrote."""
    assert job.code == 0, job.report()
    assert not job.left, job.report()
    everything = json.loads((out / "bench-smoke.json").read_text())
    found: dict[str, Any] = next(each for each in everything["results"] if each["section"] == section)
    return found


def test_the_environment_is_named_by_variables(tmp_path: Path) -> None:
    """Without the variable there is none; its mpirun is the one beside its Python unless another is named."""
    assert elsewhere.place({}) is None
    env = environment(tmp_path, "", "")
    assert elsewhere.place(env) == elsewhere.Place(env["HOROVOD_PYTHON"], str(tmp_path / "bin" / "mpirun"))
    assert elsewhere.place(env | {"HOROVOD_MPIRUN": "/bin/true"}).mpirun == "/bin/true"
    (tmp_path / "bin" / "mpirun").unlink()
    with pytest.raises(LaunchError, match="name it with HOROVOD_MPIRUN"):
        elsewhere.place(env)
    with pytest.raises(LaunchError, match="there is no such program"):
        elsewhere.place({"HOROVOD_PYTHON": str(tmp_path / "none")})


def result(name: str, seconds: list[float], title: str = "CNN", images: int = 100) -> dict[str, Any]:
    """What a job prints."""
    case = {"title": title, "seconds": {name: seconds}, "bytes": 0, "images": images}
    return {"section": "training", "ranks": 2, "cases": [case], "absent": {}, "library": "Horovod 1"}


def test_their_times_are_for_as_many_images() -> None:
    """Where their rounds had half as many images as ours, their times count twice."""
    merged = elsewhere.merged(result("ours", [1.0, 2.0]), result("Horovod", [1.0, 3.0], images=50))
    assert merged["cases"][0]["seconds"] == {"ours": [1.0, 2.0], "Horovod": [2.0, 6.0]}
    assert merged["elsewhere"] == "Horovod 1"


@pytest.mark.parametrize(
    "theirs",
    [{"failed": "mpirun …:\nImportError: no torch"}, result("Horovod", [1.0]), result("Horovod", [1.0, 1.0], "MLP")],
)
def test_what_does_not_fit_is_left_out_and_said(theirs: dict[str, Any]) -> None:
    """Their failure, other rounds or other cases: our figures stand, and the reason with them."""
    ours = result("ours", [1.0, 2.0])
    merged = elsewhere.merged(ours, theirs)
    assert merged["cases"] == ours["cases"]
    assert merged["absent"]["Horovod"].startswith("it failed in its own environment: ")


@pytest.mark.thorough
@pytest.mark.parallel
@pytest.mark.integration
def test_their_environment_needs_nothing_of_ours(jobs: Runner, tmp_path: Path) -> None:
    """The worker runs there without this package, mpi4py and psutil; its row stands beside ours."""
    env = environment(tmp_path, ALONE, ONE_RANK, "workbench", "mpi4py", "psutil")
    script, out = str(BENCHMARKS / "bench.py"), tmp_path / "out"
    job = jobs.python(script, "--smoke", "--ranks", "1", "--only", "many", "--out", str(out), deadline_s=50.0, **env)
    found = measured(job, out, "many")
    assert found["elsewhere"] == "Horovod of one"
    assert {len(seconds) for case in found["cases"] for seconds in case["seconds"].values()} == {2}
    assert all({"workbench", "Horovod"} <= set(case["seconds"]) for case in found["cases"])
    assert "Horovod of one ran in an environment of its own" in (out / "bench-smoke.md").read_text()


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.integration
@pytest.mark.thorough
@pytest.mark.timeout(240)
def test_two_jobs_of_two_ranks_take_turns(jobs: Runner, tmp_path: Path) -> None:
    """All sections with this package under Horovod's name: right sums, a row, and a name that is not Horovod's."""
    env = environment(
        tmp_path, STANDS_IN, f'exec {shutil.which("mpiexec", path=str(Path(sys.executable).parent))} "$@"'
    )
    script, out, kept = str(BENCHMARKS / "bench.py"), tmp_path / "out", tmp_path / "history.csv"
    words = ("--smoke", "--ranks", "2", "--out", str(out), "--history", str(kept))
    job = jobs.python(script, *words, deadline_s=220.0, **env)
    for section in elsewhere.SECTIONS:
        for case in measured(job, out, section)["cases"]:
            assert "stand-in for Horovod" in case["seconds"]
            assert "Horovod" not in case["seconds"]
    assert not any("Horovod" in line.peer for line in history.read(kept))
