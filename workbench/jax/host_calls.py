"""Calls from compiled functions to the host, in the program's order, with XLA's memory instead of copies of it.

One call is three operations. The two at its ends are an ``io_callback(ordered=True)`` each, without arrays: JAX keeps
their order, also between functions that are compiled apart. The one between them gets the arrays::

    begin ──ticket──► call by XLA's foreign function interface ──ticket──► end
    arrays ─────────►     function(arrays)                     ──► results

A result that is as large as its argument lies where that did, as far as the program needs it no more. Elsewhere than on
the CPU, and where XLA has another interface (:mod:`workbench.jax.foreign_calls`), ``io_callback`` does all of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback

from workbench.core.backend.base import Array
from workbench.jax.foreign_calls import NAME, ForeignCalls, Run, array_at

HostFunction = Callable[[list[Array]], list[Array]]
_UNTAKEN = 16
_TICKETS = 1 << 31
# XLA's memory is numpy's; of types with less than a byte it is not.
_AS_NUMPY = frozenset(
    (
        "bool",
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "complex64",
        "complex128",
    )
)


class HostCalls:
    """The calls that compiled functions have begun, by ticket."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._begun: dict[int, Run] = {}
        self._foreign: ForeignCalls | None = None

    def call(
        self,
        function: HostFunction,
        tensors: Sequence[Any],
        results: Sequence[jax.ShapeDtypeStruct],
        lends: bool = False,
    ) -> Any:
        """Put a call into the function that is traced; its results as tracers.

        Args:
            function: of arrays.
            tensors, results: what goes in and what comes out.
            lends: the arrays are XLA's memory. Nobody may use them when the function has returned, or raised; those
                that are writeable may be written to. Otherwise they are copies, for as long as they are needed.
        """
        if not self._direct([*tensors, *results]):
            return io_callback(
                lambda *given: function([np.asarray(each) for each in given]), results, *tensors, ordered=True
            )
        same = [i for i, (one, other) in enumerate(zip(tensors, results, strict=False)) if _same(one, other)]
        inputs = [(each.shape, np.dtype(each.dtype)) for each in tensors]
        outputs = [(each.shape, np.dtype(each.dtype)) for each in results]

        def run(given: Sequence[int], wanted: Sequence[int]) -> None:
            arrays = [array_at(at, *spec) for at, spec in zip(given, inputs, strict=True)]
            for i, array in enumerate(arrays):
                array.flags.writeable = i in same
            made = function(arrays if lends else [each.copy() for each in arrays])
            for result, at, spec in zip(made, wanted, outputs, strict=True):
                _put(result, array_at(at, *spec))

        number = jax.ShapeDtypeStruct((), np.int32)  # type: ignore[no-untyped-call]
        ticket = io_callback(lambda: self._begin(run), number, ordered=True)
        call = jax.ffi.ffi_call(
            NAME, [number, *results], has_side_effect=True, input_output_aliases={0: 0} | {i + 1: i + 1 for i in same}
        )
        done, *made = call(ticket, *tensors)
        io_callback(lambda _: None, None, done, ordered=True)
        return made

    def _direct(self, tensors: Sequence[Any]) -> bool:
        """Does XLA hand over its memory here?"""
        if jax.default_backend() != "cpu" or not all(str(each.dtype) in _AS_NUMPY for each in tensors):
            return False
        if self._foreign is None:
            self._foreign = ForeignCalls(lambda ticket: self._begun.pop(ticket))
        return self._foreign.offered

    def _begin(self, run: Run) -> Any:
        # What fails between the first and the second operation never takes its ticket, so the oldest are let go.
        while len(self._begun) > _UNTAKEN:
            self._begun.pop(next(iter(self._begun)), None)
        ticket = next(self._numbers) % _TICKETS
        self._begun[ticket] = run
        return np.int32(ticket)


def _same(one: Any, other: Any) -> bool:
    return (one.shape, one.dtype) == (other.shape, other.dtype)


def _put(result: Array, target: Array) -> None:
    """Copy a result to where XLA wants it, unless it lies there."""
    if result.shape != target.shape:
        raise ValueError(f"The result should have the shape {target.shape}, not {result.shape}.")
    if result.__array_interface__["data"][0] != target.__array_interface__["data"][0] or not result.flags.c_contiguous:
        np.copyto(target, result, casting="same_kind")


HOST_CALLS = HostCalls()
