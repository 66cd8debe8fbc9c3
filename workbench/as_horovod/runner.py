"""``horovod.run``: :func:`workbench.launch.function.run`, where ``import horovod`` means the workbench in the ranks."""

import functools

from workbench.launch.function import run as _run

run = functools.partial(_run, as_horovod=True)
