"""All ranks evaluate with the same statistics of batch norm."""

from __future__ import annotations

import pytest
from converting import TRAINING

pytest.importorskip("libcst")

from workbench.convert.conversion import convert


def test_only_models_that_may_have_it() -> None:
    """Those of other files, too; a part of the script that runs on rank 0 alone evaluates none."""
    assert "rank 0's statistics" not in convert("train.py", f"{TRAINING}    model.eval()\n").after
    other = TRAINING.replace("import numpy", "from models import net\nimport numpy").replace("nn.Sequential", "net")
    assert "rank 0's statistics" in convert("train.py", f"{other}    model.eval()\n").after
    function = "def validate():\n    model.eval()\n    return 1\n"
    after = convert("train.py", other.replace("for epoch", f"{function}for epoch") + "    print(validate())\n").after
    assert "\n    print(validate())" in after
