"""An estimator for PyTorch: ``from workbench.spark.torch import TorchEstimator``."""

from workbench.spark.torch.estimator import TorchEstimator, TorchModel

__all__ = ["TorchEstimator", "TorchModel"]
