"""The ways in which ranks take turns."""

from __future__ import annotations

import pytest
from thorough import once_more

from workbench.course.simulator import scheduler


@pytest.fixture(autouse=True, params=["threads", once_more("replay")])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each way: as threads, and run again, as in a browser that cannot switch stacks.

    What both have in common, test_replay.py shows.
    """
    monkeypatch.setattr(scheduler, "stacks", lambda: request.param == "threads")
    return str(request.param)
