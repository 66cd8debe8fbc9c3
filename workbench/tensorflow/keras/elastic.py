""":mod:`workbench.keras.elastic`, by the name that TensorFlow's scripts use."""

from workbench.keras import elastic as _elastic
from workbench.keras.elastic import *  # noqa: F403 - all of it

__all__ = [*_elastic.__all__]
