"""What changes files, rank 0 does alone."""

from __future__ import annotations

import pytest
from converting import TRAINING

pytest.importorskip("libcst")

from workbench.convert.conversion import convert


@pytest.mark.parametrize(
    "statement",
    [
        "shutil.rmtree('out')",
        "os.remove('a')",
        "os.rename('a', 'b')",
        "shutil.move('a', 'b')",
        "torch.save(model, 'm')",
    ],
)
def test_files_are_changed_by_one_rank(statement: str) -> None:
    """Else the second one fails, or takes away what the first has written."""
    after = convert("train.py", f"import os, shutil\n{TRAINING}if os.path.exists('out'):\n    {statement}\n").after
    assert f"    if hvd.rank() == 0:  # Step 7: only rank 0\n        {statement}" in after
