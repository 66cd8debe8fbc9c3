"""A notebook's kernel, and what its frontend gets of a cell, as it comes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from jupyter_client.manager import start_new_kernel

from workbench.cluster.output.as_data import MIME

INIT = "%%px\nimport sys, time, numpy as np, workbench as hvd\nhvd.init()"


class Message(NamedTuple):
    """A message of the iopub channel: its type, and its content."""

    kind: str
    content: dict[str, Any]

    @property
    def text(self) -> str:
        """As plain text."""
        found = self.content.get("text") or self.content.get("prompt") or self.content.get("data", {}).get("text/plain")
        return str(found or "\n".join(self.content.get("traceback", [])))


class LiveKernel:
    """Cells are run as JupyterLab runs them: somebody can be asked."""

    def __init__(self) -> None:
        self.manager, self.client = start_new_kernel(kernel_name="python3")

    def run(
        self, code: str, look: Callable[[Message], Any] = repr, asked: bool = True, answers: Iterable[str] = ()
    ) -> list[Message]:
        """What comes, in order.

        Args:
            code: of the cell.
            look: called with each message while the cell runs.
            asked: can somebody be asked?
            answers: what the user types, in turn; the questions are among what comes, as ``input_request``.
        """
        typed = iter(answers)
        found: list[Message] = []

        def got(message: dict[str, Any]) -> None:
            if message["msg_type"] not in ("status", "execute_input"):
                found.append(Message(message["msg_type"], message["content"]))
                look(found[-1])

        def ask(message: dict[str, Any]) -> None:
            got(message)
            self.client.input(next(typed))

        self.client.execute_interactive(code, allow_stdin=asked, timeout=50, output_hook=got, stdin_hook=ask)
        return found

    def interrupt(self) -> None:
        """The stop button."""
        os.kill(self.manager.provisioner.pid, signal.SIGINT)


@contextmanager
def live_kernel(ranks: int) -> Iterator[LiveKernel]:
    """A kernel whose cluster is up and whose ranks have called ``init()``."""
    kernel = LiveKernel()
    try:
        kernel.run(f"from workbench import cluster\nc = cluster.up({ranks}, quiet=True)")
        kernel.run(INIT)
        yield kernel
        kernel.run("c.down()")
    finally:
        kernel.client.stop_channels()
        kernel.manager.shutdown_kernel(now=True)


def rows(message: Message) -> list[tuple[str, str]]:
    """Of the extension's data: whose, and which text."""
    found = message.content["data"][MIME]["rows"]
    return [(row["who"], "\n".join(item.get("text", "") for item in row["items"])) for row in found]


def sums(kernel: LiveKernel, who: str, total: str) -> None:
    """The next cell is right: each rank has the sum."""
    found = kernel.run("%px print(float(hvd.allreduce(np.full(2, hvd.rank() + 1.0), op=hvd.Sum).sum()))")
    assert last(found) == [(who, total)]


def last(found: list[Message]) -> list[tuple[str, str]]:
    """What stands below the cell in the end."""
    return rows([each for each in found if each.kind.endswith("display_data")][-1])
