"""Mistakes in ``%%px`` cells, with output as it comes and the live panel: no cell hangs, and the next one is right."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from cells import START, N
from live_kernel import LiveKernel, Message, live_kernel, rows
from mistakes import CATALOGUE, Mistake

pytestmark = [pytest.mark.integration, pytest.mark.parallel, pytest.mark.timeout(120)]

# One of each sort: not all ranks come, one raises, another name, another order of cells, leaving, dying.
SOME = [CATALOGUE[i] for i in (0, 2, 6, 7, 15, 19, 24)]


@pytest.fixture(scope="module")
def kernel() -> Iterator[LiveKernel]:
    """A notebook with four ranks, and its panel."""
    with live_kernel(N) as kernel:
        kernel.run(f"%%px\n{START}")
        kernel.run("panel = cluster.watch()")
        yield kernel


def make(kernel: LiveKernel, mistake: Mistake, who: int) -> None:
    """Run the cell, what comes after it, and what repairs it; then a cell must be right on all ranks."""
    found = kernel.run(f"%%px\n{mistake.code.format(who=who)}")
    assert not mistake.fails or any(each.kind == "error" for each in found), [each.text for each in found]
    if mistake.after:
        kernel.run(f"%%px\n{mistake.after.code}")
    if mistake.repair == "rescue":
        kernel.run("c.rescue(quiet=True)")
        kernel.run(f"%%px\nimport workbench as hvd\nhvd.init()\n{START}")
    elif mistake.repair:
        kernel.run(f"%%px\n{mistake.repair}")
    right(kernel)


def right(kernel: LiveKernel) -> None:
    """The sum of all ranks' numbers, on every rank."""
    cell = "%px print(int(hvd.allreduce(np.full(3, hvd.rank() + 1.0), op=hvd.Sum)[0]))"
    found: list[Message] = [each for each in kernel.run(cell) if each.kind.endswith("display_data")]
    assert rows(found[-1]) == [(f"ranks 0-{N - 1}", str(N * (N + 1) // 2))]


@pytest.mark.parametrize("mistake", SOME, ids=lambda mistake: mistake.code[:24])
def test_a_mistake_and_the_next_cell(kernel: LiveKernel, mistake: Mistake) -> None:
    """It ends with an error, and what follows is right."""
    make(kernel, mistake, who=2)


@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_many_mistakes(kernel: LiveKernel) -> None:
    """A hundred and thirty, in random order, by random ranks."""
    draw = random.Random(33)
    for mistake in draw.choices(CATALOGUE, k=130):
        make(kernel, mistake, draw.randrange(N))
