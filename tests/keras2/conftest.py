"""For tests that train with Keras 2 inside the ranks of one job; ``tests/test_keras2.py`` starts them.

Keras 2 is ``keras`` beside TensorFlow 2.15, and ``tf_keras`` beside a later one. By hand::

    export WORKBENCH_TEST_INSIDE_RANKS=1 TF_USE_LEGACY_KERAS=1
    mpiexec -n 2 python -m pytest --confcutdir=tests/keras2 tests/keras2 -x -k fit
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.parallel.conftest import job, n, pytest_collection_modifyitems, pytest_configure, rank, together

collect_ignore_glob = [] if "WORKBENCH_TEST_INSIDE_RANKS" in os.environ else ["*"]


@pytest.fixture(autouse=True)
def fresh(together: None) -> Iterator[None]:
    """Layers are numbered from 1 in each test; dtypes are the usual ones afterwards."""
    from workbench.keras.flavour import keras

    keras.backend.clear_session()
    yield
    keras.backend.set_floatx("float32")
    keras.mixed_precision.set_global_policy("float32")


__all__ = ["job", "n", "pytest_collection_modifyitems", "pytest_configure", "rank", "together"]
