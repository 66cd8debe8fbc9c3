"""The kernel that packs and unpacks, against torch."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from gpu_running import marks

from workbench.transport.gpu import kernels
from workbench.transport.gpu.device import Gpu

pytestmark = marks()
ROOM = 4 << 20


def copied(gpu: Gpu, copies: list[tuple[int, int, int]], seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The target after copies of (from, or -1 for zeros; to; bytes), by the kernel and by torch on the CPU."""
    import cupy

    source, target = (torch.randint(0, 256, (ROOM,), dtype=torch.uint8, generator=rng(seed + i)) for i in (0, 1))
    with gpu.device, gpu.stream:
        a, b = cupy.asarray(source.numpy()), cupy.asarray(target.numpy())
        assert a.data.ptr % 256 == b.data.ptr % 256 == 0
        pairs: list[Any] = [(None if x < 0 else a[x : x + n], b[y : y + n]) for x, y, n in copies]
        gpu.copy(pairs)
        got = torch.from_numpy(b.get())
    for x, y, n in copies:
        target[y : y + n] = 0 if x < 0 else source[x : x + n]
    return got, target


def rng(seed: int) -> torch.Generator:
    """Of torch."""
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def gpu() -> Gpu:
    """The first one."""
    return Gpu(0)


@pytest.mark.parametrize("seed", range(40))
def test_copies_are_torchs(gpu: Gpu, seed: int) -> None:
    """Random lengths, alignments and zeros: every byte of the target is right, also those that nobody asked for."""
    dice = random.Random(seed)
    step = dice.choice([1, 2, 4, 16])  # 16 bytes at a time, 4, or one by one
    copies, y = [], 0
    while True:
        n = dice.choice([0, 1, 3, 16, 17, 255, dice.randrange(1000), dice.randrange(300_000)])
        y += step * dice.randrange(1 + 64 // step)
        if y + n > ROOM or len(copies) == 200:
            break
        x = -1 if dice.random() < 0.1 else step * dice.randrange((ROOM - n) // step + 1)
        copies.append((x, y, n))
        y += n + (-(y + n) % step)
    got, wanted = copied(gpu, copies, seed)
    assert torch.equal(got, wanted)


@pytest.mark.parametrize("at", range(17))
def test_around_the_size_of_a_piece(gpu: Gpu, at: int) -> None:
    """Lengths beside a multiple of a piece's, from and to every alignment."""
    length = 2 * kernels.pieces([(0, 0, 1 << 20)])[0, 2].item()
    copies = [(at, at * 5 % 16, length - 8 + at), (3, ROOM // 2 + at, length + 8 - at)]
    got, wanted = copied(gpu, copies, at)
    assert torch.equal(got, wanted)


def test_one_launch_for_many(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """161 gradients are packed by one launch, and nothing by none."""
    launches = []
    launch = gpu._copy_pieces
    monkeypatch.setattr(gpu, "_copy_pieces", lambda *words: (launches.append(words), launch(*words)))
    copied(gpu, [(i * 1000, i * 2000, 999) for i in range(161)], 0)
    assert len(launches) == 1
    copied(gpu, [], 0)
    copied(gpu, [(5, 5, 0)], 0)
    assert len(launches) == 1
