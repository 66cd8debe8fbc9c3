"""IPython on a terminal, as a user types into it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pexpect

RUN = "\x1b\r"  # Alt-Enter: also where a cell could go on
_CODES = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07|[=>])")


class TerminalIPython:
    """A process whose terminal is ours.

    Args:
        home: its home folder, so that no profile or history of the user is read.
    """

    def __init__(self, home: Path) -> None:
        env = os.environ | {"IPYTHONDIR": str(home), "PROMPT_TOOLKIT_NO_CPR": "1", "TERM": "xterm"}
        words = ["-m", "IPython", "--no-banner", "--no-confirm-exit", "--colors=NoColor"]
        self.child = pexpect.spawn(sys.executable, words, env=env, encoding="utf-8", dimensions=(50, 160), timeout=40)
        self.prompts = 0
        self.to_prompt()

    def wait_for(self, pattern: str) -> str:
        """What has come until it, without a terminal's codes."""
        self.child.expect(pattern)
        return _CODES.sub("", self.child.before + self.child.after)

    def type(self, text: str) -> None:
        """Keys."""
        self.child.send(text)

    def complete(self, before: str, completed: str) -> None:
        """The TAB key after it; once more, as a user does, where a busy machine had no answer in time."""
        self.type(before)
        for last in (False, False, True):
            self.type("\t")
            try:
                self.child.expect(completed, timeout=40 if last else 5)
            except pexpect.TIMEOUT:
                if last:
                    raise
            else:
                return

    def to_prompt(self) -> str:
        """What a cell prints, to its end."""
        self.prompts += 1
        return self.wait_for(rf"In \[{self.prompts}\]:")

    def run(self, cell: str) -> str:
        """What a cell prints that is typed, to its end."""
        self.type(cell.replace("\n", "\r") + RUN)
        return self.to_prompt()


@contextmanager
def terminal_ipython(home: Path, ranks: int) -> Iterator[TerminalIPython]:
    """One whose cluster is up."""
    terminal = TerminalIPython(home)
    try:
        terminal.run("from workbench import cluster")
        assert "Error" not in (said := terminal.run(f"c = cluster.up({ranks}, quiet=True)")), said
        yield terminal
        terminal.run("c.down()")
    finally:
        terminal.child.close(force=True)
