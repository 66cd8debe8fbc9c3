""":mod:`workbench.keras.callbacks`, by the name that TensorFlow's scripts use."""

from workbench.keras import callbacks as _callbacks
from workbench.keras.callbacks import *  # noqa: F403 - all of it

__all__ = [*_callbacks.__all__]
