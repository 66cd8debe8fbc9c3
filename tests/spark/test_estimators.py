"""``TorchEstimator`` and ``KerasEstimator``: against the same training by hand, and what they say of bad input."""

from __future__ import annotations

import copy
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench.errors import LaunchError, RankFailedError

pytestmark = [
    pytest.mark.engines,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore"),  # Spark's own, about versions of pandas
]

ROWS, EPOCHS = 101, 3
drawn = np.random.default_rng(0)
X = drawn.normal(size=(ROWS, 4))
Y = (X @ [1.0, 2.0, 3.0, 4.0] > 0).astype(int)


@pytest.fixture(scope="module")
def df(spark: Any) -> Any:
    """An odd number of rows with a vector, an array, scalars and a column that is not trained on."""
    from pyspark.ml.linalg import Vectors

    rows = [(Vectors.dense(X[i]), X[i].tolist(), int(Y[i]), 1.0 + i % 2, f"row {i}") for i in range(ROWS)]
    return spark.createDataFrame(rows, ["vector", "array", "label", "weight", "name"]).coalesce(2).cache()


@pytest.fixture
def store(tmp_path: Path) -> Any:
    """An empty one."""
    from workbench.spark.common.store import Store

    return Store.create(str(tmp_path / "work"))


def torch_estimator(store: Any, **changes: Any) -> Any:
    """Full batches, so that the order of the rows does not matter."""
    torch = pytest.importorskip("torch")
    from workbench.spark.common.backend import LocalBackend
    from workbench.spark.torch import TorchEstimator

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2).double()
    given: dict[str, Any] = {
        "backend": LocalBackend(2),
        "store": store,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        "loss": lambda output, label: torch.nn.functional.cross_entropy(output, label.long()),
        "metrics": [lambda output, label: (output.argmax(1) == label).double().mean()],
        "feature_cols": ["vector"],
        "label_cols": ["label"],
        "batch_size": 1000,
        "epochs": EPOCHS,
        "partitions_per_process": 1,
        "verbose": 0,
    }
    return TorchEstimator(**{name: value for name, value in (given | changes).items() if value is not None})


def by_hand(model: Any, epochs: int) -> tuple[Any, list[float]]:
    """The same training in one process: the learning rate times two ranks, the mean over all samples."""
    import torch

    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(epochs):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(torch.tensor(X)), torch.tensor(Y))
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return model, losses


def difference(model: Any, other: Any) -> float:
    """The largest of all parameters."""
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


def test_torch_trains_and_predicts_as_by_hand(spark: Any, df: Any, store: Any) -> None:
    """In Spark's tasks, to 1e-12: weights, losses, and predictions beside the columns that were there."""
    from workbench.spark.common.backend import SparkBackend

    estimator = torch_estimator(store, backend=SparkBackend(2))
    before = copy.deepcopy(estimator.getModel())
    fitted = estimator.fit(df)
    model, losses = by_hand(before, EPOCHS)
    assert difference(fitted.getModel(), model) < 1e-12
    assert difference(estimator.getModel(), before) == 0
    history = fitted.getHistory()
    assert [each["train"]["loss"] for each in history] == pytest.approx(losses, abs=1e-12)
    assert 0 < history[-1]["train"]["all_metrics"][0]["group_0_label"] <= 1
    found = fitted.transform(df)
    assert found.columns == [*df.columns, "label__output"]
    weights, bias = (each.detach().numpy() for each in model.parameters())
    for row in found.collect():
        expected = X[int(row["name"].split()[1])] @ weights.T + bias
        assert np.abs(row["label__output"].toArray() - expected).max() < 1e-12
    assert Path(store.prefix_path.removeprefix("file://")).joinpath("runs", fitted.getRunId(), "checkpoint").exists()
    left = sorted(each.name for each in Path(store.prefix_path.removeprefix("file://")).iterdir())
    assert left == ["runs"]


def test_a_run_goes_on_from_its_checkpoint(df: Any, store: Any) -> None:
    """Two epochs and then one are three; the momentum is kept."""
    estimator = torch_estimator(store, epochs=2, run_id="one", feature_cols=["array"])
    first = estimator.fit(df)
    second = estimator.setEpochs(1).fit(df)
    assert difference(first.getModel(), by_hand(estimator.getModel(), 2)[0]) < 1e-12
    assert difference(second.getModel(), by_hand(estimator.getModel(), 3)[0]) < 1e-12


