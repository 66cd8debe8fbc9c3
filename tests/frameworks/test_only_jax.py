"""What JAX has and the others have not: pytrees, and a compiler that must know every shape."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from failed_cells import interrupted_cell
from thorough import once_more

import workbench.jax as hvd
from workbench.errors import MismatchError, UnsupportedTensorError
from workbench.jax.host_calls import HOST_CALLS
from workbench.jax.tensors import own_errors


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


@pytest.mark.parametrize(("wrap", "kind"), [once_more(lambda f: f, "threefry2x32"), (jax.jit, "rbg")])
def test_random_keys_travel(wrap: object, kind: str) -> None:
    """Every rank draws the root's numbers: a typed key stays one of its kind; keys have no sum."""
    rank, n = hvd.rank(), hvd.size()
    mine = {"rng": jax.random.key(rank, impl=kind), "old": jax.random.PRNGKey(rank), "w": jnp.ones(2) * rank}
    made = wrap(lambda tree: hvd.broadcast_parameters(tree, root_rank=n - 1))(mine)
    right = jax.random.key(n - 1, impl=kind)
    assert made["rng"].dtype == right.dtype
    assert jax.random.normal(made["rng"], 3).tolist() == jax.random.normal(right, 3).tolist()
    assert made["old"].tolist() == jax.random.PRNGKey(n - 1).tolist()
    keys = jax.random.split(mine["rng"], n)
    gathered = wrap(hvd.allgather)(keys)
    wanted = [jax.random.key_data(jax.random.split(jax.random.key(r, impl=kind), n)) for r in range(n)]
    assert jax.random.key_data(gathered).tolist() == np.concatenate(wanted).tolist()
    assert jax.random.key_data(wrap(hvd.alltoall)(keys)).tolist() == [each[rank].tolist() for each in wanted]
    with pytest.raises(UnsupportedTensorError, match="have no sum"):
        wrap(hvd.allreduce)(mine["rng"])
    with pytest.raises(UnsupportedTensorError, match="no rows"):
        wrap(hvd.allgather)(mine["rng"])


def test_numpys_arrays_of_the_other_byte_order_are_leaves_as_others() -> None:
    """As files of astronomers hold them: JAX itself does not take them."""
    made = hvd.allreduce({"x": np.array([1.5, 2.0], ">f4")}, op=hvd.Sum)
    assert made["x"].tolist() == [1.5 * hvd.size(), 2.0 * hvd.size()]


def test_a_step_more_than_another_rank_is_named_once() -> None:
    """Outside of ``jit``: an interrupt comes to one rank within its step, and to the other after it."""
    params, interrupted = {"w": jnp.ones(3)}, False
    inner = optax.sgd(0.1)

    def update(*args: object) -> object:
        if interrupted:
            raise KeyboardInterrupt
        return inner.update(*args)

    optimizer = hvd.DistributedOptimizer(optax.GradientTransformation(inner.init, update))
    state = optimizer.init(params)
    for _ in range(3):
        optimizer.update(params, state)
    for name in ("once", "again"):
        interrupted = hvd.rank() == 1
        interrupted_cell(lambda: optimizer.update(params, state))
        interrupted = False
        if name == "again":
            hvd.broadcast_parameters(params)
        else:
            torn = "rank 0: 4 steps\n  rank 1: 3 steps and one that was interrupted halfway"
            with pytest.raises(MismatchError, match=torn):
                optimizer.update(params, state)
        optimizer.update(params, state)


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


