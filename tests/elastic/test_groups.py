"""Trainings with torch.distributed whose rank dies: the others go on in a new group, and a new rank joins them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from elastic_jobs import Job
from installed import needs

needs("torch")
import torch  # noqa: E402

from workbench.torch.elastic import read_checkpoint  # noqa: E402

pytestmark = [pytest.mark.parallel, pytest.mark.slow, pytest.mark.timeout(200)]
SCRIPT = Path(__file__).parent / "scripts" / "group_training.py"
Start = Callable[[str, int], list[list[torch.Tensor]]]


@pytest.fixture
def weights_of(tmp_path: Path) -> Iterator[Start]:
    """``weights_of("ddp", 3)`` trains; the weights of each rank in the end, and those in the checkpoint."""
    jobs: list[Job] = []

    def train(kind: str, ranks: int) -> list[list[torch.Tensor]]:
        folder = tmp_path / str(len(jobs))
        folder.mkdir()
        words = f"-np {ranks} --min-np {min(2, ranks)} --blacklist-cooldown-range 0 0 python {SCRIPT} {kind} {ranks}"
        jobs.append(Job(folder, [*words.split(), str(folder)], SCRIPT))
        text = jobs[-1].end(150)
        assert jobs[-1].code == 0, text
        assert ranks == 1 or (text.count("begins with 2 at 5"), text.count("begins with 3 at ")) == (2, 6), text
        written = read_checkpoint(folder / "checkpoints")
        assert written["step"] == 12
        return [*(torch.load(folder / f"weights{n}.pt") for n in range(ranks)), list(written["model"].values())]

    yield train
    for job in jobs:
        job.close()


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_rank_dies_and_training_goes_on(kind: str, weights_of: Start) -> None:
    """Each step is made once, with 3 ranks, 2 and 3 again: the weights of the serial run."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 13), torch.nn.Tanh(), torch.nn.Linear(13, 5)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = torch.randn(24, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    for _ in range(12):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    for weights in weights_of(kind, 3):
        torch.testing.assert_close(weights, [each.detach() for each in model.parameters()], rtol=0, atol=1e-12)


def test_ddp_is_exact(weights_of: Start) -> None:
    """With exact=True bit for bit those of one rank, with dropout, a plain optimizer and another number of ranks."""
    alone, _ = weights_of("exact", 1)
    for weights in weights_of("exact", 3):
        assert all(map(torch.equal, weights, alone))
