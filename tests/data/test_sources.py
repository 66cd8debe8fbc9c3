"""The data sets: the real ones where they are, and the search for them on small files of the same format."""

from __future__ import annotations

import dataclasses
import functools
import gzip
import hashlib
import http.server
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from workbench.data import digits, fashion_mnist
from workbench.data.sampler import epoch_order
from workbench.data.sources import FASHION_MNIST, IdxFile, IdxSource, load
from workbench.errors import DataNotFoundError

PACKAGED = pytest.mark.skipif(
    not FASHION_MNIST.system_dir.is_dir(), reason=f"needs Debian's package {FASHION_MNIST.package}"
)

# The publisher's MD5 sums of its packed files, and the file time in their gzip headers (seconds since 1970).
PUBLISHED = {
    "train-images-idx3-ubyte": ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", 1504176606),
    "train-labels-idx1-ubyte": ("25c81989df183df01b3e8a0aad5dffbe", 1504176606),
    "t10k-images-idx3-ubyte": ("bef4ecab320f06d8554ea6380940ec79", 1504176627),
    "t10k-labels-idx1-ubyte": ("bb300cfdad3c16e7a12a480ee83cd310", 1504176627),
}


def test_digits_are_scikit_learns() -> None:
    """Training and test set together are load_digits() in the documented order, each image once, levels/16."""
    from sklearn.datasets import load_digits

    data, oracle = digits(), load_digits()
    order = epoch_order(1797, seed=0)
    x, y = np.concatenate([data.train_x, data.test_x]), np.concatenate([data.train_y, data.test_y])
    np.testing.assert_array_equal(x[:, 0] * 16, oracle.images[order])
    np.testing.assert_array_equal(y, oracle.target[order])
    assert data.train_x.shape == (1440, 1, 8, 8)
    assert data.test_x.shape == (357, 1, 8, 8)
    assert x.dtype == np.float32
    assert (x.min(), x.max()) == (0, 1)
    assert y.dtype == np.int64


def test_digits_split_is_the_same_everywhere() -> None:
    """The split never changes, on no machine and in no version: lessons quote accuracies on these test images."""
    found = hashlib.sha256(digits().test_x.astype("<f4").tobytes()).hexdigest()
    assert found == "e8c149511afc0bb01e49a8f1002e6dcb70fe6ff391ef562f5904a85b0ec42fbc"


def test_digits_split_is_fair() -> None:
    """Of every digit, 80 % of the images are for training, +- 10 % (three standard deviations of a fair draw)."""
    data = digits()
    train, test = np.bincount(data.train_y, minlength=10), np.bincount(data.test_y, minlength=10)
    assert np.all(np.abs(train / (train + test) - 0.8) < 0.1)


@pytest.mark.long
@PACKAGED
def test_fashion_mnist_is_the_published_one(tmp_path: Path) -> None:
    """From Debian's package, without network: every pixel and label as in the files, 6,000 + 1,000 per class."""
    data = fashion_mnist(tmp_path, download=False)
    for part, stem in (("train", "train"), ("test", "t10k")):
        images = gzip.decompress((FASHION_MNIST.system_dir / f"{stem}-images-idx3-ubyte.gz").read_bytes())
        labels = gzip.decompress((FASHION_MNIST.system_dir / f"{stem}-labels-idx1-ubyte.gz").read_bytes())
        x, y = data.arrays(part)
        grey = np.frombuffer(images, np.uint8, offset=16).reshape(-1, 1, 28, 28)
        assert np.array_equal(np.rint(x * 255), grey)
        assert (x.min(), x.max()) == (0, 1)
        np.testing.assert_array_equal(y, np.frombuffer(labels, np.uint8, offset=8))
        assert set(np.bincount(y)) == {6000 if part == "train" else 1000}
    assert x.dtype == np.float32
    assert data.classes[data.test_y[0]] == "Ankle boot"
    assert not list(tmp_path.iterdir())


@PACKAGED
@pytest.mark.parametrize("stem", PUBLISHED)
def test_checksums_belong_to_the_published_files(stem: str) -> None:
    """With the publisher's gzip header put back, Debian's file has the publisher's MD5: the content is the same."""
    md5, seconds = PUBLISHED[stem]
    packed = (FASHION_MNIST.system_dir / f"{stem}.gz").read_bytes()
    assert packed[:4] == b"\x1f\x8b\x08\x00", "no file name in Debian's header"
    header = struct.pack("<BBBBIBB", 0x1F, 0x8B, 8, 8, seconds, 0, 3) + stem.encode() + b"\0"
    published = header + packed[10:]
    assert hashlib.md5(published).hexdigest() == md5
    file = next(f for f in (getattr(FASHION_MNIST, part) for part in PARTS) if f.name == f"{stem}.gz")
    assert hashlib.sha256(gzip.decompress(published)).hexdigest() == file.sha256


PARTS = ("train_x", "train_y", "test_x", "test_y")
SHAPES = {"train_x": (4, 2, 3), "train_y": (4,), "test_x": (2, 2, 3), "test_y": (2,)}


def content(part: str) -> bytes:
    """The unpacked IDX file of one part: pixels 0, 10, 20, …; labels 0, 1, 0, 1."""
    shape = SHAPES[part]
    numbers = [10 * n % 256 for n in range(int(np.prod(shape)))] if part.endswith("x") else [0, 1] * (shape[0] // 2)
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape) + bytes(numbers)


