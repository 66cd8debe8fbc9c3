"""Programs that others wrote for Horovod, from PyPI, unchanged: two ranks come to what one rank comes to.

Each is installed into an environment of its own, which has the packages of this one as well, and is run by
``workbench run --as-horovod``. Nightly, for it takes minutes and needs PyPI. What came of it is in
``docs/reference/programs.md``.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from running import Job, Runner

SCRIPTS = Path(__file__).parent / "scripts"
ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "docs" / "reference" / "programs.md"


@dataclass(frozen=True)
class Program:
    """One of them.

    Args:
        script: which of the scripts uses it.
        needs: what is installed.
        rel: how far the results of one and of two ranks may lie apart.
        most: … or the most that each may be, where the ranks together have other samples than one.
        ranks: how many of the two ranks print a result.
        alone: it needs older packages than this environment's, and gets none of them.
        env: variables of the ranks.
    """

    script: str
    needs: tuple[str, ...]
    rel: float = 1e-5
    most: float = 0.0
    ranks: int = 2
    alone: bool = False
    env: dict[str, str] = field(default_factory=dict)


PROGRAMS = (
    Program("deepxde_poisson", ("DeepXDE==1.15.0",), most=0.05, env={"DDE_BACKEND": "tensorflow.compat.v1"}),
    Program("ignite_classifier", ("pytorch-ignite==0.5.5",)),
    Program("lightning_classifier", ("pytorch-lightning==1.9.5", "setuptools<81")),
    Program("deepmd_potential", ("deepmd-kit==3.2.0",), rel=0.02, ranks=1),
    Program(
        "tfra_embedding",
        (
            "tensorflow-recommenders-addons==0.8.1",
            *("tensorflow-cpu==2.16.2", "tf-keras==2.16.0", "psutil", "setuptools<81"),
        ),
        alone=True,
        env={"TF_USE_LEGACY_KERAS": "1", "WORKBENCH_BACKEND": "sockets"},
    ),
)


@pytest.mark.integration
@pytest.mark.parallel
@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.script)
def test_two_ranks_come_to_what_one_comes_to(
    program: Program, jobs: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rank is in a world of all of them, and their result is the one of a single rank."""
    environment = installed(program, tmp_path / "environment")
    results: dict[int, list[float]] = {}
    for n in (1, 2):
        folder = tmp_path / f"ranks{n}"
        folder.mkdir()
        monkeypatch.chdir(folder)
        job = run(jobs, program, environment, n)
        assert job.code == 0, job.report()
        found = re.findall(r"RESULT (\d+) (\S+)", job.out(0))
        assert [int(size) for size, _ in found] == [n] * min(n, program.ranks), job.report()
        results[n] = [float(result) for _, result in found]
    assert max(results[2]) == min(results[2])
    if program.most:
        assert max(results[1] + results[2]) < program.most
    else:
        assert results[2][0] == pytest.approx(results[1][0], rel=program.rel)


def installed(program: Program, folder: Path) -> Path:
    """A new environment; skip where PyPI is not there, or has nothing for this Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    modules, project = modules_of(folder), sysconfig.get_path("purelib")
    (modules / "project.pth").write_text(project)  # for pip, too
    words = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-warn-script-location", *program.needs]
    words += ["--ignore-installed"] if program.alone else []
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    if done.returncode:
        pytest.skip(f"{program.needs[0]} cannot be installed: {done.stderr.strip().splitlines()[-1]}")
    if program.alone:
        (modules / "project.pth").unlink()
    return folder


def modules_of(folder: Path) -> Path:
    """Where an environment has its modules."""
    return folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def run(jobs: Runner, program: Program, environment: Path, n: int) -> Job:
    """Its script on ``n`` ranks. This environment's Python finds its MPI, and the new one's modules first."""
    python, path = ("python", modules_of(environment)) if not program.alone else (environment / "bin" / "python", ROOT)
    how = ["--gloo"] if program.alone else []
    words = ["run", "--as-horovod", *how, "-np", str(n), str(python), str(SCRIPTS / f"{program.script}.py")]
    env = {"PYTHONPATH": str(path), "TF_CPP_MIN_LOG_LEVEL": "3", **program.env}
    return jobs.python("-m", "workbench.cli.main", *words, deadline_s=240.0, **env)


def test_the_table_names_each() -> None:
    """With its version, as it is tested."""
    text = TABLE.read_text()
    for program in PROGRAMS:
        name, version = program.needs[0].split("==")
        assert re.search(rf"^\| {re.escape(name)} {re.escape(version)} \|", text, re.MULTILINE), name
