"""Numbers and tensors in nested dicts and lists, such as a ``state_dict()``: by path, as bytes, and compared."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

NOT_HERE = "not here"
"""In the place of a shard's number."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def leaves(tree: Any, path: str = "") -> dict[str, Any]:
    """What is not a dict, list or tuple itself, in the tree's order.

    Example:
        >>> leaves({"state": {0: {"step": 3}}, "groups": [{"lr": 0.1}]})
        {'state.0.step': 3, 'groups.0.lr': 0.1}
    """
    if isinstance(tree, Mapping):
        inner = [(str(key), value) for key, value in tree.items()]
    elif isinstance(tree, (list, tuple)):
        inner = [(str(i), value) for i, value in enumerate(tree)]
    else:
        return {path: tree}
    found: dict[str, Any] = {}
    for key, value in inner:
        found |= leaves(value, f"{path}.{key}" if path else key)
    return found


def as_array(leaf: Any) -> NDArray[Any] | None:
    """A tensor or array of any framework in this machine's memory; None for anything else.

    What numpy has no dtype for (bfloat16) comes as float32, which holds the same numbers.
    """
    if hasattr(leaf, "detach") and hasattr(leaf, "cpu"):
        tensor = leaf.detach().to_dense() if str(leaf.layout) != "torch.strided" else leaf.detach()
        tensor = tensor.cpu()
        try:
            return np.asarray(tensor.numpy())
        except TypeError:
            return np.asarray(tensor.float().numpy())
    if not hasattr(leaf, "__array__"):
        return None
    array = np.asarray(leaf)
    return None if array.dtype.hasobject else array


def own_part(leaf: Any) -> tuple[Any, str]:
    """Of a DTensor this rank's shard, and which one it is; anything else itself, and ""."""
    if not (hasattr(leaf, "to_local") and hasattr(leaf, "placements")):
        return leaf, ""
    place = leaf.device_mesh.get_coordinate()
    if place is None:  # this rank is not in its mesh
        return None, NOT_HERE
    at = zip(place, leaf.placements, strict=True)
    return leaf.to_local(), ".".join(str(place) for place, how in at if not how.is_replicate())


def describe(leaf: Any) -> str:
    """Dtype and shape, or the type of what is no array.

    Example:
        >>> describe(np.zeros((3, 4))), describe(0.1)
        ('float64 (3, 4)', 'float')
    """
    if as_shape(leaf) is None:
        return type(leaf).__qualname__
    return f"{as_dtype(leaf)} {as_shape(leaf)}"


def as_shape(leaf: Any) -> tuple[int, ...] | None:
    """The shape of a tensor or array, else None."""
    return tuple(leaf.shape) if hasattr(leaf, "shape") and hasattr(leaf, "dtype") else None


def as_dtype(leaf: Any) -> str:
    """The name of a tensor's or array's dtype, the same in all frameworks."""
    return str(leaf.dtype).rpartition(".")[2]


def digest(leaf: Any) -> str:
    """A checksum of the bits, dtype and shape, 32 hexadecimal digits.

    What is neither an array nor a number nor text counts by its type alone: its ``repr`` may hold an address.
    """
    array = as_array(leaf)
    if array is None:
        text = repr(leaf) if isinstance(leaf, _PLAIN) else type(leaf).__qualname__
        return _hash(text.encode())
    return _hash(describe(leaf).encode(), np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def digest_all(digests: Mapping[str, str]) -> str:
    """One checksum of many by their paths, in whatever order they come."""
    return _hash("\n".join(f"{path} {text}" for path, text in sorted(digests.items())).encode())


def _hash(*parts: Any) -> str:
    found = hashlib.blake2b(digest_size=16)
    for part in parts:
        found.update(part)
    return found.hexdigest()


def largest_difference(one: NDArray[Any], other: NDArray[Any]) -> float:
    """The largest distance of two arrays' numbers. Equal infinities and two NaNs are no difference.

    Example:
        >>> largest_difference(np.array([1.0, np.inf, np.nan]), np.array([1.5, np.inf, np.nan]))
        0.5
    """
    same = (one == other) | ((one != one) & (other != other))
    if same.all():
        return 0.0
    return float(np.abs(one[~same].astype(np.float64) - other[~same].astype(np.float64)).max())
