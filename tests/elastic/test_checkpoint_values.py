"""What a checkpoint makes of values: equal ones come back, of equal types; everything else is refused by its name."""

from __future__ import annotations

import json
from collections import Counter, OrderedDict
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.elastic.checkpoint_values import NUMPY, decode, encode
from workbench.errors import CheckpointError

unhurried = settings(deadline=None)  # a busy machine is no failure


def there_and_back(values: dict[str, Any]) -> dict[str, Any]:
    """Through JSON as text, and through bytes."""
    plain, stored = encode(values)
    arrays = [NUMPY.give(json.loads(json.dumps(each.about)), each.data(0, each.nbytes).copy()) for each in stored]
    return {name: decode(value, arrays) for name, value in json.loads(json.dumps(plain, allow_nan=False)).items()}


def same(one: Any, two: Any) -> bool:
    """Equal in value, type and order, not-a-number too."""
    if type(one) is not type(two):
        return False
    if isinstance(one, dict):
        return same(list(one.items()), list(two.items()))
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(same, one, two))
    return bool(one == two) or (one != one and two != two)


keys = st.integers() | st.text(max_size=3) | st.booleans() | st.none() | st.tuples(st.integers(), st.text(max_size=2))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.complex_numbers() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys, inner, max_size=3)
        | st.dictionaries(keys, inner, max_size=3).map(OrderedDict)
    ),
    max_leaves=10,
)


@unhurried
@given(values)
def test_plain_values_come_back(value: Any) -> None:
    """Equal, of the same types, at any depth: 1 is not 1.0 nor True, a tuple is no list, a key may be a number."""
    assert same(there_and_back({"x": value}), {"x": value})


def test_sets_and_counters_come_back() -> None:
    """As what they were."""
    before = {"a": {1, "x"}, "b": frozenset([2.5]), "c": Counter(x=2, y=1), "d": 2**5000, "e": -0.0}
    after = there_and_back(before)
    assert after == before
    assert [type(each) for each in after.values()] == [type(each) for each in before.values()]
    assert str(after["e"]) == "-0.0"


def test_a_module_s_versions_come_back() -> None:
    """torch's ``state_dict()`` carries them as an attribute."""
    before: Any = OrderedDict(w=1)
    before._metadata = OrderedDict({"": {"version": 2}})
    after = there_and_back({"model": before})["model"]
    assert (after, after._metadata) == (before, before._metadata)


DTYPES = ["?", "i1", "u1", "<i2", ">i4", "<u8", "<f2", "<f4", ">f8", "<c8", "<c16", "S3", "<U4", "<M8[s]", "<m8[ns]"]


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("dtype", [*DTYPES, "bfloat16", "float8_e4m3fn"])
def test_arrays_come_back_byte_for_byte(dtype: str, shape: tuple[int, ...]) -> None:
    """Every dtype, bfloat16 too; every shape; in C's order, Fortran's, and as a view with steps."""
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    count = int(np.prod(shape))
    raw = np.arange(count * kind.itemsize, dtype=np.uint8) % 2  # valid for every dtype
    array = raw.view(kind).reshape(shape) if count else np.zeros(shape, kind)
    for each in (array, np.asfortranarray(array), array[..., ::-1] if shape else array):
        after = there_and_back({"x": each})["x"]
        assert (after.dtype, after.shape) == (each.dtype, each.shape)
        assert after.tobytes() == each.tobytes()
        assert after.flags.f_contiguous == each.flags.f_contiguous or not each.flags.f_contiguous
        assert after.flags.writeable


@pytest.mark.parametrize("number", [np.float32(1.5), np.int64(-3), np.bool_(True), ml_dtypes.bfloat16(2.5)], ids=repr)
def test_numpy_s_numbers_stay_numpy_s(number: Any) -> None:
    """They are not arrays without dimensions afterwards."""
    after = there_and_back({"x": [number]})["x"][0]
    assert (type(after), after) == (type(number), number)


class Sub(dict):  # type: ignore[type-arg]
    pass


RECURSIVE: list[Any] = []
RECURSIVE.append(RECURSIVE)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"deep": [0, object()]}, r"\"x\['deep'\]\[1\]\" is of type object"),
        (lambda: 0, "'x' is of type function"),
        (Sub(a=1), "'x' is of type Sub"),
        (np.array([object()]), "'x' is an array of dtype object"),
        (np.zeros(2, [("a", "i4")]), "'x' is an array of dtype"),
        (np.ma.masked_array([1.0]), "'x' is a MaskedArray"),
        (RECURSIVE, "'x' contains itself"),
    ],
    ids=["object", "function", "subclass", "objects", "fields", "masked", "recursive"],
)
def test_what_is_not_plain_is_refused_by_name(value: Any, said: str) -> None:
    """With the way to it, and what to do."""
    with pytest.raises(CheckpointError, match=f"{said}.*state_dict"):
        encode({"step": 1, "x": value})


@pytest.mark.parametrize(
    "plain",
    [
        {"__import__": ["os"]},
        {"tuple": 3},
        {"tuple": [1], "list": []},
        {},
        {"array": 5},
        {"array": "x"},
        {"bytes": "zz"},
        {"dict": [[1, 2, 3]]},
        {"dict": [[[], 2]]},
        {"int": 3},
        {"float": "one"},
        {"complex": [1, 2, 3]},
    ],
    ids=str,
)
def test_unknown_shapes_are_a_value_error(plain: Any) -> None:
    """Nothing else comes out, whatever stands in the file."""
    with pytest.raises(ValueError, match=r"."):
        decode(plain, [])


@pytest.mark.parametrize("dtype", ["|O", "object", "<f3", "__class__", "os", "V8"])
def test_a_dtype_that_is_never_written_is_never_read(dtype: str) -> None:
    """An array of objects would be made of addresses."""
    with pytest.raises((ValueError, TypeError, AttributeError)):
        NUMPY.give({"dtype": dtype, "shape": [1]}, np.zeros(8, np.uint8))
