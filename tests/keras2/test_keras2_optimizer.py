"""DistributedOptimizer around the optimizers of Keras 2, those of Keras 2.11 and the legacy ones before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from thorough import diagonal, once_more, quick
from twins2 import OPTIMIZERS, assert_same_everywhere, compiled, data, net, train

import workbench.keras as hvd
import workbench.tensorflow as tf_hvd
from workbench.keras.flavour import LEGACY, keras

KINDS = {"new": keras.optimizers, "legacy": keras.optimizers.legacy}
APPLY = {"new": {"skip_gradients_aggregation": True}, "legacy": {"experimental_aggregate_gradients": False}}


@pytest.mark.parametrize("name", quick(OPTIMIZERS, "legacy Adam"))
def test_fit_equals_the_serial_run(name: str, n: int) -> None:
    """From a seed of its own on every rank: the serial run's weights and optimizer state, equal on all ranks."""
    assert LEGACY
    train(n, OPTIMIZERS[name])


@pytest.mark.parametrize("kind", KINDS)
def test_the_wrapper_is_the_optimizer(kind: str) -> None:
    """Its class, its settings and its configuration are the wrapped one's, and make one again, as Horovod's do."""
    plain = KINDS[kind].Adam(0.25)
    mine = hvd.DistributedOptimizer(plain)
    assert isinstance(mine, KINDS[kind].Adam)
    assert mine.__class__.__name__ == "Adam"
    assert mine.get_config() == plain.get_config()
    assert (
        mine.from_config(mine.get_config()).get_config() == mine.__class__.from_config(plain.get_config()).get_config()
    )
    assert float(np.asarray(mine.lr)) == 0.25
    mine.learning_rate = 0.5
    assert float(np.asarray(plain.learning_rate)) == 0.5
    assert type(hvd.DistributedOptimizer(mine)._inner) is type(plain), "wrapped once"


class Adds(keras.optimizers.legacy.Optimizer):
    """A legacy optimizer that adds the gradient."""

    def get_config(self) -> Any:
        """Of the base."""
        return super().get_config()

    def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
        return var.assign_add(grad)


def adder(kind: str) -> Any:
    """An optimizer that adds the gradient."""
    return Adds("adds") if kind == "legacy" else keras.optimizers.SGD(-1.0)


def by_apply(optimizer: Any, gradient: Any, variable: Any) -> None:
    """Hand gradients over, as a loop of one's own does."""
    optimizer.apply_gradients(zip([gradient], [variable], strict=True))


def by_aggregate(optimizer: Any, gradient: Any, variable: Any) -> None:
    """Reduce first, apply later."""
    kind = "legacy" if isinstance(optimizer, keras.optimizers.legacy.Optimizer) else "new"
    optimizer.apply_gradients(reduced(optimizer, [(gradient, variable)]), **APPLY[kind])


def by_compute(optimizer: Any, gradient: Any, variable: Any) -> None:
    """What minimize() does, in its two steps."""
    old = isinstance(optimizer, keras.optimizers.legacy.Optimizer)
    compute = optimizer._compute_gradients if old else optimizer.compute_gradients
    optimizer.apply_gradients(compute(lambda: tf.reduce_sum(gradient * variable), [variable]))


def by_minimize(optimizer: Any, gradient: Any, variable: Any) -> None:
    """In one step."""
    optimizer.minimize(lambda: tf.reduce_sum(gradient * variable), [variable])


