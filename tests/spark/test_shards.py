"""A rank's share of the data: every sample once an epoch, the same number of steps on all ranks."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.spark.common.columns import Column, DataFrameError
from workbench.spark.common.shards import Share, Steps, pieces
from workbench.spark.common.store import HDFSStore, Store, StoreError

COLUMNS = {"x": Column("array", "float64", 3), "y": Column("scalar", "int64", 1)}


@given(rows=st.integers(1, 400), size=st.integers(1, 8), batch=st.integers(1, 50), multiple=st.integers(1, 4))
def test_steps_hold_every_row_once(rows: int, size: int, batch: int, multiple: int) -> None:
    """All ranks have as many steps, none of them is empty, and the weights make a mean over samples."""
    if rows < size * multiple:
        return
    ranks = [Steps(rows, rank, size, batch, multiple=multiple) for rank in range(size)]
    sizes = [each.sizes for each in ranks]
    assert sum(map(sum, sizes)) == rows
    assert {len(each) for each in sizes} == {ranks[0].number}
    assert ranks[0].number % multiple == 0
    assert min(map(min, sizes)) >= 1
    limit = batch if rows // size >= batch * multiple else rows
    assert max(map(max, sizes)) <= max(limit, batch + 1)
    step = ranks[0].number - 1
    total = sum(each[step] for each in sizes)
    for each, mine in zip(ranks, sizes, strict=True):
        assert each.weight(step) / size == pytest.approx(mine[step] / total)


@given(groups=st.lists(st.integers(0, 20), max_size=8), size=st.integers(1, 5))
def test_pieces_of_all_ranks_are_the_whole(groups: list[int], size: int) -> None:
    """In order, without overlap."""
    named = [(f"file{i}", 0, rows, 1.0) for i, rows in enumerate(groups)]
    rows = sum(groups)
    found = [
        (piece.path, row)
        for rank in range(size)
        for piece in pieces([each for each in named if each[2]], *Steps(rows, rank, size, 1).bounds())
        for row in range(piece.start, piece.stop)
    ]
    assert found == [(f"file{i}", row) for i, number in enumerate(groups) for row in range(number)]


@pytest.fixture
def parquet(tmp_path: Path) -> tuple[Store, str]:
    """Three files with 50 rows, in several row groups."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    store = Store.create(str(tmp_path))
    path = store.get_train_data_path(7)
    Path(path.removeprefix("file://")).mkdir()
    for i, (first, last) in enumerate([(0, 7), (7, 30), (30, 50)]):
        y = list(range(first, last))
        table = pyarrow.table({"x": [[each, each + 0.25, each + 0.5] for each in map(float, y)], "y": y})
        parquet.write_table(table, f"{path.removeprefix('file://')}/part-{i}.parquet", row_group_size=5)
    return store, path


def epoch(share: Share, number: int = 1) -> list[int]:
    """The labels of an epoch."""
    n = share.steps.number
    found = list(itertools.islice(share.batches(), (number - 1) * n, number * n))
    for batch in found:
        assert np.array_equal(batch["x"], batch["y"][:, None] + np.array([0, 0.25, 0.5]))
    return [int(each) for batch in found for each in batch["y"]]


@pytest.mark.parametrize("size", [1, 3, 4])
def test_each_sample_is_read_once_an_epoch(parquet: tuple[Store, str], size: int) -> None:
    """In the order of the files; shuffled, in another order each epoch, the same for the same seed."""
    store, path = parquet
    ranks = [Share(store, path, COLUMNS, Steps(50, rank, size, 4)) for rank in range(size)]
    assert [label for each in ranks for label in epoch(each)] == list(range(50))
    mixed = [Share(store, path, COLUMNS, Steps(50, rank, size, 4), shuffle=True, seed=3) for rank in range(size)]
    first, second = ([label for each in mixed for label in epoch(each, i)] for i in (1, 2))
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second
    assert first != list(range(50))
    again = [Share(store, path, COLUMNS, Steps(50, rank, size, 4), shuffle=True, seed=3) for rank in range(size)]
    assert [label for each in again for label in epoch(each)] == first


def test_given_steps_are_full_and_go_round(parquet: tuple[Store, str]) -> None:
    """With 8 steps of 5 samples, a rank's 25 rows come again."""
    store, path = parquet
    found = epoch(Share(store, path, COLUMNS, Steps(50, 0, 2, 5, given=8)))
    assert found == [*range(25), *range(15)]


def test_a_transformation_sees_frames(parquet: tuple[Store, str]) -> None:
    """And must keep the number of samples."""
    store, path = parquet

    def twice(frame: Any) -> Any:
        frame["z"] = frame["y"] * 2
        return frame

    share = Share(store, path, COLUMNS, Steps(50, 0, 1, 50), transform=twice)
    (batch,) = itertools.islice(share.batches(), 1)
    assert np.array_equal(batch["z"], batch["y"] * 2)
    assert batch["x"].shape == (50, 3)
    share = Share(store, path, COLUMNS, Steps(50, 0, 1, 50), transform=lambda frame: frame[:3])
    with pytest.raises(DataFrameError, match="made 3 samples of 50"):
        next(share.batches())


def test_another_store_than_the_drivers_is_noticed(parquet: tuple[Store, str]) -> None:
    """By the number of rows."""
    store, path = parquet
    with pytest.raises(DataFrameError, match=r"50 rows, not 60: do all nodes see the same store\?"):
        next(Share(store, path, COLUMNS, Steps(60, 0, 1, 4)).batches())


def test_a_store_names_and_keeps_files(tmp_path: Path) -> None:
    """Under Horovod's names."""
    pytest.importorskip("pyarrow")
    store = Store.create(str(tmp_path / "work"), runs_path=str(tmp_path / "runs"))
    assert store.get_val_data_path() == f"file://{tmp_path}/work/intermediate_val_data"
    assert store.get_logs_path("a") == f"file://{tmp_path}/runs/a/logs"
    path = f"{store.get_checkpoint_path('a')}/{store.get_checkpoint_filename()}"
    assert not store.exists(path)
    store.write(path, b"abc")
    assert store.read(path) == b"abc"
    (tmp_path / "local" / "sub").mkdir(parents=True)
    (tmp_path / "local" / "sub" / "x.ckpt").write_text("x")
    store.sync(str(tmp_path / "local"), "a")
    assert (tmp_path / "runs" / "a" / "sub" / "x.ckpt").read_text() == "x"
    assert Store.create(str(tmp_path), save_runs=False).get_checkpoint_path("a") is None
    assert HDFSStore("/work", host="name", port=8020).prefix_path == "hdfs://name:8020/work"
    assert Store.create("s3://bucket/work/").get_runs_path() == "s3://bucket/work/runs"


def test_a_store_that_cannot_be_written_says_which(tmp_path: Path) -> None:
    """With the file system's reason."""
    pytest.importorskip("pyarrow")
    (tmp_path / "file").write_text("")
    store = Store.create(str(tmp_path / "file"))
    with pytest.raises(StoreError, match=r"cannot be written: .*The store is file://.*/file"):
        store.write(f"{store.prefix_path}/a/b", b"")
    with pytest.raises(StoreError, match="cannot be read"):
        store.read(f"{store.prefix_path}/a/b")
    full = OSError(28, "No space left on device")
    assert "there is no room left" in str(store.error("written", "x", full))
