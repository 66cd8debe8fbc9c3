"""Which form of which verb each framework has, and why not: ``make verbs`` prints the table of docs/reference/verbs.md.

The forms are those of ``workbench/core/verbs.py``; what a framework has stands in the ``__all__`` of its files,
which are read and not imported.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from workbench.core.verbs import VERBS, forms

ROOT = Path(__file__).resolve().parent.parent
FILES = {
    "numpy": ["job/array_verbs.py"],
    "PyTorch": ["torch/autograd.py", "torch/ops.py"],
    "TensorFlow": ["tf/ops.py"],
    "Keras": ["keras/functions.py"],
    "JAX": ["jax/ops.py"],
    "MXNet": ["mxnet/ops.py"],
}
NO_HANDLE, IN_PLACE = "_async", "_"
# (framework, kind of form) → why it is not there.
GAPS = {
    ("TensorFlow", NO_HANDLE): "a handle cannot be part of a graph; collectives of one graph wait side by side anyway",
    ("TensorFlow", IN_PLACE): "a tensor cannot be written; `broadcast_` takes variables",
    ("Keras", NO_HANDLE): "values such as metrics are needed at once; gradients travel with `DistributedOptimizer`",
    ("Keras", IN_PLACE): "the results are numpy's arrays; `broadcast_variables` sets variables",
    ("JAX", NO_HANDLE): "a handle is no array, and could not leave `jit`",
    ("JAX", IN_PLACE): "an array cannot be written",
    ("MXNet", NO_HANDLE): "MXNet is retired: its verbs return when the result is there",
}


def names_in(file: str) -> set[str]:
    """What a file lists in ``__all__``."""
    tree = ast.parse((ROOT / "workbench" / file).read_text(encoding="utf-8"))
    assigned = [each for each in tree.body if isinstance(each, ast.Assign)]
    (names,) = [each.value for each in assigned if ast.unparse(each.targets[0]) == "__all__"]
    return set(ast.literal_eval(names))


def gap(framework: str, name: str) -> str:
    """Why a framework lacks a form."""
    return GAPS[framework, NO_HANDLE if NO_HANDLE in name else IN_PLACE]


def there() -> dict[str, dict[str, bool]]:
    """Form → framework → has it?"""
    names = {framework: set().union(*map(names_in, files)) for framework, files in FILES.items()}
    wanted = [name for kind, verb in VERBS.items() if verb.moves for name in forms(kind)]
    return {name: {framework: name in has for framework, has in names.items()} for name in wanted}


def table() -> Iterator[str]:
    """The lines of the table; forms that the same frameworks have share a row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    reasons: list[str] = []
    for name, has in there().items():
        cells = []
        for framework in FILES:
            if has[framework]:
                cells.append("✓")
                continue
            if (why := gap(framework, name)) not in reasons:
                reasons.append(why)
            cells.append(str(reasons.index(why) + 1))
        rows.setdefault((name.replace("grouped_", "", 1).lstrip("abcdefghijklmnopqrstuvwxyz"), *cells), []).append(name)
    yield f"| verb | {' | '.join(FILES)} |"
    yield f"|---|{':-:|' * len(FILES)}"
    for (_, *cells), names in rows.items():
        yield f"| {', '.join(f'`{name}`' for name in names)} | {' | '.join(cells)} |"
    yield ""
    yield "; ".join(f"{number}: {why}" for number, why in enumerate(reasons, 1)) + "."


if __name__ == "__main__":
    print("\n".join(table()))
