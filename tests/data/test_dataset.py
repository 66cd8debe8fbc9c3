"""Data: what it accepts, and the parts taken of it."""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys

import numpy as np
import pytest

from workbench.data import Data


def numbered(n_train: int = 10, n_test: int = 5) -> Data:
    """A set whose image ``i`` is filled with ``i / 100``, and whose test images go on from 50."""
    train, test = np.arange(n_train), 50 + np.arange(n_test)

    def images(numbers: np.ndarray) -> np.ndarray:
        return np.repeat(numbers / 100, 6).reshape(-1, 1, 2, 3).astype(np.float32)

    return Data("numbered", images(train), train % 3, images(test), test % 3, ("a", "b", "c"))


def numbers(images: np.ndarray) -> list[int]:
    """Which images these are."""
    return np.rint(images[:, 0, 0, 0] * 100).astype(int).tolist()


def test_limit_takes_the_first_of_each() -> None:
    """Calling limit keeps the first images with their labels; None keeps all; the original is unchanged."""
    data = numbered()
    small = data.limit(4, 2)
    assert numbers(small.train_x) == [0, 1, 2, 3]
    assert small.train_y.tolist() == [0, 1, 2, 0]
    assert numbers(small.test_x) == [50, 51]
    assert small.test_y.tolist() == [2, 0]
    assert numbers(data.limit(n_test=1).train_x) == list(range(10))
    assert repr(data.limit()) == repr(data) == "Data(numbered: 10 train + 5 test images of 1x2x3, 3 classes)"


def test_parts_do_not_hold_the_whole_set_in_memory() -> None:
    """What limit and shard return owns its memory, so that the large arrays can be freed."""
    data = numbered()
    for part in (data.limit(4, 2), data.shard(0, 2)):
        for name in ("train_x", "train_y", "test_x", "test_y"):
            assert not np.shares_memory(getattr(part, name), getattr(data, name))
            assert getattr(part, name).base is None


@pytest.mark.parametrize("wanted", [0, -1, 11])
def test_limit_refuses_what_is_not_there(wanted: int) -> None:
    """The error of limit names the argument, its value and the number of images."""
    with pytest.raises(ValueError, match=f"n_train={wanted} is not possible: the set has 10 images"):
        numbered().limit(n_train=wanted)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_shards_test_every_image_once(size: int, shuffle: bool) -> None:
    """The shards' training parts are equally long and complete; test images appear exactly once; labels fit."""
    shards = [numbered().shard(rank, size, shuffle=shuffle) for rank in range(size)]
    assert {len(shard.train_x) for shard in shards} == {-(-10 // size)}
    assert {n for shard in shards for n in numbers(shard.train_x)} == set(range(10))
    assert sorted(n for shard in shards for n in numbers(shard.test_x)) == list(range(50, 55))
    for shard in shards:
        assert [n % 3 for n in numbers(shard.train_x)] == shard.train_y.tolist()
        assert [n % 3 for n in numbers(shard.test_x)] == shard.test_y.tolist()


def test_torch_shares_the_memory() -> None:
    """data.torch copies nothing: an image changed in the array is changed in the tensor."""
    torch, data = pytest.importorskip("torch"), numbered()
    for part in ("train", "test"):
        x, y = data.arrays(part)
        tensors = data.torch(part)
        assert tensors.tensors[0].data_ptr() == x.ctypes.data
        assert tensors.tensors[1].data_ptr() == y.ctypes.data
        x[1] = 0.5
        image, label = tensors[1]
        assert image.dtype == torch.float32
        assert label.dtype == torch.int64
        assert torch.all(image == 0.5)
        assert label == y[1]
        assert len(tensors) == len(x)


def test_torch_is_imported_only_on_demand() -> None:
    """Without data.torch(), neither torch nor scikit-learn is loaded."""
    code = "import sys, workbench.data, workbench.data.sampler; print({'torch', 'sklearn'} & set(sys.modules))"
    path = {"PYTHONPATH": ":".join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=path, check=True)
    assert done.stdout.strip() == "set()"


def test_data_is_frozen_and_travels() -> None:
    """Fields cannot be exchanged, and a pickled set is the same set."""
    data = numbered()
    with pytest.raises(dataclasses.FrozenInstanceError):
        data.name = "other"  # type: ignore[misc]
    copy = pickle.loads(pickle.dumps(data))
    np.testing.assert_array_equal(copy.train_x, data.train_x)
    assert copy.classes == data.classes


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"train_x": np.zeros((3, 1, 2, 3))}, "train_x has dtype float64"),
        ({"test_x": np.zeros((5, 6), np.float32)}, r"test_x has dtype float32 and shape \(5, 6\)"),
        ({"train_y": np.zeros(10, np.int32)}, "train_y has dtype int32"),
        ({"train_y": np.zeros(9, np.int64)}, "one for each of the 10 images"),
        ({"test_y": np.full(5, 3)}, "test_y holds labels 3 to 3, but there are 3 classes"),
        ({"test_y": np.full(5, -1)}, "test_y holds labels -1 to -1"),
    ],
)
def test_unfit_arrays_are_refused(change: dict[str, np.ndarray], complaint: str) -> None:
    """A wrong dtype, shape or label is named when the set is made, not in the first training step."""
    with pytest.raises(ValueError, match=complaint):
        dataclasses.replace(numbered(), **change)


def test_unknown_part_is_refused() -> None:
    """A misspelt part names the two that exist."""
    with pytest.raises(ValueError, match="part='tset' is unknown"):
        numbered().arrays("tset")  # type: ignore[arg-type]
