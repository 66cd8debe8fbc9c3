"""Tensors of torch's that numpy lacks, and those whose memory does not say what they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import workbench
import workbench.torch as hvd
from workbench.errors import UnsupportedTensorError

N = 2
FLOAT8 = sorted(name for name in vars(torch) if name.startswith("float8_"))


@pytest.mark.parametrize("name", [*FLOAT8, "uint16", "uint32", "uint64", "complex64", "complex128"])
def test_a_dtype_is_moved_bit_for_bit(name: str) -> None:
    """Broadcast, also in place, allgather and alltoall give the very bits of the other rank, and the dtype."""
    dtype = getattr(torch, name)

    def run() -> None:
        each = [torch.arange(64, dtype=torch.uint8).mul(r + 1).view(dtype)[: 2 * N] for r in range(N)]
        mine, bits = each[hvd.rank()], lambda t: (t.dtype, t.view(torch.uint8).tolist())
        assert bits(hvd.broadcast(mine, 1)) == bits(each[1])
        assert bits(hvd.allgather(mine)) == bits(torch.cat([t.view(torch.uint8) for t in each]).view(dtype))
        rows = slice(hvd.rank() * N, hvd.rank() * N + N)
        parts = torch.cat([t[rows].view(torch.uint8) for t in each]).view(dtype)
        assert bits(hvd.alltoall(mine)) == bits(parts)
        own = mine.clone()
        hvd.broadcast_(own, 0)
        assert bits(own) == bits(each[0])

    workbench.run_threads(N, run)


def test_a_tensor_that_is_yet_to_be_conjugated_or_negated() -> None:
    """What counts is its value, and in place the result is one, too."""

    def run() -> tuple[Any, ...]:
        z = torch.tensor([1 + 2j, 3 - 1j]) * (hvd.rank() + 1)
        fresh, own, negative = hvd.broadcast(z.conj(), 1), z.conj(), z[:1].clone().conj().imag
        hvd.broadcast_(own, 1)
        total = hvd.allreduce(negative, op=hvd.Sum)
        hvd.allreduce_(negative, op=hvd.Sum)
        return fresh.tolist(), own.tolist(), total.tolist(), negative.tolist(), z.tolist()

    wanted = [2 - 4j, 6 + 2j]
    for made in workbench.run_threads(N, run):
        assert made == (wanted, wanted, [-6.0], [-6.0], [2 + 4j, 6 - 2j])


def test_gradients_of_complex_numbers_are_those_of_their_parts() -> None:
    """What moved a complex tensor has a derivative, as if real and imaginary parts were tensors of their own."""

    def run() -> tuple[list[complex], list[complex]]:
        weight = (1 + 2j) * (hvd.rank() + 1)
        z = torch.ones(2, dtype=torch.complex64, requires_grad=True)
        (hvd.broadcast(z, 0) * weight).real.sum().backward()
        moved, z.grad = z.grad.tolist(), None
        (hvd.allgather(z) * weight).real.sum().backward()
        return moved, z.grad.tolist()

    average = ((1 + 2j) * 1.5).conjugate()
    assert workbench.run_threads(N, run) == [([average] * 2, [average] * 2), ([0j] * 2, [average] * 2)]


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental", "ignore:.*quantize")
@pytest.mark.parametrize("kind", ["complex32", "quint8"])
def test_what_has_no_array_is_refused(kind: str) -> None:
    """Half precision's complex numbers, and quantized ones: the error is ours, and names the dtype."""
    whole = torch.ones(2)
    tensor = (
        whole.to(torch.complex32) if kind == "complex32" else torch.quantize_per_tensor(whole, 0.1, 0, torch.quint8)
    )
    with pytest.raises(UnsupportedTensorError, match=kind):
        workbench.run_threads(1, lambda: hvd.broadcast(tensor, 0))
