"""Scripts written for Horovod, unchanged: after ``import workbench.as_horovod``, ``import horovod.torch`` means ours.

::

    import workbench.as_horovod          # or: workbench run --as-horovod -np 2 python train.py
    import horovod.torch as hvd          # workbench.torch, under Horovod's names

A finder in ``sys.meta_path`` answers for ``horovod`` and all below it, with modules that hand each name on to ours when
it is asked for. What the workbench does not have is an ImportError or AttributeError that says so.

``workbench run --as-horovod`` does it for the ranks through PYTHONPATH: :mod:`on_path` is a folder with a
``horovod.py``, and a ``sparkdl.py``, that import this module. So it works for any command that ends in a Python
(``-m``, ``-c``, a shell script, processes that the script starts), ``__main__`` and ``sys.argv`` stay the script's own,
and nothing is left behind. Only a Python that ignores PYTHONPATH (``-I``, ``-E``), or a ``horovod`` in the script's
own folder, is not reached.

``python -m workbench.as_horovod train.py`` does the same for a program that starts ranks itself, as a driver of Spark.

A real Horovod is never hidden unless this module is imported; then it is, and one line on stderr says so.
"""

from workbench.as_horovod.finder import install

install()

__all__ = ["install"]
