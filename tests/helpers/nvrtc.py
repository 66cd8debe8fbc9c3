"""NVIDIA's own compiler of CUDA source, from the wheel nvidia-cuda-nvrtc. It needs no GPU and no toolkit."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p
from importlib import metadata
from pathlib import Path


def library() -> Path | None:
    """NVRTC's file, None where it is not installed."""
    try:
        files = metadata.files("nvidia-cuda-nvrtc") or []
    except metadata.PackageNotFoundError:
        return None
    return next((Path(str(each.locate())) for each in files if each.name.startswith("libnvrtc.so")), None)


def compiled(source: str, architecture: str) -> tuple[str, bytes]:
    """The PTX, and the machine code for one kind of GPU.

    Args:
        source: CUDA C++.
        architecture: "sm_90" …

    Raises:
        ValueError: it does not compile; with the compiler's log.
    """
    nvrtc = ctypes.CDLL(str(library()))
    program = c_void_p()
    _ask(nvrtc, "CreateProgram", byref(program), c_char_p(source.encode()), b"kernels.cu", c_int(0), None, None)
    try:
        options = (c_char_p * 2)(f"--gpu-architecture={architecture}".encode(), b"-std=c++17")
        if nvrtc.nvrtcCompileProgram(program, c_int(2), options):
            raise ValueError(_text(nvrtc, "ProgramLog", program).decode())
        return _text(nvrtc, "PTX", program).decode(), _text(nvrtc, "CUBIN", program)
    finally:
        _ask(nvrtc, "DestroyProgram", byref(program))


def _text(nvrtc: ctypes.CDLL, what: str, program: c_void_p) -> bytes:
    size = c_size_t()
    _ask(nvrtc, f"Get{what}Size", program, byref(size))
    content = ctypes.create_string_buffer(size.value)
    _ask(nvrtc, f"Get{what}", program, content)
    return content.raw


def _ask(nvrtc: ctypes.CDLL, function: str, *words: object) -> None:
    if status := getattr(nvrtc, f"nvrtc{function}")(*words):
        raise RuntimeError(f"nvrtc{function}: error {status}")
