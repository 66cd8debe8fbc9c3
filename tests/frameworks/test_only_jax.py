"""What JAX has and the others have not: pytrees, and a compiler that must know every shape."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import workbench.jax as hvd


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["at once", "jit"])
def test_pytrees_travel_as_they_are(wrap: object) -> None:
    """All leaves are reduced, and the structure stays; no leaf is no work."""
    rank, n = hvd.rank(), hvd.size()
    tree = {"w": jnp.full((2, 3), float(rank)), "more": [jnp.int32(rank), (jnp.ones(1),)], "none": None}
    made = wrap(lambda t: hvd.allreduce(t, op=hvd.Sum))(tree)
    assert jax.tree.structure(made) == jax.tree.structure(tree)
    total = n * (n - 1) // 2
    assert jax.tree.map(lambda leaf: leaf.tolist(), made) == {
        "w": [[total] * 3] * 2, "more": [total, ([n],)], "none": None,
    }  # fmt: skip
    assert wrap(lambda t: hvd.allreduce(t))({}) == {}


def test_what_only_the_run_tells_is_refused_within_jit() -> None:
    """Splits, when it is compiled; rows that differ, when it runs: on every rank, with a text that says what to do."""
    rank, n = hvd.rank(), hvd.size()
    with pytest.raises(Exception, match="alltoall\\(\\) takes no splits"):
        jax.jit(lambda x: hvd.alltoall(x, [1] * n))(jnp.ones(n))
    if n > 1:
        with pytest.raises(Exception, match="all ranks must have equally many rows"):
            jax.block_until_ready(jax.jit(hvd.allgather)(jnp.ones(rank + 1)))
    assert hvd.allgather(jnp.ones(rank + 1)).shape == (n * (n + 1) // 2,)


def test_value_and_gradient_of_all_ranks() -> None:
    """At once and within jit: this rank's value, and the average of the gradients; integers' have none."""
    rank, n = hvd.rank(), hvd.size()
    step = hvd.distributed_value_and_grad(lambda w, x: (w * x).sum())
    for function in (step, jax.jit(step)):
        value, grad = function(jnp.ones(2), jnp.float32(rank))
        assert float(value) == 2 * rank
        assert grad.tolist() == [(n - 1) / 2] * 2


def test_a_constant_within_jit_is_reduced_in_each_run() -> None:
    """Not once, when it is traced: ranks trace when they like, and run together."""
    rank, n = hvd.rank(), hvd.size()
    constant = jnp.full(2, float(rank))
    function = jax.jit(lambda x: x + hvd.allreduce(constant, op=hvd.Sum))
    function.trace(jnp.ones(2))
    if rank == 0:
        function.trace(jnp.ones(1))
    for _ in range(2):
        assert function(jnp.ones(2)).tolist() == [1 + n * (n - 1) / 2] * 2
    (grad,) = jax.grad(lambda x: (x * hvd.allreduce(constant, op=hvd.Sum)).sum(), (0,))(jnp.ones(2))
    assert grad.tolist() == [n * (n - 1) / 2] * 2
