"""The list of edits that a conversion consists of, and the transformer that makes them. All else keeps its form."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

import libcst as cst

from workbench.convert.script import Script, Statement
from workbench.convert.source import Reason, UnclearError
from workbench.convert.steps import comment

Change = Callable[[Any], cst.CSTNode]
_ONLY_RANK_0 = cst.parse_expression("hvd.rank() == 0")


@dataclass
class _Around:
    """What comes before and after a statement."""

    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)


class Edits:
    """Edits of one script.

    Args:
        script: it stays as it is; :meth:`apply` makes a new text.
    """

    def __init__(self, script: Script) -> None:
        self.script = script
        self.notes: list[tuple[int, str]] = []
        self._around: dict[cst.CSTNode, _Around] = {}
        self._changes: dict[cst.CSTNode, list[Change]] = {}
        self._guarded: set[cst.CSTNode] = set()
        self._removed: set[cst.CSTNode] = set()
        self._heads: dict[cst.CSTNode, str] = {}
        self._undecided: dict[Reason, cst.CSTNode] = {}

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Make all edits within it; if something is unclear, make none of them, and leave that to be decided."""
        around = {
            node: replace(each, before=[*each.before], after=[*each.after], comments=[*each.comments])
            for node, each in self._around.items()
        }
        changes = {node: [*each] for node, each in self._changes.items()}
        others = {*self._guarded}, {*self._removed}, {**self._heads}, [*self.notes]
        try:
            yield
        except UnclearError as unclear:
            self._around, self._changes = around, changes
            self._guarded, self._removed, self._heads, self.notes = others
            self.decide(unclear.reason)

    def attempt_each(self, steps: Iterable[Callable[[], object]]) -> None:
        """Make one :meth:`attempt` after the other."""
        for step in steps:
            with self.attempt():
                step()

    def decide(self, *reasons: Reason) -> None:
        """Leave lines as they are, each below a comment that says what to decide there."""
        for reason in reasons:
            self._undecided[reason] = self.script.at(reason.line)

    def say(self, node: cst.CSTNode, text: str) -> None:
        """Leave the line of a node to be decided."""
        self.decide(self.script.reason(node, text))

    @property
    def undecided(self) -> list[Reason]:
        return sorted(self._undecided)

    def before(self, node: cst.CSTNode, step: int, lines: str, text: str = "", said: bool = True) -> None:
        """Insert lines before the statement of a node, with the comment of the step."""
        self._at(node).before.append(_lines(step, lines, text, said))

    def after(self, node: cst.CSTNode, step: int, lines: str, text: str = "", said: bool = True) -> None:
        """Insert lines after the statement of a node."""
        self._at(node).after.append(_lines(step, lines, text, said))

    def replace(self, node: cst.CSTNode, new: str | Change, step: int = 0, text: str = "") -> None:
        """Put another expression in the place of one; with a step, its comment goes above the statement."""
        change = new if callable(new) else _constant(cst.parse_expression(new))
        self._changes.setdefault(node, []).append(change)
        if step:
            said = comment(step, text)
            if said not in (comments := self._at(node).comments):
                comments.append(said)

    def wrap(self, node: cst.CSTNode, within: str, step: int = 0, text: str = "") -> None:
        """Put an expression, with what is edited in it, where ``{}`` is."""
        self.replace(
            node, lambda new: cst.parse_expression(within.format(cst.Module([]).code_for_node(new))), step, text
        )

    def guard(self, node: cst.CSTNode) -> None:
        """Let only rank 0 run the statement of a node."""
        self._guarded.add(self.script.statement(node))

    def remove(self, node: cst.CSTNode) -> None:
        self._removed.add(self.script.statement(node))

    def within(self, node: cst.CSTNode, head: str) -> None:
        """Put the statement of a node under a head, such as ``with lock:``."""
        self._heads[self.script.statement(node)] = head

    def assign(self, node: cst.Call, name: str) -> None:
        """Give the value of a call that is a statement a name."""
        target = cst.AssignTarget(cast(Any, cst.parse_expression(name)))
        statement = next(each for each in self.script.above(node) if isinstance(each, cst.Expr))
        self._changes.setdefault(statement, []).append(lambda expr: cst.Assign([target], expr.value))

    def unwrap(self, node: cst.With) -> None:
        """Leave out the head of a ``with``, and keep its statements."""
        self._changes.setdefault(node, []).append(_statements_of)

    def changed(self) -> list[cst.CSTNode]:
        return [*self._around, *self._changes, *self._guarded, *self._removed]

    def note(self, node: cst.CSTNode, text: str) -> None:
        """Say something about a line that has not changed."""
        self.notes.append((self.script.line(node), text))

    def apply(self) -> str:
        """The new script."""
        for reason in reversed(self.undecided):
            self._at(self._undecided[reason]).comments[:0] = textwrap.wrap(
                f"# Decide: {reason.text}", 110, subsequent_indent="#   ", break_long_words=False
            )
        return self.script.module.visit(_Apply(self)).code

    def _at(self, node: cst.CSTNode) -> _Around:
        return self._around.setdefault(self.script.statement(node), _Around())


