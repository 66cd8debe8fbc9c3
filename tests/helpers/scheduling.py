"""Which worker of a run gets which tests: whole files; what a worker that has ended leaves is done by the others."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

SHARES = "integration/engines/"  # its files have one cluster


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Of ``--dist loadfile``."""
    from xdist.scheduler import LoadFileScheduling

    class Files(LoadFileScheduling):
        """A test that is out of time ends its worker. Then the run of xdist's own class never comes to its end.

        1. It hands out all files of that worker once more, the finished ones, too. Who gets one of those has no test to
           run, is not heard of again, and gets no other file. So only what is left is handed out, without that test.
        2. A worker begins a test when it knows the next one, or that there is none. So none is left with a single one.
        3. Files of a folder that shares engines are one piece of work.
        """

        def _split_scope(self, nodeid: str) -> str:
            folder, shared, _ = nodeid.partition(SHARES)
            return folder + shared if shared else super()._split_scope(nodeid)  # type: ignore[no-any-return]

        def remove_node(self, node: Any) -> str | None:
            """A worker has ended; the test that it was at."""
            had = self.assigned_work.pop(node)
            left = [(tests, test) for tests in had.values() for test, done in tests.items() if not done]
            if not left:
                return None
            tests, crashed = left[0]
            tests[crashed] = True
            self.workqueue.update({file: tests for file, tests in had.items() if not all(tests.values())})
            for each in self.assigned_work:
                if each in self.registered_collections:  # not one in an ended one's place, which still collects
                    self._reschedule(each)
            return str(crashed)

        def _reschedule(self, node: Any) -> None:
            with suppress(OSError):  # a worker that has ended: what it was to get is left
                super()._reschedule(node)
                while not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
                    if self.workqueue:
                        self._assign_work_unit(node)
                    else:
                        node.shutdown()

    return Files(config, log) if config.getoption("dist") == "loadfile" else None
