"""JAX and Keras on two ranks, each with its arrays in the memory of a GPU."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest
from gpu_running import WAYS, marks, results

if TYPE_CHECKING:
    from gpu_running import Runner

pytestmark = [*marks(), pytest.mark.timeout(150)]


@pytest.fixture(autouse=True)
def shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX takes most of a GPU's memory at once, which two ranks on one GPU cannot both do."""
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


@pytest.mark.parametrize("way", WAYS)
def test_arrays_of_jax(jobs: Runner, way: str) -> None:
    """Values, dtypes and devices are right, also inside of ``jax.jit``."""
    pytest.importorskip("jax")
    for found in results(jobs, 2, way, "jaxed"):
        if found["platform"] == "cpu":
            pytest.skip("jax sees no GPU: pip install 'jax[cuda13]'")
        assert found["wrong"] == []
        assert found["checks"] == 33
        assert found["way"].startswith({"nccl": "NCCL", "staged": "PINNED"}[way])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_keras_fit(jobs: Runner, monkeypatch: pytest.MonkeyPatch, backend: str, way: str) -> None:
    """From other weights and on other data, and yet the same weights in the end."""
    if not find_spec("keras") or not find_spec(backend):
        pytest.skip("needs keras with this backend")
    monkeypatch.setenv("KERAS_BACKEND", backend)
    for found in results(jobs, 2, way, "keras_fits"):
        if "cpu" in found["device"].lower():
            pytest.skip(f"{backend} sees no GPU")
        assert found["equal"]
        assert found["loss"][-1] < found["loss"][0] / 2