def publish(folder: Path, *parts: str) -> None:
    """Lay the packed files of these parts into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    for part in parts:
        (folder / f"{part}.gz").write_bytes(gzip.compress(content(part)))


@pytest.fixture
def source(tmp_path: Path) -> IdxSource:
    """A small published set that is nowhere yet; its only mirror does not answer."""
    files = {
        part: IdxFile(f"{part}.gz", len(content(part)), hashlib.sha256(content(part)).hexdigest()) for part in PARTS
    }
    nobody = ("http://127.0.0.1:9/",)
    return IdxSource("small", ("no", "yes"), **files, mirrors=nobody, system_dir=tmp_path / "usr", package="small-data")


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server on this machine for the folder ``mirror``."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=tmp_path / "mirror")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def assert_small(source: IdxSource, cache: Path) -> None:
    """Load it and compare every number with what ``content`` says."""
    data = load(source, cache)
    assert repr(data) == "Data(small: 4 train + 2 test images of 1x2x3, 2 classes)"
    expected = (np.arange(24) * 10 % 256).reshape(4, 1, 2, 3).astype(np.float32) / np.float32(255)
    np.testing.assert_array_equal(data.train_x, expected)
    np.testing.assert_array_equal(data.test_x, expected[:2])
    assert data.train_y.tolist() == [0, 1, 0, 1]
    assert data.test_y.tolist() == [0, 1]


@pytest.mark.parametrize("where", ["cache/small", "usr"])
def test_files_are_found_offline(source: IdxSource, tmp_path: Path, where: str) -> None:
    """The cache folder or the system's package is enough; the mirror is not asked."""
    publish(tmp_path / where, *PARTS)
    assert_small(source, tmp_path / "cache")
    assert load(source, str(tmp_path / "cache"), download=False).classes == ("no", "yes")


def test_missing_files_are_downloaded_into_the_cache(source: IdxSource, tmp_path: Path, mirror: str) -> None:
    """Each file comes from the first place that has it; the downloaded ones stay in the cache."""
    publish(tmp_path / "cache" / "small", "train_x")
    publish(tmp_path / "usr", "train_y")
    publish(tmp_path / "mirror", "test_x", "test_y")
    assert_small(dataclasses.replace(source, mirrors=(mirror,)), tmp_path / "cache")
    found = {path.name for path in (tmp_path / "cache" / "small").glob("*.gz")}
    assert found == {"train_x.gz", "test_x.gz", "test_y.gz"}
    assert_small(source, tmp_path / "cache")


def test_default_cache_is_the_configs(source: IdxSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without cache=, the folder is XDG_CACHE_HOME/workbench."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    publish(tmp_path / "workbench" / "small", *PARTS)
    assert load(source, download=False).name == "small"


@pytest.mark.parametrize("download", [True, False])
def test_offline_error_says_three_ways(source: IdxSource, tmp_path: Path, download: bool) -> None:
    """Nowhere and no network: the error names the missing file, both folders, the reason and three ways out."""
    publish(tmp_path / "cache" / "small", "train_x")
    with pytest.raises(DataNotFoundError) as caught:
        load(source, tmp_path / "cache", download=download)
    text = str(caught.value)
    reason = "http://127.0.0.1:9/train_y.gz: " if download else "download=False"
    for part in ("train_y.gz is neither", str(tmp_path / "cache" / "small"), str(tmp_path / "usr"), reason):
        assert part in text
    for way in ("1. Copy the files train_x.gz", "2. On Debian or Ubuntu: sudo apt-get install small-data", "3. Call"):
        assert way in text


def test_unwritable_cache_says_three_ways(source: IdxSource, tmp_path: Path) -> None:
    """A cache that cannot be made is reported with its reason, not as a bare OSError."""
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(DataNotFoundError, match=r"(?s)Not a directory.*Three ways"):
        load(source, tmp_path / "cache")


@pytest.mark.parametrize(
    ("where", "remedy"), [("cache/small", "Delete .*train_x.gz and"), ("usr", "apt-get install --reinstall small-data")]
)
@pytest.mark.parametrize("damage", ["changed", "other length", "cut"])
def test_damaged_file_is_named_with_both_sums(
    source: IdxSource, tmp_path: Path, where: str, remedy: str, damage: str
) -> None:
    """A damaged file is never used or silently replaced: file, expected and found size and sum, and the remedy."""
    publish(tmp_path / where, *PARTS)
    path, good = tmp_path / where / "train_x.gz", content("train_x")
    bad = {"changed": good[:-1] + b"\xff", "other length": good + b"\0", "cut": good}[damage]
    path.write_bytes(gzip.compress(bad)[: -12 if damage == "cut" else None])
    with pytest.raises(ValueError, match=rf"(?s){path}.*{remedy}") as caught:
        load(source, tmp_path / "cache")
    expected, found = (
        (source.train_x.sha256, f"{len(good)} bytes"),
        (hashlib.sha256(bad).hexdigest(), f"{len(bad)} bytes"),
    )
    for fact in expected if damage == "cut" else expected + found:
        assert fact in str(caught.value)


def test_wrong_mirror_is_not_believed(source: IdxSource, tmp_path: Path, mirror: str) -> None:
    """A mirror with other content gives an error with both sums, and nothing of it stays in the cache."""
    publish(tmp_path / "mirror", *PARTS)
    (tmp_path / "mirror" / "train_x.gz").write_bytes(gzip.compress(content("test_x")))
    with pytest.raises(DataNotFoundError) as caught:
        load(dataclasses.replace(source, mirrors=(mirror,)), tmp_path / "cache")
    assert source.train_x.sha256 in str(caught.value)
    assert source.test_x.sha256 in str(caught.value)
    kept = {path.suffix for path in (tmp_path / "cache" / "small").glob("*train_x*")}
    assert kept <= {".lock", ".failed"}
