"""The compute job: ``workbench run -np 2 python -m workbench.tensorflow.data.compute_worker FILE``."""

from __future__ import annotations

import argparse
import secrets

from workbench import config
from workbench.data.registry import ComputeService
from workbench.job import api
from workbench.job.objects import broadcast_object
from workbench.runtime.control.addresses import addresses
from workbench.tensorflow.data.compute_service import TfDataServiceConfig, compute_worker_fn


def main(dispatchers: int, dispatcher_side: str, configfile: str, timeout: int) -> None:
    """Run the service until a client of it calls ``shutdown()``.

    Args:
        dispatchers: 1, or as many as there will be training ranks.
        dispatcher_side: ``compute`` or ``training``.
        configfile: is written for the training; only its owner can read it.
        timeout: seconds in which dispatchers and workers must have found each other.

    Raises:
        ValueError: the number of ranks is not a multiple of the number of dispatchers.
    """
    api.init()
    if api.size() % dispatchers:
        raise ValueError(f"{dispatchers} dispatchers cannot share {api.size()} workers evenly: change -np.")
    service = found = None
    try:
        if api.rank() == 0:
            key = secrets.token_bytes(32)
            service = ComputeService(dispatchers, api.size() // dispatchers, key, host=_host())
            workers = api.size() // dispatchers
            found = TfDataServiceConfig(dispatchers, workers, dispatcher_side, service.addresses(), key, timeout)
            found.write(configfile)
        compute_worker_fn(broadcast_object(found, 0), timeout)
    finally:
        if found is not None:
            found.remove(configfile)
        if service is not None:
            service.shutdown()


def _host() -> str:
    """Loopback, unless the job is on several hosts, or WORKBENCH_CONTROL_ADDRESS says that others will come."""
    return config.settings().control_address or (addresses()[0] if api.cross_size() > 1 else "127.0.0.1")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Run the workers of a data service.")
    parser.add_argument("configfile", help="where to write the file that the training reads")
    parser.add_argument("--dispatchers", default=1, type=int, help="how many dispatchers (1)")
    parser.add_argument("--dispatcher-side", default="compute", choices=["compute", "training"], help="who runs them")
    parser.add_argument("--timeout", default=60, type=int, help="seconds to wait for each other (60)")
    words = parser.parse_args()
    main(words.dispatchers, words.dispatcher_side, words.configfile, words.timeout)
