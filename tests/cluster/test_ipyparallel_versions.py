"""The oldest ipyparallel that pyproject.toml allows, and the newest, with all else that is installed here."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = [f"tests/cluster/test_{name}.py" for name in ("ipyparallel_internals", "px", "terminal")]
TESTS += ["tests/cluster/test_engines_come_and_go.py::test_four_then_three_then_one"]


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parallel
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", ["==9.1.*", ">=9.1,<10"])
def test_another_ipyparallel(version: str, tmp_path: Path) -> None:
    """Its private parts are there, and real cells run: output as it comes, an error, Ctrl-C, engines that die."""
    uv, here = Path(sys.prefix, "bin", "uv"), sysconfig.get_path("purelib")
    if not uv.exists():
        pytest.skip("uv is not installed here")
    subprocess.run([uv, "venv", "--python", sys.executable, tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    install = [uv, "pip", "install", "--python", python, "--no-deps", f"ipyparallel{version}"]
    if (done := subprocess.run(install, capture_output=True, text=True)).returncode:
        pytest.skip(f"no ipyparallel{version} could be had: {done.stderr}")
    (package,) = (tmp_path / "venv").glob("lib/*/site-packages/ipyparallel")
    (package.parent / "here.pth").write_text(f"import site; site.addsitedir({here!r})\n")
    look = [python, "-c", "import ipyparallel; print(ipyparallel.__version__, ipyparallel.__file__)"]
    found = subprocess.run(look, check=True, capture_output=True, text=True).stdout
    assert str(package) in found
    print(found)
    mpi = {
        "PATH": f"{python.parent}:{Path(sys.prefix, 'bin')}:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": f"{sys.prefix}/lib",
    }
    command = [python, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", *TESTS]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | mpi, capture_output=True, text=True)
    print(done.stdout[-20_000:])
    assert done.returncode == 0
