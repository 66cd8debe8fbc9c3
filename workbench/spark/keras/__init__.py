"""An estimator for Keras: ``from workbench.spark.keras import KerasEstimator``."""

from workbench.spark.keras.estimator import KerasEstimator, KerasModel

__all__ = ["KerasEstimator", "KerasModel"]
