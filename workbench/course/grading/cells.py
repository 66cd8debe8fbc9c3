"""A notebook's code cells: which exercises are in them, and how they are run, statement by statement."""

from __future__ import annotations

import ast
import linecache
import os
import re
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

_NAMED = re.compile(r"""(?:@exercise|\bcheck)\(\s*["']([^"'\n]+)["']""")
_DEFINED = r"""@exercise\(\s*["']{}["']"""
_RUN_ANYWAY = ("%%time", "%%capture")  # cell magics whose cell is plain Python


def exercises_in(sources: Sequence[str], known: Sequence[str]) -> list[str]:
    """The exercises that cells define or check, each once: one whose cell was deleted still counts.

    Example:
        >>> exercises_in(['@exercise("03.a")', 'check("03.b"); check("9.x")', 'check("03.a")'], ["03.a", "03.b"])
        ['03.a', '03.b']
    """
    named = [name for source in sources for name in _NAMED.findall(source) if name in known]
    return list(dict.fromkeys(named))


def missing_from(found: Sequence[str], known: Sequence[str]) -> list[str]:
    """The other exercises of the lessons of those found: whoever deletes a hard one must not have full marks.

    Example:
        >>> missing_from(["03.a"], ["02.x", "03.a", "03.b"])
        ['03.b']
    """
    lessons = {name.partition(".")[0] for name in found}
    return [name for name in known if name.partition(".")[0] in lessons and name not in found]


def defines(source: str, name: str) -> bool:
    """Does a cell define an exercise?"""
    return re.search(_DEFINED.format(re.escape(name)), source) is not None


class Nothing:
    """In the place of engines and of IPython: takes every call and does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self

    def __getitem__(self, key: Any) -> Any:
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(())  # by __getitem__ alone it would never end

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        pass


def disarm(space: dict[str, Any], named: Callable[[str, str], None]) -> None:
    """Let ``check``, ``show`` and the like, and engines, do nothing in this process, however they are imported.

    Args:
        space: the notebook's names, for :func:`catch_up`, which must not hand in what it defines.
        named: told the exercise and the letter of each ``cause``.
    """
    from workbench import cluster
    from workbench.course import cards, exercise, tasks

    def catch_up(lesson: str) -> None:
        for name in tasks.before(lesson):
            space.setdefault(tasks.task(name).short, tasks.task(name).reference)

    for name in ("check", "show", "hint", "solution"):
        setattr(exercise, name, lambda *args, **options: None)
    exercise.catch_up = catch_up
    cards.cause = lambda name, choice="": named(str(name), str(choice))
    for name in ("up", "down", "rescue"):
        setattr(cluster, name, Nothing())
    space["get_ipython"] = space["display"] = Nothing()


def python_of(source: str) -> str:
    """A cell as plain Python; "" for a cell magic's cell, such as ``%%px``, unless an exercise is defined there."""
    from IPython.core import inputtransformer2

    transformer: Any = inputtransformer2.TransformerManager  # not typed
    if source.lstrip().startswith("%%"):
        head, _, body = source.partition("\n")
        if not (head.strip().startswith(_RUN_ANYWAY) or "@exercise(" in body):
            return ""
        source = f"\n{body}"
    text: str = transformer().transform_cell(source)  # %magics and !commands become calls of get_ipython()
    return text


def parsed(number: int, source: str) -> Sequence[ast.stmt]:
    """A cell's statements.

    Raises:
        SyntaxError: and whatever else Python's parser raises.
    """
    text = python_of(source)
    linecache.cache[_filename(number)] = (len(text), None, text.splitlines(keepends=True), _filename(number))
    return ast.parse(text, _filename(number)).body


def _filename(number: int) -> str:
    return f"<code cell {number}>"


def run_cell(number: int, source: str, stop: int | None, module: ModuleType, report: Callable[[int, int], None]) -> str:
    """Run a cell statement by statement; return what it raised, in a line.

    Args:
        number: counted from 1, code cells only.
        source: the cell's text.
        stop: the statement where it is known not to come to an end.
        module: the notebook's names.
        report: told where it is: cell and statement. It ends a child that the notebook has forked.
    """
    owner = os.getpid()
    try:
        for i, statement in enumerate(parsed(number, source)):
            if os.getpid() != owner:
                os._exit(0)
            if i == stop:
                return ""
            report(number, i)
            exec(compile(ast.Module([statement], []), _filename(number), "exec"), module.__dict__)
    except BaseException as error:  # noqa: BLE001 - also SystemExit and KeyboardInterrupt: they end a cell, no more
        if os.getpid() != owner:
            os._exit(0)
        return described(error)
    return ""


def described(error: BaseException) -> str:
    """An exception in a line or two."""
    from workbench.course.judging import judge

    try:
        return judge.described(error, function=False)
    except Exception:  # noqa: BLE001 - a learner's exception may be unable to say what it is
        return type(error).__name__
