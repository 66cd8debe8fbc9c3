"""The IDX file format, in which MNIST and its relatives are published.

::

    byte 0, 1    zero
    byte 2       what the numbers are (table below)
    byte 3       d, the number of dimensions
    then         d sizes, 4 bytes each
    then         the numbers, the last dimension running fastest

Everything is big-endian. A file may be packed with gzip.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

DTYPES: dict[int, str] = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}

GZIP_MAGIC = b"\x1f\x8b"


def read(path: Path | str) -> NDArray[Any]:
    """Read one IDX file, packed with gzip or not.

    Args:
        path: the file; its first bytes say whether it is packed, not its name.

    Returns:
        An array of the file's shape and dtype, in this machine's byte order.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged or is no IDX file; the text names it.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "labels")
        ...     _ = path.write_bytes(bytes([0, 0, 8, 1]) + bytes([0, 0, 0, 3]) + bytes([7, 2, 1]))
        ...     read(path)
        array([7, 2, 1], dtype=uint8)
    """
    return parse(unpack(path), str(path))


def unpack(path: Path | str) -> bytes:
    """The content of a file; if it is packed with gzip, unpacked.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the packing is damaged or ends too early.
    """
    raw = Path(path).read_bytes()
    if not raw.startswith(GZIP_MAGIC):
        return raw
    try:
        return gzip.decompress(raw)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(
            f"{path} is damaged: its {len(raw):,} bytes cannot be unpacked ({error}). Download the file again."
        ) from error


def parse(content: bytes, name: str = "the content") -> NDArray[Any]:
    """Read an array from the bytes of an unpacked IDX file.

    Args:
        content: all bytes of the file.
        name: what error messages call it.

    Returns:
        A new array in this machine's byte order.

    Raises:
        ValueError: not the format above, or not as long as its header says.
    """
    dtype, shape = _header(content, name)
    start = 4 + 4 * len(shape)
    expected = math.prod(shape) * dtype.itemsize
    if len(content) - start != expected:
        raise ValueError(
            f"{name} is damaged: after its header, shape {shape} of {dtype.itemsize}-byte numbers needs "
            f"{expected:,} bytes, but there are {len(content) - start:,}. Download the file again."
        )
    return np.frombuffer(content, dtype, offset=start).reshape(shape).astype(dtype.newbyteorder("="))


def _header(content: bytes, name: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in DTYPES:
        raise ValueError(
            f"{name} is no IDX file: it begins with {content[:4].hex(' ') or 'nothing'}; expected 00 00, then one of "
            f"{', '.join(f'{code:02x}' for code in DTYPES)}, then the number of dimensions."
        )
    n_dimensions = content[3]
    if len(content) < 4 + 4 * n_dimensions:
        raise ValueError(
            f"{name} is damaged: it ends inside its header, after {len(content)} bytes. Download it again."
        )
    return np.dtype(DTYPES[content[2]]), struct.unpack_from(f">{n_dimensions}I", content, 4)
