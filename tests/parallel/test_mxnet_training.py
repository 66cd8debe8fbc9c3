"""Training with MXNet on n ranks is the serial training with all ranks' batches as one.

Run by ``make legacy-test``; skipped where MXNet is missing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

mx = pytest.importorskip("mxnet")

import workbench.mxnet as hvd  # noqa: E402 - only where MXNet is
from workbench import data  # noqa: E402
from workbench.errors import MismatchError  # noqa: E402

BATCH, STEPS = 8, 5
PREFIXES = (f"net{i}_" for i in itertools.count())  # a name of its own for each network
Make = Callable[[Any], Any]  # parameters → trainer


def network(seed: int = 0) -> Any:
    """Two layers of known shape, with weights that the seed decides."""
    net = mx.gluon.nn.HybridSequential(prefix=next(PREFIXES))
    with net.name_scope():
        net.add(mx.gluon.nn.Dense(16, activation="relu", in_units=64), mx.gluon.nn.Dense(10, in_units=16))
    mx.random.seed(seed)
    net.initialize(mx.init.Xavier())
    return net


def weights(net: Any) -> list[Any]:
    """The values of all parameters."""
    return [parameter.data().asnumpy() for parameter in net.collect_params().values()]


def batches(ranks: range) -> list[tuple[Any, Any]]:
    """For each step the images and labels of these ranks, of the real digits."""
    digits, size = data.digits(), hvd.size()
    found = []
    for step in range(STEPS):
        rows = [(step * size + r) * BATCH + i for r in ranks for i in range(BATCH)]
        found.append((mx.nd.array(digits.train_x[rows].reshape(-1, 64)), mx.nd.array(digits.train_y[rows])))
    return found


def train(net: Any, trainer: Any, ranks: range) -> list[Any]:
    """Train on the batches of these ranks, as in MXNet's own tutorial; the weights afterwards."""
    loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    for x, y in batches(ranks):
        with mx.autograd.record():
            loss = loss_of(net(x), y)
        loss.backward()
        trainer.step(len(x))
    return weights(net)


def serial(optimizer: str, options: dict[str, Any]) -> list[Any]:
    """The oracle: MXNet alone, with the batches of all ranks."""
    net = network()
    trainer = mx.gluon.Trainer(net.collect_params(), optimizer, dict(options), kvstore=None)
    return train(net, trainer, range(hvd.size()))


def mine() -> range:
    """This rank, as a range."""
    return range(hvd.rank(), hvd.rank() + 1)


def check_all_alike(values: list[Any]) -> None:
    """All ranks have these values, to the last bit."""
    for other in hvd.allgather_object(values):
        for one, two in zip(values, other, strict=True):
            np.testing.assert_array_equal(one, two)


def check_close(values: list[Any], wanted: list[Any], rtol: float = 1e-4, atol: float = 2e-6) -> None:
    """The same but for rounding."""
    for one, two in zip(values, wanted, strict=True):
        np.testing.assert_allclose(one, two, rtol=rtol, atol=atol)


WAYS: dict[str, Callable[[Any, str, dict[str, Any]], Any]] = {
    "DistributedOptimizer": lambda params, name, options: mx.gluon.Trainer(
        params, hvd.DistributedOptimizer(mx.optimizer.create(name, **options)), kvstore=None
    ),
    "DistributedOptimizer, groups, predivide": lambda params, name, options: mx.gluon.Trainer(
        params, hvd.DistributedOptimizer(mx.optimizer.create(name, **options), 4.0, 3), kvstore=None
    ),
    "DistributedTrainer": lambda params, name, options: hvd.DistributedTrainer(params, name, options, prefix="one."),
    "DistributedTrainer, groups, predivide": lambda params, name, options: hvd.DistributedTrainer(
        params, mx.optimizer.create(name, **options), gradient_predivide_factor=4.0, num_groups=9
    ),
}


