"""The panel of a notebook, as a widget; anywidget is imported where it is needed."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from workbench.cluster.panel.feed import Feed, Row, Watcher

_HERE = Path(__file__).parent


def panel(cluster: Any) -> Any:
    """A widget that shows the ranks of a cluster until the cluster is down.

    Raises:
        ImportError: there is no anywidget.
    """
    shown = _widget_class()()

    feed = Feed(cluster.client, range(cluster.n))

    def show(rows: list[Row], note: str) -> None:
        shown.stacks, shown.rows, shown.note = feed.stacks(), rows, note

    watcher = Watcher(feed, show)

    def pressed(widget: Any, content: dict[str, Any], buffers: Any) -> None:
        _do(cluster, shown, content)
        if content.get("press") == "stop":
            watcher.stop()

    shown.on_msg(pressed)
    return shown


def _do(cluster: Any, shown: Any, content: dict[str, Any]) -> None:
    """What a button does. It says what it has done, for its user cannot see it elsewhere."""
    press, busy = content.get("press"), [row["rank"] for row in shown.rows if row["state"] in ("computes", "waits")]
    try:
        if press == "interrupt":
            if busy:
                cluster.client.send_signal("SIGINT", targets=busy, block=False)
            shown.said = f"interrupted {len(busy)} of {cluster.n} ranks" if busy else "no rank runs a cell"
        elif press == "rescue":
            if busy:
                shown.said = "ranks run a cell: interrupt them first"
            else:
                shown.said = "rescuing …"
                cluster.rescue(quiet=True)
                shown.said = "rescued: see the ranks above"
    except Exception as error:  # noqa: BLE001 - a handler's error is seen nowhere
        shown.said = f"{type(error).__name__}: {error}"


@cache
def _widget_class() -> Any:
    import anywidget
    import traitlets

    class RanksPanel(anywidget.AnyWidget):
        """Rows of ranks; see ``panel.js``."""

        _esm = _HERE / "panel.js"
        _css = _HERE / "panel.css"
        rows: Any = traitlets.List().tag(sync=True)
        note = traitlets.Unicode().tag(sync=True)
        said = traitlets.Unicode().tag(sync=True)
        stacks: Any = traitlets.Dict().tag(sync=True)

    return RanksPanel


__all__ = ["panel"]
