"""All ranks evaluate with the same statistics of batch norm."""

from __future__ import annotations

from pathlib import Path

import pytest
from converting import TRAINING, both

pytest.importorskip("libcst")

from workbench.convert.conversion import convert

EARLY = """\
    model.eval()
    with torch.no_grad():
        loss = F.cross_entropy(model(x), y).item()
    schedule.step(loss)
    model.train()
    if loss > best:
        break
    best = loss
"""


@pytest.mark.parallel
@pytest.mark.timeout(120)
def test_ranks_stop_in_the_same_epoch(tmp_path: Path) -> None:
    """By a validation loss, by which a scheduler sets the rates as well."""
    text = TRAINING.replace("nn.ReLU()", "nn.BatchNorm1d(8), nn.ReLU()").replace("range(2)", "range(99)")
    schedule = "schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)"
    text = text.replace("for epoch", f"best = 9.0\n{schedule}\nfor epoch").replace("lr=0.1", "lr=2.0")
    ((_, two),) = both([text + EARLY], tmp_path)
    assert two[0].steps == two[1].steps < 99 * 4
    assert all((mine == other).all() for mine, other in zip(two[0].weights, two[1].weights, strict=True))


def test_only_models_that_may_have_it() -> None:
    """Those of other files, too; a part of the script that runs on rank 0 alone evaluates none."""
    assert "rank 0's statistics" not in convert("train.py", f"{TRAINING}    model.eval()\n").after
    other = TRAINING.replace("import numpy", "from models import net\nimport numpy").replace("nn.Sequential", "net")
    assert "rank 0's statistics" in convert("train.py", f"{other}    model.eval()\n").after
    function = "def validate():\n    model.eval()\n    return 1\n"
    after = convert("train.py", other.replace("for epoch", f"{function}for epoch") + "    print(validate())\n").after
    assert "\n    print(validate())" in after
