"""Copy many arrays in ONE launch: how a batch is packed on a GPU, and unpacked.

A launch costs some microseconds, and a step of ResNet-50 has 161 gradients; so one kernel copies all of them. What it
copies stands in a table, a row for each *piece* of at most 64 KiB: (from, to, bytes). Block i copies piece i, its
threads side by side, 16 bytes at a time where both ends are aligned for it. An address 0 to copy from stands for zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

ALIGN = 16
"""Bytes at a time. Arrays that are put side by side each begin at a multiple of it."""
THREADS = 256
_PIECE_BYTES = 64 << 10

COPY = r"""
struct __align__(16) Vector { unsigned int x, y, z, w; };

// bytes/sizeof(T) elements by all threads of the block, four loads in flight each; the number of bytes copied.
template <typename T>
__device__ unsigned long long copy_as(const char* from, char* to, unsigned long long bytes) {
    const T* a = reinterpret_cast<const T*>(from);
    T* b = reinterpret_cast<T*>(to);
    const unsigned long long count = bytes / sizeof(T), step = blockDim.x;
    unsigned long long i = threadIdx.x;
    for (; i + 3 * step < count; i += 4 * step) {
        const T p = a[i], q = a[i + step], r = a[i + 2 * step], s = a[i + 3 * step];
        b[i] = p; b[i + step] = q; b[i + 2 * step] = r; b[i + 3 * step] = s;
    }
    for (; i < count; i += step) b[i] = a[i];
    return count * sizeof(T);
}

template <typename T>
__device__ unsigned long long zero_as(char* to, unsigned long long bytes, T zero) {
    T* b = reinterpret_cast<T*>(to);
    const unsigned long long count = bytes / sizeof(T);
    for (unsigned long long i = threadIdx.x; i < count; i += blockDim.x) b[i] = zero;
    return count * sizeof(T);
}

extern "C" __global__ void copy_pieces(const unsigned long long* table) {
    const unsigned long long* piece = table + 3 * static_cast<unsigned long long>(blockIdx.x);
    const char* from = reinterpret_cast<const char*>(piece[0]);
    char* to = reinterpret_cast<char*>(piece[1]);
    const unsigned long long bytes = piece[2], both = piece[0] | piece[1];
    unsigned long long done = 0;
    if (both % 16 == 0) done = from ? copy_as<Vector>(from, to, bytes) : zero_as(to, bytes, Vector{0, 0, 0, 0});
    else if (both % 4 == 0) done = from ? copy_as<unsigned int>(from, to, bytes) : zero_as(to, bytes, 0u);
    for (unsigned long long i = done + threadIdx.x; i < bytes; i += blockDim.x) to[i] = from ? from[i] : 0;
}
"""


def pieces(copies: Sequence[tuple[int, int, int]], most: int = _PIECE_BYTES) -> NDArray[np.uint64]:
    """The kernel's table, shape (pieces, 3).

    Args:
        copies: (address to copy from, or 0 for zeros; address to copy to; bytes), no two of them to one place.
        most: bytes of a piece, a multiple of 16.

    Example:
        >>> pieces([(1000, 2000, 70), (0, 3000, 10)], most=32).tolist()
        [[1000, 2000, 32], [1032, 2032, 32], [1064, 2064, 6], [0, 3000, 10]]
    """
    wanted = np.array(copies, np.uint64).reshape(-1, 3)
    counts = -(-wanted[:, 2].astype(np.int64) // most)
    rows = np.repeat(wanted, counts, axis=0)
    firsts = np.repeat(np.cumsum(counts) - counts, counts)
    offsets = ((np.arange(len(rows)) - firsts) * most).astype(np.uint64)
    table = np.stack([rows[:, 0] + offsets * (rows[:, 0] != 0), rows[:, 1] + offsets, rows[:, 2] - offsets], axis=1)
    table[:, 2] = np.minimum(table[:, 2], np.uint64(most))
    return table
