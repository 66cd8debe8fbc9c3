"""A state's values as JSON and raw arrays, and back. Nothing is unpickled: to read a checkpoint runs no code.

What JSON has stands for itself. Everything else is an object with one key, which says what it is::

    (1, b"a")            {"tuple": [1, {"bytes": "61"}]}
    {0: nan}             {"dict": [[0, {"float": "nan"}]]}
    array([1.0, 2.0])    {"array": 0}       and entry 0 of a table: name, kind, dtype, shape

The bytes of the arrays stand apart. An :class:`ArrayKind` knows one framework's: numpy's is here, and
``workbench.torch.elastic`` has that of torch's tensors.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from workbench.errors import CheckpointError

Bytes = NDArray[np.uint8]
_SEQUENCES: dict[str, Callable[[Iterable[Any]], Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}
_DICTS: dict[str, Callable[[Any], Any]] = {
    "dict": dict,
    "OrderedDict": OrderedDict,
    "Counter": lambda pairs: Counter(dict(pairs)),
}
_ADVICE = (
    "A checkpoint keeps None, numbers, texts, bytes, lists, tuples, sets, dicts, dense arrays and tensors, and the "
    "state_dict() of models, optimizers and similar objects. Keep the value outside of the state, or give it in one "
    "of these forms."
)


@dataclass(frozen=True)
class Stored:
    """An array within a state.

    Attributes:
        name: the way to it, such as ``optimizer['state'][0]['exp_avg']``.
        about: kind, dtype, shape and what else it takes to make it again; plain JSON.
        nbytes: its length.
        data: some of its bytes, from and to; where it lies on a GPU, they are copied to the host then.
    """

    name: str
    about: dict[str, Any]
    nbytes: int
    data: Callable[[int, int], Bytes]


class ArrayKind(Protocol):
    """How one framework's arrays become bytes."""

    name: str

    def fits(self, value: Any) -> bool:
        """Is it one of them?"""

    def take(self, value: Any) -> tuple[dict[str, Any], int, Callable[[int, int], Bytes]]:
        """``about`` without its kind, ``nbytes`` and ``data`` of :class:`Stored`; a ValueError says why it cannot."""

    def give(self, about: Mapping[str, Any], data: Bytes) -> Any:
        """The array again; ``data`` is its own from now on. Anything that it raises means: it cannot be made."""


class NumpyKind:
    """Arrays and numbers of numpy, those of ml_dtypes (bfloat16) too."""

    name = "numpy"

    def fits(self, value: Any) -> bool:
        return isinstance(value, np.ndarray | np.generic)

    def take(self, value: Any) -> tuple[dict[str, Any], int, Callable[[int, int], Bytes]]:
        """In C order, or in Fortran's where the array is in that."""
        array = np.asarray(value)
        if isinstance(value, np.ndarray) and type(value) is not np.ndarray:
            raise ValueError(f"a {type(value).__name__}, not a plain array")
        about: dict[str, Any] = {"dtype": _dtype_name(array.dtype), "shape": list(array.shape)}
        if isinstance(value, np.generic):
            about["scalar"] = True
        if array.flags.f_contiguous and not array.flags.c_contiguous:
            about["order"] = "F"
        flat = np.ascontiguousarray(array.T if "order" in about else array).reshape(-1).view(np.uint8)
        return about, flat.nbytes, lambda start, stop: flat[start:stop]

    def give(self, about: Mapping[str, Any], data: Bytes) -> Any:
        array = data.view(_dtype(about["dtype"])).reshape(about["shape"], order=about.get("order", "C"))
        return array[()] if about.get("scalar") else array


def _dtype_name(dtype: np.dtype[Any]) -> str:
    if dtype.type.__module__ == "ml_dtypes":
        return dtype.name
    if dtype.kind not in "biufcSUmM" or not dtype.itemsize:
        raise ValueError(f"an array of dtype {dtype}, which has no plain bytes")
    return dtype.str


def _dtype(name: str) -> np.dtype[Any]:
    if name[:1] in "<>|=":
        found = np.dtype(name)
    else:
        import ml_dtypes

        found = np.dtype(getattr(ml_dtypes, name))
    _dtype_name(found)  # a ValueError where it is none of those that are written
    return found


NUMPY = NumpyKind()


