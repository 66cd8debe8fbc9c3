"""``model.fit`` on several ranks: on each backend of Keras it ends where the serial run with the whole batch ends."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from failed_cells import interrupted_cell
from keras_twins import (
    BACKEND,
    OPTIMIZERS,
    QUICK,
    ROWS,
    STEPS,
    Notes,
    SameEverywhere,
    assert_same_everywhere,
    begin,
    compiled,
    data,
    dense,
    difference,
    fitted,
    net,
    part,
    precision,
    train,
    twins,
)
from thorough import quick

import workbench.keras as hvd
from workbench.errors import MismatchError


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("Adam", "float64"),
        pytest.param("SGD", "float32", marks=pytest.mark.usually("torch")),
        pytest.param("SGD", "float64", marks=pytest.mark.usually("torch")),
        pytest.param("Adam", "float32", marks=pytest.mark.usually("torch")),
    ],
)
def test_fit_equals_the_serial_run(name: str, dtype: str, n: int) -> None:
    """From a seed of its own on every rank: the serial run's weights and optimizer state, equal after every epoch."""
    train(n, OPTIMIZERS[name], dtype=dtype)


@pytest.mark.thorough
@pytest.mark.usually("torch", "tensorflow")
def test_metrics_are_the_mean_of_the_ranks(n: int) -> None:
    """After MetricAverageCallback every number of an epoch is the mean of the ranks' own; History has it, too."""
    model, _ = twins()
    x, y = data(n)
    own, mean = Notes(), Notes()
    compiled(model, hvd.DistributedOptimizer(keras.optimizers.SGD(0.05)))
    callbacks = [begin(), own, hvd.callbacks.MetricAverageCallback(), mean]
    kept = model.fit(part(x), part(y), batch_size=ROWS, epochs=2, shuffle=False, verbose=0, callbacks=callbacks,
                     validation_data=(part(x)[:8], part(y)[:8]))  # fmt: skip
    for epoch, numbers in enumerate(mean.epochs):
        assert set(numbers) == {"loss", "mae", "val_loss", "val_mae"}
        everyones = [each[epoch] for each in hvd.allgather_object(own.epochs)]
        assert n == 1 or everyones[0] != everyones[1], "nothing to average"
        for name, value in numbers.items():
            assert value == pytest.approx(np.mean([each[name] for each in everyones]), rel=1e-12)
            assert kept.history[name][epoch] == value


@pytest.mark.usually("torch")
def test_a_model_is_compiled_again_while_its_old_step_is_kept(n: int, rank: int) -> None:
    """As the exception of a failed cell keeps it, on one rank: that rank, too, trains with the new optimizer."""
    model, serial = twins()
    x, y = data(n)
    compiled(model, hvd.DistributedOptimizer(keras.optimizers.SGD(0.05)))
    fitted(model, part(x), part(y), ROWS, 1, [begin()])
    kept = model.train_function if rank == 0 else None
    model.set_weights(serial.get_weights())
    compiled(model, hvd.DistributedOptimizer(keras.optimizers.SGD(0.05)))
    fitted(model, part(x), part(y), ROWS, 1, [begin()])
    fitted(compiled(serial, keras.optimizers.SGD(0.05)), x, y, ROWS * n, 1)
    assert (kept is not None) == (rank == 0)
    assert difference(model, serial) < 1e-5
    assert_same_everywhere(model)


@pytest.mark.usually("torch")
def test_run_eagerly(n: int) -> None:
    """Without any graph the end is the same."""
    train(n, epochs=1, compile_options={"run_eagerly": True})


@pytest.mark.thorough
@pytest.mark.backends("tensorflow", "jax")
@pytest.mark.usually("torch", "tensorflow")
def test_several_steps_per_execution(n: int) -> None:
    """Where Keras runs several steps as one function, the end is the same."""
    train(n, compile_options={"steps_per_execution": 2})


