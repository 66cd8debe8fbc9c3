"""A metric of torchmetrics that is computed over all ranks, as docs/how-to/convert.md says."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from doc_blocks import ROOT, blocks

import workbench

(BLOCK,) = [each for each in blocks(ROOT / "docs" / "how-to" / "convert.md", "python") if "torchmetrics" in each.text]

pytestmark = pytest.mark.skipif(not find_spec("torchmetrics"), reason="no torchmetrics")


def _computed(text: str) -> float:
    import torch

    import workbench.torch as hvd

    names: dict[str, object] = {}
    exec(text, names)
    error, rank = names["error"], hvd.rank()
    error.update(torch.arange(3 + rank).float(), torch.zeros(3 + rank))  # type: ignore[attr-defined]
    return float(error.compute())  # type: ignore[attr-defined]


def test_a_metric_is_that_of_all_samples() -> None:
    """Of 0, 1, 2 on one rank and 0, 1, 2, 3 on the other: the mean of their squares."""
    assert workbench.run_threads(2, lambda: _computed(BLOCK.text)) == [pytest.approx(19 / 7)] * 2
