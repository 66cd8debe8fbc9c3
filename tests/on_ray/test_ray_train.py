"""``WorkbenchConfig``: workers of ``ray.train`` are ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ray_nodes import Nodes

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.timeout(300)]

SCRIPT = (Path(__file__).parent / "scripts" / "trainers.py").read_text()


@pytest.fixture(scope="module")
def ran(nodes: Nodes, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Where the ranks have left their files, and what the driver has printed; it runs once for all tests here."""
    folder = tmp_path_factory.mktemp("trainers")
    done = nodes.driver(SCRIPT, str(folder), timeout_s=270.0)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def files(folder: Path, name: str) -> list[dict[str, Any]]:
    """What the ranks of a trainer have left, by rank."""
    return [json.loads((folder / f"{name}.{rank}").read_text()) for rank in range(4)]


@pytest.mark.parametrize("name", ["torch", "plain"])
def test_workers_are_ranks(ran: tuple[Path, str], name: str) -> None:
    """``TorchTrainer`` and ``DataParallelTrainer`` train with our optimizer, as one process does with all rows."""
    torch = pytest.importorskip("torch")
    found = files(ran[0], name)
    model = torch.nn.Linear(4, 1).double()
    with torch.no_grad():
        for parameter, values in zip(model.parameters(), found[0]["begins"], strict=True):
            parameter.copy_(torch.tensor(values, dtype=torch.float64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        (model(torch.eye(4, dtype=torch.float64)) - 1).pow(2).mean().backward()
        optimizer.step()
    for each in found:
        for parameter, values in zip(model.parameters(), each["ends"], strict=True):
            torch.testing.assert_close(
                parameter.detach(), torch.tensor(values, dtype=torch.float64), rtol=0, atol=1e-12
            )


@pytest.mark.parametrize("name", ["torch", "plain"])
def test_ranks_have_rays_numbers(ran: tuple[Path, str], name: str) -> None:
    """A worker's rank and local rank are those that Ray gives it; ``torch.distributed`` is left alone."""
    found = files(ran[0], name)
    assert [each["ranks"][:2] for each in found] == [[rank, rank] for rank in range(4)]
    assert all(each["ranks"][2] == each["ranks"][3] for each in found)
    assert {(each["size"], each["torch"], each["mark"]) for each in found} == {(4, False, "7")}


def test_a_rank_that_raises_ends_the_run(ran: tuple[Path, str]) -> None:
    """The trainer's error has the exception of the rank that raised at the end; those that wait for it do not hang."""
    assert "plain failed" in ran[1]
    assert "there is no data" in ran[1]
