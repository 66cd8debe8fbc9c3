"""Names that live on the engines, in a cell that begins with ``%%px``: completion, and what Shift+Tab shows.

The notebook's kernel answers its frontend, and IPython on a terminal the TAB key. For the code of such a cell, and of a
line that begins with ``%px``, the engines are asked; what only some ranks have is there, too. A rank that does not
answer in time is left out. On a terminal the process's own names are offered where engines know none.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from IPython.core.completer import CompletionContext, SimpleCompletion, SimpleMatcherResult, context_matcher

from workbench.common.text import rank_spans
from workbench.launch.ranks.names import NAMES

_COMPLETE_S, _INSPECT_S = 0.4, 0.5
_MOST_ENGINES = 8
_CELLS = ("%%px", "%%rank")
_LINE = "%px "


def for_engines(code: str, position: int) -> int | None:
    r"""Where the code of engines begins, in which the cursor is; None if it is the notebook's own.

    Example:
        >>> for_engines("%%px --targets 1\nx.", 19), for_engines("a\n%px x.", 8), for_engines("%%px\nx", 2)
        (17, 6, None)
    """
    first = code.find("\n") + 1
    if code.startswith(_CELLS):
        return first if 0 < first <= position else None
    line = code.rfind("\n", 0, position) + 1
    begin = line + len(_LINE)
    return begin if code.startswith(_LINE, line) and position >= begin else None


class EngineNames:
    """Takes the place of two methods of the notebook's kernel, or is asked by a terminal, until :meth:`forget`.

    Args:
        client: a :class:`workbench.cluster.ipyparallel_internals.Client`.
        shell: the running IPython.
    """

    def __init__(self, client: Any, shell: Any) -> None:
        self._client, self._shell = client, shell
        if (kernel := getattr(shell, "kernel", None)) is None:
            shell.Completer.custom_matchers.append(self.match)
        else:
            self._complete, self._inspect = kernel.do_complete, kernel.do_inspect
            kernel.do_complete, kernel.do_inspect = self.complete, self.inspect

    def forget(self) -> None:
        """The kernel, or the terminal, answers by itself again."""
        if (kernel := getattr(self._shell, "kernel", None)) is None:
            self._shell.Completer.custom_matchers.remove(self.match)
        else:
            for name in ("do_complete", "do_inspect"):
                kernel.__dict__.pop(name, None)

    @context_matcher(identifier="engines", priority=1000)  # type: ignore[untyped-decorator]  # IPython's own
    def match(self, context: CompletionContext) -> SimpleMatcherResult:
        """What IPython's completer asks each of its matchers."""
        before = context.full_text.split("\n")[: context.cursor_line]
        position = sum(len(line) + 1 for line in before) + context.cursor_position
        begin = for_engines(context.full_text, position)
        if begin is None:
            return {"completions": []}
        matches, replaced = self._matches(context.full_text[begin:], position - begin)
        return {
            "completions": [SimpleCompletion(text=each) for each in matches],
            "matched_fragment": context.full_text[position - replaced : position],
            "suppress": True,
        }

    def complete(self, code: str, cursor_pos: int | None = None) -> Any:
        position = len(code) if cursor_pos is None else cursor_pos
        begin = for_engines(code, position)
        if begin is None:
            return self._complete(code, cursor_pos)
        matches, replaced = self._matches(code[begin:], position - begin)
        return {
            "matches": matches,
            "cursor_start": position - replaced,
            "cursor_end": position,
            "metadata": {},
            "status": "ok",
        }

    def inspect(self, code: str, cursor_pos: int, detail_level: int = 0, omit_sections: Sequence[str] = ()) -> Any:
        """What the kernel's method returns; where ranks have different things, each is shown."""
        begin = for_engines(code, cursor_pos)
        if begin is None:
            return self._inspect(code, cursor_pos, detail_level, omit_sections)
        answers = self._ask(code[begin:], cursor_pos - begin, detail_level, _INSPECT_S)
        by_text: dict[str, list[int]] = {}
        for engine, each in answers.items():
            if text := each.get("data", {}).get("text/plain"):
                by_text.setdefault(text, []).append(engine)
        if len(by_text) == 1:
            data = next(each["data"] for each in answers.values() if each.get("data"))
        else:
            data = {"text/plain": "\n\n".join(f"{rank_spans(ranks)}:\n{text}" for text, ranks in by_text.items())}
        return {"status": "ok", "found": bool(by_text), "data": data if by_text else {}, "metadata": {}}

    def _matches(self, code: str, position: int) -> tuple[list[str], int]:
        """Those of all engines, and how many characters before the position they replace."""
        answers = self._ask(code, position, None, _COMPLETE_S)
        found = [each for each in answers.values() if each.get("matches")]
        matches = dict.fromkeys(match for each in found for match in each["matches"])
        return list(matches), found[0]["replaced"] if found else 0

    def _ask(self, code: str, position: int, detail: int | None, timeout_s: float) -> dict[int, dict[str, Any]]:
        content, until = {"code": code, "position": position, "detail": detail}, time.monotonic() + timeout_s
        asked = {each: self._client.ask(each, NAMES, content) for each in self._client.ids[:_MOST_ENGINES]}
        found = {}
        for engine, future in asked.items():
            if future is not None and future.wait(max(0.0, until - time.monotonic())):
                found[engine] = future.result()["content"]
        return found
