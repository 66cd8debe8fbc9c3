"""The cells of a page, run in the page: what a kernel does for a notebook."""

from __future__ import annotations

import ast
import io
import json
import linecache
import re
import sys
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from types import CodeType, TracebackType
from typing import Any

if sys.platform == "emscripten":  # before anything that takes names out of what it changes
    from workbench.course.browser import sockets, threads

    threads.install()
    sockets.install()

from workbench.course import progress_file
from workbench.course.browser.pictures import Pictures
from workbench.course.exercise import not_read

MOST = 1 << 20
"""Characters that a cell may print."""
_MAGIC = re.compile(r"^(%%?\w+|!\w+)", re.MULTILINE)
_ELSEWHERE = {
    "torch": "PyTorch",
    "tensorflow": "TensorFlow",
    "keras": "Keras",
    "jax": "JAX",
    "ipyparallel": "An engine",
    "mpi4py": "MPI",
}
LATER = ("matplotlib",)
"""Packages that a page loads when a cell asks for them."""
_ON_YOUR_COMPUTER = " in a browser: run this cell in a notebook on your computer."
Send = Callable[[str, str], object]


class Session:
    r"""What the cells of one page share.

    Args:
        send: takes a kind and a text: ``text`` of a cell's output, ``html``, or the text of an ``error``.

    Example:
        >>> shown = []
        >>> session = Session(lambda *message: shown.append(message))
        >>> session.run("x = 2\nprint('so')\nx + 1"), session.run("y = x\ny / 0", number=5)
        (True, False)
        >>> for kind, text in shown:
        ...     print(f"{kind}: {text.rstrip()}")
        text: so
        text: 3
        error: cell 5, line 2: y / 0
        ZeroDivisionError: division by zero
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._elsewhere: set[str] = set()  # names that cells define which do not run here
        self._names: dict[str, Any] = {"__name__": "__main__", "display": self._show}
        self._pictures = Pictures()

    def skip(self, source: str) -> None:
        """A cell does not run here: who asks for its names is told so."""
        self._elsewhere |= _bound(source)

    def run(self, source: str, quiet: bool = False, number: int = 1) -> bool:
        """Run a cell; False if it did not come to its end.

        Args:
            source: of the cell.
            quiet: its output is not shown.
            number: of the cell in its page.

        Raises:
            ModuleNotFoundError: of one of :data:`LATER`, which can be loaded; then the cell is to be run again.
        """
        name = f"<ipython-input-{number}>"  # as a notebook's: so errors speak of the cell
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        out = _Output((lambda kind, text: None) if quiet else self._send)
        with redirect_stdout(out), redirect_stderr(out):
            try:
                value = self._result(source, name)
                if value is not None and not quiet:
                    self._show(value)
                return True
            except SyntaxError as error:
                if error.filename != name:
                    raise
                not_read(source)
                text = f"line {error.lineno}: {(error.text or '').rstrip()}\nSyntaxError: {error.msg}"
                self._failed(out, text)
            except BaseException as error:
                if isinstance(error, ModuleNotFoundError) and error.name in LATER:
                    raise
                text = self._told(error)
                if text.endswith(_ON_YOUR_COMPUTER):
                    self.skip(source)
                self._failed(out, text)
            finally:
                out.flush()
        return False

    def _result(self, source: str, name: str) -> Any:
        """Of the last line, if it is an expression whose value a notebook would show."""
        if magic := _MAGIC.search(source):
            raise NotHereError.engines(magic[1])
        tree = ast.parse(source, name)
        tree.body = [each for one in tree.body for each in imported(one)]
        last = tree.body[-1] if tree.body else None
        if not isinstance(last, ast.Expr):
            exec(_compiled(tree, name), self._names)
            return None
        exec(_compiled(ast.Module(tree.body[:-1], []), name), self._names)
        value = eval(_compiled(ast.Expression(last.value), name), self._names)
        return None if source.rstrip().endswith(";") else value

    def _show(self, value: Any) -> None:
        """As a notebook shows a value: as a picture or HTML, if it can be."""
        sys.stdout.flush()
        bundle = getattr(value, "_repr_mimebundle_", None)
        data: dict[str, Any] = {}
        about: dict[str, Any] = {}
        if bundle is not None:
            data, about = bundle() or (data, about)
        svg = data.get("image/svg+xml") or (value._repr_svg_() if hasattr(value, "_repr_svg_") else None)
        page = data.get("text/html") or (value._repr_html_() if hasattr(value, "_repr_html_") else None)
        seconds = about.get("workbench", {}).get("seconds")
        if page:
            self._send("html", self._pictures.within(page))
        elif svg:
            self._send("html", self._pictures.played(svg, seconds) if seconds else self._pictures.shown(svg))
        else:
            self._send("text", f"{value!r}\n")

    def _failed(self, out: _Output, text: str) -> None:
        out.flush()
        self._send("error", text)

    def _told(self, error: BaseException) -> str:
        """The lines of the cells on the way to an error, and the error."""
        if isinstance(error, KeyboardInterrupt):
            return "\n".join(["Stopped.", *(f"{place}: {text}" for place, text in _places(error.__traceback__))])
        if own := getattr(error, "_render_traceback_", None):
            return "\n".join(own())
        if isinstance(error, ModuleNotFoundError) and (name := _elsewhere(error.name or "")):
            return f"{name} is not there{_ON_YOUR_COMPUTER}"
        if isinstance(error, NameError) and error.name in self._elsewhere:
            return f"{error.name} comes from a cell that did not run here{_ON_YOUR_COMPUTER}"
        lines = [f"{place}: {text}" for place, text in _places(error.__traceback__)]
        return "\n".join([*lines, *(line.rstrip() for line in traceback.format_exception_only(error))])


def _compiled(tree: ast.Module | ast.Expression, name: str) -> CodeType:
    code = compile(tree, name, "exec" if isinstance(tree, ast.Module) else "eval")
    if sys.platform == "emscripten":
        threads.loops_give_way(code)
    return code


class NotHereError(Exception):
    """What a cell asks for is not there in a browser."""

    @classmethod
    def engines(cls, what: str) -> NotHereError:
        """Of what runs on engines, such as a magic, or as a program of its own."""
        needs = "a shell" if what.startswith("!") else "engines"
        return cls(f"{what} needs {needs}, and there is none{_ON_YOUR_COMPUTER}")

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


class Absent:
    """In the place of a module that is not there: a cell may import it beside others, and may not use it.

    Args:
        what: in words.
    """

    def __init__(self, what: str) -> None:
        self._what = what

    def __getattr__(self, name: str) -> Any:
        raise NotHereError(f"{self._what} is not there{_ON_YOUR_COMPUTER}")

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.call


def imported(statement: ast.stmt) -> list[ast.stmt]:
    """A statement of a cell; of an import, what is there, and :class:`Absent` for what is not."""
    if not isinstance(statement, ast.Import | ast.ImportFrom):
        return [statement]
    before = f"{statement.module}." if isinstance(statement, ast.ImportFrom) else ""
    there = [each for each in statement.names if not _elsewhere(before + each.name)]
    found: list[ast.stmt] = []
    if there:
        statement.names, names = there, statement.names
        found.append(statement)
    else:
        names = statement.names
    for each in names:
        if what := _elsewhere(before + each.name):
            bound = each.asname or each.name.partition(".")[0]
            made = ast.parse(f"from {__name__} import Absent as _absent\n{bound} = _absent({what!r})").body
            found += [ast.copy_location(one, statement) for one in made]
    return [ast.fix_missing_locations(one) for one in found]


def _bound(source: str) -> set[str]:
    """The names that a cell defines at its top, as far as it can be read without its magics."""
    lines = [line for line in source.splitlines() if not line.startswith(("%", "!"))]
    try:
        found = [each for one in ast.parse("\n".join(lines)).body for each in ast.walk(one)]
    except SyntaxError:
        return set()
    names = {each.id for each in found if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    names |= {each.name for each in found if isinstance(each, ast.FunctionDef | ast.ClassDef)}
    aliases = [each for each in found if isinstance(each, ast.alias)]
    return names | {each.asname or each.name.partition(".")[0] for each in aliases}


def _elsewhere(module: str) -> str:
    """What a module that is not there stands for; "" if that is not known."""
    parts = module.split(".")
    top = parts[1] if parts[0] == "workbench" and len(parts) > 1 else parts[0]
    return _ELSEWHERE.get({"tf": "tensorflow", "cluster": "ipyparallel"}.get(top, top), "")


def _places(trace: TracebackType | None) -> list[tuple[str, str]]:
    """The lines of cells in a stack."""
    found = []
    for frame in traceback.extract_tb(trace):
        if frame.filename.startswith("<ipython-input-"):
            number = frame.filename[len("<ipython-input-") : -1]
            found.append((f"cell {number}, line {frame.lineno}", (frame.line or "").strip()))
    return found


class _Output(io.TextIOBase):
    """What a cell prints, by lines, up to :data:`MOST` characters."""

    def __init__(self, send: Send) -> None:
        self._send, self._left, self._parts = send, MOST, list[str]()
        self._length = 0

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        """Keep it until a piece is worth a message."""
        if self._left > 0:
            self._parts.append(text[: self._left])
            self._left -= len(text)
            self._length += len(text)
            if self._left <= 0:
                self._parts.append(f"\n… more than {MOST:,} characters: the rest is not shown\n")
            if self._length > 2000 or self._left <= 0:
                self.flush()
        return len(text)

    def flush(self) -> None:
        if self._parts:
            self._send("text", "".join(self._parts))
            self._parts, self._length = [], 0


def state() -> str:
    """What is to be kept of a learner's progress, as JSON."""
    return json.dumps(progress_file.read(progress_file.FILE), sort_keys=True)


def restore(text: str) -> None:
    """Take up what was kept."""
    progress_file.FILE.parent.mkdir(exist_ok=True)
    progress_file.FILE.write_text(text, encoding="utf-8")
