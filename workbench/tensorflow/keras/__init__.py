"""``import workbench.tensorflow.keras as hvd``: :mod:`workbench.keras` by the name that TensorFlow's scripts use."""

from workbench import keras as _keras
from workbench.keras import *  # noqa: F403 - all of it

__all__ = [*_keras.__all__]
