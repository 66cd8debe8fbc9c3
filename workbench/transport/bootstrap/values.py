"""The values that ranks exchange in a bootstrap, as bytes. JSON of known shapes: to decode it runs no code."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from workbench.config import Settings
from workbench.transport.gpu.select import GpusSeen
from workbench.transport.shm.arena import Ticket


@dataclass(frozen=True)
class Problem:
    """Why a rank cannot go on; it takes the place of its value."""

    text: str


_KNOWN: dict[str, Any] = {kind.__name__: kind for kind in (Problem, GpusSeen, Settings, Ticket)}


def encode(value: Any) -> bytes:
    """None, numbers, texts, bytes, sequences, and the dataclasses above.

    Example:
        >>> decode(encode((1, "a", b"b", None, [Problem("c")])))
        (1, 'a', b'b', None, (Problem(text='c'),))
    """
    return json.dumps(value, default=_plain, separators=(",", ":")).encode()


def _plain(value: Any) -> dict[str, Any]:
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if type(value).__name__ in _KNOWN:
        return {type(value).__name__: [getattr(value, field.name) for field in fields(value)]}
    raise TypeError(f"ranks do not exchange a {type(value).__name__}")


def decode(data: bytes) -> Any:
    """What was encoded; sequences become tuples.

    Raises:
        ValueError: it is nothing that was.
    """
    try:
        return _rebuilt(json.loads(data))
    except (TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"not of a known shape: {error}") from None


def _rebuilt(plain: Any) -> Any:
    if isinstance(plain, list):
        return tuple(map(_rebuilt, plain))
    if not isinstance(plain, dict):
        return plain
    ((name, content),) = plain.items()
    if name == "bytes":
        return bytes.fromhex(content)
    kind, values = _KNOWN[name], tuple(map(_rebuilt, content))
    for (field, hint), value in zip(_hints(kind), values, strict=True):
        if not _fits(value, hint):
            raise ValueError(f"{name}.{field} is {value!r:.80}")
    return kind(*values)


@cache
def _hints(kind: type) -> tuple[tuple[str, Any], ...]:
    """By field its type; to find them takes longer than all the rest of a decode."""
    hints = get_type_hints(kind)
    return tuple((field.name, hints[field.name]) for field in fields(kind))


def _fits(value: Any, hint: Any) -> bool:
    if get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(_fits(each, get_args(hint)[0]) for each in value)
    return type(value) is hint or (hint is float and type(value) is int)