@pytest.mark.parametrize("graph", quick([False, True], True), ids=["eager", "function"])
@pytest.mark.parametrize(("kind", "way"), diagonal(KINDS, [by_apply, by_aggregate, by_compute, by_minimize], most=2))
def test_passes_add_up_by_every_way(kind: str, way: Any, graph: bool, n: int, rank: int) -> None:
    """Each gradient is reduced once, by whatever way it comes; the step is taken after the last of four passes.

    Meanwhile ``iterations`` counts passes, as Horovod's does.
    """
    for mean in (True, False):
        options: dict[str, Any] = {"backward_passes_per_step": 4, "average_aggregated_gradients": mean}
        optimizer = hvd.DistributedOptimizer(adder(kind), **options)
        _ = optimizer.iterations
        gradient, variable = tf.constant([rank + 1.0]), tf.Variable([0.0])
        if not isinstance(optimizer, keras.optimizers.legacy.Optimizer):
            optimizer.build([variable])

        def step(optimizer: Any = optimizer, gradient: Any = gradient, variable: Any = variable) -> None:
            way(optimizer, gradient, variable)

        step = tf.function(step) if graph else step
        for passes in range(1, 10):
            step()
            steps = passes // 4
            wanted = steps * (n + 1) / 2 * (1 if mean else 4)
            assert variable.numpy()[0] == pytest.approx(wanted)
            assert optimizer.iterations.numpy() == passes


@pytest.mark.parametrize("way", [by_apply, by_aggregate, by_compute, by_minimize])
@pytest.mark.parametrize("kind", quick(KINDS, "legacy"))
def test_a_sum_is_summed_once(kind: str, way: Any, n: int, rank: int) -> None:
    """With op=Sum a second reduction would show."""
    optimizer, variable = hvd.DistributedOptimizer(adder(kind), op=hvd.Sum), tf.Variable([0.0])
    for steps in (1, 2):
        way(optimizer, tf.constant([rank + 1.0]), variable)
        assert variable.numpy()[0] == steps * n * (n + 1) / 2


def reduced(optimizer: Any, pairs: Any) -> Any:
    """Reduce, and apply later or never."""
    old = isinstance(optimizer, keras.optimizers.legacy.Optimizer)
    return (optimizer._aggregate_gradients if old else optimizer.aggregate_gradients)(pairs)


@pytest.mark.parametrize("kind", quick(KINDS, "new"))
def test_a_step_given_up_leaves_the_next_one_reduced(kind: str, n: int, rank: int) -> None:
    """What is reduced and never applied, by an error or for a log, spares no other gradient its reduction."""
    optimizer, variable = hvd.DistributedOptimizer(adder(kind)), tf.Variable([0.0])
    reduced(optimizer, [(tf.constant([100.0]), variable)])
    for steps in (1, 2):
        by_apply(optimizer, tf.constant([rank + 1.0]), variable)
        assert variable.numpy()[0] == steps * (n + 1) / 2
    if kind == "legacy":
        optimizer._compute_gradients(lambda: tf.reduce_sum(variable), [variable])
        by_apply(optimizer, tf.constant([rank + 1.0]), variable)
        assert variable.numpy()[0] == 3 * (n + 1) / 2


@pytest.mark.parametrize("kind", quick(KINDS, "new"))
def test_reduced_for_a_log_and_applied_from_the_start(kind: str, n: int, rank: int) -> None:
    """Gradients that were reduced only to look at them are reduced again when they are applied, sums too."""
    optimizer, variable = hvd.DistributedOptimizer(adder(kind), op=hvd.Sum), tf.Variable([0.0])
    gradient = tf.constant([rank + 1.0])
    for steps in (1, 2):
        reduced(optimizer, [(gradient, variable)])
        by_apply(optimizer, gradient, variable)
        assert variable.numpy()[0] == steps * n * (n + 1) / 2


@pytest.mark.parametrize("kind", quick(KINDS, "new"))
def test_the_reduced_ones_need_no_flag(kind: str, n: int, rank: int) -> None:
    """The very gradients that were handed out are not reduced again; clipped ones of a mean come out the same."""
    for op, wanted in ((hvd.Sum, n * (n + 1) / 2), (hvd.Average, (n + 1) / 4)):
        optimizer, variable = hvd.DistributedOptimizer(adder(kind), op=op), tf.Variable([0.0])
        pairs = reduced(optimizer, [(tf.constant([rank + 1.0]), variable)])
        optimizer.apply_gradients(pairs if op is hvd.Sum else [(each / 2, of) for each, of in pairs])
        assert variable.numpy()[0] == wanted


