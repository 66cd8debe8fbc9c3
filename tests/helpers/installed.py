"""What a test needs to be installed."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def needs(*modules: str) -> None:
    """Skip without these. They are looked for and not imported, which takes TensorFlow five seconds of a core."""
    if missing := [name for name in modules if find_spec(name) is None]:
        pytest.skip(f"{', '.join(missing)} is not installed")
