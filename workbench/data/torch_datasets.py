"""Arrays as a torch data set. The only file of this package that imports torch."""

from __future__ import annotations

import torch
from torch.utils.data import TensorDataset

from workbench.data.dataset import Images, Labels


def tensor_dataset(x: Images, y: Labels) -> TensorDataset:
    """Wrap images and labels without copying: a change of the array is a change of the tensor.

    Args:
        x: images, float32, shape (n, channels, height, width).
        y: labels, int64, shape (n,).

    Returns:
        Item ``i`` is the pair (image ``i``, label ``i``).

    Example:
        >>> import numpy as np
        >>> len(tensor_dataset(np.zeros((3, 1, 8, 8), np.float32), np.zeros(3, np.int64)))
        3
    """
    return TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
