"""One data set in memory: four arrays, and three ways to take a part of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from workbench.data.sampler import Uneven, shard_indices

if TYPE_CHECKING:
    from torch.utils.data import TensorDataset

Images: TypeAlias = NDArray[np.float32]
Labels: TypeAlias = NDArray[np.int64]
Part: TypeAlias = Literal["train", "test"]


@dataclass(frozen=True, eq=False, repr=False)
class Data:
    """Images and labels, for training and for testing.

    Args:
        name: what the set is called.
        train_x: images, float32 in [0, 1], shape (n, channels, height, width).
        train_y: the number of each image's class, int64, shape (n,).
        test_x: images that are not used for training.
        test_y: their classes.
        classes: the classes' names; ``classes[train_y[i]]`` is image ``i``'s.

    Raises:
        ValueError: a dtype, a shape or a label does not fit the above.

    Example:
        >>> images, labels = np.zeros((6, 1, 8, 8), np.float32), np.zeros(6, np.int64)
        >>> Data("blank", images, labels, images[:2], labels[:2], ("nothing",)).limit(n_train=4)
        Data(blank: 4 train + 2 test images of 1x8x8, 1 class)
    """

    name: str
    train_x: Images
    train_y: Labels
    test_x: Images
    test_y: Labels
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        for part, x, y in (("train", self.train_x, self.train_y), ("test", self.test_x, self.test_y)):
            _check_images(f"{part}_x", x)
            _check_labels(f"{part}_y", y, len(x), len(self.classes))

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.train_x.shape[1:]))
        noun = "class" if len(self.classes) == 1 else "classes"
        sizes = f"{len(self.train_x)} train + {len(self.test_x)} test images of {shape}"
        return f"Data({self.name}: {sizes}, {len(self.classes)} {noun})"

    def arrays(self, part: Part) -> tuple[Images, Labels]:
        """The images and labels of ``"train"`` or ``"test"``.

        Raises:
            ValueError: ``part`` is neither.
        """
        if part == "train":
            return self.train_x, self.train_y
        if part == "test":
            return self.test_x, self.test_y
        raise ValueError(f'part={part!r} is unknown. Choose "train" or "test".')

    def limit(self, n_train: int | None = None, n_test: int | None = None) -> Data:
        """The first images only, so that a lesson takes seconds.

        Args:
            n_train: how many training images; None keeps all.
            n_test: how many test images; None keeps all.

        Returns:
            A set with its own arrays, so the memory of the large set can be freed.

        Raises:
            ValueError: more than there are, or fewer than one.
        """
        train, test = _first("n_train", n_train, len(self.train_x)), _first("n_test", n_test, len(self.test_x))
        return self._take(train, test)

    def shard(self, rank: int, size: int, *, seed: int = 0, shuffle: bool = False, uneven: Uneven = "pad") -> Data:
        """One rank's part, fixed for the whole training.

        A :class:`~workbench.data.sampler.ShardedSampler` distributes the samples again in every epoch and is the better
        choice if all ranks can hold the whole set.

        The test images are dealt with ``"keep"``, whatever ``uneven`` says: each counts exactly once. Average
        the ranks' accuracies weighted by their numbers of test images.

        Args:
            rank: this process, from 0.
            size: number of processes.
            seed: of the shuffle; the same on every rank.
            shuffle: shuffle before dealing.
            uneven: the cure of the training set's uneven end; see :mod:`workbench.data.sampler`.

        Returns:
            A set with arrays of its own.

        Raises:
            ValueError: as :func:`~workbench.data.sampler.shard_indices`.
        """
        train = shard_indices(len(self.train_x), rank, size, seed=seed, shuffle=shuffle, uneven=uneven)
        test = shard_indices(len(self.test_x), rank, size, seed=seed, shuffle=shuffle, uneven="keep")
        return self._take(train, test)

    def torch(self, part: Part) -> TensorDataset:
        """``"train"`` or ``"test"`` for a torch ``DataLoader``, in the same memory as the arrays.

        Raises:
            ValueError: ``part`` is neither.
            ImportError: torch is not installed.
        """
        import torch  # here alone, so that data sets need no torch
        from torch.utils.data import TensorDataset

        images, labels = self.arrays(part)
        return TensorDataset(torch.from_numpy(images), torch.from_numpy(labels))

    def _take(self, train: NDArray[np.int64], test: NDArray[np.int64]) -> Data:
        """Copy the images at the given places."""
        return replace(
            self,
            train_x=self.train_x[train],
            train_y=self.train_y[train],
            test_x=self.test_x[test],
            test_y=self.test_y[test],
        )


def _first(name: str, wanted: int | None, there: int) -> NDArray[np.int64]:
    if wanted is not None and not 1 <= wanted <= there:
        raise ValueError(f"{name}={wanted} is not possible: the set has {there} images. Choose 1 to {there}, or None.")
    return np.arange(there if wanted is None else wanted)


def _check_images(name: str, x: Images) -> None:
    if x.dtype != np.float32 or x.ndim != 4:
        raise ValueError(
            f"{name} has dtype {x.dtype} and shape {x.shape}. Images must be float32 with the shape "
            f"(n, channels, height, width); use .astype(numpy.float32) and .reshape(n, 1, height, width)."
        )


def _check_labels(name: str, y: Labels, n_images: int, n_classes: int) -> None:
    if y.dtype != np.int64 or y.shape != (n_images,):
        raise ValueError(
            f"{name} has dtype {y.dtype} and shape {y.shape}. Labels must be int64, one for each of the "
            f"{n_images} images."
        )
    if n_images and not 0 <= y.min() <= y.max() < n_classes:
        raise ValueError(f"{name} holds labels {y.min()} to {y.max()}, but there are {n_classes} classes, from 0.")
