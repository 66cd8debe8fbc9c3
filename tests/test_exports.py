"""What users may use: dir(), ``__all__`` and type checkers say the same of it, and signatures hide nothing.

Of TensorFlow, Keras and JAX: ``tests/frameworks/test_framework_names.py``.
"""

from __future__ import annotations

import ast
import importlib
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from exports import ROOT, differences, opaque, seen_by_mypy

import workbench as hvd
from workbench.core.verbs import VERBS, forms
from workbench.errors import UnsupportedTensorError

NEEDS = {"torch": "torch", "spark": "pyspark", "ray": "ray", "cluster": "ipyparallel"}
FACES = ["workbench", *(f"workbench.{name}" for name in ("cluster", "data", "elastic", "errors", "simulate", "torch"))]
FACES += [f"workbench.{name}" for name in ("spark", "ray") if find_spec(NEEDS[name])]


@pytest.fixture(scope="module")
def typed() -> dict[str, set[str]]:
    """What mypy sees of each module."""
    pytest.importorskip("mypy")
    return seen_by_mypy(FACES)


@pytest.mark.timeout(300)  # a first mypy on a new checkout reads torch
@pytest.mark.parametrize("face", FACES)
def test_dir_all_and_mypy_agree(face: str, typed: dict[str, set[str]]) -> None:
    """Neither a helper nor what a file imports is shown; nothing that is shown is hidden from a strict mypy."""
    assert differences(face, typed[face]) == []


@pytest.mark.parametrize("face", FACES)
def test_signatures_are_real(face: str) -> None:
    """No public function takes ``**options``, which no editor can complete and no checker can check."""
    assert opaque(face) == []


def test_a_module_is_loaded_when_it_is_asked_for() -> None:
    """``import workbench`` loads neither numpy nor a framework, and has ``workbench.errors`` without an import."""
    code = (
        "import sys, workbench; names = dir(workbench);"
        "print(sorted({'numpy', 'torch', 'tensorflow', 'jax'} & set(sys.modules)), 'torch' in names, 'Any' in names);"
        "print(workbench.errors.MismatchError.__name__, workbench.simulate.ideas.__name__)"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=True, cwd=ROOT
    )
    assert said.stdout.splitlines() == ["[] True False", "MismatchError workbench.simulate.ideas"]


def test_the_table_of_verbs_is_true() -> None:
    """The table in ``docs/reference/verbs.md`` is what the files have; each gap has a reason, and each reason a gap."""
    made = runpy.run_path(str(ROOT / ".ci" / "verbs.py"))
    assert "\n".join(made["table"]()) in (ROOT / "docs" / "reference" / "verbs.md").read_text(encoding="utf-8"), (
        "put in what `make verbs` says"
    )
    kinds = {
        (framework, made["NO_HANDLE"] if made["NO_HANDLE"] in name else made["IN_PLACE"])
        for name, has in made["there"]().items()
        for framework, it_has in has.items()
        if not it_has
    }
    assert kinds == set(made["GAPS"])


@pytest.mark.parametrize("face", [face for face in ("workbench", "workbench.torch") if face in FACES])
def test_every_form_is_there(face: str) -> None:
    """numpy's arrays and torch's tensors allow every form of every verb."""
    wanted = {name for kind in VERBS for name in forms(kind)}
    __import__(face)
    assert wanted <= set(sys.modules[face].__all__)


def both() -> list[bool]:
    """Every form of every verb beside the plain one, on two ranks."""
    r = hvd.rank()
    x = np.array([1.0 + r, 2.0, 3.0, 4.0])
    plain = {
        "allreduce": hvd.allreduce(x, op=hvd.Sum),
        "allgather": hvd.allgather(x),
        "broadcast": hvd.broadcast(x, 1),
        "alltoall": hvd.alltoall(x)[0],
        "reducescatter": hvd.reducescatter(x, op=hvd.Sum),
    }
    same = []
    for kind, verb in VERBS.items():
        for name in forms(kind) if verb.moves else ():
            mine = [x.copy(), x.copy() * 2] if "grouped" in name else x.copy()
            words = {"op": hvd.Sum} if verb.reduces else {"root_rank": 1} if verb.rooted else {}
            made = getattr(hvd, name)(mine, **words)
            if "_async" in name:
                made = hvd.synchronize(made)
            first = made[0] if verb.splits or "grouped" in name else made
            same.append(bool(np.array_equal(first, plain[kind.value])))
            if "grouped" in name:
                same.append(bool(np.array_equal(made[1], 2 * plain[kind.value])))
            if name.endswith("_"):
                pairs = zip(made, mine, strict=True) if "grouped" in name else [(made, mine)]
                same += [each is given for each, given in pairs]
    return same


def test_every_form_of_numpy_s_computes_the_same() -> None:
    """At once, by a handle, in a group, in place: the values of the plain verb; in place the array itself has them."""
    for same in hvd.run_threads(2, both):
        assert len(same) > 30
        assert all(same)


@pytest.mark.parametrize(
    ("array", "says"),
    [
        ([1.0, 2.0], "This is a list"),
        (np.ones((4, 4)).T[1:], r"This is one of strides"),
        (np.broadcast_to(np.ones(1), (1,)), "read-only"),
        (np.ones(3, ">f8"), "another byte order"),
    ],
    ids=["list", "strides", "read-only", "byte order"],
)
def test_what_cannot_be_written_is_not_reduced_in_place(array: object, says: str) -> None:
    """The result would go into a copy, and the caller would go on with what was there before."""

    def refused() -> None:
        with pytest.raises(UnsupportedTensorError, match=says):
            hvd.allreduce_(array)  # type: ignore[arg-type]
        with pytest.raises(UnsupportedTensorError, match=says):
            hvd.broadcast_async_(array, 0)  # type: ignore[arg-type]

    hvd.run_threads(1, refused)


def private_imports(path: Path) -> list[str]:
    """Where a file takes a name with an underscore from another file of ours."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "workbench":
            names = [each.name for each in node.names if each.name.startswith("_") and not each.name.endswith("__")]
            found += [f"{path.relative_to(ROOT)}: {node.module}.{name}" for name in names]
    return found


def test_no_file_takes_a_private_name_of_another() -> None:
    """What two files use is public in one of them."""
    files = [*(ROOT / "workbench").rglob("*.py"), *(ROOT / "tests").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]
    assert [each for path in files for each in private_imports(path)] == []


def test_the_types_are_shipped() -> None:
    """Checkers look into an installed package where it has ``py.typed``."""
    assert (ROOT / "workbench" / "py.typed").is_file()


@pytest.mark.parametrize("face", FACES)
def test_no_name_is_also_a_file_s(face: str) -> None:
    """What a face has under a name is never replaced by a module of that name, which Python binds at its import."""
    module = importlib.import_module(face)
    files = [name for name in module.__all__ if hasattr(module, "__path__") and find_spec(f"{face}.{name}")]
    assert [name for name in files if not isinstance(getattr(module, name), ModuleType)] == []