@pytest.mark.parametrize("kind", quick(KINDS, "legacy"))
def test_clipped_sums_need_the_flag(kind: str, n: int, rank: int) -> None:
    """Where a second reduction would be wrong the text names the flag, with which clipped ones are applied as is."""
    optimizer, variable = hvd.DistributedOptimizer(adder(kind), op=hvd.Sum), tf.Variable([0.0])
    pairs = reduced(optimizer, [(tf.constant([rank + 1.0]), variable)])
    clipped = [(each / 2, of) for each, of in pairs]
    with pytest.raises(RuntimeError, match=next(iter(APPLY[kind]))):
        optimizer.apply_gradients(clipped)
    assert variable.numpy()[0] == 0.0
    optimizer.apply_gradients(clipped, **APPLY[kind])
    assert variable.numpy()[0] == n * (n + 1) / 4


@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", quick(KINDS, "new"))
def test_local_layers(kind: str, n: int, rank: int) -> None:
    """What a layer or a registered variable gets stays on its rank, divided by the number of ranks; the rest not."""
    local, common = keras.layers.Dense(1, use_bias=False, name="local"), tf.Variable([[0.0]])
    local.build((None, 1))
    (kernel,) = local.trainable_weights
    registered = tf.Variable([[0.0]])
    kernel.assign([[0.0]])
    optimizer = hvd.PartialDistributedOptimizer(adder(kind), local_layers=local)
    optimizer.register_local_var(registered)
    if kind == "new":
        optimizer.build([kernel, registered, common])
    gradient = tf.constant([[rank + 1.0]])
    optimizer.apply_gradients([(gradient, kernel), (gradient, registered), (gradient, common)])
    assert kernel.numpy()[0, 0] == registered.numpy()[0, 0] == (rank + 1) / n
    assert common.numpy()[0, 0] == (n + 1) / 2


@pytest.mark.ranks(2)
@pytest.mark.parametrize(("kind", "mean"), diagonal(KINDS, [True, False]))
def test_local_variables_add_up_their_passes(kind: str, mean: bool, n: int, rank: int) -> None:
    """Every pass of a local variable counts, as of a shared one; the counter of Horovod's suite is where it was."""
    local, common = tf.Variable([0.0]), tf.Variable([0.0])
    optimizer = hvd.DistributedOptimizer(adder(kind), backward_passes_per_step=3, average_aggregated_gradients=mean)
    optimizer.register_local_var(local)
    if kind == "new":
        optimizer.build([local, common])
    for number in range(4):
        gradient = tf.constant([(rank + 1.0) * 4.0**number])
        optimizer.apply_gradients([(gradient, local), (gradient, common)])
    share = 21.0 / (3 if mean else 1)
    np.testing.assert_allclose(local.numpy(), [share * (rank + 1) / n], rtol=1e-6)
    np.testing.assert_allclose(common.numpy(), [share * (n + 1) / 2], rtol=1e-6)
    assert int(optimizer._agg_helper.counter.numpy()) == 1


@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", quick(KINDS, "legacy"))
def test_gradients_of_a_tape_come_reduced(kind: str, n: int, rank: int) -> None:
    """``_compute_gradients(loss, variables, tape=tape)``, and applying them does not reduce again."""
    variable = tf.Variable([0.0])
    optimizer = hvd.DistributedOptimizer(adder(kind), op=hvd.Sum)
    with tf.GradientTape() as tape:
        loss = variable * (rank + 1.0)
    pairs = optimizer._compute_gradients(loss, [variable], tape=tape)
    optimizer.apply_gradients(pairs)
    assert pairs[0][0].numpy() == variable.numpy() == n * (n + 1) / 2


