"""``horovod.common.basics``: one object with all that is common to the frameworks."""

from __future__ import annotations

from typing import Any

from workbench.job import api, built


class HorovodBasics:
    """``init``, ``rank``, ``size``, ``mpi_built`` … as methods.

    Args:
        pkg_path, args: where Horovod would look for its compiled library; there is none here.

    Example:
        >>> HorovodBasics().is_initialized(), HorovodBasics(__file__, "mpi_lib").ddl_built()
        (False, False)
    """

    def __init__(self, pkg_path: str = "", *args: str) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        for module in (api, built):
            if not name.startswith("_") and hasattr(module, name):
                return getattr(module, name)
        raise AttributeError(f"HorovodBasics.{name}: the workbench does not have it (yet).")
