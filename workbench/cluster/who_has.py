"""``who_has("x")``: the type, shape and value of a variable on each engine of the notebook's cluster."""

from __future__ import annotations

import reprlib
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from workbench.cluster.answers import Silent
from workbench.cluster.asking import ask, running
from workbench.common.table import RankTable
from workbench.common.text import spans
from workbench.observe.values.leaves import as_dtype, as_shape, digest, digest_all, leaves, own_part

_COLUMNS = ("rank", "there", "type", "shape", "dtype", "value")
_CODE = (ModuleType, FunctionType, BuiltinFunctionType, type)
_SHORT = 4  # so many numbers are shown, of more a checksum
_LARGE_BYTES = 256 << 20  # of what is larger a checksum would take longer than the deadline


def who_has(name: str = "", timeout_s: float = 2.0) -> RankTable:
    """Which ranks have a variable, and is it the same on all of them? Call it in the notebook, without ``%%px``.

    Args:
        name: of a variable in the engines' cells; without one, all of them are shown.
        timeout_s: an engine that has not answered by then is ``busy``; one that has died is ``gone``.

    Returns:
        A table by rank: type, shape and dtype of arrays and tensors, and the value: as text if it is short, else of an
        array or what has a ``state_dict()`` a checksum. Without a name a table by variable: a line for the ranks that
        have the same, and one for each other value; modules, functions and classes are left out.

    Raises:
        LaunchError: no cluster runs in this kernel.
        ValueError: not a name.

    Example:
        >>> who_has("weights")  # doctest: +SKIP
        rank  there  type          shape   dtype    value
           0  yes    torch.Tensor  (3, 4)  float32  checksum 1c7d93aa
           1  busy
        >>> who_has()  # doctest: +SKIP
        name     ranks  type          shape   dtype    value
        rank     0      int                            0
                 1      int                            1
        weights  0, 1   torch.Tensor  (3, 4)  float32  checksum 1c7d93aa
    """
    if not name:
        return _all_names(ask(running(), look_at_all, timeout_s=timeout_s))
    if not name.isidentifier():
        raise ValueError(f"{name!r} is not a name. Give the name of a variable, as in who_has('model').")
    answers = ask(running(), look, name, timeout_s=timeout_s)
    return RankTable(_COLUMNS, tuple((str(rank), *_cells(answer)) for rank, answer in sorted(answers.items())))


def _all_names(answers: dict[int, Any]) -> RankTable:
    there = {rank: answer for rank, answer in sorted(answers.items()) if isinstance(answer, dict)}
    rows = []
    for name in sorted({name for answer in there.values() for name in answer}):
        by_value: dict[tuple[str, ...], list[int]] = {}
        for rank, answer in there.items():
            if name in answer:
                by_value.setdefault(answer[name], []).append(rank)
        for i, (about, ranks) in enumerate(by_value.items()):
            rows.append(("" if i else name, spans(ranks), *about))
    foot = [f"rank {rank}: {_cells(answer)[0]}" for rank, answer in sorted(answers.items()) if rank not in there]
    return RankTable(("name", "ranks", *_COLUMNS[2:]), tuple(rows), foot=foot)


def _cells(answer: Any) -> tuple[str, ...]:
    if isinstance(answer, Silent):
        return answer.why, "", "", "", ""
    if isinstance(answer, Exception):
        return "?", "", "", "", reprlib.repr(answer)
    return ("no", "", "", "", "") if answer is None else ("yes", *answer)


def look(name: str) -> tuple[str, str, str, str] | None:
    """What an engine says: type, shape, dtype and value, or None if there is nothing of this name."""
    from IPython import get_ipython

    shell: Any = get_ipython()
    return describe(shell.user_ns[name]) if name in shell.user_ns else None


def look_at_all() -> dict[str, tuple[str, str, str, str]]:
    """What an engine says about each of its user's variables: see :func:`look`."""
    from IPython import get_ipython

    shell: Any = get_ipython()
    names = shell.user_ns.keys() - shell.user_ns_hidden.keys()
    values = {name: shell.user_ns[name] for name in names if not name.startswith("_")}
    return {name: describe(value) for name, value in values.items() if not isinstance(value, _CODE)}


def describe(value: Any) -> tuple[str, str, str, str]:
    """Type, shape, dtype and value as text.

    Example:
        >>> import numpy as np
        >>> describe(np.ones(3)), describe([1, 2])
        (('numpy.ndarray', '(3,)', 'float64', '[1.0, 1.0, 1.0]'), ('list', '', '', '[1, 2]'))
    """
    kind = type(value)
    part, shard = own_part(value)  # nothing here may begin a collective
    name = (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )
    try:
        shape = as_shape(value)
        text = _text(part, as_shape(part)) + (f", shard {shard}" if shard else "")
    except Exception as error:  # noqa: BLE001 - whatever a foreign class does when it is looked at
        return name, "", "", f"({type(error).__name__} when looked at)"
    if shape is None:
        return name, "", "", text
    device = str(getattr(value, "device", "cpu"))
    return name, str(shape), as_dtype(value) + ("" if device == "cpu" else f" on {device}"), text


def _text(value: Any, shape: tuple[int, ...] | None) -> str:
    if shape is not None:
        if getattr(value, "nbytes", 0) > _LARGE_BYTES:
            return f"{value.nbytes >> 20} MiB"
        count = 1
        for length in shape:
            count *= length
        return str(value.tolist()) if count <= _SHORT else f"checksum {digest(value)[:8]}"
    if hasattr(value, "state_dict") and not isinstance(value, type):
        state = leaves(value.state_dict())
        return f"checksum {digest_all({path: digest(own_part(leaf)[0]) for path, leaf in state.items()})[:8]}"
    return reprlib.repr(value)