# Adam divides by gradients, and would magnify their rounding where they are next to nothing; not with this epsilon.
@pytest.mark.parametrize(
    ("optimizer", "options"),
    [("sgd", {"learning_rate": 0.3, "momentum": 0.9, "wd": 0.01}), ("adam", {"learning_rate": 0.01, "epsilon": 1e-3})],
)
@pytest.mark.parametrize("way", WAYS)
def test_training_is_the_serial_training(way: str, optimizer: str, options: dict[str, Any]) -> None:
    """Each rank with its batch gets the weights of one process with all batches; all ranks get the same bits."""
    net = network(seed=hvd.rank())
    hvd.broadcast_parameters(net.collect_params(), root_rank=0)
    trainer = WAYS[way](net.collect_params(), optimizer, options)
    ended = train(net, trainer, mine())
    check_all_alike(ended)
    check_close(ended, serial(optimizer, options))


@pytest.mark.filterwarnings("ignore:Parameters already initialized:UserWarning")  # as MXNet's own examples do it
def test_module_fit_is_the_serial_fit(rank: int, n: int) -> None:
    """``Module.fit`` with the wrapped optimizer gives the weights of a fit on whole batches."""
    symbol = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=10, name="fc")
    symbol = mx.sym.SoftmaxOutput(symbol, name="softmax")

    def fit(ranks: range, seed: int, wrap: Callable[[Any], Any], together: bool) -> dict[str, Any]:
        parts = batches(ranks)
        images, labels = (mx.nd.concat(*[part[i] for part in parts], dim=0) for i in range(2))
        reader = mx.io.NDArrayIter(images, labels, batch_size=len(parts[0][0]))
        module = mx.mod.Module(symbol, context=mx.cpu())
        module.bind(data_shapes=reader.provide_data, label_shapes=reader.provide_label)
        mx.random.seed(seed)
        module.init_params(mx.init.Xavier())
        found, auxiliary = module.get_params()
        if together:
            hvd.broadcast_parameters(found, root_rank=0)
            hvd.broadcast_parameters(auxiliary, root_rank=0)
            module.set_params(found, auxiliary)
        options = {"learning_rate": 0.5, "momentum": 0.9, "rescale_grad": 1 / len(parts[0][0])}
        module.fit(reader, optimizer=wrap(mx.optimizer.create("sgd", **options)), num_epoch=2)
        return {name: value.asnumpy() for name, value in module.get_params()[0].items()}

    ended = fit(mine(), rank, hvd.DistributedOptimizer, together=True)
    wanted = fit(range(n), 0, lambda optimizer: optimizer, together=False)
    assert sorted(ended) == sorted(wanted) == ["fc_bias", "fc_weight"]
    check_all_alike(list(ended.values()))
    check_close([ended[name] for name in wanted], list(wanted.values()))


def test_sparse_gradients(rank: int, n: int) -> None:
    """An embedding's ``row_sparse`` gradients, of other rows on every rank, are those of the whole batch."""

    def step(words: list[int], make: Make) -> Any:
        table = mx.gluon.nn.Embedding(2 * n + 2, 3, sparse_grad=True, prefix=next(PREFIXES))
        table.initialize(mx.init.One())
        trainer = make(table.collect_params())
        for _ in range(2):
            with mx.autograd.record():
                loss = (table(mx.nd.array(words)) ** 2).sum()
            loss.backward()
            trainer.step(len(words))
        assert table.weight.list_grad()[0].stype == "row_sparse"
        return table.weight.data().asnumpy()

    def words_of(r: int) -> list[int]:
        return [2 * n, r, r]  # one that all have, and one of its own, twice

    options = {"learning_rate": 0.1}
    wanted = step([word for r in range(n) for word in words_of(r)], lambda p: mx.gluon.Trainer(p, "sgd", options))
    for make in (
        lambda p: hvd.DistributedTrainer(p, "sgd", options, compression=hvd.Compression.fp16),
        lambda p: mx.gluon.Trainer(p, hvd.DistributedOptimizer(mx.optimizer.create("sgd", **options)), kvstore=None),
    ):
        check_close([step(words_of(rank), make)], [wanted])


@pytest.mark.parametrize("predivide", [1.0, 8.0])
def test_half_precision_on_the_way(rank: int, n: int, predivide: float) -> None:
    """With fp16 compression a gradient is the average of its half-precision forms, and stays float32."""
    net = network()
    trainer = hvd.DistributedTrainer(
        net.collect_params(), "sgd", compression=hvd.Compression.fp16, gradient_predivide_factor=predivide
    )
    values = [np.float32(1.0005 * (r + 1)) for r in range(n)]
    gradients = [parameter.list_grad()[0] for parameter in net.collect_params().values()]
    for gradient in gradients:
        gradient[:] = values[rank]
    trainer.allreduce_grads()
    average = np.mean([float(np.float16(value)) if n > 1 else value for value in values])
    for gradient in gradients:
        assert gradient.dtype == np.float32
        assert gradient.asnumpy() == pytest.approx(average, rel=2.0**-10)
    if n > 1:
        assert np.all(np.float16(gradients[0].asnumpy()).astype("float32") == gradients[0].asnumpy())


