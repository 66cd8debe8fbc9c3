"""A DataLoader's workers in a notebook's engines, by each start method."""

from __future__ import annotations

from pathlib import Path

import pytest
from installed import needs

from workbench import cluster

needs("torch")
pytestmark = [pytest.mark.integration, pytest.mark.parallel, pytest.mark.timeout(120)]

# Spawned workers import the class; one of a cell is nowhere to be found.
MODULE = """
import torch.utils.data
import workbench as hvd
from workbench.errors import WorkbenchError

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, i):
        said = []
        for call in (hvd.barrier, hvd.init):
            try:
                call()
            except WorkbenchError as error:
                said.append(str(error))
        return i, said
"""
CELL = """
import sys
sys.path.insert(0, {folder!r})
import warnings
from torch.utils.data import DataLoader
import workbench as hvd
from numbers_of_cell import Numbers
hvd.init()
warnings.simplefilter("ignore")
found = []
for method in ("fork", "spawn", "forkserver"):
    loader = DataLoader(Numbers(), batch_size=None, num_workers=1, multiprocessing_context=method)
    rows = list(loader)
    found.append((method, sum(row[0] for row in rows), {{text for row in rows for text in row[1]}}))
    assert hvd.allreduce(np.ones(2), op=hvd.Sum).tolist() == [2, 2]
"""


def test_workers_in_engines(tmp_path: Path) -> None:
    """Each method gives all samples; a worker's collective and init() say at once whose child it is."""
    (tmp_path / "numbers_of_cell.py").write_text(MODULE)
    up = cluster.up(2, quiet=True)
    try:
        result = up.view.execute("import numpy as np\n" + CELL.format(folder=str(tmp_path)), block=False)
        result.get(90)
        for rank, rows in enumerate(up.view.pull("found")):
            assert [row[:2] for row in rows] == [("fork", 15), ("spawn", 15), ("forkserver", 15)]
            for _, _, said in rows:
                assert len(said) == 2
                assert all(f"rank {rank} and is not a rank itself" in text for text in said)
    finally:
        cluster.down()
