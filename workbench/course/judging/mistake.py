"""The words of exercises, as data: a text beside each file of exercises. ``general.txt``: what may go wrong anywhere.

Exercises have headings. The first block has three hints, each telling more. The others are usual mistakes, each with
the hint that helps::

    # 04.average_gradients

    1 What would one process with all of the samples compute?
    2 …
    3 …

    ? How many samples are there on all ranks together?
    ~ divided by this rank's own count
    ! the sum was divided by the number of ranks, not by that of all samples
    - / comm.allreduce(count)
    + / comm.size

1. ``?`` is what ``hint()`` says.
2. ``~`` are words of a verdict that the hint fits.
3. ``!`` is what ``check()`` says first: of an answer with the results of a known wrong version of the solution, which
   differs from it as the lines below tell, ``-`` old and ``+`` new; or, with no such lines, before an exception with
   the words above, whose own text knows nothing of the lesson. A block may have several.

In a card's first block there are, behind the hints, four causes by letter, each with its answer behind ``|`` and a
``*`` at the right one; then how the program with the mistake differs from the solution. A lone ``+`` leaves text out::

    b* Each rank takes the norm of its own part. | A part's norm is smaller than that of the whole. Add up the squares.
    …
    -     dist.all_reduce(squares)
    +
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_EDIT = re.compile(r"((?:^-.*\n)+)((?:^\+.*\n)+)", re.MULTILINE)
_FIRST = re.compile(r"1 (.+)\n2 (.+)\n3 (.+)\n(?:((?:[a-d]\*? .+ \| .+\n){4})((?:(?:-.*\n)+(?:\+.*\n)+)+))?")
_BLOCK = re.compile(r"\? .+\n(?=[~!])(~ .+\n)*(! .+\n((-.*\n)+(\+.*\n)+)*)*")


@dataclass(frozen=True)
class Mistake:
    """A usual mistake, and what helps then. It is known by words of a verdict, or by the results of a wrong version.

    Args:
        hint: what ``hint()`` says first.
        words: of which one is in what ``check()`` says of it.
        cause: what ``check()`` says first, in the lesson's words.
        edits: how a wrong version differs from the solution: (old text, new text), each old one is in its source. A
            learner's code may look quite different: results are compared, see ``recognise.py``.

    Example:
        >>> one = Mistake("What is 2 x?", cause="that is x itself", edits=(("2 * x", "x"),))
        >>> one.version_of("def f(x): return 2 * x", {})(5)
        5
    """

    hint: str
    words: tuple[str, ...] = ()
    cause: str = ""
    edits: tuple[tuple[str, str], ...] = ()

    def version_of(self, source: str, names: dict[str, Any]) -> Callable[..., Any]:
        """The solution with this mistake.

        Args:
            source: of the solution.
            names: that it can see.

        Raises:
            ValueError: an old text is not in the source.
        """
        source = edited(source, self.edits)
        space = dict(names)
        exec(compile(source, "<mistake>", "exec"), space)  # the course's own text
        made: Callable[..., Any] = space[source.partition("(")[0].removeprefix("def ").strip()]
        return made


def edited(source: str, edits: Iterable[tuple[str, str]]) -> str:
    """The source with (old text, new text) changed.

    Raises:
        ValueError: an old text is not in it.

    Example:
        >>> edited("return 2 * x", [("2 * x", "x")])
        'return x'
    """
    for old, new in edits:
        if old not in source:
            raise ValueError(f"{old!r} is not in the solution")
        source = source.replace(old, new)
    return source


def read(path: Path) -> dict[str, dict[str, Any]]:
    """What a file says of each exercise: fields of a task, or of a :class:`~workbench.course.judging.card.Card`.

    Raises:
        ValueError: a block is in no such form.
    """
    found: dict[str, dict[str, Any]] = {}
    for block in path.read_text(encoding="utf-8").rstrip().split("\n\n"):
        if block.startswith("# "):
            fields = found[block[2:]] = {"mistakes": ()}
        elif _BLOCK.fullmatch(f"{block}\n"):
            fields["mistakes"] += tuple(_in_block(f"{block}\n"))
        elif first := _FIRST.fullmatch(f"{block}\n"):
            *hints, causes, edits = first.groups()
            fields["hints"] = tuple(hints)
            if causes:
                fields["right"] = "".join(re.findall(r"^([a-d])\*", causes, re.MULTILINE))
                fields["causes"] = tuple(tuple(one.split(" ", 1)[1].split(" | ")) for one in causes.splitlines())
                fields["edits"] = _edits(edits)
        else:
            raise ValueError(f"{path.name}: a block is ?, then lines of ~, then ! with or without - and +:\n{block}")
    return found


def _in_block(block: str) -> Iterator[Mistake]:
    told, *parts = re.split(r"^! ", block, flags=re.MULTILINE)
    hint, *words = (line[2:] for line in told.splitlines())
    causes = [(cause, edits) for cause, _, edits in (part.partition("\n") for part in parts)]
    if words:
        yield Mistake(hint, tuple(words), next((cause for cause, edits in causes if not edits), ""))
    yield from (Mistake(hint, (), cause, _edits(edits)) for cause, edits in causes if edits)


def _edits(lines: str) -> tuple[tuple[str, str], ...]:
    found = [(_unsigned(old), _unsigned(new)) for old, new in _EDIT.findall(lines)]
    return tuple((old.rstrip("\n") + "\n" if old.startswith("    ") and not new else old, new) for old, new in found)


def _unsigned(lines: str) -> str:
    return "\n".join(line[2:] for line in lines.splitlines())


GENERAL = read(Path(__file__).with_name("general.txt"))["any exercise"]["mistakes"]
"""What may go wrong in any exercise; looked at after the exercise's own."""
