"""A checkpoint of ZeRO 2 or 3 in real jobs, each of another number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

if TYPE_CHECKING:
    from running import Runner

pytestmark = [pytest.mark.usefixtures("warm_torch"), pytest.mark.parallel]
SCRIPT = Path(__file__).resolve().parent / "scripts" / "zero_checkpoint.py"


def trained(jobs: Runner, stage: str, legs: list[tuple[int, int, int]], file: Path) -> Any:
    """The checkpoint after jobs of (ranks, first step, last step)."""
    for n, first, last in legs:
        job = jobs.mpiexec(n, str(SCRIPT), stage, str(first), str(last), str(file), deadline_s=60.0)
        assert job.code == 0, job.report()
    return torch.load(file)


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "stages",
    [("parameters", "gradients"), pytest.param(("gradients", "parameters"), marks=pytest.mark.thorough)],
    ids="-".join,
)
def test_another_number_of_ranks(jobs: Runner, tmp_path: Path, stages: tuple[str, ...]) -> None:
    """Two ranks, then three, at another stage: weights and state of a run on one rank from beginning to end."""
    expected = trained(jobs, "gradients", [(1, 0, 6)], tmp_path / "one.pt")
    legs = [(2, 0, 3), (3, 3, 6)]
    for stage, leg in zip(stages, legs, strict=True):
        found = trained(jobs, stage, [leg], tmp_path / "many.pt")
    assert found["scheduler"]["last_epoch"] == 6
    assert found["model"].keys() == expected["model"].keys()
    for key, value in expected["model"].items():
        assert torch.allclose(found["model"][key], value, rtol=0, atol=1e-12), key
    assert found["optimizer"]["param_groups"] == expected["optimizer"]["param_groups"]
    assert found["optimizer"]["state"].keys() == expected["optimizer"]["state"].keys()
    for number, state in expected["optimizer"]["state"].items():
        for key, value in state.items():
            assert torch.allclose(found["optimizer"]["state"][number][key], value, rtol=0, atol=1e-12), (number, key)
