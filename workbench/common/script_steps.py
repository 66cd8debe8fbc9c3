"""The six steps of data-parallel training in a script for Horovod or the workbench: which line takes which?

The script is read, and not run: a step that is there may still be wrong.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

STEPS = {
    1: "Initialization",
    2: "Compute the local batch size",
    3: "Pin the process to the GPU",
    4: "Shard the data",
    5: "Give all ranks the same initial weights",
    6: "Average the gradients",
}
WITHOUT = {
    1: "no process knows its rank",
    2: "all ranks together take a larger batch than one process",
    3: "all ranks of a machine use its first GPU",
    4: "each rank trains on all samples",
    5: "the ranks begin with different weights, and never have the same",
    6: "each rank trains a model of its own",
}
_BROADCASTS = ("broadcast_parameters", "broadcast_optimizer_state", "broadcast_variables", "broadcast_global_variables")
_CALLS = {
    **dict.fromkeys(_BROADCASTS, 5),
    "BroadcastGlobalVariablesCallback": 5,
    "BroadcastGlobalVariablesHook": 5,
    "DistributedOptimizer": 6,
    "DistributedGradientTape": 6,
}
_SAMPLERS = ("DistributedSampler", "ShardedSampler", "ElasticSampler")
_NUMBERS = ("rank", "size", "local_rank")
_TELL = ("print", "write", "debug", "info", "warning", "log")  # these only say what the numbers are


def find(script: str) -> dict[int, list[int]]:
    r"""Step → the lines that take it; no line where it is missing.

    Args:
        script: its text.

    Raises:
        SyntaxError: this is no Python.

    Example:
        >>> find("import horovod.torch as hvd\n\nhvd.init()\nlocal_batch = 64 // hvd.size()\n")
        {1: [3], 2: [4], 3: [], 4: [], 5: [], 6: []}
    """
    tree = ast.parse(script)
    reader = Reader(tree)
    found: dict[int, set[int]] = {step: set() for step in STEPS}
    for statement in _simple(tree):
        for step in reader.steps(statement):
            found[step].add(statement.lineno)
    return {step: sorted(lines) for step, lines in found.items()}


def _simple(tree: ast.Module) -> Iterator[ast.stmt]:
    """Statements without others in them; of compound ones their heads, such as an ``if``'s test."""
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and not isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Import)):
            yield node


class Reader:
    """Knows by which names a script calls the library, and the ranks' numbers.

    Args:
        tree: the script.
    """

    def __init__(self, tree: ast.Module) -> None:
        self._modules, self._functions, self._numbers = set[str](), dict[str, str](), dict[str, str]()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                ours = [each for each in node.names if _is_library(each.name)]
                self._modules |= {each.asname or each.name for each in ours}
            elif isinstance(node, ast.ImportFrom) and _is_library(node.module or ""):
                self._functions |= {each.asname or each.name: each.name for each in node.names}
                self._modules |= {each.asname or each.name for each in node.names}
                if any(each.name == "*" for each in node.names):
                    self._functions |= {name: name for name in ("init", *_NUMBERS, *_CALLS)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                for name, value in _pairs(node.targets[0], node.value):
                    if (number := self.number(value)) is not None:
                        self._numbers[name] = number

    def steps(self, statement: ast.stmt) -> Iterator[int]:
        """Which ones it takes."""
        if self._names_it(statement):
            return
        nodes = list(_own(statement))
        used = {number for node in nodes if (number := self.number(node)) is not None}
        calls = {name for node in nodes if isinstance(node, ast.Call) and (name := self.called(node))}
        yield from (_CALLS[name] for name in calls & _CALLS.keys())
        if "init" in calls:
            yield 1
        made = {last(node.func) for node in nodes if isinstance(node, ast.Call)}
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call) and made & set(_TELL):
            return
        if "local_rank" in used:
            yield 3
        divides = any(self._divides(node) for node in nodes)
        if divides and "batch" in ast.unparse(statement).lower() and "rank" not in used:
            yield 2
        slices = "slice" in made or any(isinstance(node, ast.Slice) for node in nodes)
        shares = used >= {"rank", "size"} or ("rank" in used and slices)
        if made & set(_SAMPLERS) or (shares and not any("seed" in name for name in made)):
            yield 4

    def _names_it(self, statement: ast.stmt) -> bool:
        """Does it only give numbers names?"""
        pairs = list(_pairs(statement.targets[0], statement.value)) if isinstance(statement, ast.Assign) else []
        return bool(pairs) and all(self.number(value) is not None for _, value in pairs)

    def _divides(self, node: ast.AST) -> bool:
        by = isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Div, ast.FloorDiv))
        return by and any(self.number(each) == "size" for each in ast.walk(node.right))  # type: ignore[attr-defined]

    def called(self, node: ast.Call) -> str:
        """The library's function, or "" if it is none of it."""
        if isinstance(node.func, ast.Name):
            return self._functions.get(node.func.id, "")
        first = node.func
        while isinstance(first, ast.Attribute):
            first = first.value
        whole = ast.unparse(node.func).rpartition(".")[0]
        ours = whole in self._modules or (isinstance(first, ast.Name) and first.id in self._modules)
        return last(node.func) if ours else ""

    def number(self, node: ast.AST) -> str | None:
        """``rank``, ``size`` or ``local_rank``, if the expression is that number."""
        if isinstance(node, (ast.Name, ast.Attribute)):
            return self._numbers.get(ast.unparse(node))
        if not isinstance(node, ast.Call):
            return None
        if isinstance(node.func, ast.Name) and node.func.id in ("int", "float", "str") and node.args:
            return self.number(node.args[0])
        return name if (name := self.called(node)) in _NUMBERS else None


def _is_library(name: str) -> bool:
    return name.partition(".")[0] in ("horovod", "workbench")


def _own(statement: ast.stmt) -> Iterator[ast.AST]:
    """A statement's nodes, without those of the statements in it."""
    todo: list[ast.AST] = [each for each in ast.iter_child_nodes(statement) if not isinstance(each, ast.stmt)]
    while todo:
        node = todo.pop()
        yield node
        todo += ast.iter_child_nodes(node)


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one, other in zip(target.elts, value.elts, strict=False):
            yield from _pairs(one, other)
    elif isinstance(target, (ast.Name, ast.Attribute)):
        yield ast.unparse(target), value


def last(node: ast.expr) -> str:
    """The last part of a name with dots, or ""."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
