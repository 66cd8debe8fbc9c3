"""``horovod.common.exceptions``."""

from workbench.elastic import HostsUpdatedInterrupt as HostsUpdatedInterrupt
from workbench.errors import CollectiveError

HorovodInternalError = CollectiveError
WorkersAvailableException = HostsUpdatedInterrupt  # as Horovod called it first


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    """What Horovod says when it was compiled with another version of a framework.

    Example:
        >>> get_version_mismatch_message("torch", "2.1", "2.0")
        'Framework torch installed with version 2.1 but found version 2.0.'
    """
    return f"Framework {name} installed with version {version} but found version {installed_version}."


class HorovodVersionMismatchError(ImportError):
    """A framework's version is not the one that Horovod was compiled with. Nothing here is compiled: never raised."""

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(get_version_mismatch_message(name, version, installed_version))
        self.name, self.version, self.installed_version = name, version, installed_version
