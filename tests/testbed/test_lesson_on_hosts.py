"""Lesson 12 on two hosts: the same cells, and the ranks are where the site file says."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from hosts import Hosts
from test_run_in_slurm import called

pytestmark = [pytest.mark.integration, pytest.mark.parallel, pytest.mark.timeout(240)]

LESSON = Path(__file__).parents[2] / "notebooks" / "12_gpus_and_nodes.ipynb"
RUN = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], 4)
NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
nbformat.write(notebook, sys.argv[2])
"""


@pytest.mark.thorough
def test_the_cells_run_on_the_hosts_of_the_site_file(hosts: Hosts, tmp_path: Path) -> None:
    """Four ranks on two hosts, and a sum over all of them."""
    (tmp_path / "workbench.toml").write_text('hosts = ["wb1:2", "wb2:2"]\n')
    done = called(hosts, sys.executable, "-c", RUN, str(LESSON), str(tmp_path / "done.ipynb"), folder=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    text = (tmp_path / "done.ipynb").read_text()
    outputs = [output for cell in json.loads(text)["cells"] for output in cell.get("outputs", [])]
    said = "".join(part for output in outputs for part in output.get("text", []))
    for rank, (local, cross) in enumerate([(0, 0), (1, 0), (0, 1), (1, 1)]):
        line = f"rank {rank} of 4: local rank {local} of 2, cross rank {cross} of 2; the sum is 6.0"
        assert line in said, said[-3000:]
