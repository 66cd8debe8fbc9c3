"""Shows the panel where there is a notebook, else the table."""

from __future__ import annotations

import sys
import time
from typing import Any

from workbench.cluster.panel.feed import Feed
from workbench.cluster.panel.table import as_table
from workbench.common.notebook import running_kernel


def show_panel(cluster: Any) -> Any:
    """A widget in a notebook; elsewhere print tables until Ctrl-C."""
    if running_kernel() is not None:
        from workbench.cluster.panel.widget import panel

        return panel(cluster)
    print_tables(Feed(cluster.client, range(cluster.n)))
    return None


def print_tables(feed: Feed, every_s: float = 1.0, rounds: int = 0) -> None:
    """One table after the other in the same place, until Ctrl-C, or so many ``rounds``."""
    height = round_ = 0
    try:
        while not rounds or round_ < rounds:
            round_ += 1
            feed.rows()
            time.sleep(every_s)
            lines = [*as_table(feed.rows()), feed.sentence()]
            if sys.stdout.isatty():
                lines = [f"\x1b[K{line}" for line in lines]
                print(f"\x1b[{height}A" if height else "", end="")
            print("\n".join(lines), flush=True)
            height = len(lines)
    except KeyboardInterrupt:
        return
