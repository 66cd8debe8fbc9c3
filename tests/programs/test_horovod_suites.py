"""Horovod's own tests, on two ranks: those of 0.20.0, the last version whose source package on PyPI brings them.

Nightly, for they take minutes and need PyPI. What later versions of Horovod, of Python or of a framework have made
untrue is left out by name, with its reason. ``docs/reference/compatibility.md`` says what came of them.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from running import Runner

PACKAGE = "horovod-0.20.0"

# They import it, and the package does not bring it.
COMMON = """
import contextlib, inspect, os, tempfile

inspect.getargspec = inspect.getfullargspec  # Python 3.11 has the newer one alone


def mpi_env_rank_and_size():
    return int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"])


@contextlib.contextmanager
def temppath():
    with tempfile.TemporaryDirectory() as folder:
        yield os.path.join(folder, "file")
"""

OF_0_28 = {
    "allgather_grad": "since 0.21 the gradient is the ranks' mean; it was their sum",
    "broadcast_grad": "likewise",
    "alltoall_cpu": "since 0.21 it returns what was received from each rank as well",
    "alltoall_grad": "likewise",
    "alltoall_zero_splits": "likewise",
    "alltoall_one_rank": "likewise",
}


@dataclass(frozen=True)
class Suite:
    """A file of tests.

    Args:
        name: of the file.
        passed: so many pass; each run within another one counts.
        without: names of tests that are left out, and why.
        env: variables of the ranks.
    """

    name: str
    passed: int
    without: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)


SUITES = (
    Suite("test_torch", 39, {
        "allgather_grad": OF_0_28["allgather_grad"],
        "broadcast_grad": OF_0_28["broadcast_grad"],
        "alltoall": OF_0_28["alltoall_cpu"],
        "join_allreduce": "torch rounded the expected mean of negative integers towards zero, and now rounds it down",
        "broadcast_state": "it tries every optimizer that torch has, and Muon refuses all but matrices",
        "force_allreduce": "likewise",
    }),
    Suite("test_tensorflow", 134, {**OF_0_28, "syncbn": "it calls BatchNormalization.apply, of TensorFlow 1"}),
    Suite("test_tensorflow2_keras", 4, env={"TF_USE_LEGACY_KERAS": "1"}),
    Suite("test_adasum_pytorch", 2),
    Suite("test_adasum_tensorflow", 1),
    Suite("test_timeline", 1),
    Suite("test_stall", 1),
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tests, unpacked."""
    made = tmp_path_factory.mktemp("horovod")
    name, release = PACKAGE.split("-")
    words = ["-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=:all:", "--no-build-isolation"]
    subprocess.run([sys.executable, *words, f"--dest={made}", f"{name}=={release}"], check=True, timeout=240)
    with tarfile.open(made / f"{PACKAGE}.tar.gz") as package:
        tests = [each for each in package.getmembers() if each.name.startswith(f"{PACKAGE}/test/")]
        package.extractall(made, tests, filter="data")
    (made / PACKAGE / "test" / "common.py").write_text(COMMON)
    return made / PACKAGE / "test"


@pytest.mark.integration
@pytest.mark.parallel
@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize("suite", SUITES, ids=lambda each: each.name)
def test_horovods_own_tests_pass(suite: Suite, folder: Path, jobs: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """On both ranks, and as many as are known to run: a suite that skips itself shows nothing."""
    monkeypatch.chdir(folder)
    chosen = ["-k", f"not ({' or '.join(suite.without)})"] if suite.without else []
    words = ["python", "-m", "pytest", "-q", "-p", "no:cacheprovider", f"{suite.name}.py", *chosen]
    env = {"PYTHONPATH": str(folder), **suite.env}
    job = jobs.python(
        "-m", "workbench.cli.main", "run", "--as-horovod", "-np", "2", *words, deadline_s=600.0, **env
    )  # fmt: skip
    assert job.code == 0, job.report()
    found = re.findall(r"(\d+) passed(?:.*?(\d+) subtests passed)?", job.out(0))
    assert [int(tests) + int(within or 0) for tests, within in found] == [suite.passed] * 2, job.report()
