"""Moves files of the package to their rooms and rewrites every import, dotted name and path that names them.

Run in the root of a checkout: ``python .ci/move.py``. It can be run again, and on a branch that does not have the
move yet: what has moved already is left alone. Then commit; git follows each file as a rename.
"""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

FOLDERS = {
    "workbench/steady": "workbench/runtime/steady",
    "workbench/control": "workbench/runtime/control",
    "workbench/faults": "workbench/runtime/faults",
    "workbench/launch/grade": "workbench/cli/grade",
    "workbench/launch/jobs": "workbench/cli/jobs",
    "workbench/launch/doctor": "workbench/diagnostics",
    "tests/steady": "tests/runtime/steady",
    "tests/control": "tests/runtime/control",
    "tests/faults": "tests/runtime/faults",
    "tests/launch/doctor": "tests/diagnostics",
    "tests/launch/jobs": "tests/cli/jobs",
    "tests/launch/grade": "tests/cli/grade",
}
FILES = {
    "workbench/steady/wrapper.py": "workbench/runtime/coordinators.py",
    "workbench/control/events.py": "workbench/runtime/events.py",
    "workbench/observe/recorder.py": "workbench/runtime/trace/recorder.py",
    "workbench/observe/timeline.py": "workbench/runtime/trace/timeline.py",
    "workbench/observe/epochs.py": "workbench/runtime/trace/epochs.py",
    "workbench/transport/base.py": "workbench/core/backend/base.py",
    "workbench/transport/memory.py": "workbench/core/backend/memory.py",
    "workbench/transport/process_sets.py": "workbench/core/backend/process_sets.py",
    "workbench/training/buckets.py": "workbench/core/buckets.py",
    "workbench/context.py": "workbench/job/context.py",
    "workbench/api.py": "workbench/job/api.py",
    "workbench/arrays.py": "workbench/job/arrays.py",
    "workbench/built.py": "workbench/job/built.py",
    "workbench/entries.py": "workbench/job/entries.py",
    "workbench/joining.py": "workbench/job/joining.py",
    "workbench/process_sets.py": "workbench/job/process_sets.py",
    "workbench/requests.py": "workbench/job/requests.py",
    "workbench/training/objects.py": "workbench/job/objects.py",
    "workbench/training/sampler.py": "workbench/data/sampler.py",
    "workbench/observe/values/who_has.py": "workbench/cluster/who_has.py",
    "workbench/torch/spans.py": "workbench/calibration/spans.py",
    "workbench/torch/optimizer/topk.py": "workbench/torch/low_communication/topk.py",
    "workbench/torch/optimizer/sharded.py": "workbench/torch/sharded/stage1.py",
    "workbench/runner.py": "workbench/launch/function.py",
    "workbench/launch/cli.py": "workbench/cli/main.py",
    "workbench/launch/start/flags.py": "workbench/cli/flags.py",
    "workbench/launch/start/flag_variables.py": "workbench/cli/flag_variables.py",
    "workbench/course/judging/deadline.py": "workbench/course/simulator/deadline.py",
    "workbench/course/judging/case.py": "workbench/course/provenance/case.py",
    "workbench/course/site/links.py": "workbench/course/links.py",
    "workbench/tensorflow/errors.py": "workbench/tf/errors.py",
    "workbench/tensorflow/functions.py": "workbench/tf/functions.py",
    "workbench/tensorflow/host_calls.py": "workbench/tf/host_calls.py",
    "workbench/tensorflow/ops.py": "workbench/tf/ops.py",
    "workbench/tensorflow/tensors.py": "workbench/tf/tensors.py",
    "workbench/tensorflow/waiting_op.py": "workbench/tf/waiting_op.py",
    "workbench/observe/table.py": "workbench/common/table.py",
    "workbench/calibration/fit.py": "workbench/simulate/measured/fit.py",
    "workbench/calibration/prediction.py": "workbench/simulate/measured/prediction.py",
    "workbench/calibration/expectation.py": "workbench/simulate/measured/expectation.py",
    "tests/calibration/test_fit.py": "tests/simulate/measured/test_fit.py",
    "tests/calibration/test_expectation.py": "tests/simulate/measured/test_expectation.py",
    "workbench/ray/jobs/places.py": "workbench/ray/places.py",
    "workbench/launch/elastic/workers_here.py": "workbench/launch/workers/workers_here.py",
    "workbench/launch/elastic/local_workers.py": "workbench/launch/workers/local_workers.py",
    "workbench/launch/elastic/desk.py": "workbench/launch/workers/desk.py",
    "tests/launch/elastic/test_desk.py": "tests/launch/workers/test_desk.py",
    "workbench/transport/host/links.py": "workbench/transport/links.py",
    "workbench/transport/host/background.py": "workbench/transport/background.py",
    "workbench/transport/host/mpi_process.py": "workbench/transport/mpi_process.py",
    "tests/transport/host/test_background.py": "tests/transport/test_background.py",
    "workbench/cluster/elastic/cluster.py": "workbench/cluster/elastic_cluster.py",
    "tests/test_api.py": "tests/job/test_api.py",
    "tests/test_arrays.py": "tests/job/test_arrays.py",
    "tests/observe/test_recorder.py": "tests/runtime/trace/test_recorder.py",
    "tests/observe/test_timeline.py": "tests/runtime/trace/test_timeline.py",
    "tests/training/test_buckets.py": "tests/core/test_buckets.py",
    "tests/training/test_sampler.py": "tests/data/test_sampler.py",
    "tests/training/test_elastic_sampler.py": "tests/data/test_elastic_sampler.py",
    "tests/launch/test_cli.py": "tests/cli/test_main.py",
}
NEW_FOLDERS = {
    "workbench/runtime/__init__.py": '"""The parts around the core that make it fast and keep it from hanging."""\n',
    "workbench/runtime/trace/__init__.py": '"""What happened to each collective: in memory, and as a file."""\n',
    "workbench/core/backend/__init__.py": '"""What the core asks of memory and network."""\n',
    "workbench/job/__init__.py": '"""The job that this process is a rank of: start, end, and verbs on arrays."""\n',
    "workbench/tf/__init__.py": '"""Tensors of TensorFlow and verbs on them, for keras and tensorflow."""\n',
    "workbench/simulate/measured/__init__.py": '"""What a step costs on machines that were measured."""\n',
    "workbench/launch/workers/__init__.py": '"""The workers of an elastic job that are processes of one host."""\n',
    "workbench/cli/__init__.py": '"""The command line, ``workbench``."""\n',
}