@pytest.mark.backends("tensorflow")
def test_xla_is_left_out_with_a_warning(n: int) -> None:
    """compile(jit_compile=True) trains without XLA, which cannot call other ranks, and says so; "auto" just trains."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model, _ = twins()
        x, y = data(n)
        compiled(model, hvd.DistributedOptimizer(keras.optimizers.SGD(0.05)), jit_compile=True)
        fitted(model, part(x), part(y), ROWS, 1, [begin(), SameEverywhere()])
    assert any("doesn't support `jit_compile=True`" in str(each.message) for each in caught), [
        str(each.message) for each in caught
    ]
    compiled(model, hvd.DistributedOptimizer(keras.optimizers.SGD(0.05)), jit_compile="auto")
    assert not model.jit_compile


@pytest.mark.parametrize("average", [pytest.param(False, marks=pytest.mark.usually("torch")), True])
def test_several_passes_per_step(average: bool, n: int) -> None:
    """Two batches that are added up, or averaged, before a step: the serial run with batches twice as large."""
    model, serial = train(
        n,
        lambda: keras.optimizers.SGD(0.02, momentum=0.9),
        reference=lambda: keras.optimizers.SGD(0.02 if average else 0.04, momentum=0.9),
        serial_rows=2 * ROWS,
        backward_passes_per_step=2,
        average_aggregated_gradients=average,
    )
    assert int(model.optimizer.iterations.value) == int(serial.optimizer.iterations.value) == 2 * STEPS // 2


@pytest.mark.usually("torch")
def test_accumulation_of_keras_own(n: int) -> None:
    """gradient_accumulation_steps of the wrapped optimizer does what it does in the serial run."""
    train(n, lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=2))


@pytest.mark.backends("tensorflow", "torch")  # JAX takes long to compile it, and has nothing of its own in it
@pytest.mark.thorough
@pytest.mark.usually("torch", "tensorflow")
def test_what_the_optimizer_does_to_gradients(n: int) -> None:
    """Clipping, decay and averages of weights see the reduced gradients, as in the serial run."""
    options: dict[str, Any] = {"global_clipnorm": 0.1, "weight_decay": 0.01, "use_ema": True}
    train(n, lambda: keras.optimizers.SGD(0.05, momentum=0.9, **options), compile_options=QUICK)


@pytest.mark.thorough
@pytest.mark.usually("torch", "tensorflow")
@pytest.mark.ranks(2)
def test_local_layers(n: int, rank: int) -> None:
    """Layers that stay local differ between ranks, the others do not; all are those of one model with n local parts."""

    def one() -> Any:
        inputs = keras.Input((5,))
        return keras.Model(inputs, dense(2, name="local")(dense(4, activation="tanh", name="common")(inputs)))

    def all_in_one() -> Any:
        common, inputs = dense(4, activation="tanh", name="common"), [keras.Input((5,)) for _ in range(n)]
        parts = [dense(2, name=f"local{i}")(common(each)) for i, each in enumerate(inputs)]
        return keras.Model(inputs, keras.layers.Concatenate(axis=1)(parts))

    with precision("float64"):
        keras.utils.set_random_seed(rank)
        model, whole = one(), all_in_one()
        local = model.get_layer("local")
        starts = hvd.allgather_object(local.get_weights())
        whole.get_layer("common").set_weights(hvd.broadcast_object(model.get_layer("common").get_weights()))
        for i, start in enumerate(starts):
            whole.get_layer(f"local{i}").set_weights(start)
        x, y = data(n)
        optimizer = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.05, momentum=0.9), local_layers=[local])
        compiled(model, optimizer)
        compiled(whole, keras.optimizers.SGD(0.05, momentum=0.9))
        callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=local.weights)
        fitted(model, part(x), part(y), ROWS, callbacks=[callback])
        fitted(whole, [part(x, i) for i in range(n)], np.concatenate([part(y, i) for i in range(n)], 1), ROWS)
        for layer, its in ((local, f"local{rank}"), (model.get_layer("common"), "common")):
            for mine, wanted in zip(layer.get_weights(), whole.get_layer(its).get_weights(), strict=True):
                np.testing.assert_allclose(mine, wanted, rtol=0, atol=1e-10)
        ends = hvd.allgather_object(local.get_weights())
        assert np.abs(ends[0][0] - ends[1][0]).max() > 0.01, "local layers differ"
        commons = hvd.allgather_object(model.get_layer("common").get_weights())
        assert all((a == b).all() for each in commons for a, b in zip(commons[0], each, strict=True))


@pytest.mark.thorough
@pytest.mark.usually("torch", "tensorflow")
@pytest.mark.parametrize("name", ["fp16", pytest.param("bf16", marks=pytest.mark.backends("torch"))])
def test_compression(name: str, n: int) -> None:
    """What travels in half precision ends close to the serial run, not on it, and equal on all ranks."""
    half = getattr(hvd.Compression, name)
    model, serial = train(n, dtype="float32", compression=half, tolerance=5e-3, compile_options=QUICK)
    assert n == 1 or difference(model, serial) > 1e-6, "nothing was compressed"


class DenseAdam(keras.optimizers.Adam):
    """Adam, for which a row without a gradient has the gradient 0."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """With dense gradients."""
        if BACKEND == "tensorflow":
            import tensorflow as tf

            grads = [tf.convert_to_tensor(each) for each in grads]
        super().apply(grads, trainable_variables)


@pytest.mark.usually("torch")
def test_layers_of_several_dtypes(n: int) -> None:
    """Gradients in bfloat16, float16 and float32 travel in one step, each as what it is, and add up over passes."""

    def several() -> Any:
        inputs = keras.Input((5,))
        x = keras.layers.Dense(4, dtype="bfloat16", name="a_bfloat16")(inputs)
        x = keras.layers.Dense(4, dtype="float16", name="b_float16")(x)
        return keras.Model(inputs, keras.layers.Dense(2, dtype="float32", name="c_float32")(x))

    train(
        n,
        lambda: keras.optimizers.SGD(0.05),
        several,
        dtype="float32",
        serial_rows=2 * ROWS,
        tolerance=0.03,
        compile_options=QUICK,
        backward_passes_per_step=2,
        average_aggregated_gradients=True,
    )


@pytest.mark.parametrize(
    "as_dense",
    [
        pytest.param(False, marks=[pytest.mark.backends("tensorflow"), pytest.mark.thorough]),
        pytest.param(True, marks=pytest.mark.usually("torch")),
    ],
    ids=["sparse", "dense"],
)
def test_embeddings(as_dense: bool, n: int) -> None:
    """Words that one rank has and the other has not, and words that come twice: sparse or dense, the serial run.

    Only TensorFlow's gradients are sparse; Adam then leaves rows without a gradient as they are.
    """
    serial_adam = DenseAdam if as_dense else keras.optimizers.Adam

    def words() -> Any:
        inputs = keras.Input((3,), dtype="int32")
        x = keras.layers.Embedding(11, 4, name="words")(inputs)
        return keras.Model(inputs, dense(2, name="head")(keras.layers.Flatten()(x)))

    with precision("float64"):
        model, serial = twins(words)
        random = np.random.default_rng(3)
        x, y = random.integers(0, 9, (STEPS * ROWS * n, 3)).astype("int32"), data(n)[1]
        x[::n] %= 4  # rank 0 has few words, some of them several times
        optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01), sparse_as_dense=as_dense)
        fitted(compiled(model, optimizer), part(x), part(y), ROWS, callbacks=[begin(), SameEverywhere()])
        fitted(compiled(serial, serial_adam(0.01), **QUICK), x, y, ROWS * n)
        assert difference(model, serial) < 1e-10


@pytest.mark.thorough
@pytest.mark.usually("torch", "tensorflow")
@pytest.mark.ranks(2)
def test_process_sets(n: int, rank: int) -> None:
    """A rank outside of the optimizer's process set trains by itself, and so does a set of one rank."""
    alone = hvd.add_process_set([0])
    try:
        with precision("float64"):
            keras.utils.set_random_seed(rank)
            model = net()
            serial = keras.models.clone_model(model)
            serial.set_weights(model.get_weights())
            x, y = data(n)
            compiled(model, hvd.DistributedOptimizer(OPTIMIZERS["SGD"](), process_set=alone), **QUICK)
            fitted(model, part(x), part(y), ROWS)
            fitted(compiled(serial, OPTIMIZERS["SGD"](), **QUICK), part(x), part(y), ROWS)
            assert difference(model, serial) < 1e-12
    finally:
        hvd.remove_process_set(alone)


