"""``examples/gpt.py``: what the model is, and the same losses with any number of ranks."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from loading import EXAMPLES, load

if TYPE_CHECKING:
    from running import Runner

pytestmark = [pytest.mark.usefixtures("warm_torch"), pytest.mark.parallel, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def gpt() -> Any:
    """The file."""
    return load("gpt", EXAMPLES)


def test_a_token_sees_what_stands_before_it_at_a_distance(gpt: Any) -> None:
    """Later tokens change no score; a product of query and key knows how far apart they are, not where."""
    shape = gpt.Shape(2, 16, 2, 8, 11)
    model, text = gpt.GPT(shape).double(), torch.randint(0, 11, (3, 8))
    torch.testing.assert_close(model(text)[:, :5], model(text[:, :5]), rtol=0, atol=1e-12)
    query, key = torch.randn(2, 8, dtype=torch.float64)
    turns = gpt.rotations(shape).double()
    product = gpt.turned(query.expand(1, 1, 8, 8), turns) @ gpt.turned(key.expand(1, 1, 8, 8), turns).mT
    for distance in range(-3, 4):
        same = product[0, 0].diagonal(distance)
        torch.testing.assert_close(same, same[:1].expand_as(same), rtol=0, atol=1e-6)
    assert model.head.weight is model.embedding.weight


def test_heads_that_do_not_divide_the_width(gpt: Any) -> None:
    """The nearest width that works is said."""
    with pytest.raises(ValueError, match="3 heads cannot share a width of 128: take a multiple of 6, such as 126"):
        gpt.Shape(heads=3)


@pytest.mark.slow
def test_any_number_of_ranks_has_the_same_losses(jobs: Runner) -> None:
    """Also over Gloo; they fall, and the model writes."""
    script, found = str(EXAMPLES / "gpt.py"), list[list[float]]()
    for n, backend in ((1, "gloo"), (2, "workbench"), (4, "workbench")):
        words = ("-m", "workbench.cli.main", "run", "-np", str(n), sys.executable, script)
        job = jobs.python(*words, "--backend", backend, "--steps", "40", "--size", "8", deadline_s=120)
        assert (job.code, job.left) == (0, ()), job.report()
        found.append([float(loss) for loss in re.findall(r"loss (\S+),", job.out(0))])
        assert "ROMEO" in job.out(0)
    assert found[0][1] < found[0][0] < 5.5
    for losses in found[1:]:
        assert losses == pytest.approx(found[0], abs=0.003)
