"""Every verb on one rank, through NCCL, in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from gpu_running import marks, need

import workbench.torch as hvd

from . import verbs

pytestmark = marks()


@pytest.fixture(scope="module")
def world() -> Iterator[verbs.World]:
    """A world of one, whose tensors on the GPU go through NCCL."""
    need("nccl", 1)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):  # a launcher around the tests is not meant for them
            patch.delenv(name, raising=False)
        patch.setenv("WORKBENCH_GPU_OPERATIONS", "nccl")
        hvd.init()
    try:
        assert verbs.way() == "NCCL"
        yield verbs.World(verbs.here())
    finally:
        hvd.shutdown()


@pytest.mark.parametrize("dtype", verbs.DTYPES)
@pytest.mark.parametrize("check", verbs.CHECKS)
def test_a_verb_gives_what_torch_computes(world: verbs.World, check: str, dtype: str) -> None:
    """All shapes and ops: empty ones, a scalar, odd lengths; in place and not; one by one and as a group."""
    world.dtype, world.wrong = verbs.DTYPES[dtype], []
    verbs.CHECKS[check](world)
    assert world.wrong == []


def test_nothing_was_copied_to_the_host(world: verbs.World) -> None:
    """What reduced all this is NCCL's backend on this rank's GPU, with one stream of its own."""
    import torch

    from workbench.job.context import HOLDER

    sets = HOLDER.get().sets
    assert sets.backend(0, "cuda").name == "NCCL"
    assert sets.gpu.stream.ptr != torch.cuda.current_stream().cuda_stream
