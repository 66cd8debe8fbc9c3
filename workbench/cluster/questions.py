"""The notebook's side of ``input()`` and ``breakpoint()`` on engines: it asks the user, and sends the answer.

Where several ranks stop at a breakpoint, the lowest one is asked first. A user who wants another rank says so::

    rank 0 of 0-3 (Pdb) rank 2      the next questions are rank 2's
    rank 2 of 0-3 (Pdb) all c       all of them get the command c
"""

from __future__ import annotations

import getpass
import re
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from workbench.common.text import rank_spans, spans

_DEBUGGER = re.compile(r"^(\(+Pdb\)+|i?pdb>) ?$")
_OTHER = re.compile(r"^rank\s+(\d+)$")
_ALL = re.compile(r"^all\s+(\S.*)$")


class Asker:
    """Asks for ranks that wait.

    Args:
        answer: sends an answer: engine, number of the question, text or None.
        read: asks the user: prompt, and whether what is typed is hidden.

    Example:
        >>> typed, sent = iter(["rank 1", "p x", "all c"]), []
        >>> asker = Asker(lambda *answer: sent.append(answer), lambda prompt, hidden: next(typed))
        >>> waiting = {0: {"number": 1, "prompt": "(Pdb) "}, 1: {"number": 1, "prompt": "(Pdb) "}}
        >>> asker.note(waiting)
        "the debugger has stopped ranks 0, 1; type a command for one rank, 'rank 1' for another rank, 'all c' for all"
        >>> asker.ask(waiting), sent, sorted(waiting)
        (None, [(1, 1, 'p x')], [0])
        >>> waiting[1] = {"number": 2, "prompt": "(Pdb) "}
        >>> asker.ask(waiting), sent[1:], waiting
        (None, [(0, 1, 'c'), (1, 2, 'c')], {})
    """

    def __init__(
        self, answer: Callable[[int, int, str | None], None], read: Callable[[str, bool], str] | None = None
    ) -> None:
        self._answer, self._read = answer, read or _read
        self._rank = 0

    def note(self, waiting: Mapping[int, Mapping[str, Any]]) -> str:
        debugs = _in_debugger(waiting)
        if not debugs:
            return f"{len(waiting)} of the ranks ask something" if len(waiting) > 1 else f"rank {min(waiting)} asks"
        another = f"'rank {max(debugs)}' for another rank" if len(debugs) > 1 else ""
        more = f"; type a command for one rank, {another}, 'all c' for all" if another else ""
        return f"the debugger has stopped {rank_spans(debugs)}{more}"

    def ask(self, waiting: MutableMapping[int, Mapping[str, Any]]) -> None:
        """One question of those that wait; who has got an answer is taken out."""
        while True:
            rank = self._rank if self._rank in waiting else min(waiting)
            question = waiting[rank]
            debugs = _in_debugger(waiting)
            others = f" of {spans(debugs)}" if rank in debugs and len(debugs) > 1 else ""
            try:
                text = self._read(f"rank {rank}{others} {question['prompt']}", question.get("password", False))
            except EOFError:
                text = None
            if text is not None and rank in debugs:
                if (other := _OTHER.match(text.strip())) and int(other[1]) in waiting:
                    self._rank = int(other[1])
                    continue
                if command := _ALL.match(text.strip()):
                    for each in debugs:
                        self._answer(each, waiting.pop(each)["number"], command[1])
                    return
            self._rank = rank
            self._answer(rank, waiting.pop(rank)["number"], text)
            return


def _in_debugger(waiting: Mapping[int, Mapping[str, Any]]) -> list[int]:
    return sorted(each for each, question in waiting.items() if _DEBUGGER.match(question["prompt"]))


def _read(prompt: str, hidden: bool) -> str:
    return getpass.getpass(prompt) if hidden else input(prompt)
