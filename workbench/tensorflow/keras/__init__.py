"""``import workbench.tensorflow.keras as hvd``: :mod:`workbench.keras` by the name that TensorFlow's scripts use."""

from typing import TYPE_CHECKING

from workbench import keras as _keras
from workbench.keras import *  # noqa: F403 - all of it

if not TYPE_CHECKING:
    __all__ = _keras.__all__

    def __dir__() -> list[str]:
        return sorted(__all__)
