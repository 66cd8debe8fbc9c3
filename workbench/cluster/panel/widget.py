"""The panel of a notebook, as a widget; anywidget is imported where it is needed."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from workbench.cluster.panel.feed import Feed, PanelThread, Row

_HERE = Path(__file__).parent
_DOWN = "The cluster is down. After cluster.up() call cluster.watch() again."
_ANEW = "The engines start anew …"


def panel(cluster: Any) -> Any:
    """A widget that shows the ranks of a cluster until the cluster is down: one, however often it is asked for.

    Raises:
        ImportError: there is no anywidget.
    """
    if (shown := cluster.panel) is not None and shown.comm is not None:
        return shown
    shown = cluster.panel = _widget_class()()
    feeds = _Feeds(cluster)
    watcher = PanelThread(feeds, lambda rows, note: _show(shown, feeds, rows, note))

    def pressed(widget: Any, content: dict[str, Any], buffers: Any) -> None:
        _do(cluster, shown, content)
        if content.get("press") == "stop":
            watcher.stop()
            shown.close()

    shown.on_msg(pressed)
    return shown


class _Feeds:
    """The feed of a cluster, which has another client after its engines were started anew, and may have more engines.

    Attributes:
        feed: the newest one.
    """

    def __init__(self, cluster: Any) -> None:
        self._cluster: Any = cluster
        self._of: tuple[Any, ...] = ()
        self._renew(cluster.client)

    def __call__(self) -> tuple[list[Row], str] | None:
        """Rows, and the line about them; None if the cluster is down."""
        if not self._cluster.is_current():
            return None
        client = self._cluster.client
        if client is None or client.closed:
            return [], _ANEW
        self._renew(client)
        return (self.feed.rows(), self.feed.sentence()) if self.feed.news() else ([], "")

    def _renew(self, client: Any) -> None:
        engines = sorted({*range(self._cluster.n), *client.ids})
        if self._of != (client, *engines):
            self._of, self.feed = (client, *engines), Feed(client, engines)


def _show(shown: Any, feeds: _Feeds, rows: list[Row] | None, note: str) -> bool:
    """On the watcher's thread; is the panel still there?"""
    if shown.comm is None:
        return False
    with shown.hold_sync():
        if rows is None:
            shown.note, shown.ended = _DOWN, True
            return False
        if rows or note:
            shown.beat, shown.note = (shown.beat + 1) % 1000, note
        if rows:
            shown.rows, shown.stacks, shown.history = rows, feeds.feed.stacks(), feeds.feed.history()
    return True


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
        history: Any = traitlets.Dict().tag(sync=True)
        beat = traitlets.Int().tag(sync=True)  # grows as long as the kernel is there
        ended = traitlets.Bool().tag(sync=True)

    return RanksPanel
