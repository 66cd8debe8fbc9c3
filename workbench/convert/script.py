"""A parsed script that answers questions: what is called where, what a name means, and where a value comes from."""

from __future__ import annotations

import io
import tokenize
from collections.abc import Iterator
from functools import cached_property
from typing import Any, TypeAlias, TypeVar, cast

import libcst as cst
from libcst.metadata import (
    MetadataWrapper,
    ParentNodeProvider,
    PositionProvider,
    QualifiedName,
    QualifiedNameProvider,
    QualifiedNameSource,
)

from workbench.convert.source import Reason, UnclearError, parse

Statement: TypeAlias = cst.SimpleStatementLine | cst.SimpleStatementSuite | cst.BaseCompoundStatement
_STATEMENTS = (cst.SimpleStatementLine, cst.SimpleStatementSuite, cst.BaseCompoundStatement)
N = TypeVar("N", bound=cst.CSTNode)


class Script:
    """A script and its syntax tree.

    Args:
        name: for messages.
        text: the script's.

    Raises:
        RefusedError: it is no Python 3.
    """

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.module = parse(name, text)
        wrapper = MetadataWrapper(self.module, unsafe_skip_copy=True)
        self._positions = wrapper.resolve(PositionProvider)
        self._parents = wrapper.resolve(ParentNodeProvider)
        self._wrapper = wrapper
        self.nodes = list(_walk(self.module))
        self._kinds: dict[type[cst.CSTNode], list[Any]] = {}
        self.found: dict[cst.Call, list[cst.FunctionDef]] = {}
        self.used = {node.value for node in self.nodes if isinstance(node, cst.Name)}

    # --- places ----------------------------------------------------------------------------------------

    def line(self, node: cst.CSTNode) -> int:
        return int(self._positions[node].start.line)

    def reason(self, node: cst.CSTNode, text: str) -> Reason:
        """What is said of its line."""
        return Reason(self.line(node), text)

    def unclear(self, node: cst.CSTNode, text: str) -> UnclearError:
        """An error, to be raised, about its line."""
        return UnclearError(self.line(node), text)

    def place(self, node: cst.CSTNode) -> tuple[int, int]:
        start = self._positions[node].start
        return int(start.line), int(start.column)

    def text(self, node: cst.CSTNode) -> str:
        """Its code, on one line and without comments."""
        code = self.module.code_for_node(node)
        if "#" in code:
            lines = io.StringIO(f"({code}\n)")
            tokens = [each for each in tokenize.generate_tokens(lines.readline) if each.type != tokenize.COMMENT]
            code = tokenize.untokenize(tokens).strip()[1:-1].replace("\\\n", "")
        return " ".join(code.split())

    def word(self, arg: cst.Arg | None, default: str) -> str:
        """What a text says that is an argument; the default where it is not given."""
        return self.text(arg.value).strip("'\"") if arg is not None else default

    def factor(self, node: cst.CSTNode) -> str:
        """Its code, so that ``*`` and ``//`` may follow."""
        kinds = (cst.Name, cst.Attribute, cst.Integer, cst.Float, cst.Call, cst.Subscript)
        return self.text(node) if isinstance(node, kinds) else f"({self.text(node)})"

    def all(self, kind: type[N]) -> list[N]:
        if kind not in self._kinds:
            self._kinds[kind] = [node for node in self.nodes if isinstance(node, kind)]
        return cast(list[N], self._kinds[kind])

    def above(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """The nodes around it, the innermost first."""
        while node in self._parents:
            node = self._parents[node]
            yield node

    def statement(self, node: cst.CSTNode) -> Statement:
        """The statement that it is in: a line, or a compound statement if it is in the head of one."""
        found = next(each for each in (node, *self.above(node)) if isinstance(each, _STATEMENTS))
        while isinstance(found, cst.If) and isinstance(above := self._parents[found], cst.If):
            found = above  # an elif is a part of its if
        return found

    def at(self, line: int) -> Statement:
        """The statement that begins last up to a line; the first one for 0."""
        found = [each for each in self.nodes if isinstance(each, _STATEMENTS)]
        return self.statement(max((each for each in found if self.line(each) <= line), key=self.line, default=found[0]))

    def level(self, node: cst.CSTNode, other: cst.CSTNode) -> Statement:
        """The statement around one node that is in a block around the other."""
        blocks = {*self.above(other)}
        found = self.statement(node)
        while next(self.above(found)) not in blocks:
            found = self.statement(next(self.above(found)))
        return found

    def block(self, node: cst.CSTNode) -> cst.CSTNode:
        """The loop, function or branch that it is directly in."""
        kinds = (cst.For, cst.While, cst.If, cst.Else, cst.FunctionDef, cst.Module)
        return next(each for each in self.above(node) if isinstance(each, kinds))

    def excludes(self, node: cst.CSTNode, other: cst.CSTNode) -> bool:
        """Are they in different branches of one ``if``?"""
        one, two = ([node, *self.above(node)], [other, *self.above(other)])
        both = [each for each in one if each in two and isinstance(each, cst.If)]
        return any((each.body in one) != (each.body in two) for each in both)

    def function(self, node: cst.CSTNode) -> cst.FunctionDef | None:
        return next((each for each in self.above(node) if isinstance(each, cst.FunctionDef)), None)

    def owner(self, node: cst.CSTNode) -> cst.ClassDef | None:
        return next((each for each in self.above(node) if isinstance(each, cst.ClassDef)), None)

    # --- names -----------------------------------------------------------------------------------------

    @cached_property
    def _names(self) -> Any:
        return self._wrapper.resolve(QualifiedNameProvider)

    def meaning(self, node: cst.CSTNode) -> str:
        """The name in full: ``torch.optim.SGD`` for ``SGD`` after ``from torch.optim import SGD``."""
        value = self._names.get(node, ())
        names: set[QualifiedName] = set(value() if callable(value) else value)  # libcst finds them when asked
        imported = {each.name for each in names if each.source is not QualifiedNameSource.LOCAL}
        return min(imported or {each.name for each in names}, default="")

    def is_imported(self, node: cst.CSTNode) -> bool:
        """Is this name a module, or something of one, or Python's own?"""
        value = self._names.get(node, ())
        names: set[QualifiedName] = set(value() if callable(value) else value)
        return any(each.source is not QualifiedNameSource.LOCAL for each in names)

    def calls(self, *names: str) -> list[cst.Call]:
        """Calls of functions, by their names in full."""
        return [call for call in self.all(cst.Call) if self.meaning(call.func) in names]

    def methods(self, name: str) -> list[cst.Call]:
        """Calls of a method, as ``anything.name(…)``."""
        return [call for call in self.all(cst.Call) if isinstance(call.func, cst.Attribute) and last(call.func) == name]

    def functions(self, name: str) -> list[cst.FunctionDef]:
        return [each for each in self.all(cst.FunctionDef) if each.name.value == name]

    def callers(self, function: cst.FunctionDef) -> list[cst.Call]:
        """Calls of a function; of a method those on objects of its class, of ``__init__`` those of the class."""
        name, owner = function.name.value, self.owner(function)
        if owner is not None and name == "__init__":
            name, owner = owner.name.value, None
        found = [call for call in self.all(cst.Call) if last(call.func) == name]
        return [call for call in found if self._is_on(call, owner)]

    def _is_on(self, call: cst.Call, owner: cst.ClassDef | None) -> bool:
        if not isinstance(call.func, cst.Attribute):
            return owner is None
        on = call.func.value
        if owner is None:
            return False
        if last(on) == "self":
            return self.owner(call) is owner
        made = [
            node.value for node in self.all(cst.Assign) if any(last(each.target) == last(on) for each in node.targets)
        ]
        return any(isinstance(each, cst.Call) and last(each.func) == owner.name.value for each in (on, *made))

    def imports(self, *packages: str) -> list[cst.CSTNode]:
        """Imports of these packages, or of modules in them."""
        found: list[cst.CSTNode] = []
        for node in self.nodes:
            if isinstance(node, cst.Import):
                modules = [self.text(each.name) for each in node.names]
            elif isinstance(node, cst.ImportFrom):
                modules = [self.text(node.module)] if node.module else []
            else:
                continue
            if any(f"{module}.".startswith(f"{package}.") for module in modules for package in packages):
                found.append(node)
        return found

    def unused(self, name: str) -> str:
        """A name that the script does not use yet, and will use now."""
        while name in self.used:
            name += "_"
        self.used.add(name)
        return name


def last(node: cst.CSTNode) -> str:
    """The last part of a name with dots, or ""."""
    return node.attr.value if isinstance(node, cst.Attribute) else node.value if isinstance(node, cst.Name) else ""


def argument(call: cst.Call, position: int | None, keyword: str) -> cst.Arg | None:
    """A call's argument, by its keyword or position."""
    for index, arg in enumerate(call.args):
        if arg.keyword is not None and arg.keyword.value == keyword:
            return arg
        if arg.keyword is None and not arg.star and index == position:
            return arg
    return None


def stars(call: cst.Call) -> list[cst.Arg]:
    """Arguments that are unpacked, as ``**options``."""
    return [arg for arg in call.args if arg.star]


def inside(node: cst.CSTNode, kind: type[N]) -> list[N]:
    """All nodes of a class in this one, and itself."""
    return [each for each in _walk(node) if isinstance(each, kind)]


def _walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    yield node
    for child in node.children:
        yield from _walk(child)