@pytest.mark.parametrize("direct", [True, once_more(False)], ids=["XLA's memory", "copies"])
def test_large_gradients_within_jit(direct: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean on every rank, in arrays of their own: arguments stay as they are; so do results of earlier steps."""
    if not direct:
        monkeypatch.setattr(HOST_CALLS, "_direct", lambda _: False)
    rank, n = hvd.rank(), hvd.size()
    large = jnp.ones((1 << 20) + 3, jnp.float32)  # two alike: XLA computes their gradients once
    weights = {"large": large, "as large": large, "small": jnp.ones(3, jnp.float32)}
    step = jax.jit(hvd.distributed_value_and_grad(lambda w, x: sum((each * x).sum() for each in w.values())))
    results = [step(weights, jnp.float32(rank + i))[1] for i in range(3)]
    plain = jax.jit(lambda tree: (hvd.allreduce(tree), tree))  # what goes in is used afterwards, too
    reduced, kept = plain(jax.tree.map(lambda each: each * rank, weights))
    for i, grads in enumerate(results):
        for grad in jax.tree.leaves(grads):
            assert (np.asarray(grad) == (n - 1) / 2 + i).all()
    for tree, value in ((weights, 1), (reduced, (n - 1) / 2), (kept, rank)):
        assert all((np.asarray(each) == value).all() for each in jax.tree.leaves(tree))


def test_independent_collectives_keep_their_order() -> None:
    """Within jit no data says which comes first. If each rank chose by itself, they would wait for each other."""

    @jax.jit
    def many(x: jax.Array) -> list[jax.Array]:
        return [hvd.allreduce(x * i, op=hvd.Sum, name=f"order.{i}") for i in range(20)]

    for i, made in enumerate(many(jnp.ones(5))):
        assert made.tolist() == [i * hvd.size()] * 5


def test_an_error_within_jit_leaves_the_next_call_alone() -> None:
    """It is raised on every rank with its text and class, and the next compiled collective works."""
    if hvd.size() > 1:
        with pytest.raises(MismatchError, match="all ranks must have equally many rows"), own_errors():
            jax.block_until_ready(jax.jit(hvd.allgather)(jnp.ones(hvd.rank() + 1)))
    assert jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum))(jnp.ones(2)).tolist() == [hvd.size()] * 2


@pytest.mark.parametrize("wrap", [once_more(lambda f: f), jax.jit], ids=["at once", "jit"])
def test_two_optimizers_in_unlike_order_are_not_mixed(wrap: object) -> None:
    """Both trees have a leaf of one name and shape; where a rank begins with the second, all ranks get an error."""
    rank, n = hvd.rank(), hvd.size()
    updates = [wrap(hvd.DistributedOptimizer(optax.sgd(1.0)).update) for _ in range(2)]
    gradient, state = {"w": jnp.full(2, float(rank))}, optax.sgd(1.0).init({"w": jnp.ones(2)})
    for update in updates * 2:
        assert update(gradient, state)[0]["w"].tolist() == [-(n - 1) / 2] * 2

    def step() -> None:
        for update in updates[:: -1 if rank == 0 else 1]:
            jax.block_until_ready(update(gradient, state))

    if n > 1:
        with pytest.raises(MismatchError, match="Two optimizers have parameters of this name"), own_errors():
            step()


@pytest.mark.parametrize(
    ("jit", "way"), [(True, "with parameters"), (True, "without"), once_more(False, "value_and_grad")]
)
def test_a_learning_rate_of_one_rank_is_told(way: str, jit: bool) -> None:
    """By the weights, or by their changes where update() gets no parameters; equal ones are not told."""
    rank = hvd.rank()

    def train(rate: float) -> None:
        plain = optax.sgd(rate)
        wrapped = hvd.DistributedOptimizer(plain) if way != "value_and_grad" else plain

        def loss(w: jax.Array, x: jax.Array) -> jax.Array:
            return ((w * x - 1) ** 2).mean()

        gradient = hvd.distributed_value_and_grad(loss) if way == "value_and_grad" else jax.value_and_grad(loss)

        def step(w: jax.Array, state: object, x: jax.Array) -> tuple[jax.Array, object]:
            _, grads = gradient(w, x)
            updates, state = wrapped.update(grads, state, *([w] if way == "with parameters" else []))
            return optax.apply_updates(w, updates), state

        step = jax.jit(step) if jit else step
        w = jnp.ones(5)
        state = wrapped.init(w)
        for i in range(20):
            w, state = step(w, state, jnp.full(5, 1.0 + rank + i % 3))
        w.block_until_ready()
        jax.effects_barrier()

    train(0.01)
    hvd.broadcast_parameters(jnp.ones(1), 0)
    with pytest.raises(Exception, match="Mismatched weights"):
        train(0.01 * (1 + rank))
    hvd.broadcast_parameters(jnp.ones(1), 0)