@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", quick(KINDS, "new"))
def test_process_sets(kind: str, rank: int) -> None:
    """Each set averages over its own ranks."""
    alone = hvd.add_process_set([0])
    try:
        optimizer, variable = hvd.DistributedOptimizer(adder(kind), process_set=alone), tf.Variable([0.0])
        by_minimize(optimizer, tf.constant([rank + 1.0]), variable)
        assert variable.numpy()[0] == rank + 1
    finally:
        hvd.remove_process_set(alone)


@pytest.mark.parametrize(
    ("kind", "inside"),
    [once_more("new", False), ("legacy", True), once_more("new", True), once_more("legacy", False)],
    ids=["new-outside", "legacy-inside", "new-inside", "legacy-outside"],
)
def test_loss_scale(kind: str, inside: bool, n: int, rank: int) -> None:
    """Under mixed_float16 Keras 2 asks for the reduction before it looks for infs: one rank's skips all ranks' step."""
    keras.mixed_precision.set_global_policy("mixed_float16")
    optimizer = KINDS[kind].SGD(0.05)
    if inside:
        optimizer = keras.mixed_precision.LossScaleOptimizer(optimizer)
    optimizer = hvd.DistributedOptimizer(optimizer)
    keras.utils.set_random_seed(5)
    model = keras.Sequential(
        [keras.layers.Dense(2, input_shape=(3,)), keras.layers.Activation("linear", dtype="float32")]
    )
    compiled(model, optimizer)
    assert hasattr(model.optimizer, "inner_optimizer")
    # Small, so that no rank's gradients times 2**15, the first scale, leave float16's range by themselves.
    x, y = np.full((4, 3), (rank + 1) / (8 * n), "float32"), np.full((4, 2), 0.25, "float32")
    model.train_on_batch(x, y)
    before, scale = model.get_weights(), float(model.optimizer.loss_scale)
    assert_same_everywhere(model)
    model.train_on_batch(x * (np.inf if rank == n - 1 else 1), y)
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert float(model.optimizer.loss_scale) == scale / 2
    model.train_on_batch(x, y)
    assert any((a != b).any() for a, b in zip(before, model.get_weights(), strict=True))
    assert_same_everywhere(model)


@pytest.mark.parametrize("kind", quick(KINDS, "new"))
def test_tensorflow_s_own_function_wraps_them_too(kind: str, n: int, rank: int) -> None:
    """``horovod.tensorflow.DistributedOptimizer`` is the same around an optimizer of Keras 2."""
    optimizer, variable = tf_hvd.DistributedOptimizer(adder(kind)), tf.Variable([0.0])
    by_apply(optimizer, tf.constant([rank + 1.0]), variable)
    assert variable.numpy()[0] == (n + 1) / 2


def test_xla_is_refused() -> None:
    """What XLA compiles cannot talk to other ranks: the text says how to leave it out."""
    model = net()
    x, y = data(1)
    compiled(model, hvd.DistributedOptimizer(keras.optimizers.SGD(0.05)), jit_compile=True)
    with pytest.raises(Exception, match="jit_compile=False"):
        model.train_on_batch(x, y)


def test_another_kind_is_refused() -> None:
    """The text names what is needed, and which Keras this process uses."""
    with pytest.raises(ValueError, match=f"Keras {keras.__version__}"):
        hvd.DistributedOptimizer(object())


@pytest.mark.thorough
@pytest.mark.skipif(keras.__name__ != "tf_keras", reason="needs tf_keras beside Keras 3")
def test_an_optimizer_of_keras_3_is_refused() -> None:
    """Where the variable is set already the text does not say to set it, but to unset it or to use tf_keras."""
    import keras as keras_3

    with pytest.raises(ValueError, match=r"take optimizers from it .* or unset that variable") as caught:
        hvd.DistributedOptimizer(keras_3.optimizers.SGD())
    assert "set TF_USE_LEGACY_KERAS=1" not in str(caught.value)