def git(*words: str) -> list[str]:
    """What git prints, line by line."""
    return subprocess.run(["git", *words], check=True, capture_output=True, text=True).stdout.splitlines()


def new_path(path: str) -> str:
    """Where a file belongs."""
    if path in FILES:
        return FILES[path]
    for old, new in FOLDERS.items():
        if path.startswith(f"{old}/"):
            return new + path[len(old) :]
    return path


def dotted(path: str) -> str:
    """A file's or folder's name in an import."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


NAMES = {dotted(old): dotted(new) for old, new in (FOLDERS | FILES).items() if old.startswith("workbench")}
LONGEST_FIRST = sorted(NAMES, key=len, reverse=True)
NAME = re.compile(rf"(?<![\w.])({'|'.join(map(re.escape, LONGEST_FIRST))})(?!\w)")
PATHS = FILES | FOLDERS
PATH = re.compile(rf"(?<![\w])({'|'.join(re.escape(old) for old in sorted(PATHS, key=len, reverse=True))})(?![\w])")


def new_name(name: str) -> str:
    """A module's name after the move."""
    return NAME.sub(lambda found: NAMES[found[1]], name)


def rewrite_imports(text: str, package: str) -> str:
    """``from a import b`` where b is a module that has moved; and relative imports, of what has moved."""
    lines = text.splitlines(keepends=True)
    for node in sorted(ast.walk(ast.parse(text)), key=lambda each: -getattr(each, "lineno", 0)):
        if not isinstance(node, ast.ImportFrom):
            continue
        base = node.module or ""
        if node.level:
            parts = package.split(".")
            base = ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [node.module])])
        if not base.startswith("workbench"):
            continue
        groups: dict[str, list[str]] = {}
        changed = False
        for alias in node.names:
            moved = new_name(f"{base}.{alias.name}")
            if moved != f"{new_name(base)}.{alias.name}":
                changed = True
            parent, _, last = moved.rpartition(".")
            known_as = alias.asname or (alias.name if last != alias.name else None)
            groups.setdefault(parent, []).append(last + (f" as {known_as}" if known_as else ""))
        if node.level and (new_name(base) != base or new_name(package) != package):
            changed = True
        if not changed:
            continue
        indent = lines[node.lineno - 1][: node.col_offset]
        tail = lines[node.end_lineno - 1].encode()[node.end_col_offset :].decode()  # a comment, or more of the line
        made = [f"{indent}from {parent} import {', '.join(names)}" for parent, names in groups.items()]
        lines[node.lineno - 1 : node.end_lineno] = ["\n".join(made) + tail]
    return "".join(lines)


def main() -> None:
    """Moves the files, then rewrites what names them."""
    packages = {}
    for path in git("ls-files"):
        new = new_path(path)
        if path.endswith(".py") and path.startswith("workbench/"):
            packages[new] = dotted(path) if path.endswith("__init__.py") else dotted(path).rpartition(".")[0]
        if new != path:
            Path(new).parent.mkdir(parents=True, exist_ok=True)
            git("mv", path, new)
    for path, text in NEW_FOLDERS.items():
        if not Path(path).exists():
            Path(path).write_text(text)
            git("add", path)
    for path in git("ls-files"):
        file = Path(path)
        if path == ".ci/move.py" or path.startswith("benchmarks/results") or not file.is_file() or file.is_symlink():
            continue
        try:
            text = before = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if path.endswith(".py"):
            try:
                text = rewrite_imports(text, packages.get(path, ""))
            except SyntaxError:
                print("not parsed:", path)
        text = NAME.sub(lambda found: NAMES[found[1]], text)
        text = PATH.sub(lambda found: PATHS[found[1]], text)
        if text != before:
            file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
