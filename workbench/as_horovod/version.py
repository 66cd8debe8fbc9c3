"""``horovod.__version__``: the release whose names and semantics the workbench follows, for scripts that compare it.

It says nothing about the workbench; that is ``workbench.__version__``.
"""

__version__ = "0.28.1"
