"""For tests that run inside the ranks of jobs that ``tests/test_frameworks.py`` starts; as in ``tests/parallel``."""

from __future__ import annotations

import pytest

# pytest finds fixtures and hooks by their names here.
from parallel.conftest import job, pytest_collection_modifyitems, pytest_configure, together

pytest.register_assert_rewrite("checks", "list_checks")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Import the frameworks of the tests before the first one, whose time it would take."""
    modes = [item.callspec.params.get("mode") for item in session.items if hasattr(item, "callspec")]
    import jax

    jax.config.update("jax_enable_x64", True)
    for mode in filter(None, dict.fromkeys(modes)):
        mode().hvd  # noqa: B018


__all__ = ["job", "pytest_collection_modifyitems", "pytest_configure", "together"]
