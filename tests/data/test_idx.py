"""The IDX reader, against files whose bytes are written here from the format's description."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from workbench.data import idx

unhurried = settings(deadline=None)  # a busy machine is no failure; pytest limits the time of a test

# type code, struct's letter, numpy's name
TYPES = [
    (0x08, "B", "uint8"),
    (0x09, "b", "int8"),
    (0x0B, "h", "int16"),
    (0x0C, "i", "int32"),
    (0x0D, "f", "float32"),
    (0x0E, "d", "float64"),
]


def idx_bytes(code: int, letter: str, shape: tuple[int, ...], values: list[Any]) -> bytes:
    """An IDX file, number by number."""
    header = struct.pack(">BBBB", 0, 0, code, len(shape)) + struct.pack(f">{len(shape)}I", *shape)
    return header + struct.pack(f">{len(values)}{letter}", *values)


@unhurried
@given(data=st.data(), kind=st.sampled_from(TYPES))
def test_parse_reads_what_struct_wrote(data: st.DataObject, kind: tuple[int, str, str]) -> None:
    """Every type and shape comes back bit for bit, in native byte order and in memory of its own."""
    code, letter, name = kind
    shape = arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
    expected = data.draw(arrays.arrays(name, shape))
    found = idx.parse(idx_bytes(code, letter, expected.shape, expected.ravel().tolist()))
    assert found.dtype == np.dtype(name)
    assert found.dtype.isnative
    assert found.flags.writeable
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", ["labels.gz", "labels"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_read_takes_packed_and_plain_files(tmp_path: Path, name: str, pack: Any) -> None:
    """A file's first bytes decide whether it is packed, whatever its name says."""
    path = tmp_path / name
    path.write_bytes(pack(idx_bytes(0x08, "B", (3,), [7, 0, 255])))
    assert idx.read(path).tolist() == [7, 0, 255]
    assert idx.read(str(path)).tolist() == [7, 0, 255]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "begins with nothing"),
        (b"\0\0\x08", "begins with 00 00 08"),
        (b"<html>not found</html>", "begins with 3c 68 74 6d"),
        (b"\0\0\x0a\x01\0\0\0\0", "begins with 00 00 0a 01"),
        (b"\0\0\x08\x02\0\0\0\x01\0\0", "ends inside its header, after 10 bytes"),
        (idx_bytes(0x08, "B", (5,), [1, 2]), r"shape \(5,\) of 1-byte numbers needs 5 bytes, but there are 2"),
        (idx_bytes(0x0C, "i", (1,), [1, 2]), r"shape \(1,\) of 4-byte numbers needs 4 bytes, but there are 8"),
        (idx_bytes(0x08, "B", (2**32 - 1,) * 4, []), "bytes, but there are 0"),
    ],
)
def test_malformed_content_is_named_and_measured(tmp_path: Path, content: bytes, complaint: str) -> None:
    """What is no IDX file, too short or too long gives a ValueError with the file, the found and the expected."""
    path = tmp_path / "some-labels"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=complaint) as caught:
        idx.read(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("damage", ["cut", "cut in header", "bit flipped", "sum flipped"])
def test_damaged_gzip_is_named(tmp_path: Path, damage: str) -> None:
    """A packed file that is cut or changed gives a ValueError that names it and says what to do."""
    whole = gzip.compress(idx_bytes(0x08, "B", (1000,), [n * n % 251 for n in range(1000)]))
    middle, end = len(whole) // 2, len(whole) - 6  # the last 8 bytes hold CRC and length
    broken = {
        "cut": whole[:middle],
        "cut in header": whole[:5],
        "bit flipped": whole[:middle] + bytes([whole[middle] ^ 0x10]) + whole[middle + 1 :],
        "sum flipped": whole[:end] + bytes([whole[end] ^ 1]) + whole[end + 1 :],
    }[damage]
    path = tmp_path / "images.gz"
    path.write_bytes(broken)
    with pytest.raises(ValueError, match="cannot be unpacked") as caught:
        idx.read(path)
    assert str(path) in str(caught.value)
    assert "Download the file again" in str(caught.value)


def test_missing_file_is_a_missing_file(tmp_path: Path) -> None:
    """No file is not a damaged file."""
    with pytest.raises(FileNotFoundError):
        idx.read(tmp_path / "nothing")
