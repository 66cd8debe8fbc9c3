"""What the text of a script shows of known mistakes: the learning rate, and what a few steps do not reach.

A name stands for the rank, or for a scale, if it was assigned from one. A file that is written is guarded if a test of
the rank stands before it, in its function, or where all callers of that function are.
"""

from __future__ import annotations

import ast
import tokenize
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from workbench.common.script_steps import Reader, find, last
from workbench.diagnostics.first_steps.mistakes import Mistake

_OPTIMIZERS = {"SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "Nadam", "LAMB", "LARS"}
_RATES = ("lr", "learning_rate", "base_lr", "initial_lr")
_SAVES = {"save", "save_weights", "save_model", "savez", "savez_compressed", "savefig", "to_csv", "ModelCheckpoint"}
_RANKISH = ("rank", "master", "is_main", "chief", "verbose")  # names that scripts give to what says who writes
_FRAMEWORKS = ("torch", "tensorflow", "keras", "jax")
_READS = {"DataLoader", "load_data", "from_tensor_slices"}
_AVERAGES = ("allreduce", "allgather", "all_reduce", "all_gather", "grouped_allreduce", "MetricAverage")
_SAMPLERS = {"DistributedSampler", "ShardedSampler", "ElasticSampler"}
_NORMS = {"BatchNorm1d", "BatchNorm2d", "BatchNorm3d"}
_LEAVES = (ast.Return, ast.Continue, ast.Raise)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


class Script:
    """A script's text.

    Args:
        path: where it is, for the mistakes.
        text: Python.

    Raises:
        SyntaxError: it is none.
    """

    def __init__(self, path: str, text: str) -> None:
        self._path, self._lines = path, text.split("\n")
        self._tree = ast.parse(text)
        self._reader, self._steps = Reader(self._tree), find(text)
        self._parents = {child: node for node in ast.walk(self._tree) for child in ast.iter_child_nodes(node)}
        self._guarding = set[_Function]()

    def mistakes(self, writes: frozenset[int] = frozenset()) -> Iterator[Mistake]:
        """What is wrong, or may be.

        Args:
            writes: lines that were seen to write a file; what they do is known.
        """
        if not self._steps[1]:
            return
        yield from self._scaled_twice()
        yield from self._not_scaled()
        yield from self._not_sharded()
        yield from self._compiled()
        yield from self._saved_by_all(writes)
        yield from self._not_averaged()
        yield from self._own_statistics()

    @property
    def library(self) -> tuple[Any, ...]:
        """The first line that imports the library; () if there is none."""
        for node in ast.walk(self._tree):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.startswith(("horovod", *(f"workbench.{each}" for each in _FRAMEWORKS))) for name in names):
                return self._at(node)
        return ()

    def _at(self, node: ast.AST) -> tuple[Any, ...]:
        number: int = node.lineno  # type: ignore[attr-defined]
        return self._path, number, self._lines[number - 1].strip()

    # --- the learning rate ----------------------------------------------------------------------------

    @cached_property
    def _scales(self) -> set[str]:
        """Names of factors that have the number of ranks in them."""
        found = set[str]()
        for _ in range(2):
            for target, value, _node in self._assignments:
                words = target.lower()
                if self._has_scale(value, found) and any(word in words for word in ("lr", "rate", "scal", "factor")):
                    found.add(target)
        return found

    @cached_property
    def _assignments(self) -> list[tuple[str, ast.expr, ast.stmt]]:
        found: list[tuple[str, ast.expr, ast.stmt]] = []
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Assign):
                found += [(ast.unparse(each), node.value, node) for each in node.targets]
            elif isinstance(node, (ast.AnnAssign, ast.AugAssign)) and node.value is not None:
                found.append((ast.unparse(node.target), node.value, node))
        return sorted(found, key=lambda each: each[2].lineno)

    def _has_scale(self, node: ast.AST, scales: set[str] | None = None) -> bool:
        names = self._scales if scales is None else scales
        return any(
            self._reader.number(each) == "size"
            or (isinstance(each, (ast.Name, ast.Attribute)) and ast.unparse(each) in names)
            for each in ast.walk(node)
        )

    def _by_size(self, node: ast.AST) -> bool:
        """Is something in it multiplied by the number of ranks itself, or a factor that has it?"""
        factors = {name for name in self._scales if "scal" in name.lower() or "factor" in name.lower()}
        return any(
            isinstance(each, ast.BinOp)
            and isinstance(each.op, ast.Mult)
            and (self._has_scale(each.left, factors) or self._has_scale(each.right, factors))
            for each in ast.walk(node)
        )

    def _scaled_twice(self) -> Iterator[Mistake]:
        scaled: dict[str, ast.stmt] = {}
        for target, value, node in self._assignments:
            again = isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Mult) and self._has_scale(value)
            if not _is_rate(target) or not (again or self._by_size(value)):
                continue
            names = {ast.unparse(each) for each in ast.walk(value) if isinstance(each, (ast.Name, ast.Attribute))}
            before = next((scaled[name] for name in names & scaled.keys()), scaled.get(target) if again else None)
            is_group = isinstance(_target(node), ast.Subscript) and (again or target in ast.unparse(value))
            if before is None and is_group:  # the rate that an optimizer has already
                before = next((self._statement(call) for call in self._scaled_optimizers(set(scaled))), None)
            if before is not None and not self._excluded(before, node):
                yield self._twice(node, before)
            scaled[target] = node
        for call in self._calls:
            for word in call.keywords:
                if word.arg in _RATES and self._by_size(word.value):
                    names = {ast.unparse(each) for each in ast.walk(word.value) if isinstance(each, ast.expr)}
                    for name in names & scaled.keys():
                        if scaled[name].lineno < call.lineno:
                            yield self._twice(call, scaled[name])

    def _scaled_optimizers(self, names: set[str]) -> Iterator[ast.Call]:
        """Those whose rate has the number of ranks in it, also by one of these names."""
        for call in self._calls:
            if last(call.func) in _OPTIMIZERS:
                rates = [*call.args[1:2], *(word.value for word in call.keywords if word.arg in _RATES)]
                if any(self._by_size(rate) or ast.unparse(rate) in names for rate in rates):
                    yield call

    def _twice(self, node: ast.AST, before: ast.stmt) -> Mistake:
        return Mistake(
            self._at(node),
            f"The learning rate is multiplied by the number of ranks here, and in line {before.lineno} as well.",
            "Scale it once.",
        )

    def _excluded(self, one: ast.AST, other: ast.AST) -> bool:
        """Are they in different branches of an ``if``?"""
        branches = dict(self._branches(one))
        return any(branches.get(node, arm) != arm for node, arm in self._branches(other))

    def _branches(self, node: ast.AST) -> Iterator[tuple[ast.AST, bool]]:
        return ((each, child in each.body) for each, child in self._around(node) if isinstance(each, ast.If))

    def _not_scaled(self) -> Iterator[Mistake]:
        adasum = any(isinstance(node, ast.Attribute) and node.attr == "Adasum" for node in ast.walk(self._tree))
        text = "\n".join(self._lines).lower()
        if not self._steps[6] or self._steps[2] or adasum or self._scales or "sqrt" in text:
            return
        if any(self._by_size(value) and _is_rate(target) for target, value, _ in self._assignments):
            return
        made = [call for call in self._calls if last(call.func) in _OPTIMIZERS]
        rates = [word.value for call in self._calls for word in call.keywords if word.arg in _RATES]
        scaled = any(self._has_scale(value) for value in (*rates, *(arg for call in made for arg in call.args)))
        if made and not scaled:
            yield Mistake(
                self._at(made[0]),
                "The learning rate does not depend on the number of ranks, and the batch of all ranks together does.",
                "Often right: lr=… * hvd.size(), with a warm-up; or divide the batch: batch_size=… // hvd.size().",
                note=True,
            )

    # --- samples, torch.compile and metrics --------------------------------------------------------------------

    def _not_sharded(self) -> Iterator[Mistake]:
        reads = [call for call in self._calls if last(call.func) in _READS]
        shards = any(last(call.func) in ("shard", "random_split_by_rank") for call in self._calls)
        if self._steps[6] and not self._steps[4] and reads and not shards and not self._passes_rank_on():
            yield Mistake(
                self._at(reads[-1]),
                "Nothing in the script gives each rank its part of the data: an epoch of n ranks is n epochs.",
                "DataLoader(…, sampler=DistributedSampler(dataset, hvd.size(), hvd.rank())), or an n-th of the steps.",
                note=True,
            )

    def _passes_rank_on(self) -> bool:
        """Do rank and number of ranks go together into a call, or the number into a number of steps?"""
        for call in self._calls:
            text = "".join(ast.unparse(each) for each in (*call.args, *call.keywords))
            numbers = {self._reader.number(node) for each in ast.iter_child_nodes(call) for node in ast.walk(each)}
            if numbers >= {"rank", "size"} and "seed" not in text:
                return True
        return any(
            isinstance(node, ast.BinOp)
            and isinstance(node.op, ast.FloorDiv)
            and self._has_scale(node.right)
            and node.lineno not in self._steps[2]  # those that divide the batch
            for node in ast.walk(self._tree)
        )

    def _compiled(self) -> Iterator[Mistake]:
        for call in self._calls:
            whole = ast.unparse(call.func) == "torch.compile" and "split_at_buckets" not in ast.unparse(call)
            if whole and self._steps[6] and self._within(call) is None:
                yield Mistake(
                    self._at(call),
                    "The model is compiled to one graph: gradients are sent when all of backward is over, and none "
                    "before.",
                    "torch.compile(model, backend=hvd.split_at_buckets()), or block.compile() for each block.",
                    note=True,
                )

    def _not_averaged(self) -> Iterator[Mistake]:
        samplers = [call for call in self._calls if last(call.func).endswith("Sampler")]
        tests = [call for call in self._calls if last(call.func) == "eval" and not call.args]
        loops = [loop for loop in self._test_loops if not self._is_averaged(loop)]
        if loops or (not self._averagers and len(samplers) > 1 and tests):
            yield Mistake(
                self._at((loops or tests)[0]),
                "Each rank measures on its own part of the test data, and nothing brings the results together.",
                "hvd.allreduce(torch.tensor(accuracy)) before it is shown.",
                note=True,
            )

    @cached_property
    def _averagers(self) -> set[str]:
        """What brings results of ranks together, and functions, classes and objects of the script that do it."""
        found = {name for call in self._calls if (name := last(call.func)).startswith(_AVERAGES)}
        for node in ast.walk(self._tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and found & _names(node):
                found.add(node.name)
        return found | {target for target, value, _node in self._assignments if found & _names(value)}

    @cached_property
    def _test_loops(self) -> list[ast.For | ast.stmt]:
        """Statements that run over a loader whose samples the ranks share, and do not train."""
        shares = {target for target, value, _node in self._assignments if _SAMPLERS & _names(value)}
        loaders = [(target, value) for target, value, _node in self._assignments if "DataLoader" in _names(value)]
        names = {target for target, value in loaders if (_SAMPLERS | shares) & _names(value)}
        for call in self._calls:
            for function in self._functions.get(last(call.func), ()):
                given = zip(function.args.args, call.args, strict=False)
                names |= {word.arg for word, value in given if ast.unparse(value) in names}
        iterated = [(node.iter, node) for node in ast.walk(self._tree) if isinstance(node, ast.For)]
        iterated += [
            (node.iter, self._statement(within))  # type: ignore[misc]
            for within in ast.walk(self._tree)
            for node in getattr(within, "generators", ())
        ]
        found = [loop for values, loop in iterated if names & _names(values) and "backward" not in _names(loop)]
        return sorted(found, key=lambda each: each.lineno)

    def _is_averaged(self, loop: ast.stmt) -> bool:
        """Does what it finds come into something that averages, in its function or where that is called?"""
        function = self._within(loop)
        found = {ast.unparse(each) for node in ast.walk(loop) for each in _targets(node)}
        found |= {function.name} if function is not None else set()
        if not found or self._averagers & _names(loop):
            return True
        for _ in range(3):
            found |= {target for target, value, _node in self._assignments if found & _names(value)}
        return any(
            (last(call.func) in self._averagers or self._averagers & _names(call.func)) and found & _names(call)
            for call in self._calls
        )

    @cached_property
    def _functions(self) -> dict[str, list[ast.FunctionDef]]:
        found: dict[str, list[ast.FunctionDef]] = {}
        for node in ast.walk(self._tree):
            if isinstance(node, ast.FunctionDef):
                found.setdefault(node.name, []).append(node)
        return found

    def _own_statistics(self) -> Iterator[Mistake]:
        norms = [call for call in self._calls if last(call.func) in _NORMS]
        trains = [call.lineno for call in self._calls if last(call.func) == "backward"]
        saves = [call for call in self._calls if last(call.func) == "save" and "state_dict" in _names(call)]
        shared = [
            call
            for call in self._calls
            if last(call.func).startswith(("broadcast", "allreduce")) and trains and call.lineno > trains[0]
            if {"state_dict", "buffers", "named_buffers", "running_mean"} & _names(self._statement_or_loop(call))
        ]
        if norms and trains and saves and not shared and "SyncBatchNorm" not in "\n".join(self._lines):
            yield Mistake(
                self._at(saves[0]),
                "Batch norm's statistics are of a rank's own samples: what rank 0 saves knows nothing of the others'.",
                "Average them before, for each in model.buffers(): hvd.allreduce_(each). Or use hvd.SyncBatchNorm.",
                note=True,
            )

    def _statement_or_loop(self, node: ast.AST) -> ast.stmt:
        statement = self._statement(node)
        parent = self._parents.get(statement)
        return parent if isinstance(parent, ast.For) else statement

    # --- files ----------------------------------------------------------------------------------------

    @cached_property
    def _calls(self) -> list[ast.Call]:
        found = [node for node in ast.walk(self._tree) if isinstance(node, ast.Call)]
        return sorted(found, key=lambda each: (each.lineno, each.col_offset))

    def _saved_by_all(self, writes: frozenset[int]) -> Iterator[Mistake]:
        for call in self._calls:
            statement = self._statement(call)
            lines = set(range(call.lineno, (call.end_lineno or call.lineno) + 1)) | {statement.lineno}
            if last(call.func) not in _SAVES or not self._has_path(call) or lines & writes:
                continue
            if not self._is_guarded(call):
                yield Mistake(
                    self._at(call),
                    "Every rank writes this file, as far as the text says.",
                    "if hvd.rank() == 0: …",
                    note=True,
                )

    def _has_path(self, call: ast.Call) -> bool:
        words = [*call.args, *(word.value for word in call.keywords)]
        return bool(words) and not any(self._is_rankish(word) for word in words)

    def _around(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        """What it stands in, the innermost first, each with the child in which it is."""
        while (parent := self._parents.get(node)) is not None:
            yield parent, node
            node = parent

    def _statement(self, node: ast.AST) -> ast.stmt:
        return next(child for _, child in self._around(node) if isinstance(child, ast.stmt))

    def _within(self, node: ast.AST) -> _Function | None:
        return next((each for each, _ in self._around(node) if isinstance(each, _Function)), None)

    @cached_property
    def _rank_names(self) -> set[str]:
        found = set[str]()
        for _ in range(3):
            found |= {target for target, value, _node in self._assignments if self._is_rankish(value, found)}
        return found

    def _is_rankish(self, node: ast.AST, names: set[str] | None = None) -> bool:
        known = self._rank_names if names is None else names
        for each in ast.walk(node):
            if self._reader.number(each) in ("rank", "local_rank"):
                return True
            if isinstance(each, (ast.Name, ast.Attribute)):
                name = ast.unparse(each)
                if name in known or any(word in last(each).lower() for word in _RANKISH):
                    return True
        return False

    def _is_guarded(self, node: ast.AST) -> bool:
        for parent, child in self._around(node):
            if isinstance(parent, (ast.If, ast.IfExp, ast.While)) and self._is_rankish(parent.test):
                return True
            if isinstance(parent, ast.BoolOp) and any(self._is_rankish(each) for each in parent.values):
                return True
            if self._leaves_before(parent, child):
                return True
            if isinstance(parent, _Function):
                return self._is_called_under_guard(parent)
        return False

    def _leaves_before(self, parent: ast.AST, child: ast.AST) -> bool:
        """Does a test of the rank leave the block, before this statement?"""
        for name in ("body", "orelse"):
            block = getattr(parent, name, None)
            if not isinstance(block, list) or child not in block:
                continue
            for before in block[: block.index(child)]:
                if isinstance(before, ast.If) and self._is_rankish(before.test):
                    end = before.body[-1]
                    if isinstance(end, _LEAVES) or "exit" in ast.unparse(end):
                        return True
        return False

    def _is_called_under_guard(self, function: _Function) -> bool:
        if function in self._guarding:
            return True  # it calls itself
        self._guarding.add(function)
        callers = [call for call in self._calls if last(call.func) == function.name]
        found = bool(callers) and all(self._is_guarded(call) for call in callers)
        self._guarding.discard(function)
        return found


def read(path: str) -> Script | None:
    """The script at this path, in the encoding that it declares; None if it is no Python that can be read."""
    try:
        with tokenize.open(path) as file:
            return Script(path, file.read())
    except (OSError, SyntaxError, RecursionError, ValueError):  # a UnicodeDecodeError is a ValueError
        return None


def _is_rate(name: str) -> bool:
    short = name.rpartition(".")[2].lower()
    return any(word in short for word in ("lr", "learning_rate", "rate")) and "scal" not in short


def _names(node: ast.AST) -> set[str]:
    """All names in it, and the parts of names with dots."""
    found = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return found | {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}


def _target(node: ast.stmt) -> ast.expr | None:
    return next(iter(_targets(node)), None)


def _targets(node: ast.AST) -> list[ast.expr]:
    """What an assignment sets."""
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, (ast.AnnAssign, ast.AugAssign)) else []
