"""The kernel that copies many arrays at once: its table, and its real source, compiled for the host and for a GPU."""

from __future__ import annotations

import re
from typing import Any

import cuda_standin.kernels
import numpy as np
import nvrtc
import pytest
from cuda_standin import build
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.transport.gpu import kernels
from workbench.transport.gpu.kernels import COPY, THREADS, pieces

Copies = list[tuple[int, int, int]]
LARGEST = 300_000  # bytes: several pieces
BETWEEN = 0xA5  # what lies around the targets

QUICK = settings(deadline=None, max_examples=60)  # a busy machine is no failure


def copies(longest: int) -> st.SearchStrategy[Copies]:
    """(from, or 0 for zeros; to; bytes)."""
    address = st.integers(1, 1 << 47)
    return st.lists(st.tuples(st.just(0) | address, address, st.integers(0, longest)), max_size=12)


@QUICK
@given(st.tuples(copies(1000), st.sampled_from([16, 48])) | st.tuples(copies(LARGEST), st.sampled_from([4096, 65536])))
def test_the_pieces_cover_every_byte_once(case: tuple[Copies, int]) -> None:
    """Piece after piece of copy after copy, none empty, none longer than allowed; of zeros, zeros."""
    wanted, most = case
    rows = [tuple(row) for row in pieces(wanted, most).tolist()]
    right = [
        (source and source + done, target + done, min(most, nbytes - done))
        for source, target, nbytes in wanted
        for done in range(0, nbytes, most)
    ]
    assert rows == right


@QUICK
@given(copies(LARGEST))
def test_pieces_are_aligned_as_their_arrays_are(wanted: Copies) -> None:
    """So what can be copied 16 bytes at a time is, in every piece."""
    known = {(source % 16, target % 16) for source, target, nbytes in wanted if source and nbytes}
    assert {(int(a) % 16, int(b) % 16) for a, b, _ in pieces(wanted) if a} == known


def test_no_copies_make_no_pieces() -> None:
    """Nor do copies of nothing."""
    assert pieces([]).shape == pieces([(16, 32, 0), (0, 48, 0)]).shape == (0, 3)


# --- the source, on the host ----------------------------------------------------------------------------

on_host = pytest.mark.skipif(cuda_standin.kernels.compiler() is None, reason="no g++ to compile the kernel with")


def copied(layout: Copies, source: np.ndarray, room: int, most: int = kernels._PIECE_BYTES) -> np.ndarray:
    """The target after one launch.

    Args:
        layout: (from in the source, or -1 for zeros; to in the target; bytes).
        source: bytes.
        room: bytes of the target.
        most: bytes of a piece.
    """
    world = build()
    cupy: Any = world.cupy
    here, there = cupy.asarray(source), cupy.full(room, BETWEEN, np.uint8)
    addresses = [(0 if a < 0 else here.data.ptr + a, there.data.ptr + b, nbytes) for a, b, nbytes in layout]
    table = pieces(addresses, most)
    kernel = cupy.RawModule(code=COPY).get_function("copy_pieces")
    kernel((len(table),), (THREADS,), (cupy.asarray(table),))
    found: np.ndarray = there.get()
    return found


def expected(layout: Copies, source: np.ndarray, room: int) -> np.ndarray:
    """The same by numpy."""
    target = np.full(room, BETWEEN, np.uint8)
    for a, b, nbytes in layout:
        target[b : b + nbytes] = 0 if a < 0 else source[a : a + nbytes]
    return target


@on_host
@pytest.mark.parametrize("zeros", [False, True])
def test_every_alignment(zeros: bool) -> None:
    """Source and target at every place mod 16, lengths on both sides of what a round of threads copies."""
    source = np.random.default_rng(0).integers(0, 256, 1 << 17, np.uint8)
    layout, end = [], 0
    for a in range(16):
        for b in range(16):
            for nbytes in (a + b, 4 * THREADS * (1 + a % 4) + b, 16 * THREADS + 16 * a + b):
                start = -(-end // 16) * 16 + 16 + b
                layout.append((-1 if zeros else 16 * (a + 3 * b) + a, start, nbytes))
                end = start + nbytes
    room = end + 16
    np.testing.assert_array_equal(copied(layout, source, room), expected(layout, source, room))


@on_host
@pytest.mark.parametrize("seed", range(10))
def test_random_copies(seed: int) -> None:
    """Of 0 to 300,000 bytes, side by side or apart, among them zeros; nothing between them is touched."""
    dice = np.random.default_rng(seed)
    source = dice.integers(0, 256, LARGEST + 64, np.uint8)
    layout, end = [], 0
    for _ in range(12):
        nbytes = int(dice.integers(0, LARGEST + 1) if dice.random() < 0.5 else dice.integers(0, 200))
        start = end + int(dice.integers(0, 32)) if dice.random() < 0.5 else -(-end // 16) * 16
        layout.append((-1 if dice.random() < 0.2 else int(dice.integers(0, 64)), start, nbytes))
        end = start + nbytes
    np.testing.assert_array_equal(copied(layout, source, end + 16), expected(layout, source, end + 16))


# --- the source, for a GPU ------------------------------------------------------------------------------


@pytest.mark.skipif(nvrtc.library() is None, reason="no nvidia-cuda-nvrtc to compile the kernel with")
@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90", "sm_100"])
def test_it_compiles_for_a_gpu(architecture: str) -> None:
    """By NVIDIA's compiler. Aligned arrays go through 128 bits at a time: four loads, before the first store."""
    ptx, code = nvrtc.compiled(COPY, architecture)
    assert code.startswith(b"\x7fELF")
    assert f".target {architecture}" in ptx
    assert ".entry copy_pieces" in ptx
    wide = re.findall(r"\b(ld|st)\.(?:global\.)?v4\.[bu]32", ptx)
    assert "ld ld ld ld st st st st" in " ".join(wide)


@pytest.mark.skipif(nvrtc.library() is None, reason="no nvidia-cuda-nvrtc to compile the kernel with")
def test_what_does_not_compile_is_told() -> None:
    """With the line."""
    with pytest.raises(ValueError, match=r"kernels\.cu\(\d+\): error"):
        nvrtc.compiled(COPY.replace("blockDim.x", "blockDim.w", 1), "sm_90")
