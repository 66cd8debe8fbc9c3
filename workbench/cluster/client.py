"""ipyparallel's client in an IPython that has no kernel, as a terminal's.

What an engine's widgets send, such as the bar of ``tqdm.auto``, ipyparallel relays to the kernel of the notebook. It
asks a terminal's IPython for one, too: that raises on the thread that gets the answers, and the cell's end is lost.
"""

from __future__ import annotations

import contextlib
from typing import Any

import ipyparallel
from IPython import get_ipython


class Client(ipyparallel.Client):  # type: ignore[misc]  # ipyparallel has no types
    """A terminal shows what a widget is as text, and drops what it sends."""

    def _dispatch_iopub(self, parts: Any) -> None:
        no_kernel = [] if hasattr(get_ipython(), "kernel") else [AttributeError]
        with contextlib.suppress(*no_kernel):
            super()._dispatch_iopub(parts)


__all__ = ["Client"]
