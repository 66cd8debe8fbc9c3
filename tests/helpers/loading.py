"""How tests reach what is no package."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from project import ROOT

BENCHMARKS, EXAMPLES = ROOT / "benchmarks", ROOT / "examples"


def load(name: str, folder: Path = BENCHMARKS) -> Any:
    """A module of ``benchmarks/`` or ``examples/``, whose scripts import each other by their bare names."""
    sys.path.insert(0, str(folder))
    try:
        return import_module(name)
    finally:
        sys.path.remove(str(folder))
