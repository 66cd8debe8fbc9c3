"""Breaks lines of the product, one at a time, and says which faults the tests let through: ``make mutants``.

1. A seeded sample of places in the rooms below: an operator is turned, a number is off by one, a condition is always
   false, a call that only acts (a wait, a close, an append) is left out, a named argument is dropped.
2. In a copy of the tree, each fault meets the tests near it: those that import its file, or are named like it; then
   those of its room that start no process, and what ranks do that are threads. A test that is red or out of time with
   the fault, and green without it, has caught it.
3. The survivors are listed in build/mutants.md. Not each is a gap: some change nothing that anybody could see.

``--count 300 --seed 0`` is the nightly run, an hour or two; ``--only runtime/control`` a part of it.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("core", "runtime", "transport", "torch", "job", "elastic", "launch", "course/judging")
AMONG_RANKS = ("core", "runtime", "transport", "torch", "job")  # what ranks do that are threads shows faults there
THREADS = ["WORKBENCH_TEST_INSIDE_RANKS=1", "WORKBENCH_TEST_THREADS=2", "-mnot slow and not thorough"]
PYTEST = ("-m", "pytest", "-x", "-q", "-n0", "-p", "no:cacheprovider", "-m", "not thorough and not engines")
LIMIT_S = 900.0
TURNED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """One place that is written otherwise.

    Args:
        file: relative to the checkout.
        line: of the place.
        kind: what is done there.
        before, after: the place's text.
        start, end: where it is, in bytes of the file.
    """

    file: str
    line: int
    kind: str
    before: str
    after: str
    start: int
    end: int

    def written(self, source: bytes) -> bytes:
        """The file with the fault."""
        return source[: self.start] + self.after.encode() + source[self.end :]

    def __str__(self) -> str:
        before, after = (" ".join(each.split()) for each in (self.before, self.after))
        return f"{self.file}:{self.line} {self.kind}: `{before}` → `{after}`"


def faults(file: str, source: str) -> Iterator[Fault]:
    r"""All places of a file.

    Example:
        >>> [fault.after for fault in faults("a.py", "if n < 2:\n    wait(n, most=3)\n")]
        ['False', 'n <= 2', 'n < 3', 'pass', 'wait(n)', '4']
    """
    begins = [0]
    for line in source.encode().splitlines(keepends=True):
        begins.append(begins[-1] + len(line))

    def fault(node: ast.expr | ast.stmt, kind: str, after: str) -> Fault:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start, end = begins[node.lineno - 1] + node.col_offset, begins[node.end_lineno - 1] + node.end_col_offset
        return Fault(file, node.lineno, kind, source.encode()[start:end].decode(), after, start, end)

    for node in _of_functions(ast.parse(source)):
        if isinstance(node, ast.If | ast.While) and not isinstance(node.test, ast.Constant):
            yield fault(node.test, "branch removed", "False")
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and (turned := TURNED.get(type(node.ops[0]))):
            yield fault(node, "comparison", ast.unparse(ast.Compare(node.left, [turned()], node.comparators)))
            right = node.comparators[0]
            if isinstance(right, ast.Constant) and type(right.value) is int:
                off = [ast.Constant(right.value + 1)]
                yield fault(node, "off by one", ast.unparse(ast.Compare(node.left, node.ops, off)))
        if isinstance(node, ast.BinOp) and (turned := TURNED.get(type(node.op))) and not _is_text(node):
            yield fault(node, "operator", f"({ast.unparse(ast.BinOp(node.left, turned(), node.right))})")
        if isinstance(node, ast.BoolOp):
            yield fault(node, "and, or", f"({ast.unparse(ast.BoolOp(TURNED[type(node.op)](), node.values))})")
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield fault(node, "call left out", "pass")
        if isinstance(node, ast.Call) and node.keywords and node.keywords[-1].arg:
            yield fault(node, "argument dropped", ast.unparse(ast.Call(node.func, node.args, node.keywords[:-1])))
            last = node.keywords[-1].value
            if isinstance(last, ast.Constant) and type(last.value) is int:
                yield fault(last, "off by one", repr(last.value + 1))


def _of_functions(tree: ast.Module) -> Iterator[ast.AST]:
    """All nodes but those of type hints and of messages, which no test need know by the letter."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.AnnAssign | ast.Import | ast.ImportFrom | ast.Raise | ast.JoinedStr | ast.arguments):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from _of_functions(node)  # type: ignore[arg-type]  # of any node


