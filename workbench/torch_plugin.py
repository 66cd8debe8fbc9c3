"""What ``import torch`` calls in an environment that has this package: see the entry point in ``pyproject.toml``.

So ``init_process_group("workbench")`` needs no import. Whatever else it needs is imported when a group is made, by its
name, for this file stands below what it loads.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any


def register() -> None:
    """Make the backend known to torch.distributed; a second call does nothing."""
    import torch.distributed as dist

    if not dist.is_available() or "workbench" in dist.Backend.backend_list:
        return
    dist.Backend.register_backend("workbench", _make, extended_api=True, devices=["cpu"])
    # The way of init_process_group() without init_method. Nothing changes where its variables are set.
    handlers = sys.modules["torch.distributed.rendezvous"]._rendezvous_handlers
    by_variables = handlers["env"]

    def meet(url: str, *args: Any, **options: Any) -> Iterator[Any]:
        if _names_a_store(url) or not _in_a_job():
            yield from by_variables(url, *args, **options)
        else:
            yield from import_module("workbench.torch.distributed.joining").meet_in_job()

    handlers["env"] = meet


def _names_a_store(url: str) -> bool:
    from workbench import config

    return config.names_torch_store(numbers="?" not in url)  # behind it the caller has said who this is


def _in_a_job() -> bool:
    """Is this process in a job, or was it started for one?"""
    from workbench import config

    api = sys.modules.get("workbench.job.api")
    return (api is not None and api.is_initialized()) or config.launch().several


def _make(options: Any, backend_options: Any = None) -> Any:
    return import_module("workbench.torch.distributed.joining").make(options, backend_options)