def test_gradients_can_be_changed_before_the_update(rank: int, n: int) -> None:
    """``allreduce_grads()``, clipping and ``update()`` see the same averages on every rank."""
    net = network()
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 1.0})
    before = weights(net)
    x, y = batches(mine())[0]
    with mx.autograd.record():
        loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()(net(x), y)
    loss.backward()
    trainer.allreduce_grads()
    gradients = [parameter.list_grad()[0] for parameter in net.collect_params().values()]
    check_all_alike([gradient.asnumpy() for gradient in gradients])
    mx.gluon.utils.clip_global_norm(gradients, 0.01)
    clipped = [gradient.asnumpy() for gradient in gradients]
    trainer.update(1)
    check_close(weights(net), [old - step for old, step in zip(before, clipped, strict=True)])


@pytest.mark.ranks(2)
@pytest.mark.parametrize("way", ["optimizer", "trainer"])
def test_who_is_not_in_the_set_trains_alone(way: str, rank: int, n: int) -> None:
    """Members get the serial training on the members' batches; another rank the one on its own."""
    some = hvd.add_process_set(range(1, n))
    options = {"learning_rate": 0.3}
    net = network()
    if way == "optimizer":
        optimizer = hvd.DistributedOptimizer(mx.optimizer.create("sgd", **options), process_set=some)
        trainer = mx.gluon.Trainer(net.collect_params(), optimizer, kvstore=None)
    else:
        trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", options, process_set=some)
    ended = train(net, trainer, mine())
    oracle = network()
    alone = mx.gluon.Trainer(oracle.collect_params(), "sgd", options, kvstore=None)
    check_close(ended, train(oracle, alone, range(1, n) if rank else range(1)))
    hvd.remove_process_set(some)
    with pytest.raises(ValueError, match="not registered"):
        hvd.DistributedTrainer(network().collect_params(), "sgd", process_set=some)


# --- the same start -----------------------------------------------------------------------------------


def test_broadcast_parameters(rank: int, n: int) -> None:
    """Every rank gets the root's values, of a block's parameters and of plain arrays; something else is refused."""
    root = n - 1
    net = network(seed=rank)
    assert hvd.broadcast_parameters(net.collect_params(), root_rank=root, prefix="a.") is None
    check_close(weights(net), weights(network(seed=root)), rtol=0, atol=0)
    arrays = {"w": mx.nd.array([rank, 1.0]), "v": mx.nd.array([rank], dtype="int64")}
    hvd.broadcast_parameters(arrays, root)
    assert (arrays["w"].asnumpy().tolist(), arrays["v"].asscalar()) == ([root, 1.0], root)
    hvd.broadcast_parameters({})
    with pytest.raises(ValueError, match="collect_params"):
        hvd.broadcast_parameters([arrays["w"]])


def lazy(seed: int) -> Any:
    """Two layers that learn their input's width from the first batch."""
    net = mx.gluon.nn.HybridSequential(prefix=next(PREFIXES))
    with net.name_scope():
        net.add(mx.gluon.nn.Dense(4), mx.gluon.nn.BatchNorm(), mx.gluon.nn.Dense(2))
    mx.random.seed(seed)
    net.initialize(mx.init.Xavier())
    return net


@pytest.mark.parametrize("hybrid", [False, True])
def test_parameters_without_a_shape_are_broadcast_later(hybrid: bool, rank: int, n: int) -> None:
    """After the first batch all have the root's values; a parameter is broadcast once, then it is the rank's own."""
    net, x = lazy(rank), mx.nd.ones((3, 5))
    if hybrid:
        net.hybridize()
    hvd.broadcast_parameters(net.collect_params(), root_rank=0)
    mx.random.seed(100 + rank)  # MXNet draws the values now
    net(x).wait_to_read()
    check_all_alike(weights(net))
    if rank == 0:  # alone, so nobody would answer
        net.initialize(mx.init.One(), force_reinit=True)
        net(x).wait_to_read()
        assert weights(net)[0].tolist() == np.ones((4, 5)).tolist()