@pytest.mark.parametrize(
    "how", ["apply_gradients", pytest.param("apply", marks=pytest.mark.usually("torch")), "stateless_apply"]
)
def test_a_loop_of_ones_own(how: str, n: int) -> None:
    """Whoever writes the loop gets the serial run's weights, too."""
    if (how == "stateless_apply") != (BACKEND == "jax"):
        pytest.skip("another backend's way")
    with precision("float64"):
        model, serial = twins()
        hvd.broadcast_variables(model.weights, 0)
        x, y = data(n)
        loop(model, hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), part(x), part(y), ROWS, how)
        loop(serial, keras.optimizers.Adam(0.01), x, y, ROWS * n, how)
        assert_same_everywhere(model)
        assert difference(model, serial) < 1e-10


def loop(model: Any, optimizer: Any, x: Any, y: Any, rows: int, how: str) -> None:
    """An epoch."""
    step: Callable[..., None] = {"tensorflow": tensorflow_step, "torch": torch_step, "jax": jax_step}[BACKEND]
    optimizer.build(model.trainable_variables)
    for i in range(0, len(x), rows):
        step(model, optimizer, x[i : i + rows], y[i : i + rows], how)


def tensorflow_step(model: Any, optimizer: Any, x: Any, y: Any, how: str) -> None:
    """With a tape."""
    import tensorflow as tf

    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
    gradients = tape.gradient(loss, model.trainable_variables)
    if how == "apply":
        optimizer.apply(gradients, model.trainable_variables)
    else:
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))


