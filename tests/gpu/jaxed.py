"""JAX's arrays on GPUs: each verb on many dtypes, by itself and inside a compiled function, against numpy.

A program that each rank runs: ``python tests/gpu/jaxed.py`` prints a line of JSON. It needs no GPU, either.
"""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import workbench.jax as hvd
from workbench.job.context import HOLDER

NUMBERS = ("float32", "bfloat16", "float16", "int32", "uint8", "int8")


def given(rank: int, dtype: str) -> jax.Array:
    """What a rank gives: small whole numbers, which no order of adding them rounds."""
    return (jnp.arange(7) % 3 + rank).astype(dtype)


def wide(array: Any) -> np.ndarray:
    """On the host."""
    return np.asarray(array).astype(np.float64)


def check(dtype: str, wrong: list[str]) -> int:
    """All verbs on one dtype; how many results were looked at."""
    mine, all_of_them = given(hvd.rank(), dtype), [wide(given(rank, dtype)) for rank in range(hvd.size())]
    total, last = sum(all_of_them), all_of_them[-1]
    compiled = jax.jit(lambda x: hvd.allreduce(x * 1, op=hvd.Sum))
    numbers = dtype in NUMBERS
    found = {
        **({"allreduce": (hvd.allreduce(mine, op=hvd.Sum), total)} if numbers else {}),
        **({"allreduce in jit": (compiled(mine), total)} if numbers else {}),
        "the input": (mine, all_of_them[hvd.rank()]),
        "allgather": (hvd.allgather(mine), np.concatenate(all_of_them)),
        "broadcast": (hvd.broadcast(mine, hvd.size() - 1), last),
    }
    for name, (got, wanted) in found.items():
        if got.devices() != mine.devices() or got.dtype != mine.dtype or not np.array_equal(wide(got), wanted):
            wrong.append(f"{name}, {dtype}: {got} on {got.devices()} instead of {wanted}")
    return len(found)


def main() -> None:
    """Check on one rank; print what came of it."""
    hvd.init()
    wrong: list[str] = []
    checks = sum(check(dtype, wrong) for dtype in (*NUMBERS, "bool"))
    sets = HOLDER.get().sets
    way = sets.backend(0, "cuda").name if sets.gpu is not None else ""
    hvd.shutdown()
    print(json.dumps({"platform": jax.default_backend(), "way": way, "checks": checks, "wrong": wrong}))


if __name__ == "__main__":
    main()