def test_options_of_torch(df: Any, store: Any) -> None:
    """Weights of samples, a validation's share, gradients of two batches, a scalar output, a pipeline."""
    import torch
    from pyspark.ml import Pipeline
    from pyspark.ml.feature import VectorAssembler

    model = torch.nn.Sequential(torch.nn.Linear(4, 1), torch.nn.Flatten(0))
    estimator = torch_estimator(
        store,
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=0.01),
        loss=torch.nn.functional.mse_loss,
        metrics=None,
        feature_cols=["both"],
        sample_weight_col="weight",
        validation=0.2,
        random_seed=1,
        batch_size=10,
        backward_passes_per_step=2,
        epochs=1,
    )
    wide = VectorAssembler(inputCols=["vector"], outputCol="both")
    fitted = Pipeline(stages=[wide, estimator]).fit(df)
    (history,) = fitted.stages[-1].getHistory()
    assert np.isfinite(history["validation"]["loss"])
    row = fitted.transform(df).select("label__output").first()
    assert isinstance(row[0], int)  # as the label is


def test_on_parquet_that_is_there(spark: Any, df: Any, store: Any) -> None:
    """Arrays are read as they are; the files stay."""
    path = store.get_train_data_path(5)
    df.select("array", "label").write.parquet(path)
    fitted = torch_estimator(store, feature_cols=["array"]).fit_on_parquet(dataset_idx=5)
    assert difference(fitted.getModel(), by_hand(torch_estimator(store).getModel(), EPOCHS)[0]) < 1e-12
    assert store.is_parquet_dataset(path)


def test_keras_trains_and_predicts_as_by_hand(df: Any, store: Any) -> None:
    """In Spark's tasks, to float32's precision; the checkpoint holds weights."""
    keras = pytest.importorskip("keras")
    from workbench.spark.common.backend import SparkBackend
    from workbench.spark.keras import KerasEstimator

    keras.utils.set_random_seed(1)
    layers = keras.layers
    head = layers.Dense(2, activation="softmax")
    model = keras.Sequential([keras.Input((2, 2)), layers.Flatten(), layers.Dense(3, activation="tanh"), head])
    estimator = KerasEstimator(
        backend=SparkBackend(2),
        store=store,
        model=model,
        optimizer=keras.optimizers.Adam(0.01),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
        feature_cols=["vector"],
        label_cols=["label"],
        batch_size=1000,
        epochs=EPOCHS,
        partitions_per_process=1,
        run_id="keras",
        verbose=0,
    )
    fitted = estimator.fit(df)
    alone = keras.models.clone_model(model)
    alone.set_weights(model.get_weights())
    alone.compile(keras.optimizers.Adam(0.02), "sparse_categorical_crossentropy", jit_compile=False)
    losses = alone.fit(X.reshape(-1, 2, 2), Y, batch_size=1000, epochs=EPOCHS, verbose=0).history["loss"]
    pairs = zip(alone.get_weights(), fitted.getModel().get_weights(), strict=True)
    assert max(np.abs(a - b).max() for a, b in pairs) < 1e-5
    assert fitted.getHistory()["loss"] == pytest.approx(losses, rel=2e-2)  # Keras' mean of the ranks' means
    assert float(fitted.getModel().optimizer.learning_rate) == pytest.approx(0.01)
    found = fitted.setOutputCols(["probability"]).transform(df).select("name", "probability").collect()
    expected = fitted.getModel().predict(X.reshape(-1, 2, 2), verbose=0)
    for row in found:
        assert np.abs(row[1].toArray() - expected[int(row[0].split()[1])]).max() < 1e-5
    run = Path(store.prefix_path.removeprefix("file://"), "runs", "keras")
    assert (run / "checkpoint").read_bytes()[1:4] == b"HDF"
    assert len(json.loads((run / "logs" / "history.json").read_text())) == EPOCHS


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("null", "vector is null in 50 of 101 rows"),
        ("ragged", "array has 2 to 4 numbers: other than 4 in 50 of 101 rows"),
        ("hole", "array has a null within its array in 50 of 101 rows"),
        ("text", "The column name is of type string. A model takes numbers"),
        ("missing", "The DataFrame has no column vector; it has array, label"),
        ("few", "1 row to train with for 2 ranks: each needs one"),
    ],
)
def test_bad_rows_are_counted_before_anything_is_trained(df: Any, store: Any, change: str, message: str) -> None:
    """One message with the column and the number; no file is left."""
    from pyspark.sql import functions as F

    from workbench.spark.common.columns import DataFrameError

    odd = F.col("weight") > 1.5
    holes = F.concat(F.slice("array", 1, 3), F.array(F.lit(None).cast("double")))
    changed, features = {
        "null": (df.withColumn("vector", F.when(~odd, F.col("vector"))), "vector"),
        "ragged": (df.withColumn("array", F.when(odd, F.slice("array", 1, 2)).otherwise(F.col("array"))), "array"),
        "hole": (df.withColumn("array", F.when(odd, holes).otherwise(F.col("array"))), "array"),
        "text": (df, "name"),
        "missing": (df.drop("vector"), "vector"),
        "few": (df.limit(1), "vector"),
    }[change]
    with pytest.raises(DataFrameError) as found:
        torch_estimator(store, feature_cols=[features]).fit(changed)
    assert message in str(found.value)
    work = Path(store.prefix_path.removeprefix("file://"))
    assert not work.exists() or not list(work.iterdir())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_proc": 2}, "At most one of parameters"),
        ({"model": None}, "The parameter model= is missing"),
        ({"store": "/tmp"}, "The parameter store= is '/tmp': give Store.create"),
        ({"loss": None}, "Give one of loss= and loss_constructors="),
        ({"optimizer": None}, "The parameter optimizer= is missing"),
        ({"batch_size": 0}, "batch_size=0: it is at least 1"),
        ({"loss_weights": [1.0, 2.0]}, "loss_weights=[1.0, 2.0]: one for each label"),
        ({"input_shapes": [[-1, 5]]}, "input_shapes says [-1, 5] for vector, which has 4 numbers"),
        ({"validation": 1.5}, "validation=1.5: a share of the rows"),
        ({"callbacks": [print]}, "callbacks= are Keras' own"),
        ({"categorical_cols": ["label"]}, "categorical_cols= belongs to NVTabular"),
    ],
)
def test_bad_parameters_are_refused(df: Any, store: Any, changes: dict[str, Any], message: str) -> None:
    """With what to give."""
    with pytest.raises(ValueError, match=re.escape(message)):
        torch_estimator(changes.get("store", store), **{n: v for n, v in changes.items() if n != "store"}).fit(df)