def _lines(step: int, lines: str, text: str, said: bool) -> str:
    return f"{comment(step, text)}\n{lines}" if said else lines


def _constant(node: cst.CSTNode) -> Change:
    return lambda _: node


def _statements_of(node: cst.With) -> Any:
    first, *others = node.body.body
    above = [*node.leading_lines, *getattr(first, "leading_lines", ())]
    return cst.FlattenSentinel([first.with_changes(leading_lines=above), *others])


class _Apply(cst.CSTTransformer):
    """Makes edits while it leaves the nodes.

    Args:
        edits: which.
    """

    def __init__(self, edits: Edits) -> None:
        super().__init__()
        self._edits = edits
        self._config = edits.script.module.config_for_parsing
        self._made: set[cst.CSTNode] = set()

    def on_leave(self, original: Any, updated: Any) -> Any:
        updated = super().on_leave(original, updated)
        for change in self._edits._changes.get(original, ()):
            updated = change(updated)
        if isinstance(original, (cst.IndentedBlock, cst.Module)):
            return updated.with_changes(body=self._merged(updated.body))
        around = self._edits._around.get(original)
        guarded, removed = original in self._edits._guarded, original in self._edits._removed
        head = self._edits._heads.get(original)
        if around is None and not guarded and not removed and not head:
            return updated
        in_line = isinstance(original, cst.SimpleStatementSuite)  # as in `if x: y`
        if in_line:
            updated = cst.SimpleStatementLine(updated.body)
        if head:
            updated = self._under(head, updated)
        found = self._statements(updated, around or _Around(), guarded, removed)
        if in_line:
            return cst.IndentedBlock(self._merged(found))
        return cst.FlattenSentinel(found) if found else cst.RemoveFromParent()

    def _statements(self, node: Any, around: _Around, guarded: bool, removed: bool) -> list[Any]:
        """The statement with what is around it. Blank lines and comments above it stay above all of it."""
        before = [each for lines in around.before for each in self._parsed(lines)]
        after = [each for lines in around.after for each in self._parsed(lines)]
        above = list(node.leading_lines)
        node = node.with_changes(leading_lines=[*map(_comment_line, around.comments)])
        if guarded:
            node = self._guard(node)
        if guarded and not before:
            self._made.add(node)
        found = [*before, *([] if removed else [node]), *after]
        if found:
            first = found[0].with_changes(leading_lines=[*above, *found[0].leading_lines])
            if found[0] in self._made:
                self._made.add(first)
            found[0] = first
        return found

    def _under(self, head: str, node: Any) -> Any:
        above = node.leading_lines
        outer: Any = cst.parse_statement(
            f"{head}\n{self._edits.script.module.default_indent}pass\n", config=self._config
        )
        body = outer.body.with_changes(body=[node.with_changes(leading_lines=())])
        return outer.with_changes(body=body, leading_lines=above)

    def _guard(self, node: Statement) -> cst.If:
        said = cst.TrailingWhitespace(cst.SimpleWhitespace("  "), cst.Comment(comment(7, "only rank 0")))
        return cst.If(test=_ONLY_RANK_0, body=cst.IndentedBlock([cast(Any, node)], header=said))

    def _merged(self, body: Sequence[Any]) -> list[Any]:
        """Statements of rank 0 that follow each other are in one ``if``."""
        found: list[Any] = []
        for node in body:
            has_comment = any(each.comment is not None for each in getattr(node, "leading_lines", ()))
            if node in self._made and found and found[-1] in self._made and not has_comment:
                first = found.pop()
                inner = node.body.body[0]
                inner = inner.with_changes(leading_lines=[*node.leading_lines, *inner.leading_lines])
                node = first.with_changes(body=first.body.with_changes(body=[*first.body.body, inner]))
                self._made.add(node)
            found.append(node)
        return found

    def _parsed(self, lines: str) -> list[Any]:
        """Statements; a comment at the beginning would be the header of the module that they are parsed as."""
        said, _, rest = lines.partition("\n") if lines.startswith("#") else ("", "", lines)
        rest = rest.replace("    ", self._edits.script.module.default_indent)
        blank = [cst.EmptyLine(indent=False)] * (len(rest) - len(rest.lstrip("\n")))
        rest = rest.lstrip("\n")
        first, *others = cst.parse_module(f"{rest}\n", config=self._config).body
        above = [*blank, *([_comment_line(said)] if said else [])]
        return [first.with_changes(leading_lines=above), *others]


def _comment_line(text: str) -> cst.EmptyLine:
    return cst.EmptyLine(comment=cst.Comment(text))
