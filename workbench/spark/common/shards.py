"""A rank's share of the data: which rows it has, how they are spread over steps, and how they are read.

Every sample is seen once an epoch. The rows of all files are numbered through; of ``n`` ranks, rank ``r`` has those
from ``r·rows/n`` to ``(r+1)·rows/n``. So no two shares differ by more than one row. All ranks take the same number of
steps: as many as the largest share has batches of at most ``batch_size``. Each spreads its rows evenly over them. So no
batch is empty, no rank waits for one that has ended, and nothing is dropped. Where one rank's batch has a sample more
than another's, :meth:`Steps.weight` makes the mean over ranks one over samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from workbench.spark.common.columns import Column, DataFrameError
from workbench.spark.common.store import Store

Batch = dict[str, npt.NDArray[Any]]
"""By column the values, with a row for each sample."""

_WINDOW_BYTES = 256 << 20
"""So much of a share is in memory, and put in random order, at a time; at least a row group."""


@dataclass(frozen=True)
class Steps:
    """How a rank's rows are spread over the steps of an epoch.

    Args:
        rows: of all ranks.
        rank, size: whose.
        batch: most samples of a step of one rank; one more where ranks have so few that a batch would be empty.
        given: so many steps of ``batch`` samples each; None: as many as the rows need.
        multiple: of it, for gradients that are summed over so many batches.

    Example:
        >>> [Steps(10, rank, 2, 2).sizes for rank in range(2)], [Steps(5, rank, 2, 2).sizes for rank in range(2)]
        ([[1, 2, 2], [1, 2, 2]], [[1, 1], [1, 2]])
        >>> Steps(5, 0, 2, 2).weight(0), Steps(5, 0, 2, 2).weight(1)
        (1.0, 0.6666666666666666)
    """

    rows: int
    rank: int
    size: int
    batch: int
    given: int | None = None
    multiple: int = 1

    @property
    def number(self) -> int:
        if self.given is not None:
            return self.given
        most, least = math.ceil(self.rows / self.size), self.rows // self.size
        wanted = math.ceil(most / self.batch / self.multiple) * self.multiple
        return wanted if wanted <= least else max(least // self.multiple * self.multiple, 1)

    @property
    def sizes(self) -> list[int]:
        return self._sizes(self.rank)

    @property
    def even(self) -> bool:
        """Have all ranks as many samples in each step?"""
        return self.given is not None or self.rows % self.size == 0

    def weight(self, step: int) -> float:
        """Of this rank's mean in the mean over ranks."""
        if self.even:
            return 1.0
        sizes = [self._sizes(rank)[step] for rank in range(self.size)]
        return self.size * sizes[self.rank] / sum(sizes)

    def _sizes(self, rank: int) -> list[int]:
        if self.given is not None:
            return [self.batch] * self.given
        mine = self.bounds(rank)
        rows, n = mine[1] - mine[0], self.number
        return [rows * (i + 1) // n - rows * i // n for i in range(n)]

    def bounds(self, rank: int | None = None) -> tuple[int, int]:
        """The numbers of a rank's first row, and of the first that is not its own."""
        rank = self.rank if rank is None else rank
        return self.rows * rank // self.size, self.rows * (rank + 1) // self.size


@dataclass(frozen=True)
class RowPiece:
    """Rows of a row group.

    Args:
        path: of the file.
        group: the row group's number there.
        start, stop: its rows.
        row_bytes: of one, about.
    """

    path: str
    group: int
    start: int
    stop: int
    row_bytes: float


def pieces(groups: Sequence[tuple[str, int, int, float]], first: int, last: int) -> list[RowPiece]:
    """The pieces that hold the rows from ``first`` to before ``last``.

    Args:
        groups: path, number, rows and bytes of each row group.
        first, last: counted over all groups.

    Example:
        >>> [(each.path, each.start, each.stop) for each in pieces([("a", 0, 3, 9), ("b", 0, 3, 9)], 2, 5)]
        [('a', 2, 3), ('b', 0, 2)]
    """
    found, begin = list[RowPiece](), 0
    for path, group, rows, size in groups:
        start, stop = max(first - begin, 0), min(last - begin, rows)
        if start < stop:
            found.append(RowPiece(path, group, start, stop, size / rows))
        begin += rows
    return found


@dataclass
class Share:
    """One rank's samples.

    Args:
        store, path: where the Parquet is.
        columns: what is read.
        steps: how they are spread.
        shuffle, seed: draw each epoch's order, within what fits the memory.
        transform: gets a :class:`pandas.DataFrame` of samples and returns another of as many.
    """

    store: Store
    path: str
    columns: Mapping[str, Column]
    steps: Steps
    shuffle: bool = False
    seed: int = 0
    transform: Callable[[Any], Any] | None = None
    _pieces: list[RowPiece] = field(default_factory=list)

    def batches(self) -> Iterator[Batch]:
        """One after the other, for ever: :attr:`Steps.number` of them are an epoch."""
        if self.steps.given is not None:
            samples = _Taking(self._for_ever())
            while True:
                yield samples.take(self.steps.batch)
        epoch = 0
        while True:
            samples = _Taking(self._windows(epoch))
            yield from map(samples.take, self.steps.sizes)
            epoch += 1

    def _for_ever(self) -> Iterator[Batch]:
        epoch = 0
        while True:
            yield from self._windows(epoch)
            epoch += 1

    def _windows(self, epoch: int) -> Iterator[Batch]:
        """The share, in parts that fit the memory."""
        self._pieces = self._pieces or self._find()
        drawn = np.random.default_rng([self.seed, epoch, self.steps.rank])
        order = list(self._pieces)
        if self.shuffle:
            order = [order[i] for i in drawn.permutation(len(order))]
        while order:
            window, room = list[RowPiece](), float(_WINDOW_BYTES)
            while order and (not window or room > 0):
                window.append(order.pop(0))
                room -= window[-1].row_bytes * (window[-1].stop - window[-1].start)
            read = self._read(window)
            rows = len(next(iter(read.values())))
            if self.shuffle:
                mixed = drawn.permutation(rows)
                read = {name: values[mixed] for name, values in read.items()}
            yield read

    def _find(self) -> list[RowPiece]:
        from pyarrow.parquet import ParquetFile

        dataset, groups = self.store.get_parquet_dataset(self.path), list[tuple[str, int, int, float]]()
        for path in sorted(dataset.files):
            with dataset.filesystem.open_input_file(path) as file:
                meta = ParquetFile(file).metadata
            found = [meta.row_group(i) for i in range(meta.num_row_groups)]
            groups += [(path, i, group.num_rows, float(group.total_byte_size)) for i, group in enumerate(found)]
        if (rows := sum(rows for _, _, rows, _ in groups)) != self.steps.rows:
            raise DataFrameError(
                f"{self.path} has {rows} rows, not {self.steps.rows}: do all nodes see the same store?"
            )
        return pieces([group for group in groups if group[2]], *self.steps.bounds())

    def _read(self, window: Sequence[RowPiece]) -> Batch:
        import pyarrow
        from pyarrow.parquet import ParquetFile

        fs, tables = self.store.get_parquet_dataset(self.path).filesystem, []
        for piece in window:
            with fs.open_input_file(piece.path) as file:
                table = ParquetFile(file).read_row_group(piece.group, columns=list(self.columns))
            tables.append(table.slice(piece.start, piece.stop - piece.start))
        table = pyarrow.concat_tables(tables)
        if self.transform is None:
            return {name: _values(table[name].combine_chunks(), column) for name, column in self.columns.items()}
        frame = self.transform(table.to_pandas())
        if len(frame) != table.num_rows:
            raise DataFrameError(
                f"transformation_fn made {len(frame)} samples of {table.num_rows}: it must not change their number."
            )
        return {name: _of_pandas(frame[name]) for name in frame.columns}


def _values(column: Any, about: Column) -> npt.NDArray[Any]:
    if about.kind == "scalar":
        return np.asarray(column.to_numpy(zero_copy_only=False))
    return np.asarray(column.flatten().to_numpy(zero_copy_only=False)).reshape(-1, about.size)


def _of_pandas(column: Any) -> npt.NDArray[Any]:
    values = column.to_numpy()
    return np.stack([np.asarray(each) for each in values]) if values.dtype == object else np.asarray(values)


class _Taking:
    """Takes as many samples as are wanted from windows, one after the other."""

    def __init__(self, windows: Iterator[Batch]) -> None:
        self._windows, self._left = windows, Batch()

    def take(self, n: int) -> Batch:
        """The next ``n`` samples; fewer at the end."""
        parts, have = list[Batch](), 0
        while have < n:
            if not self._left or not len(next(iter(self._left.values()))):
                self._left = next(self._windows, Batch())
                if not self._left:
                    break
            part = {name: values[: n - have] for name, values in self._left.items()}
            self._left = {name: values[n - have :] for name, values in self._left.items()}
            parts.append(part)
            have += len(next(iter(part.values())))
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else Batch()
