"""Where the data sets come from, and the check that they are the real ones."""

from __future__ import annotations

import gzip
import hashlib
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from workbench import config
from workbench.data import idx
from workbench.data.dataset import Data, Images, Labels
from workbench.data.download import fetch
from workbench.data.sampler import epoch_order
from workbench.errors import DataNotFoundError

N_DIGITS_TRAIN = 1440
DIGITS_SEED = 0
_HERE = Path(__file__).parent


def digits() -> Data:
    """The 1,797 handwritten digits known from scikit-learn: real scans, 8x8 pixels, 17 grey levels.

    They are part of this package. The split is always the same: the order ``epoch_order(1797, seed=0)``, of which the
    first 1,440 images are for training and the last 357 for testing. 1,440 because 2 to 6, 8, 9, 10, 12 and 16 ranks
    share it evenly; take ``.limit(1439)`` to see what happens otherwise.

    Source: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning
    Repository, 1998 (its test set), DOI 10.24432/C50P49, licence CC BY 4.0; the same images in the same order as
    ``sklearn.datasets.load_digits`` gives them.

    Returns:
        Images of shape (n, 1, 8, 8), the grey level divided by 16.

    Example:
        >>> digits()
        Data(digits: 1440 train + 357 test images of 1x8x8, 10 classes)
    """
    x, y = (idx.read(_HERE / f"digits-{name}-ubyte.gz") for name in ("images-idx3", "labels-idx1"))
    order = epoch_order(len(x), seed=DIGITS_SEED)
    images, labels = _images(x[order], 16), y[order].astype(np.int64)
    n, names = N_DIGITS_TRAIN, tuple("0123456789")
    return Data("digits", images[:n], labels[:n], images[n:], labels[n:], names)


def shakespeare() -> bytes:
    r"""401,592 bytes of Shakespeare's plays, each speech behind its speaker's name; part of this package.

    Source: the beginning of A. Karpathy's file tinyshakespeare, in github.com/karpathy/char-rnn; the plays are in the
    public domain.

    Example:
        >>> text = shakespeare()
        >>> len(text), text[:15]
        (401592, b'First Citizen:\n')
    """
    return gzip.decompress((_HERE / "shakespeare.txt.gz").read_bytes())


@dataclass(frozen=True)
class IdxFile:
    """One file of a published set, and how to know the real one.

    Args:
        name: its name in the cache, in the package and at the end of each address.
        nbytes: length of its unpacked content.
        sha256: of its unpacked content: the same for every way in which the content may be packed.
    """

    name: str
    nbytes: int
    sha256: str

    def content(self, path: Path, remedy: str) -> bytes:
        """Read and check the file at ``path``.

        Raises:
            ValueError: its content is not the published one. The text ends with ``remedy``.
        """
        expected = f"  expected {self.nbytes:,} bytes unpacked, SHA-256 {self.sha256}\n"
        try:
            content = idx.unpack(path)
        except ValueError as error:
            raise ValueError(f"{error}\n{expected}{remedy}") from error
        found = hashlib.sha256(content).hexdigest()
        if found != self.sha256:
            raise ValueError(
                f"{path} is not the published {self.name}:\n{expected}"
                f"  found    {len(content):,} bytes unpacked, SHA-256 {found}\n{remedy}"
            )
        return content


@dataclass(frozen=True)
class IdxSource:
    """A data set that is published as four IDX files.

    Args:
        name: of the set, and of its folder in the cache.
        classes: names of the classes.
        train_x, train_y, test_x, test_y: the files.
        mirrors: addresses that each hold all four; each ends in ``/``.
        system_dir: folder of the operating system's package.
        package: that package's name.
    """

    name: str
    classes: tuple[str, ...]
    train_x: IdxFile
    train_y: IdxFile
    test_x: IdxFile
    test_y: IdxFile
    mirrors: tuple[str, ...]
    system_dir: Path
    package: str


# The sums belong to the unpacked content. Debian's packages and the publisher's files differ in the gzip
# header alone (file name and time); a test puts that header back and compares with the published MD5 sums.
FASHION_MNIST = IdxSource(
    name="fashion-mnist",
    classes=("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    train_x=IdxFile(
        "train-images-idx3-ubyte.gz", 47040016, "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"
    ),
    train_y=IdxFile(
        "train-labels-idx1-ubyte.gz", 60008, "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"
    ),
    test_x=IdxFile(
        "t10k-images-idx3-ubyte.gz", 7840016, "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"
    ),
    test_y=IdxFile(
        "t10k-labels-idx1-ubyte.gz", 10008, "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"
    ),
    mirrors=(
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
    ),
    system_dir=Path("/usr/share/datasets/fashion-mnist"),
    package="dataset-fashion-mnist",
)


