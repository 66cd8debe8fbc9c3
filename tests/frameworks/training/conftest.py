"""For tests that train inside the ranks of one job; Keras runs on the backend that KERAS_BACKEND names.

``tests/test_framework_training.py`` starts them. By hand::

    export WORKBENCH_TEST_INSIDE_RANKS=1 KERAS_BACKEND=jax
    mpiexec -n 2 python -m pytest --confcutdir=tests/frameworks/training tests/frameworks/training -x -k fit
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import keras
import pytest

from tests.parallel import conftest as parallel
from tests.parallel.conftest import job, job_with, n, pytest_collection_modifyitems, rank, ranks_world, together

BACKEND = keras.backend.backend()

collect_ignore_glob = [] if "WORKBENCH_TEST_INSIDE_RANKS" in os.environ else ["*"]

_WARNINGS = (
    # Keras and TensorFlow call each other's, numpy's and Python's older ways; nothing here can change that.
    "ignore::DeprecationWarning:keras",
    "ignore::DeprecationWarning:tensorflow",
    "ignore::DeprecationWarning:jax",
)


def pytest_configure(config: pytest.Config) -> None:
    """As in tests/parallel; a marker for what needs certain backends; the frameworks' own warnings."""
    parallel.pytest_configure(config)
    config.addinivalue_line("markers", "backends(*names): for Keras on these backends only")
    config.addinivalue_line("markers", "usually(*names): on other backends in thorough runs only")
    for each in _WARNINGS:
        config.addinivalue_line("filterwarnings", each)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Leave out what is for other backends, and leave to thorough runs what is usually seen on others."""
    mark = item.get_closest_marker("backends")
    if mark is not None and BACKEND not in mark.args:
        item.add_marker(pytest.mark.skip(f"for {', '.join(mark.args)}"))
    mark = item.get_closest_marker("usually")
    if mark is not None and BACKEND not in mark.args:
        item.add_marker(pytest.mark.thorough)


@pytest.fixture(autouse=True)
def fresh(together: None) -> Iterator[None]:
    """Layers are numbered from 1 in each test; dtypes are the usual ones afterwards."""
    keras.utils.clear_session(free_memory=False)
    yield
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")


__all__ = ["job", "job_with", "n", "pytest_collection_modifyitems", "rank", "ranks_world", "together"]
