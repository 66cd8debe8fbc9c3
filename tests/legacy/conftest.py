"""These need an environment of their own, with MXNet and an older numpy: ``make legacy-test`` makes it.

``tests/conftest.py`` leaves this folder out elsewhere; asked for by name, its tests are skipped there.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is in this folder where MXNet is missing."""
    if find_spec("mxnet") is None:
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip("needs MXNet: make legacy-test"))
