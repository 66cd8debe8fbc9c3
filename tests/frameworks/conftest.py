"""For tests that run inside the ranks of jobs that ``tests/test_frameworks.py`` starts; as in ``tests/parallel``."""

from __future__ import annotations

import pytest

# pytest finds fixtures and hooks by their names here.
from parallel.conftest import job, pytest_collection_modifyitems, pytest_configure, together

pytest.register_assert_rewrite("frameworks.checks", "frameworks.list_checks")

__all__ = ["job", "pytest_collection_modifyitems", "pytest_configure", "together"]
