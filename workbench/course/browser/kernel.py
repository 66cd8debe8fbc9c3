"""The kernel of a notebook in JupyterLite, made fit for ranks: what :mod:`.session` is for the cells of a page."""

from __future__ import annotations

import ast
import json
import os
import sys
from types import CodeType, ModuleType
from typing import Any

from workbench.course.browser.session import NotHereError, imported
from workbench.course.browser.threads import loops_give_way


class _Imports(ast.NodeTransformer):
    """A cell may import what is not there beside other things, and may not use it."""

    def visit_Module(self, node: ast.Module) -> ast.Module:
        node.body = [each for one in node.body for each in imported(one)]
        return node


def start() -> None:
    """Start it, before JupyterLite does, whose own start then finds it there.

    The course comes first: threads take the places of what IPython takes out of ``threading``, and files are locked
    only where ``fcntl`` is more than the empty module that JupyterLite's kernel puts there.
    """
    sys.path.append(os.getcwd())  # where packages are: a notebook runs in its own folder
    _without_installer()
    import comm
    import pyodide_kernel

    shell: Any = pyodide_kernel.ipython_shell
    shell.kernel.get_parent = lambda channel="shell": shell.kernel._parent_header  # as ipykernel's
    shell.Completer.use_jedi = False  # 1.7 MB
    shell.ast_transformers.append(_Imports())
    comm.create_comm = _comm_class()
    run_code = shell.run_code

    async def run(code: CodeType, *more: Any, **options: Any) -> Any:
        loops_give_way(code)
        return await run_code(code, *more, **options)

    shell.run_code = run
    for name in ("px", "pxresult", "pxconfig", "autopx"):
        for kind in ("line", "cell"):
            shell.register_magic_function(_engines, kind, name)


def _comm_class() -> Any:
    from js import JSON
    from pyodide_kernel.comm import Comm

    class Message(Comm):  # type: ignore[misc]
        """Of a widget: a None reaches the page as null, for which JavaScript has another word otherwise."""

        def publish_msg(self, msg_type: str, data: Any = None, *more: Any, **keys: Any) -> None:
            super().publish_msg(msg_type, JSON.parse(json.dumps(data or {})), *more, **keys)

    return Message


def _engines(line: str, cell: str | None = None) -> None:
    raise NotHereError.engines("%px" if cell is None else "%%px")


def _without_installer() -> None:
    """JupyterLite's installer of packages asks servers, and all that notebooks need is there."""
    for name in ("piplite", "piplite.piplite"):
        sys.modules[name] = ModuleType(name)
    vars(sys.modules["piplite"])["piplite"] = sys.modules["piplite.piplite"]
