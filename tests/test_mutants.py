"""``make mutants``: a fault is planted, and said to be caught or to survive."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest
from project import ROOT

SOURCE = "def most(a, b):\n    if a > b:\n        return a\n    return b\n"
TESTS = "from workbench.core.most import most\n\n\ndef test_most():\n    assert most({}) == {}\n"


@pytest.fixture
def mutants(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program."""
    monkeypatch.syspath_prepend(str(ROOT / ".ci"))
    sys.modules.pop("mutants", None)
    import mutants

    return mutants


@pytest.mark.thorough
@pytest.mark.process
def test_a_fault_is_caught_or_survives(mutants: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a test that looks at the branch; not by one that does not, or is red anyway; the file is whole again."""
    file = "workbench/core/most.py"
    for name in ("workbench/__init__.py", "workbench/core/__init__.py", file, "tests/core/test_most.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / file).write_text(SOURCE)
    shutil.copy(ROOT / "tests" / "helpers" / "rings.py", tmp_path)
    (tmp_path / "conftest.py").write_text("pytest_plugins = ['rings']\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    thorough\n    engines\n")
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    (fault,) = [each for each in mutants.faults(file, SOURCE) if each.kind == "branch removed"]
    test = tmp_path / "tests" / "core" / "test_most.py"
    test.write_text(TESTS.format("2, 1", 2))
    assert "test_most.py::test_most" in mutants.caught(fault, tmp_path)
    for arguments, expected in (("1, 2", 2), ("2, 1", 3)):  # green with the fault; red without it, too
        mutants.red_without.cache_clear()
        test.write_text(TESTS.format(arguments, expected))
        assert mutants.caught(fault, tmp_path) == ""
    assert (tmp_path / file).read_text() == SOURCE