def encode(values: Mapping[str, Any], kinds: Sequence[ArrayKind] = (NUMPY,)) -> tuple[dict[str, Any], list[Stored]]:
    """Values by name as JSON, and the arrays among them. The bytes are read later, by :attr:`Stored.data`.

    Raises:
        CheckpointError: something is not plain; the text names it.

    Example:
        >>> plain, arrays = encode({"step": 3, "losses": (0.5, float("inf")), "x": np.ones(2, np.float32)})
        >>> plain
        {'step': 3, 'losses': {'tuple': [0.5, {'float': 'inf'}]}, 'x': {'array': 0}}
        >>> arrays[0].name, arrays[0].about, arrays[0].nbytes
        ('x', {'kind': 'numpy', 'dtype': '<f4', 'shape': [2]}, 8)
        >>> encode({"step": 3, "lock": object()})
        Traceback (most recent call last):
        workbench.errors.CheckpointError: 'lock' is of type object. A checkpoint keeps None, numbers, ...
    """
    encoder = _Encoder(kinds)
    plain = {}
    for name, value in values.items():
        try:
            plain[name] = encoder.plain(value, name)
        except RecursionError:
            raise CheckpointError(f"{name!r} contains itself, or is nested too deeply. {_ADVICE}") from None
    return plain, encoder.arrays


class _Encoder:
    def __init__(self, kinds: Sequence[ArrayKind]) -> None:
        self.kinds, self.arrays = kinds, list[Stored]()

    def plain(self, value: Any, name: str) -> Any:
        kind = type(value)  # a subclass would not come back as what it was
        if value is None or kind in (bool, str):
            return value
        if kind in (int, float, complex, bytes):
            return _number(value)
        if kind is list:
            return [self.plain(each, f"{name}[{i}]") for i, each in enumerate(value)]
        if kind in (tuple, set, frozenset):
            return {kind.__name__: [self.plain(each, f"{name}[{i}]") for i, each in enumerate(value)]}
        if kind in (dict, OrderedDict, Counter):
            pairs = [[self.plain(k, f"a key of {name}"), self.plain(v, f"{name}[{k!r}]")] for k, v in value.items()]
            if kind is OrderedDict and hasattr(value, "_metadata"):  # a module's: the versions of its parts
                return {"state_dict": [pairs, self.plain(value._metadata, f"{name}._metadata")]}
            return {kind.__name__: pairs}
        return self.array(value, name)

    def array(self, value: Any, name: str) -> dict[str, int]:
        for kind in self.kinds:
            if kind.fits(value):
                try:
                    about, nbytes, data = kind.take(value)
                except ValueError as error:
                    raise CheckpointError(f"{name!r} is {error}. {_ADVICE}") from None
                self.arrays.append(Stored(name, {"kind": kind.name, **about}, nbytes, data))
                return {"array": len(self.arrays) - 1}
        raise CheckpointError(f"{name!r} is of type {type(value).__name__}. {_ADVICE}")


def _number(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, complex):
        return {"complex": [_number(value.real), _number(value.imag)]}
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    return value if value.bit_length() <= 64 else {"int": hex(value)}


def decode(plain: Any, arrays: Sequence[Any]) -> Any:
    """What was encoded.

    Args:
        plain: a value of what :func:`encode` gave.
        arrays: what has been made of its arrays.

    Raises:
        ValueError: it is nothing that was.

    Example:
        >>> decode({"tuple": [1, {"dict": [[0, {"array": 0}]]}]}, ["an array"])
        (1, {0: 'an array'})
    """
    try:
        return _rebuilt(plain, arrays)
    except (TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"not of a known shape: {error}") from None


def _rebuilt(plain: Any, arrays: Sequence[Any]) -> Any:
    if isinstance(plain, list):
        return [_rebuilt(each, arrays) for each in plain]
    if not isinstance(plain, dict):
        return plain
    ((name, content),) = plain.items()
    if name == "array":
        return arrays[content]
    if name == "bytes":
        return bytes.fromhex(content)
    if name == "int":
        return int(content, 16)
    if name == "float":
        return float(content)
    if name == "complex":
        return complex(*_rebuilt(content, arrays))
    if name in _SEQUENCES:
        return _SEQUENCES[name](_rebuilt(each, arrays) for each in content)
    if name == "state_dict":
        pairs, metadata = content
        found = OrderedDict(_pairs(pairs, arrays))
        found._metadata = _rebuilt(metadata, arrays)  # type: ignore[attr-defined]  # as torch does
        return found
    return _DICTS[name](_pairs(content, arrays))


def _pairs(pairs: Any, arrays: Sequence[Any]) -> list[tuple[Any, Any]]:
    return [(_rebuilt(key, arrays), _rebuilt(value, arrays)) for key, value in pairs]