def test_an_optimizer_of_another_model_is_made_anew() -> None:
    """With its state; where the parameters differ it is an error."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("pyspark")
    from workbench.spark.common.estimator import ParameterError
    from workbench.spark.torch.estimator import optimizer_of

    model, like, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2), torch.nn.Linear(2, 2, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    assert optimizer_of(model, optimizer) is optimizer
    made = optimizer_of(like, optimizer)
    assert made.param_groups[0]["lr"] == 0.25
    assert made.param_groups[0]["params"][0] is like.weight
    with pytest.raises(ParameterError, match="optimizer= was made for another model"):
        optimizer_of(other, optimizer)


def test_an_estimator_is_not_saved_as_code(store: Any) -> None:
    """The error says what can be saved."""
    with pytest.raises(LaunchError, match="only save as pickled code"):
        torch_estimator(store).write()


def test_an_error_in_a_rank_is_the_users_own(df: Any, store: Any) -> None:
    """Here the model's number of outputs."""
    import torch

    model = torch.nn.Linear(4, 2)
    with pytest.raises(RankFailedError, match="The model has 1 outputs for 2 labels"):
        torch_estimator(
            store, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0), label_cols=["label", "weight"]
        ).fit(df)


@pytest.fixture
def little_room(tmp_path: Path) -> Iterator[Path]:
    """A file system with 64 kB."""
    folder = tmp_path / "small"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], check=False)
    if done.returncode:
        pytest.skip("this user may not mount a small file system")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)  # Spark may still be about to clean up there


def test_a_store_without_room_says_so(spark: Any, little_room: Path) -> None:
    """And which one it is."""
    from workbench.spark.common.store import Store, StoreError

    many = spark.range(100_000).selectExpr("rand() AS vector", "rand() AS label")
    with pytest.raises(StoreError, match=r"cannot be written: there is no room left .*small"):
        torch_estimator(Store.create(str(little_room))).fit(many)
