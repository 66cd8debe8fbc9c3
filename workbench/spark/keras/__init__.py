"""An estimator for Keras: ``from workbench.spark.keras import KerasEstimator``."""

from workbench.spark.keras.estimator import KerasEstimator as KerasEstimator
from workbench.spark.keras.estimator import KerasModel as KerasModel
