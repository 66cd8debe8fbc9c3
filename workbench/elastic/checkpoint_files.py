"""The files of a checkpoint: each rank's part, and the manifest that makes them whole.

::

    folder/lock                                     held by the job that writes here
    folder/checkpoint-00000042/part-0-of-2-9f3c     rank 0's half of the bytes
                               part-1-of-2-9f3c     rank 1's
                               manifest.json        last: what the arrays are, and where each piece of them lies

All arrays, one after another, are one row of bytes. Rank r of n writes those from r/n to (r+1)/n, so a large tensor is
split, and any number of ranks can read what any other number has written. A part is a prelude (a magic number, the
header's length, the header's BLAKE2b), a header (JSON: the arrays, the pieces, a CRC-32 of each), and the pieces.

Each file is written under a temporary name in the same folder, flushed to the disk (fsync), renamed, and the folder
flushed. So a file is there whole or not at all, and a directory without a manifest was not finished.

Two checksums, for accidents and not for attackers, who could write both. CRC-32 for the arrays: it finds any damage
within 4 bytes, misses other damage once in 2³², and takes a third of BLAKE2b's time (2.3 against 0.7 GB/s). BLAKE2b for
headers and manifests, which are small and on which everything else rests.

safetensors (0.8) would save the 30 lines of the prelude: it has no checksum, so a changed byte is read as it is, takes
no complex128, texts or dates, and holds whole tensors, while a rank writes a part of one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from workbench.elastic.checkpoint_values import ArrayKind, Bytes, Stored, decode
from workbench.errors import CheckpointError

MANIFEST = "manifest.json"
FORMAT = 1
_DIRECTORY = re.compile(r"checkpoint-(\d{8,})")
_PART = re.compile(r"part-[0-9a-z]+-of-\d+-[0-9a-f]+")
_MAGIC, _PRELUDE, _CHUNK = b"WBCKPT1\n", 32, 8 << 20


class DamagedError(CheckpointError):
    """A file of a checkpoint is not what was written."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path} {why}")


# --- names --------------------------------------------------------------------------------------------


def directory_of(folder: Path, number: int) -> Path:
    """Where a checkpoint lies."""
    return folder / f"checkpoint-{number:08d}"


def numbers(folder: Path) -> list[int]:
    """The numbers of all checkpoints in a folder, whole or not, the newest last."""
    with os.scandir(folder) as entries:
        found = [_DIRECTORY.fullmatch(entry.name) for entry in entries if entry.is_dir(follow_symlinks=False)]
    return sorted(int(match[1]) for match in found if match)


def complete(folder: Path) -> list[int]:
    """Those that have a manifest."""
    return [number for number in numbers(folder) if (directory_of(folder, number) / MANIFEST).exists()]


def part_name(rank: int | str, size: int, token: str) -> str:
    """A part's file. The token is another one for each attempt: what is late hits nothing of a later attempt."""
    return f"part-{rank}-of-{size}-{token}"


# --- writing ------------------------------------------------------------------------------------------


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that appears under its name when it is whole and on the disk, and never otherwise."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    flush_folder(path.parent)


def flush_folder(folder: Path) -> None:
    """Names that have been made, changed or removed in it survive a loss of power from now on."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@dataclass(frozen=True)
class ArrayPiece:
    """Some bytes of an array, from and to."""

    array: int
    start: int
    stop: int


def divided(lengths: Sequence[int], size: int) -> list[list[ArrayPiece]]:
    """Which pieces each rank writes.

    Args:
        lengths: bytes of each array.
        size: number of ranks.

    Example:
        >>> [[(each.array, each.start, each.stop) for each in share] for share in divided([6, 2], size=2)]
        [[(0, 0, 4)], [(0, 4, 6), (1, 0, 2)]]
    """
    total = sum(lengths)
    cuts = [total * rank // size for rank in range(size + 1)]
    shares: list[list[ArrayPiece]] = []
    for low, high in pairwise(cuts):
        share, begin = [], 0
        for array, length in enumerate(lengths):
            start, stop = max(low - begin, 0), min(high - begin, length)
            if start < stop:
                share.append(ArrayPiece(array, start, stop))
            begin += length
        shares.append(share)
    return shares


def checksum(array: Stored, piece: ArrayPiece, file: BinaryIO | None = None) -> str:
    """The CRC-32 of a piece, as 8 hexadecimal digits; on the way the piece is written to a file, if there is one."""
    crc = 0
    for start in range(piece.start, piece.stop, _CHUNK):
        data = array.data(start, min(start + _CHUNK, piece.stop)).data
        crc = zlib.crc32(data, crc)
        if file is not None:
            file.write(data)
    return f"{crc:08x}"


def write_part(path: Path, token: str, pieces: Sequence[ArrayPiece], arrays: Sequence[Stored]) -> None:
    """Write some pieces of the arrays, with a header before them."""
    table = [{"name": each.name, **each.about, "nbytes": each.nbytes} for each in arrays]

    def header(checksums: Sequence[str]) -> bytes:
        rows = [[each.array, each.start, each.stop, crc] for each, crc in zip(pieces, checksums, strict=True)]
        return _json({"token": token, "arrays": table, "pieces": rows})

    blank = header(["0" * 8] * len(pieces))
    with replacing(path) as file:
        file.write(bytes(_PRELUDE) + blank)
        head = header([checksum(arrays[each.array], each, file) for each in pieces])  # as long as the blank one
        file.seek(0)
        file.write(_MAGIC + len(head).to_bytes(8, "little") + _hash(head) + head)


def read_header(path: Path) -> tuple[dict[str, Any], str, int]:
    """A part's header, its hash, and the place of the first byte after it.

    Raises:
        DamagedError: it is not what was written.
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        prelude = file.read(_PRELUDE)
        length = int.from_bytes(prelude[8:16], "little")
        if prelude[:8] != _MAGIC or length > os.fstat(file.fileno()).st_size:
            raise DamagedError(path, "does not begin like a part of a checkpoint.")
        head = file.read(length)
    if _hash(head) != prelude[16:]:
        raise DamagedError(path, "has a damaged header.")
    found: dict[str, Any] = json.loads(head)
    return found, _hash(head).hex(), _PRELUDE + length


