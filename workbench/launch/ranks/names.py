"""What the notebook asks an engine about the names in its cells: completions, and what Shift+Tab shows.

It is asked on the thread of the control channel, so that an engine that computes answers, too.
"""

from __future__ import annotations

from typing import Any

NAMES = "workbench_names"
"""The type of the message on the control channel."""


def about_names(shell: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """The content of the answer.

    Args:
        shell: IPython's, of the engine.
        asked: ``code`` and ``position`` in it; ``detail`` for what an object is, None for completions.

    Returns:
        For completions ``matches``, and how many characters before the position they replace: ``replaced``. For an
        object ``data`` by MIME type, if it was found.
    """
    from IPython.utils.tokenutil import line_at_cursor, token_at_cursor

    code, position = asked["code"], asked["position"]
    if asked["detail"] is None:
        line, offset = line_at_cursor(code, position)
        # Without jedi, which reads source for long, and may load modules.
        text, matches = shell.Completer.complete(line_buffer=line, cursor_pos=position - offset)
        if text.startswith(".") and all(match.startswith(".") for match in matches):  # as IPython 9 says attributes
            text, matches = text[1:], [match[1:] for match in matches]
        return {"matches": list(matches)[:_MOST], "replaced": len(text)}
    try:
        return {"data": shell.object_inspect_mime(token_at_cursor(code, position), detail_level=asked["detail"])}
    except KeyError:
        return {}


_MOST = 2000
