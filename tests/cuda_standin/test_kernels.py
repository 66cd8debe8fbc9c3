"""The stand-in's `RawModule`: real CUDA source, compiled for the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from . import CUDARuntimeError, World, build, kernels

pytestmark = pytest.mark.skipif(kernels.compiler() is None, reason="no g++")
SOURCE = r"""
extern "C" __global__ void axpy(const float* __restrict__ x, const float* y, float* z, float a, long long n) {
    const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < n) z[i] = a * x[i] + y[i];
}
extern "C" __global__ void __launch_bounds__(64) copy16(const uint4* from, uint4* to) {
    to[threadIdx.x] = from[threadIdx.x];
}
extern "C" __global__ void where_am_i(int* out, bool* seen) {
    const int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    const int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    const int i = block * blockDim.x * blockDim.y * blockDim.z + thread;
    out[i] = max(i, 0);
    seen[i] = true;
}
"""


def kernel(world: World, name: str) -> Any:
    """One of the kernels above."""
    return world.cupy.RawModule(code=SOURCE, options=("-std=c++17",)).get_function(name)


def test_a_kernel_runs_in_the_order_of_its_stream() -> None:
    """It sees what was written before it on its stream, and the scalars of the call."""
    for seed in range(20):
        world = build(seed=seed)
        stream, axpy = world.cupy.cuda.Stream(non_blocking=True), kernel(world, "axpy")
        with stream:
            x, z = world.cupy.zeros(1000, np.float32), world.cupy.empty(1000, np.float32)
            x += 2
            axpy((8,), (128,), (x, x, z, np.float32(3), 1000))
            x += 1
            assert (z.get() == 8).all()
        axpy((8,), (128,), (x.data, x, z, np.float32(1), np.int64(1000)), stream=stream)
        stream.synchronize()
        assert (z.get() == 6).all()


def test_every_thread_of_every_block_runs_once() -> None:
    """In three dimensions."""
    world = build()
    out, seen = world.cupy.zeros(2 * 3 * 4 * 5 * 2, np.int32), world.cupy.zeros(240, np.bool_)
    kernel(world, "where_am_i")((2, 3, 2), (5, 2, 2), (out, seen))
    np.testing.assert_array_equal(out.get(), np.arange(240))
    assert seen.get().all()


def test_a_misaligned_access_is_an_error() -> None:
    """As on a GPU: told at the next look, and 16 bytes at a time work where both ends are aligned."""
    world = build()
    x, y = world.cupy.arange(132, dtype=np.float32), world.cupy.zeros(132, np.float32)
    copy = kernel(world, "copy16")
    copy((1,), (32,), (x[4:], y))
    assert y[:128].tolist() == list(range(4, 132))
    copy((1,), (32,), (x[1:], y))
    with pytest.raises(CUDARuntimeError, match="cudaErrorMisalignedAddress"):
        y.get()


def test_wrong_calls_are_refused() -> None:
    """Arguments of another number or size, a block that is too large, an array of another device, no such kernel."""
    world = build()
    x, axpy = world.cupy.zeros(4, np.float32), kernel(world, "axpy")
    with pytest.raises(TypeError, match="axpy"):
        axpy((1,), (4,), (x, x, x, 1.0, 4))
    with pytest.raises(TypeError, match="axpy"):
        axpy((1,), (4,), (x, x, x))
    with pytest.raises(CUDARuntimeError, match="InvalidConfiguration"):
        axpy((1,), (2048,), (x, x, x, np.float32(1), 4))
    with world.cupy.cuda.Device(1), pytest.raises(ValueError, match="current device"):
        axpy((1,), (4,), (x, x, x, np.float32(1), 4))
    with pytest.raises(CUDARuntimeError, match="NOT_FOUND"):
        kernel(world, "nothing")
    with pytest.raises(RuntimeError, match="one by one"):
        world.cupy.RawModule(code='extern "C" __global__ void f() { __syncthreads(); }').get_function("f")
