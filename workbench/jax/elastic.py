"""Elastic training with JAX: ``hvd.elastic.run`` and ``JaxState``, which Horovod does not have.

::

    state = hvd.elastic.JaxState(params=params, opt_state=optimizer.init(params), step=0)

    @hvd.elastic.run
    def train(state):
        while state.step < steps:
            state.params, state.opt_state = update(state.params, state.opt_state, batch_of(state.step))
            state.step += 1
            state.commit()

The loop itself, and which error leads where, is in :mod:`workbench.elastic`. An error within ``jit`` reaches Python as
one of JAX's; :func:`run` makes ours of it again.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from workbench import elastic as core
from workbench.elastic import HostsUpdatedInterrupt as HostsUpdatedInterrupt
from workbench.elastic import ObjectState
from workbench.jax.tensors import own_errors
from workbench.job import api
from workbench.job.objects import broadcast_object

run = core.framework_run(own_errors)


class JaxState(ObjectState):
    """Pytrees of arrays, such as parameters, an optimizer's state and random keys, and plain objects beside them.

    A commit copies the arrays, so a function may take the originals over (``donate_argnums``).

    Args:
        kwargs: names and values; each is an attribute.

    Example:
        >>> import jax.numpy as jnp
        >>> import workbench.jax as hvd
        >>> hvd.init()
        >>> state = JaxState(params={"w": jnp.ones(2)}, key=jax.random.key(0), step=0)
        >>> state.sync()
        >>> state.params, state.step = jax.tree.map(lambda each: each * 2, state.params), 1
        >>> state.restore()
        >>> state.params["w"].tolist(), state.step
        ([1.0, 1.0], 0)
        >>> hvd.shutdown()
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(_broadcast, api.rank, **kwargs)


def _broadcast(values: Any) -> Any:
    """Rank 0's pytree on every rank; on rank 0 the very same."""
    found = broadcast_object(jax.tree.map(_packed, values) if api.rank() == 0 else None, 0, "elastic")
    return values if api.rank() == 0 else jax.tree.map(_unpacked, found, is_leaf=lambda each: isinstance(each, _Packed))


class _Packed(tuple[Any, str]):
    """An array as it travels, and of which kind its random keys are; "" if it has none."""

    __slots__ = ()


def _packed(leaf: Any) -> Any:
    if not isinstance(leaf, jax.Array):
        return leaf
    if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):  # these cannot be pickled
        return _Packed((np.asarray(jax.random.key_data(leaf)), str(jax.random.key_impl(leaf))))
    return _Packed((np.asarray(leaf), ""))


def _unpacked(leaf: Any) -> Any:
    if not isinstance(leaf, _Packed):
        return leaf
    array, kind = leaf
    return jax.random.wrap_key_data(array, impl=kind) if kind else jax.numpy.asarray(array)
