"""A script for Horovod gets our imports."""

from __future__ import annotations

import pytest
from converting import decided

pytest.importorskip("libcst")

from workbench.convert.conversion import convert
from workbench.convert.source import RefusedError


def test_what_is_there_under_our_name() -> None:
    """Modules and folders of the package, and ``run``."""
    text = (
        "import horovod\nimport horovod.torch as hvd\nfrom horovod.spark.common.store import Store\n"
        "from horovod.torch.elastic.sampler import ElasticSampler\nhorovod.run(f, np=2)\n"
    )
    new = convert("train.py", text)
    assert new.after == text.replace("horovod", "workbench")
    assert not new.edits.undecided


def test_what_is_not_there() -> None:
    """It stays, with what to decide; if nothing is there, the script is refused."""
    text = "import horovod.torch as hvd\nimport horovod.data\n"
    assert decided(text) == [(2, "horovod.data has no counterpart: see docs/how-to/convert.md.")]
    assert "import horovod.data" in convert("train.py", text).after
    with pytest.raises(RefusedError, match=r"horovod.data has no counterpart"):
        convert("train.py", "import horovod.data\n")
