"""``horovod.tensorflow.util``: helpers that tests and scripts written for Horovod take from there."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf


def _executing_eagerly() -> bool:
    return bool(tf.executing_eagerly())


def _make_subgraph(f: Callable[..., Any]) -> Any:
    return tf.function(f)


def _cache(f: Callable[..., Any]) -> Callable[..., Any]:
    """Remember the results by the arguments; those of a graph are not for eager mode."""
    found: dict[Any, Any] = {}

    @functools.wraps(f)
    def wrapper(*args: Any) -> Any:
        key = args, _executing_eagerly()
        if key not in found:
            found[key] = f(*args)
        return found[key]

    return wrapper


def vars_to_refs(vars: Any) -> Any:
    """Variables as what can be a key: a list, which may have lists in it, as a tuple."""
    return tuple(map(vars_to_refs, vars)) if isinstance(vars, list) else vars.ref()


def refs_to_vars(refs: Any) -> Any:
    """The variables again."""
    return list(map(refs_to_vars, refs)) if isinstance(refs, tuple) else refs.deref()