@pytest.mark.ranks(2)
def test_some_ranks_may_have_shapes_already(rank: int, n: int) -> None:
    """Where a rank has used its network before, the others get its values with their first batch."""
    net, x = lazy(rank), mx.nd.ones((3, 5))
    if rank == 1:
        net(x).wait_to_read()
    hvd.broadcast_parameters(net.collect_params(), root_rank=1)
    net(x).wait_to_read()
    check_all_alike(weights(net))


@pytest.mark.ranks(2)
def test_networks_of_other_shapes_are_an_error(rank: int, n: int) -> None:
    """A rank whose network is another one makes an error on every rank, and no hang."""
    net = mx.gluon.nn.Dense(3, in_units=2 + (rank == 0), prefix=f"same{next(PREFIXES)}")
    net.initialize()
    with pytest.raises(MismatchError, match="weight"):
        hvd.broadcast_parameters(net.collect_params())
    assert hvd.allreduce(mx.nd.ones(1), average=False).asscalar() == n


# --- the optimizer is the wrapped one -----------------------------------------------------------------


def test_attributes_are_the_wrapped_optimizers() -> None:
    """What a trainer or a user sets on the wrapper acts on the update: learning rate, multipliers, ``rescale_grad``."""
    inner = mx.optimizer.create("sgd", learning_rate=0.5, rescale_grad=0.25)
    optimizer = hvd.DistributedOptimizer(inner)
    assert isinstance(optimizer, mx.optimizer.Optimizer)
    net = network()
    net[0].weight.lr_mult = 0.0
    trainer = mx.gluon.Trainer(net.collect_params(), optimizer, kvstore=None)
    trainer.set_learning_rate(0.125)
    assert (inner.lr, trainer.learning_rate, optimizer.learning_rate) == (0.125, 0.125, 0.125)
    before = weights(net)
    after = train(net, trainer, mine())
    assert inner.rescale_grad == optimizer.rescale_grad == 0.25 / BATCH
    np.testing.assert_array_equal(before[0], after[0])
    assert np.abs(before[1] - after[1]).max() > 0
    optimizer.set_lr_mult({"x": 2.0})
    optimizer.set_wd_mult({"x": 3.0})
    assert (inner.lr_mult["x"], inner.wd_mult["x"]) == (2.0, 3.0)
    assert hvd.DistributedOptimizer(optimizer).wrapped is inner


def test_states_are_saved_and_loaded(tmp_path: Path) -> None:
    """A training that is saved and gone on with elsewhere ends as the one that was not interrupted."""
    options = {"learning_rate": 0.1, "momentum": 0.9}

    def fresh() -> tuple[Any, Any]:
        net = network()
        optimizer = hvd.DistributedOptimizer(mx.optimizer.create("sgd", **options))
        return net, mx.gluon.Trainer(net.collect_params(), optimizer, kvstore=None)

    net, trainer = fresh()
    train(net, trainer, mine())
    trainer.save_states(str(tmp_path / "states"))
    net.save_parameters(str(tmp_path / "weights"))
    wanted = train(net, trainer, mine())
    again, other = fresh()
    again.load_parameters(str(tmp_path / "weights"))
    other.load_states(str(tmp_path / "states"))
    check_close(train(again, other, mine()), wanted, rtol=0, atol=0)


def test_what_is_wrong_is_said(n: int) -> None:
    """A wrapped optimizer given to the trainer is unwrapped with a warning; a wrong number of groups is refused."""
    inner = mx.optimizer.create("sgd")
    with pytest.warns(UserWarning, match="averages the gradients itself"):
        trainer = hvd.DistributedTrainer(network().collect_params(), hvd.DistributedOptimizer(inner))
    assert trainer.optimizer is inner
    with pytest.raises(ValueError, match="num_groups=-1"):
        hvd.DistributedOptimizer(inner, num_groups=-1)
    net = mx.gluon.nn.Dense(1, in_units=1, prefix=next(PREFIXES))
    net.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    twice = hvd.DistributedTrainer(net.collect_params(), "sgd")
    with pytest.raises(ValueError, match="one device"):
        twice.allreduce_grads()
