"""Samples that are streamed from tar files: each rank, and each worker of its loader, reads files of its own.

The files are what the package webdataset writes, or ``tar --sort=name``: the members of one sample follow one another,
and have one name up to the first dot; what follows the dot says how a member is decoded::

    train-000.tar     7.npy  7.cls  12.npy  12.cls  …     one sample: {"__key__": "12", "npy": array, "cls": 3}

An epoch shuffles the files, the same way on all ranks, and deals them out: first to the ranks, then to the workers.
Each reader shuffles its samples in a buffer. So no sample is seen twice and none is lost, for any numbers of files,
ranks and workers. The ranks' parts are as long as their files: take a multiple of the number of ranks times workers,
and call ``join()`` after the epoch.

The package webdataset (1.0.2) reads more: addresses, pipes, caches. But it takes a file that is cut between two
members, or damaged in a header, for a shorter one, and unpickles what is named ``.pickle`` and ``.pyd``.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from workbench.data.sampler import check_place, check_whole, epoch_order
from workbench.errors import DataNotFoundError

if TYPE_CHECKING:
    from workbench.data.torch_shards import Stream

Sample: TypeAlias = dict[str, Any]
Decode: TypeAlias = Callable[[bytes], Any]

_PADDING_BYTES = 1 << 20  # behind the end of an archive there are zeros, up to a record's end


def image(content: bytes) -> Any:
    """A picture as an array of uint8, (height, width) or (height, width, channels)."""
    from PIL import Image  # here alone, so that other shards need no Pillow

    return np.asarray(Image.open(io.BytesIO(content)))


DECODERS: dict[str, Decode] = {
    "cls": int,
    "json": json.loads,
    "npy": lambda content: np.load(io.BytesIO(content), allow_pickle=False),
    "txt": bytes.decode,
    **dict.fromkeys(("jpeg", "jpg", "png", "webp"), image),
}
"""By the last part of a member's name. Others stay bytes: nothing is ever unpickled."""


class TarShards:
    """The samples of all ``.tar`` files of a folder, this rank's part.

    Iterate over it, or over :meth:`torch` with a ``DataLoader``. Call :meth:`set_epoch` before each epoch, or every
    epoch has the same order.

    Args:
        folder: which has the same files on each host.
        rank: this process, from 0.
        size: number of processes.
        seed: the same on every rank.
        shuffle: of how many samples a reader draws the next one; 0 keeps the order of files and samples.
        decode: functions of a member's bytes, by the last part of its name, before and instead of :data:`DECODERS`.
        transform: called with each sample; what it returns takes its place.

    Raises:
        DataNotFoundError: there is no tar file.
        ValueError: a number is out of its range; and, while it is read, a file that is damaged or not understood. The
            text has rank and file.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with tarfile.open(f"{folder}/0.tar", "w") as tar:
        ...         for name, content in {"a.txt": b"one", "a.cls": b"1", "b.txt": b"two", "b.cls": b"2"}.items():
        ...             member = tarfile.TarInfo(name)
        ...             member.size = len(content)
        ...             tar.addfile(member, io.BytesIO(content))
        ...     list(TarShards(folder, rank=0, size=1, transform=lambda sample: (sample["txt"], sample["cls"])))
        [('one', 1), ('two', 2)]
    """

    def __init__(
        self,
        folder: str | Path,
        rank: int,
        size: int,
        *,
        seed: int = 0,
        shuffle: int = 1000,
        decode: Mapping[str, Decode] | None = None,
        transform: Callable[[Sample], Any] | None = None,
    ) -> None:
        check_place(rank, size)
        check_whole("shuffle", shuffle, 0)
        self.files = sorted(Path(folder).glob("*.tar"))
        if not self.files:
            raise DataNotFoundError(f"{Path(folder).resolve()} has no tar file.")
        self.rank, self.size = rank, size
        self.seed, self.shuffle = seed, shuffle
        self.decode = {**DECODERS, **(decode or {})}
        self.transform = transform
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next iteration; all ranks must pass the same epoch."""
        check_whole("epoch", epoch, 0)
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        return self.read(0, 1)

    def read(self, worker: int, workers: int) -> Iterator[Any]:
        """The samples of one of this rank's ``workers`` readers, from 0."""
        order = epoch_order(len(self.files), epoch=self.epoch, seed=self.seed, shuffle=self.shuffle > 0)
        mine = [self.files[place] for place in order[self.rank :: self.size][worker::workers]]
        samples: Iterator[Sample] = (sample for path in mine for sample in self._samples(path))
        if self.shuffle > 1:
            of_reader = (self.epoch, self.rank, worker)
            random = np.random.Generator(np.random.PCG64(np.random.SeedSequence(self.seed, spawn_key=of_reader)))
            samples = _shuffled(samples, self.shuffle, random)
        return map(self.transform, samples) if self.transform else samples

    def torch(self) -> Stream:
        """The same for a torch ``DataLoader``, whose workers share the rank's files. It has ``set_epoch()``, too.

        Raises:
            ImportError: torch is not installed.
        """
        from workbench.data.torch_shards import Stream  # here alone, so that shards need no torch

        return Stream(self)

    def _samples(self, path: Path) -> Iterator[Sample]:
        """The samples of one file, with its name in what is raised."""
        name = ""
        try:
            sample: Sample = {}
            seen = set[str]()
            for name, content in _members(path):
                folder, _, base = name.rpartition("/")
                stem, _, ending = base.partition(".")
                key = f"{folder}/{stem}" if folder else stem
                if key != sample.get("__key__"):
                    if sample:
                        yield sample
                    if key in seen:
                        raise ValueError("the sample's members do not follow one another")
                    seen.add(key)
                    sample = {"__key__": key}
                if ending in sample:
                    raise ValueError("there are two of this name")
                decode = self.decode.get(ending.rpartition(".")[2].lower(), bytes)
                sample[ending] = decode(content)
            if sample:
                yield sample
        except Exception as error:  # whatever a decoder raises
            where = f"rank {self.rank} cannot read {path}" + (f", at member {name}" if name else "")
            raise ValueError(f"{where}: {type(error).__name__}: {error}") from error


def _members(path: Path) -> Iterator[tuple[str, bytes]]:
    """Name and content of each file of an archive.

    Raises:
        ValueError: the archive does not end as it has to. ``tarfile`` takes any damaged header for the end.
    """
    with path.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
        while member := tar.next():
            if member.issparse() or tar.offset <= member.offset:  # bytes from nothing, or without an end
                raise ValueError(f"{member.name} has a size that is not its own")
            if member.isreg() and (content := tar.extractfile(member)):
                yield member.name, content.read()
            tar.members = []  # type: ignore[attr-defined]  # else it keeps all of them
        file.seek(tar.offset)
        end = file.read(_PADDING_BYTES)
        if len(end) < tarfile.BLOCKSIZE or end.strip(b"\0"):
            what = "is cut off" if len(end) < tarfile.BLOCKSIZE else "is damaged, or another archive is behind it,"
            raise ValueError(f"the archive {what} at byte {tar.offset:,}")


def _shuffled(samples: Iterator[Sample], size: int, random: np.random.Generator) -> Iterator[Sample]:
    """Each sample once; the next one is any of ``size``."""
    buffer: list[Sample] = []
    for sample in samples:
        if len(buffer) < size:
            buffer.append(sample)
            continue
        place = int(random.integers(size))
        buffer[place], sample = sample, buffer[place]
        yield sample
    for place in random.permutation(len(buffer)):
        yield buffer[place]
