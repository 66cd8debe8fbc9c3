"""Who listens when the ranks of one machine are connected."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = [pytest.mark.parallel]

PROGRAM = """
import numpy as np, psutil
import workbench as hvd

def listeners():
    me = psutil.Process()
    places = [each.laddr for each in me.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
    return len(places)

for job in range(2):
    hvd.init()
    assert hvd.allreduce(np.ones(100_000), op=hvd.Sum).sum() == 200_000
    print("job", job, listeners(), flush=True)
    assert hvd.allgather(np.ones(100_000)).sum() == 200_000
    hvd.shutdown()
"""


@pytest.mark.timeout(180)
def test_no_rank_of_mpi_listens_when_all_are_connected(tmp_path: Path) -> None:
    """Strangers cannot use up a rank's open files; collectives, the end, and another job of the processes work."""
    (tmp_path / "program.py").write_text(PROGRAM)
    words = [
        sys.executable,
        "-m",
        "workbench.cli.main",
        "run",
        "-np",
        "2",
        sys.executable,
        str(tmp_path / "program.py"),
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
    said = sorted(line.partition(":")[2] for line in done.stdout.splitlines())
    assert said == ["job 0 0"] * 2 + ["job 1 0"] * 2, done.stdout
