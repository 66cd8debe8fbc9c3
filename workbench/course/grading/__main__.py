"""``python -m workbench.course.grading``: the judge of one notebook. Its order comes as JSON by standard input."""

from __future__ import annotations

import json
import os
import resource
import sys
from typing import Any

from workbench.cli.grade.reaper import adopt_orphans, hide
from workbench.course import tasks
from workbench.course.grading.apart.confine import ProcessLimits
from workbench.course.grading.sheet import Order, Sheet


def main() -> None:
    """Grade what standard input says; what happens goes to standard output."""
    adopt_orphans()
    hide()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed here is no row

    def report(**event: Any) -> None:
        out.write(json.dumps(event) + "\n")
        out.flush()

    asked = json.load(sys.stdin)
    most = asked["limits"].get("memory", ProcessLimits.memory)  # what learners' functions send is kept here
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    asked["stops"] = {int(cell): stop for cell, stop in asked["stops"].items()}
    Sheet(Order(**asked), {name: tasks.task(name) for name in tasks.names()}, report).run()
    os._exit(0)


if __name__ == "__main__":
    main()
