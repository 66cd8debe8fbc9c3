"""`cupy.RawModule`: compiles CUDA source for the host and calls it once for each thread of each block, one by one.

So `__shared__`, `__syncthreads` and warp functions do not compile. A misaligned access, which a GPU refuses, is refused
here too: the compiler's alignment checks report it, and the launch fails. An address out of bounds is not noticed.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from .deferred import DeviceArray
from .memory import MemoryPointer
from .operations import CUDARuntimeError, Op
from .world import World

_BEFORE = r"""
#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <cmath>
#include <type_traits>
#include <utility>
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static_assert(false, "the stand-in runs threads one by one: no __shared__")
#define __syncthreads() static_assert(false, "the stand-in runs threads one by one: no __syncthreads")
struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x, y, z; };
struct __align__(8) uint2 { unsigned x, y; };
struct __align__(16) uint4 { unsigned x, y, z, w; };
struct __align__(16) ulonglong2 { unsigned long long x, y; };
struct __align__(8) float2 { float x, y; };
struct __align__(16) float4 { float x, y, z, w; };
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static inline ulonglong2 make_ulonglong2(unsigned long long x, unsigned long long y) { return {x, y}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
template <typename A, typename B> constexpr std::common_type_t<A, B> min(A a, B b) { return b < a ? b : a; }
template <typename A, typename B> constexpr std::common_type_t<A, B> max(A a, B b) { return a < b ? b : a; }
static thread_local uint3 threadIdx, blockIdx;
static thread_local dim3 blockDim, gridDim;
static thread_local std::jmp_buf standin_refused;
static thread_local void* standin_misaligned;
extern "C" __attribute__((visibility("hidden"))) void __ubsan_handle_type_mismatch_v1(void*, void* address) {
    standin_misaligned = address;
    std::longjmp(standin_refused, 1);
}
#line 1 "kernel.cu"
"""
_AFTER = r"""
#line 1 "launcher"
template <typename... A> struct StandinKernel {
    static constexpr int count = sizeof...(A);
    static int size(int i) { const int sizes[] = {int(sizeof(A))..., 0}; return sizes[i]; }
    template <std::size_t... I> static void one(void (*kernel)(A...), void** args, std::index_sequence<I...>) {
        kernel(*static_cast<std::remove_cv_t<A>*>(args[I])...);
    }
    static void* launch(void (*kernel)(A...), const unsigned* grid, const unsigned* block, int backwards, void** args) {
        gridDim = {grid[0], grid[1], grid[2]};
        blockDim = {block[0], block[1], block[2]};
        const unsigned long long blocks = 1ull * grid[0] * grid[1] * grid[2];
        if (setjmp(standin_refused)) return standin_misaligned;
        for (unsigned long long i = 0; i < blocks; ++i) {
            const unsigned long long b = backwards ? blocks - 1 - i : i;
            blockIdx = {unsigned(b % grid[0]), unsigned(b / grid[0] % grid[1]), unsigned(b / grid[0] / grid[1])};
            for (unsigned z = 0; z < block[2]; ++z)
                for (unsigned y = 0; y < block[1]; ++y)
                    for (unsigned x = 0; x < block[0]; ++x) {
                        threadIdx = {x, y, z};
                        one(kernel, args, std::index_sequence_for<A...>{});
                    }
        }
        return nullptr;
    }
};
template <typename... A> StandinKernel<A...> standin_kernel(void (*)(A...)) { return {}; }
"""
_LAUNCHER = r"""
extern "C" int standin_count_NAME() { return standin_kernel(&NAME).count; }
extern "C" int standin_size_NAME(int i) { return standin_kernel(&NAME).size(i); }
extern "C" void* standin_launch_NAME(const unsigned* grid, const unsigned* block, int backwards, void** args) {
    return standin_kernel(&NAME).launch(&NAME, grid, block, backwards, args);
}
"""
_KERNEL = re.compile(
    r'extern\s+"C"\s+__global__\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)'
)


def compiler() -> str | None:
    """The C++ compiler; None where there is none, and tests of kernels are to be skipped."""
    return shutil.which("g++")


@lru_cache
def _built(code: str) -> ctypes.CDLL:
    """The library of a source, compiled once for each user and source."""
    names = _KERNEL.findall(code)
    source = _BEFORE + code + _AFTER + "".join(_LAUNCHER.replace("NAME", name) for name in names)
    folder = Path(tempfile.gettempdir()) / f"cuda_standin_{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    library = folder / f"{hashlib.sha256(source.encode()).hexdigest()[:32]}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=folder) as place:
            _compile(source, Path(place), library)
    return ctypes.CDLL(str(library))


def _compile(source: str, place: Path, library: Path) -> None:
    (place / "kernel.cpp").write_text(source)
    # Two steps, so that the library is not linked with the sanitizer's: its one function that is called is our own.
    compile_it = ["-O1", "-fPIC", "-x", "c++", "-std=c++17", "-w", "-fsanitize=alignment", "-c", "kernel.cpp"]
    for options in (compile_it, ["-shared", "kernel.o", "-o", "kernel.so"]):
        done = subprocess.run([str(compiler()), *options], cwd=place, capture_output=True, text=True, timeout=120)
        if done.returncode:
            raise RuntimeError(f"the kernel does not compile:\n{done.stderr}")
    os.replace(place / "kernel.so", library)


class RawModule:
    """CUDA source with `extern "C"` kernels, compiled when the first of them is asked for."""

    world: World

    def __init__(
        self, code: str | None = None, *, options: Sequence[str] = (), backend: str = "nvrtc", **_: Any
    ) -> None:
        if code is None or compiler() is None:
            raise NotImplementedError("the stand-in compiles source, with g++")
        self.code = code

    def get_function(self, name: str) -> RawKernel:
        library = _built(self.code)
        if not hasattr(library, f"standin_launch_{name}"):
            raise CUDARuntimeError(f"CUDA_ERROR_NOT_FOUND: named symbol not found: {name}")
        return RawKernel(self.world, library, name)


class RawKernel:
    """A kernel. It runs in the order of the stream, with the arguments' values at the call."""

    def __init__(self, world: World, library: ctypes.CDLL, name: str) -> None:
        self._world, self.name = world, name
        self._launch = getattr(library, f"standin_launch_{name}")
        self._launch.restype = ctypes.c_void_p
        size = getattr(library, f"standin_size_{name}")
        self._sizes = [size(i) for i in range(getattr(library, f"standin_count_{name}")())]

    def __call__(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        args: tuple[Any, ...],
        *,
        shared_mem: int = 0,
        stream: Any = None,
    ) -> None:
        if shared_mem:
            raise NotImplementedError("the stand-in has no shared memory")
        queue = (self._world.current() if stream is None else stream).queue
        blocks, threads = (tuple(sizes) + (1,) * (3 - len(sizes)) for sizes in (grid, block))
        if min(blocks + threads) < 1 or np.prod(threads) > 1024 or blocks[0] >= 1 << 31 or max(blocks[1:]) > 65535:
            raise CUDARuntimeError(f"cudaErrorInvalidConfiguration: grid {grid}, block {block}")
        if queue.device != self._world.device():
            raise CUDARuntimeError(f"cudaErrorInvalidResourceHandle: {queue} is not of the current device")
        packed = [self._pack(arg) for arg in args]
        if [len(each) for each in packed] != self._sizes:
            raise TypeError(f"{self.name}: arguments of {[len(each) for each in packed]} bytes for {self._sizes}")
        work = self._work(blocks, threads, packed)
        self._world.issue(queue, Op(f"kernel {self.name}", work), "kernel", name=self.name, grid=grid, block=block)

    def _work(self, blocks: tuple[int, ...], threads: tuple[int, ...], packed: list[bytes]) -> Any:
        def work() -> None:
            held = [ctypes.create_string_buffer(each, len(each)) for each in packed]
            table = (ctypes.c_void_p * max(1, len(held)))(*(ctypes.addressof(each) for each in held))
            sizes = [(ctypes.c_uint * 3)(*each) for each in (blocks, threads)]
            # No kernel may count on the order of its blocks.
            misaligned = self._launch(*sizes, self._world.random.randrange(2), table)
            if misaligned:
                raise CUDARuntimeError(f"cudaErrorMisalignedAddress: {misaligned:#x}")

        return work

    def _pack(self, arg: Any) -> bytes:
        """An argument's bytes: an address, or the value. A Python int is a long long, a float a double."""
        if isinstance(arg, DeviceArray):
            if arg.data.device_id != self._world.device():
                raise ValueError(f"{arg} is not on the current device {self._world.device()}")
            return np.uint64(arg.data.ptr).tobytes()
        if isinstance(arg, MemoryPointer):
            return np.uint64(arg.ptr).tobytes()
        if isinstance(arg, np.generic):
            return arg.tobytes()
        if isinstance(arg, (bool, int, float)):
            return (np.bool_ if isinstance(arg, bool) else np.int64 if isinstance(arg, int) else np.float64)(
                arg
            ).tobytes()
        raise TypeError(f"Unsupported type {type(arg)}")