def torch_step(model: Any, optimizer: Any, x: Any, y: Any, how: str) -> None:
    """With backward()."""
    import torch

    model.zero_grad()
    (model(x, training=True) - torch.from_numpy(y)).square().mean().backward()
    gradients = [each.value.grad for each in model.trainable_variables]
    with torch.no_grad():
        if how == "apply":
            optimizer.apply(gradients, model.trainable_variables)
        else:
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))


def jax_step(model: Any, optimizer: Any, x: Any, y: Any, how: str) -> None:
    """All in one compiled function without state."""
    import jax

    def loss_of(trainable: Any, other: Any) -> Any:
        made, other = model.stateless_call(trainable, other, x, training=True)
        return ((made - y) ** 2).mean(), other

    @jax.jit
    def step(trainable: Any, other: Any, state: Any) -> Any:
        (_, other), gradients = jax.value_and_grad(loss_of, has_aux=True)(trainable, other)
        return *optimizer.stateless_apply(state, gradients, trainable), other

    variables = [model.trainable_variables, model.non_trainable_variables, optimizer.variables]
    trainable, state, other = step(*[[each.value for each in some] for some in variables])
    for some, values in zip(variables, (trainable, other, state), strict=True):
        for variable, value in zip(some, values, strict=True):
            variable.assign(value)


@pytest.mark.usually("torch", "tensorflow")
@pytest.mark.ranks(2)
def test_a_step_more_than_another_rank_is_named_once(rank: int) -> None:
    """In a loop without a graph: an interrupt comes to one rank within its step, and to the other after it."""
    interrupted = False

    class Interrupted(keras.optimizers.SGD):
        def update_step(self, *args: Any) -> None:
            if interrupted:
                raise KeyboardInterrupt
            super().update_step(*args)

    weights = keras.Variable(np.ones(3, "float32"), name="w")
    optimizer = hvd.DistributedOptimizer(Interrupted(0.1))

    def step() -> None:
        optimizer.apply([keras.ops.ones(3)], [weights])

    for _ in range(3):
        step()
    for name in ("once", "again"):
        interrupted = rank == 1
        interrupted_cell(step)
        interrupted = False
        if name == "again":
            hvd.broadcast_variables([weights, *optimizer.variables], 0)
        else:
            torn = "rank 0: 4 steps\n  rank 1: 3 steps and one that was interrupted halfway"
            with pytest.raises(MismatchError, match=torn):
                step()
        step()


@pytest.mark.usually("torch", "tensorflow")
def test_variables_of_the_optimizer_may_be_called_for() -> None:
    """Scripts of earlier Keras say ``optimizer.variables()``; Keras 3 has a list."""
    plain = keras.optimizers.Adam()
    plain.build([keras.Variable(np.ones(2))])
    optimizer = hvd.DistributedOptimizer(plain)
    for found in (optimizer.variables, optimizer.variables()):
        assert [each.path for each in found] == [each.path for each in plain.variables]


ALONE = {
    "learning rate": "learning rates|weights",
    "momentum": "hyperparameters",
    "momentum, loss scaled": "hyperparameters",
    "weights": "weights",
}


@pytest.mark.usually("torch", "tensorflow")
@pytest.mark.parametrize("what", quick(ALONE, "weights"))
def test_what_a_rank_does_alone_is_told(what: str, rank: int) -> None:
    """Within the steps until the first comparison, on every rank; on JAX another rate is seen by the weights."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(1)])
    rate, momentum = (0.02 if what == "learning rate" else 0.01), (0.5 if "momentum" in what else 0.9)
    plain = keras.optimizers.SGD(rate if rank else 0.01, momentum=momentum if rank else 0.9)
    plain = keras.optimizers.LossScaleOptimizer(plain) if "scaled" in what else plain
    model.compile(hvd.DistributedOptimizer(plain), "mse")
    if what == "weights" and rank:
        model.layers[0].kernel.assign_add(np.full((4, 8), 0.01, np.float32))
    x = np.random.default_rng(rank).normal(size=(32, 4)).astype(np.float32)
    with pytest.raises(Exception, match=f"Mismatched ({ALONE[what]})"):
        model.fit(x, x.sum(1, keepdims=True), batch_size=2, verbose=0)