def fashion_mnist(cache: Path | str | None = None, *, download: bool = True, timeout_s: float = 300.0) -> Data:
    """Fashion-MNIST: 60,000 + 10,000 pictures of clothes, 28x28 pixels, 256 grey levels.

    Each of its four files is looked for in the folder ``fashion-mnist`` of the cache, then in Debian's
    package ``dataset-fashion-mnist``, and is otherwise downloaded into the cache (31 MB). In each case its content is
    compared with the published one. All ranks may call this at once; one of them downloads.

    The arrays take 220 MB per process; ``.limit()`` gives most of it back.

    Source: H. Xiao, K. Rasul, R. Vollgraf, "Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine
    Learning Algorithms", arXiv:1708.07747, 2017; MIT licence.

    Args:
        cache: folder for downloaded data; default :func:`workbench.config.cache_dir`.
        download: False never touches the network.
        timeout_s: for all downloads together, and for waiting for another rank that downloads.

    Returns:
        Images of shape (n, 1, 28, 28), the grey level divided by 255.

    Raises:
        DataNotFoundError: it was not found; the text says three ways to get it.
        ValueError: a file is damaged; the text says which, and what to do.

    Example:
        >>> fashion_mnist()  # doctest: +SKIP
        Data(fashion-mnist: 60000 train + 10000 test images of 1x28x28, 10 classes)
    """
    return load(FASHION_MNIST, cache, download=download, timeout_s=timeout_s)


def load(
    source: IdxSource, cache: Path | str | None = None, *, download: bool = True, timeout_s: float = 300.0
) -> Data:
    """Find, check and read the four files of ``source``; see :func:`fashion_mnist`."""
    folder = (config.cache_dir() if cache is None else Path(cache).expanduser()) / source.name
    deadline = time.monotonic() + timeout_s

    def images(file: IdxFile) -> Images:
        return _images(idx.parse(_content(source, file, folder, download, deadline), file.name), 255)

    def labels(file: IdxFile) -> Labels:
        return idx.parse(_content(source, file, folder, download, deadline), file.name).astype(np.int64)

    train, test = (images(source.train_x), labels(source.train_y)), (images(source.test_x), labels(source.test_y))
    return Data(source.name, *train, *test, source.classes)


def _content(source: IdxSource, file: IdxFile, folder: Path, download: bool, deadline: float) -> bytes:
    """The checked content of one file: from the cache, the package or the network, in this order."""
    cached, packaged = folder / file.name, source.system_dir / file.name
    renew = f"Delete {cached} and call this again."
    if cached.is_file():
        return file.content(cached, renew)
    if packaged.is_file():
        return file.content(packaged, f"Run: sudo apt-get install --reinstall {source.package}")
    if not download:
        raise DataNotFoundError(_three_ways(source, file, folder, "download=False was given"))
    try:
        urls = [mirror + file.name for mirror in source.mirrors]
        fetch(urls, cached, lambda part: file.content(part, "Not kept."), timeout_s=deadline - time.monotonic())
    except OSError as error:
        raise DataNotFoundError(_three_ways(source, file, folder, str(error))) from error
    return file.content(cached, renew)


def _three_ways(source: IdxSource, file: IdxFile, folder: Path, reason: str) -> str:
    names = ", ".join(each.name for each in (source.train_x, source.train_y, source.test_x, source.test_y))
    return (
        f"{source.name} is not on this machine: {file.name} is neither in {folder} nor in {source.system_dir}, "
        f"and was not downloaded: {reason}\n"
        f"Three ways to get it:\n"
        f"  1. Copy the files {names} into {folder}; or pass cache= a folder whose {source.name}/ holds them.\n"
        f"  2. On Debian or Ubuntu: sudo apt-get install {source.package}\n"
        f"  3. Call this once with an internet connection; the files are then in the cache."
    )


def _images(grey: np.ndarray, white: int) -> Images:
    """Grey levels (n, height, width) as float32 (n, 1, height, width), 0 black, 1 white."""
    images = grey.astype(np.float32)[:, np.newaxis]
    images /= white
    return images
