"""What every rank of an estimator's training is told, whatever the framework."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.spark.common.data import TrainingData
from workbench.spark.common.shards import Share, Steps
from workbench.spark.common.store import Store


@dataclass(frozen=True)
class Spec:
    """One training. The names are those of :class:`workbench.spark.common.params.EstimatorParams`.

    Args:
        data, store, run_id: what is trained on, and where checkpoints go.
        removed: names of columns that ``transformation_fn`` removes.
        others: see there.
    """

    data: TrainingData
    store: Store
    run_id: str
    feature_cols: Sequence[str]
    label_cols: Sequence[str]
    sample_weight_col: str | None
    batch_size: int
    val_batch_size: int
    epochs: int
    train_steps_per_epoch: int | None
    validation_steps_per_epoch: int | None
    shuffle: bool
    random_seed: int | None
    verbose: int
    use_gpu: bool
    gradient_compression: Any
    backward_passes_per_step: int
    transformation_fn: Callable[[Any], Any] | None
    label_shapes: Sequence[Sequence[int]] | None
    loss_weights: Sequence[float] | None

    def training(self, rank: int, size: int) -> Share:
        """A rank's share of the data to train with."""
        steps = Steps(
            self.data.train_rows, rank, size, self.batch_size, self.train_steps_per_epoch, self.backward_passes_per_step
        )
        seed = self.random_seed or 0
        return Share(self.store, self.data.train, self.data.columns, steps, self.shuffle, seed, self.transformation_fn)

    def validation(self, rank: int, size: int) -> Share | None:
        """A rank's share of the data to validate with, if there is any."""
        if not self.data.val:
            return None
        steps = Steps(self.data.val_rows, rank, size, self.val_batch_size, self.validation_steps_per_epoch)
        return Share(self.store, self.data.val, self.data.columns, steps, transform=self.transformation_fn)
