"""What ``import sparkdl`` finds under ``workbench run --as-horovod``: it makes way for :mod:`workbench.as_horovod`."""

import sys
from importlib import import_module

del sys.modules[__name__]
import_module("workbench.as_horovod")
import_module(__name__)  # the one that is installed, or ours
