"""One rank of some hosts: prints OK if all that goes over two levels is right. Run by ``test_two_levels.py``."""

from __future__ import annotations

import sys

import numpy as np

from workbench import config
from workbench.core.backend.base import Backend, Reduction
from workbench.transport.select import connect, find_ranks

LENGTHS = (0, 1, 3, 1000, 131_072, 131_073, 1_000_001)  # elements: a segment has 131,072 of 4 bytes


def main() -> None:
    """Check, and end together."""
    settings = config.settings()
    backend = connect(find_ranks(config.launch(), settings), settings)
    assert backend.name.endswith("+SHM"), backend.name
    if settings.wire:
        _rounded(backend)
    else:
        assert backend.levels
        for on in (True, False, True):
            backend.levels.on = on
            _exact(backend)
    print("OK", flush=True)
    backend.life.close()


def _exact(backend: Backend) -> None:
    n, does = backend.size, backend.collectives
    for length in LENGTHS:
        data = np.random.default_rng(0).integers(-9, 9, (n, length)).astype(np.float32)
        array = data[backend.rank].copy()
        does.allreduce(array, Reduction("average", "float32", divisor=n))
        np.testing.assert_allclose(array, data.mean(0), rtol=1e-6, atol=1e-6)
        for op, expected in (("min", data.min(0)), ("sum", data.sum(0))):
            buffer = backend.shared.buffer(4 * length).view(np.float32)  # reduced where it lies
            buffer[:] = data[backend.rank]
            does.allreduce(buffer, Reduction(op, "float32"))
            np.testing.assert_array_equal(buffer, expected)
        for root in range(n):
            array = data[backend.rank].copy()
            does.broadcast(array, root)
            np.testing.assert_array_equal(array, data[root])
        lengths = [length // (rank + 1) for rank in range(n)]
        ends = np.cumsum(lengths)
        array = np.zeros(ends[-1], np.int64)
        array[ends[backend.rank] - lengths[backend.rank] : ends[backend.rank]] = backend.rank + 1
        does.allgather(array, lengths)
        np.testing.assert_array_equal(array, np.repeat(np.arange(1, n + 1), lengths))


def _rounded(backend: Backend) -> None:
    """Floats in half precision are near the sum, with the same bits everywhere; whole numbers stay exact."""
    n, does = backend.size, backend.collectives
    data = np.random.default_rng(0).standard_normal((n, 300_001)).astype(np.float32)
    array = data[backend.rank].copy()
    traffic = does.allreduce(array, Reduction("sum", "float32"))
    assert np.abs(array - data.sum(0)).max() < 0.05 * n
    assert not np.array_equal(array, data.sum(0)), "nothing was rounded"
    assert traffic.bytes <= 2 * array.nbytes / 2, "more than 16 bits a number"
    everything = np.zeros(n * len(array), np.float32)
    everything[backend.rank * len(array) :][: len(array)] = array
    does.allgather(everything, [len(array)] * n)
    assert len({each.tobytes() for each in np.split(everything, n)}) == 1
    large = np.full(300_001, 60_000.0, np.float32)  # the mean is a number of 16 bits, the sum is not
    does.allreduce(large, Reduction("average", "float32", divisor=n))
    assert np.abs(large - 60_000).max() < 500
    whole = np.full(300_001, 1 << 40, np.int64)
    does.allreduce(whole, Reduction("sum", "int64"))
    assert (whole == n << 40).all()


if __name__ == "__main__":
    sys.exit(main())