def write_manifest(directory: Path, content: dict[str, Any]) -> None:
    """Make a checkpoint whole."""
    content = {"format": FORMAT, "byteorder": sys.byteorder, **content}
    with replacing(directory / MANIFEST) as file:
        file.write(_json({**content, "checksum": _hash(_json(content)).hex()}))


def _json(content: Any) -> bytes:
    return json.dumps(content, separators=(",", ":"), allow_nan=False).encode()


def _hash(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


# --- reading ------------------------------------------------------------------------------------------


def read_manifest(directory: Path) -> dict[str, Any]:
    """A checkpoint's manifest.

    Raises:
        DamagedError: it is not what was written, or was written by a later version or on another kind of machine.
        OSError: it cannot be read.
    """
    path = directory / MANIFEST
    raw = path.read_bytes()
    try:
        content = json.loads(raw)
        claimed = content.pop("checksum")
        damaged = _hash(_json(content)).hex() != claimed or _json({**content, "checksum": claimed}) != raw
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        damaged = True
    if damaged:
        raise DamagedError(path, "is damaged.")
    if (content["format"], content["byteorder"]) != (FORMAT, sys.byteorder):
        kind = f"format {content['format']}, {content['byteorder']}-endian"
        raise DamagedError(path, f"is of {kind}; this is format {FORMAT}, {sys.byteorder}-endian.")
    return content  # type: ignore[no-any-return]


def read_complete(directory: Path, kinds: Sequence[ArrayKind]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A checkpoint's values, every byte of them checked, and its manifest.

    Raises:
        DamagedError: a file is missing, too short, too long, or changed.
        OSError: a file cannot be read.
    """
    try:
        manifest = read_manifest(directory)
        data = _buffers(directory, manifest)
        for file in manifest["files"]:
            rows = [row for row in manifest["pieces"] if row[3] == file["name"]]
            _read_part(directory, file, rows, data, [about["name"] for about in manifest["arrays"]])
        known = {kind.name: kind for kind in kinds}
        arrays = [known[about["kind"]].give(about, each) for about, each in zip(manifest["arrays"], data, strict=True)]
        return {name: decode(value, arrays) for name, value in manifest["values"].items()}, manifest
    except OSError as error:
        raise DamagedError(Path(error.filename or directory), f"cannot be read: {error.strerror}.") from error
    except DamagedError:
        raise
    except Exception as error:  # whatever an array's kind raises: nothing can be made of these bytes
        raise DamagedError(directory / MANIFEST, f"cannot be understood: {type(error).__name__}: {error}.") from error


def _buffers(directory: Path, manifest: dict[str, Any]) -> list[Bytes]:
    """Room for the arrays, once the pieces cover each of them and the files are as long as they should be."""
    for file in manifest["files"]:
        path = directory / file["name"]
        if not _PART.fullmatch(file["name"]):
            raise DamagedError(directory / MANIFEST, f"names a file {file['name']!r}.")
        if not path.exists():
            raise DamagedError(path, "is missing.")
        if path.stat().st_size != file["bytes"]:
            raise DamagedError(path, f"has {path.stat().st_size} bytes instead of {file['bytes']}.")
    lengths = [about["nbytes"] for about in manifest["arrays"]]
    reached = [0] * len(lengths)
    for array, start, stop, *_ in sorted(manifest["pieces"]):
        if start != reached[array] or stop <= start:
            raise DamagedError(directory / MANIFEST, f"lacks bytes of array {array}.")
        reached[array] = stop
    if reached != lengths or sum(lengths) > sum(file["bytes"] for file in manifest["files"]):
        raise DamagedError(directory / MANIFEST, "lacks bytes of an array.")
    return [np.empty(length, np.uint8) for length in lengths]


def _read_part(directory: Path, file: dict[str, Any], rows: list[Any], data: list[Bytes], names: list[str]) -> None:
    """Read and check a part's header and pieces."""
    path = directory / file["name"]
    if read_header(path)[1] != file["header"]:
        raise DamagedError(path, "belongs to another checkpoint.")
    with open(path, "rb") as opened:
        for array, start, stop, _, offset, claimed in rows:
            opened.seek(offset)
            crc = 0
            for low in range(start, stop, _CHUNK):
                chunk = memoryview(data[array][low : min(low + _CHUNK, stop)])
                if opened.readinto(chunk) != len(chunk):
                    raise DamagedError(path, "is too short.")
                crc = zlib.crc32(chunk, crc)
            if f"{crc:08x}" != claimed:
                raise DamagedError(path, f"is damaged: bytes {start} to {stop} of {names[array]} have changed.")
