"""``workbench class up --slurm``: each learner's JupyterLab is a job, on whichever node Slurm chooses."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosts import Hosts

from workbench.cli.class_server import control
from workbench.cli.class_server.place import Place

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]
PASSWORD, CLASS = "grove-stone-pine", ("-m", "workbench.cli.main", "class")
SIGNED_IN = """
import sys
from workbench.course.classroom.learner import Learner
for name in ("ada", "alan"):
    learner = Learner(sys.argv[1], name)
    assert learner.sign_in(sys.argv[2]) == 200
    learner.lab()
    learner.kernel()
    learner.run("open('mine.txt', 'w').write('42')")
    print(learner.run("import os, platform; print('SLURM_JOB_ID' in os.environ, platform.node())"))
    learner.close()
"""


@pytest.fixture
def folder(slurm: Hosts) -> Iterator[Path]:
    """Of the class, with the hub's environment in it: the hosts have no network to install one."""
    folder = Path(f"/tmp/wb-class-{os.getpid()}")  # sockets below it have short names
    folder.mkdir()
    control._environment(Place(folder, slurm=""))
    yield folder
    if (folder / "class.json").exists():
        slurm.run(0, sys.executable, *CLASS, "down", str(folder))
    shutil.rmtree(folder)


def test_servers_are_jobs_that_end_with_the_class(slurm: Hosts, folder: Path, tmp_path: Path) -> None:
    """Two learners sign in through the first host; their work is collected, and no job is left, nor after a kill."""
    names = tmp_path / "names"
    names.write_text("ada\nalan\n")
    where = ("--names", str(names), "--host", slurm.addresses[0], "--port", "8123", "--password", PASSWORD)
    words = (*where, "--memory", "1500", "--slurm=--time=10:00 --partition=main", "--cores", "3")
    up = slurm.run(0, sys.executable, *CLASS, "up", str(folder), *words)
    assert f"A class for 2 at http://{slurm.addresses[0]}:8123/" in up.stdout, up.stderr
    assert "Each has a job of Slurm's with 1500 MiB and 3 cores" in up.stdout
    signed_in = slurm.run(0, sys.executable, "-c", SIGNED_IN, Place.read(folder).address, PASSWORD, timeout_s=200)
    assert sorted(signed_in.stdout.splitlines()) == ["True wb1", "True wb2"], signed_in.stderr
    jobs = slurm.run(0, "squeue", "-h", "-o", "%j %N %C").stdout.split("\n")
    assert sorted(jobs[:-1]) == [f"{Place.read(folder).job} wb{i} 3" for i in (1, 2)]

    hub = Place.read(folder).process()
    assert hub is not None
    hub.kill()
    down = slurm.run(0, sys.executable, *CLASS, "down", str(folder))
    assert "files of 2 learners are in" in down.stdout, down.stderr
    (collected,) = (folder / "collected").iterdir()
    assert [(collected / name / "mine.txt").read_text() for name in ("ada", "alan")] == ["42", "42"]
    assert slurm.run(0, "squeue", "-h", "-t", "PENDING,RUNNING").stdout == ""
