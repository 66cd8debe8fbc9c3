"""An estimator for PyTorch: ``from workbench.spark.torch import TorchEstimator``."""

from workbench.spark.torch.estimator import TorchEstimator as TorchEstimator
from workbench.spark.torch.estimator import TorchModel as TorchModel
