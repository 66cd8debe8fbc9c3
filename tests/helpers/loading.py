"""How tests reach what is no package."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).resolve().parent.parent.parent / "benchmarks"


def load(name: str) -> Any:
    """A module of ``benchmarks/``, whose scripts import each other by their bare names."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return import_module(name)
    finally:
        sys.path.remove(str(BENCHMARKS))
