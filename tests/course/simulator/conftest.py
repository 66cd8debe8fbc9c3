"""The ways in which ranks take turns."""

from __future__ import annotations

import pytest

from workbench.course.simulator import scheduler


@pytest.fixture(autouse=True, params=["threads", "replay"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each way: as threads, and run again, as in a browser that cannot switch stacks."""
    monkeypatch.setattr(scheduler, "stacks", lambda: request.param == "threads")
    return str(request.param)