def _is_text(node: ast.BinOp) -> bool:
    sides = [each for each in ast.walk(node) if isinstance(each, ast.Constant | ast.JoinedStr)]
    return any(isinstance(each, ast.JoinedStr) or isinstance(each.value, str | bytes) for each in sides)


def sample(count: int, seed: int, only: str) -> list[Fault]:
    """So many of all faults, the same for the same seed and sources."""
    files = [path for room in ROOMS for path in sorted((ROOT / "workbench" / room).rglob("*.py"))]
    names = [str(path.relative_to(ROOT)) for path in files]
    found = [fault for name in names if only in name for fault in faults(name, (ROOT / name).read_text("utf-8"))]
    return random.Random(seed).sample(found, min(count, len(found)))


def near(file: str) -> list[list[str]]:
    """The tests that meet a fault of this file, in the order in which they do."""
    module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    parent, _, name = module.rpartition(".")
    direct = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text("utf-8")
        if path.stem == f"test_{name}" or module in text or f"from {parent} import {name}" in text:
            direct.append(str(path.relative_to(ROOT)))
    inside = ("tests/parallel", "tests/frameworks", "tests/keras2", "tests/gpu", "tests/legacy")
    (room,) = [each for each in ROOMS if file.startswith(f"workbench/{each}/")]
    ranks = room in AMONG_RANKS
    further = ["--no-processes", f"tests/{room}", *(["tests/threads", "tests/contract"] if ranks else [])]
    chosen = [[one for one in direct if not one.startswith(inside)], further]
    if near_ranks := [one for one in direct if one.startswith("tests/parallel/")]:
        chosen.insert(1, [*THREADS, *near_ranks])
    return [each for each in (*chosen, [*THREADS, "tests/parallel"] if ranks else []) if each]


def caught(fault: Fault, tree: Path) -> str:
    """The test that has caught a fault; nothing if none has."""
    target = tree / fault.file
    whole = target.read_bytes()
    for tests in near(fault.file):
        words = tuple(each for each in tests if each.startswith("-") or "=" in each or (tree / each).exists())
        target.write_bytes(fault.written(whole))
        try:
            found = red(words, tree)
        finally:
            target.write_bytes(whole)
        if found and not red_without(words, tree):
            return found
    return ""


def red(words: tuple[str, ...], tree: Path) -> str:
    """The first test that is red; nothing if all are green."""
    env = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    env |= dict(each.split("=", 1) for each in words if "=" in each)
    command = [sys.executable, *PYTEST, *(each for each in words if "=" not in each)]
    with subprocess.Popen(
        command, cwd=tree, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            said = process.communicate(timeout=LIMIT_S)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return "out of time"
    if process.returncode in (0, 5):  # 5: no test was chosen
        return ""
    failed = [line for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0].split(" - ")[0].removeprefix("FAILED ") if failed else f"exit status {process.returncode}"


@cache
def red_without(words: tuple[str, ...], tree: Path) -> str:
    """As :func:`red`, where there is no fault: then these tests show nothing."""
    return red(words, tree)


def main(words: Sequence[str] | None = None) -> None:
    """Break, test, and write the list."""
    parser = argparse.ArgumentParser(prog="make mutants", description="Which faults do the tests let through?")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", metavar="TEXT", help="files whose path has this")
    args = parser.parse_args(words)
    report, survivors = ROOT / "build" / "mutants.md", list[Fault]()
    report.parent.mkdir(exist_ok=True)
    chosen, begun = sample(args.count, args.seed, args.only), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder)
        names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in filter(None, names.split("\0")):
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_file():
                shutil.copy2(ROOT / name, tree / name)
        (tree / ".venv").symlink_to(ROOT / ".venv")
        for number, fault in enumerate(chosen, 1):
            by = caught(fault, tree)
            survivors += [] if by else [fault]
            print(f"{number}/{len(chosen)} {fault}: {by or 'SURVIVES'}", flush=True)
            lines = [f"{number - len(survivors)} of {number} faults were caught, seed {args.seed}.", ""]
            report.write_text("\n".join([*lines, *(f"- {each}" for each in survivors), ""]), encoding="utf-8")
    print(f"{report.read_text('utf-8')}{time.monotonic() - begun:.0f} s; see {report.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
