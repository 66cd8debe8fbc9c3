"""Old names of modules: what scripts have written keeps working for one release, with a warning."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import pytest

hvd = pytest.importorskip("workbench.torch")

MOVED = {
    "workbench.torch.compression": ["Compression"],
    "workbench.torch.gradients": ["Hook"],
    "workbench.torch.topk": ["TopKCompression"],
    "workbench.training.gradients": ["GradientReducer"],
}


@pytest.mark.parametrize("old", MOVED)
def test_an_old_module_has_its_names_and_warns(old: str) -> None:
    """The name is the same object as at the new place; only using it warns."""
    module = import_module(old)
    assert find_spec(old) is not None
    for name in MOVED[old]:
        with pytest.warns(DeprecationWarning, match=old):
            found = getattr(module, name)
        assert found is getattr(import_module(module.__doc__.removeprefix("Moved to ").rstrip(".")), name)
    with pytest.raises(AttributeError):
        _ = module.nonsense


def test_from_import_finds_it() -> None:
    """As scripts write it."""
    found: dict[str, object] = {}
    with pytest.warns(DeprecationWarning, match=r"workbench\.torch\.compression is workbench\.torch\.tensors now"):
        exec("from workbench.torch.compression import Compression", found)
    assert found["Compression"] is hvd.Compression
