"""Data sets of tf.data are shared in equal parts."""

from __future__ import annotations

from pathlib import Path

import pytest
from converting import both, decided, trained
from installed import needs

pytest.importorskip("libcst")

from workbench.convert.check.compare import Comparison, table

LOOP = """\
import tensorflow as tf
tf.random.set_seed(0)
def make(n):
    return tf.data.Dataset.from_tensor_slices((tf.random.normal([n, 2]), tf.ones([n, 1]))).batch(4)
data = make(9)
model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
optimizer = tf.keras.optimizers.SGD(0.1)
for x, y in data:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - y) ** 2)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
"""


@pytest.mark.parallel
@pytest.mark.usefixtures("warm_tensorflow")
@pytest.mark.timeout(180)
def test_nine_samples_are_five_for_each_of_two_ranks(tmp_path: Path) -> None:
    """Both make as many steps as one rank did. A script with Keras' fit trains in two ranks as in one."""
    needs("tensorflow")
    fits = (Path(__file__).resolve().parents[1] / "corpus" / "keras_convnet.py").read_text()
    (one, two), (alone, ranks) = trained(both([LOOP, fits]), tmp_path)
    assert [each.steps for each in two] == [3, 3] == [one.steps] * 2
    comparison = Comparison([alone], ranks)
    assert comparison.agrees, table(comparison)


def test_what_else_reads_the_data_set_is_left_to_decide() -> None:
    """It reads a share. So is a function that makes the validation's data set, too."""
    assert not decided(LOOP)
    assert "this rank's share" in decided(LOOP.replace("for x, y in data", "norm.adapt(data)\nfor x, y in data"))[0][1]
    assert "several data sets" in decided(f"{LOOP}other = make(3)\n")[0][1]


def test_a_sum_over_samples_is_left_to_decide() -> None:
    """If something after the loop reads it."""
    text = f"{LOOP}    right += tf.reduce_sum(model(x) - y)\n"
    assert not decided(text)
    assert "op=hvd.Sum" in decided(f"{text}print(right / 9)\n")[0][1]


def test_a_source_of_unknown_length_is_left_to_decide() -> None:
    """One rank may have a batch more."""
    text = LOOP.replace("from_tensor_slices((tf.random.normal([n, 2]), tf.ones([n, 1])))", "from_generator(rows)")
    assert "a batch more" in decided(text)[0][1]
