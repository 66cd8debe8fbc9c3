"""TensorFlow's data service for training ranks, as Horovod has it: input pipelines run in a job of their own.

::

    workbench run -np 2 python -m workbench.tensorflow.data.compute_worker compute.json &
    workbench run -np 2 python train.py compute.json

    config = TfDataServiceConfig.read("compute.json", wait_for_file_creation=True)          # in train.py
    dataset = dataset.send_to_data_service(config, hvd.rank(), hvd.size())

Each worker prepares a part of the batches. Dispatchers, one for all ranks or one for each, run with the workers or,
with ``dispatcher_side="training"``, with the training ranks. The config file holds the key of the registry, in which
all find each other (:mod:`workbench.data.registry`), so it is for its owner alone. What TensorFlow's own servers do
not protect stands in :mod:`workbench.tensorflow.data.servers`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import tensorflow as tf

from workbench.data.registry import Addresses, ComputeClient
from workbench.errors import DeadlineError
from workbench.job import api
from workbench.tensorflow.data import servers

_APPEARS_S = 600.0  # how long a config file may take to appear


@dataclasses.dataclass(frozen=True)
class TfDataServiceConfig:
    """What both jobs must know of the service.

    Args:
        dispatchers: 1, or as many as there are training ranks.
        workers_per_dispatcher: how many workers each has.
        dispatcher_side: ``compute`` or ``training``: who runs the dispatchers.
        addresses, key: of the registry.
        timeout: seconds to wait for the others.
        file: where this was read from, for error texts; not part of what is written.
    """

    dispatchers: int
    workers_per_dispatcher: int
    dispatcher_side: str
    addresses: Addresses
    key: bytes
    timeout: int = 60
    file: str = ""

    def compute_client(self, verbose: int = 1) -> ComputeClient:
        return ComputeClient(self.addresses, self.key, verbose, self.file)

    def to_dict(self) -> Mapping[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "file"} | {"key": self.key.hex()}

    @staticmethod
    def from_dict(config: Mapping[str, Any]) -> TfDataServiceConfig:
        found = config["addresses"].items()
        addresses = {name: [(str(host), int(port)) for host, port in some] for name, some in found}
        return TfDataServiceConfig(**{**config, "key": bytes.fromhex(config["key"]), "addresses": addresses})

    def write(self, filename: str) -> None:
        """Write it to a file atomically; only this user can read it."""
        path = Path(filename)
        number, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600
        with os.fdopen(number, "w") as file:
            json.dump(self.to_dict(), file)
        Path(name).replace(path)

    @staticmethod
    def read(filename: str, wait_for_file_creation: bool = False) -> TfDataServiceConfig:
        """Take it from a file.

        Raises:
            PermissionError: another user has made the file.
            DeadlineError: it did not appear within ten minutes.
        """
        path, until = Path(filename), time.monotonic() + _APPEARS_S
        while wait_for_file_creation and not path.exists():
            if time.monotonic() > until:
                raise DeadlineError(f"{path} did not appear within {_APPEARS_S:g} s: has the compute job started?")
            time.sleep(0.1)
        with path.open() as file:
            if os.fstat(file.fileno()).st_uid != os.getuid():
                raise PermissionError(
                    f"{path} was created by another user, who could choose your data: use your own file."
                )
            return dataclasses.replace(TfDataServiceConfig.from_dict(json.load(file)), file=str(path))

    def remove(self, filename: str) -> None:
        """Delete the file, unless another service has written it anew; else the next training would read it."""
        with suppress(OSError, ValueError, TypeError, KeyError):
            if TfDataServiceConfig.read(filename).key == self.key:
                Path(filename).unlink()

    def host(self) -> str:
        """How the others of this service reach this machine."""
        local = all(host.startswith("127.") for some in self.addresses.values() for host, _ in some)
        return "localhost" if local else _address_of_this_host()


@contextmanager
def tf_data_service(compute_config: TfDataServiceConfig, rank: int) -> Iterator[str]:
    """The address of the dispatcher for a training rank.

    With dispatchers on the training's side rank 0's, or each rank's, runs as long as its block: leave it together.

    Args:
        compute_config: of the service.
        rank: of the training.

    Raises:
        TimeoutException: a dispatcher or worker did not come in time.
    """
    config, server = compute_config, None
    compute, number = config.compute_client(verbose=2), rank if config.dispatchers > 1 else 0
    if config.dispatcher_side == "training" and rank < config.dispatchers:
        server, address = servers.dispatcher(config.host())
        _warn(config)
        compute.register_dispatcher(rank, address)
    try:
        address = compute.wait_for_dispatcher_registration(number, config.timeout)
        compute.wait_for_dispatcher_worker_registration(number, config.timeout)
        yield address
    finally:
        if server is not None:
            servers.stop(server)


def send_to_data_service(
    dataset: tf.data.Dataset,
    compute_config: TfDataServiceConfig,
    rank: int,
    size: int | None = None,
    processing_mode: str = "distributed_epoch",
    reuse_dataset: bool = False,
    round_robin: bool = False,
) -> tf.data.Dataset:
    """A dataset whose elements the workers prepare; also a method of ``tf.data.Dataset``.

    Args:
        dataset: what they shall do.
        compute_config: of the service, with dispatchers on its own side.
        rank, size: of the training.
        processing_mode: as ``tf.data.experimental.service.distribute`` has it.
        reuse_dataset: all ranks share one run of the dataset.
        round_robin: and take its elements in turns.

    Raises:
        RuntimeError: the dispatchers are on the training's side: use :func:`tf_data_service`.
    """
    if compute_config.dispatcher_side == "training":
        raise RuntimeError("Dispatchers on the training's side end with the block: use tf_data_service() around fit().")
    turns = reuse_dataset and round_robin
    with tf_data_service(compute_config, rank) as address:
        return dataset.apply(
            tf.data.experimental.service.distribute(
                processing_mode=processing_mode,
                service=address,
                job_name="job" if reuse_dataset else None,
                consumer_index=rank if turns else None,
                num_consumers=size if turns else None,
            )
        )


tf.data.Dataset.send_to_data_service = send_to_data_service  # as Horovod's scripts call it


def compute_worker_fn(compute_config: TfDataServiceConfig, timeout: float | None = None) -> None:
    """What each rank of the compute job does: run a worker, and some a dispatcher, until the service is shut down.

    Args:
        compute_config: of the service.
        timeout: seconds after which a worker gives up a dispatcher that does not answer.
    """
    api.init()
    config, rank = compute_config, api.rank()
    compute, number, running = config.compute_client(verbose=2), rank // config.workers_per_dispatcher, []
    try:
        if config.dispatcher_side == "compute" and rank % config.workers_per_dispatcher == 0:
            server, address = servers.dispatcher(config.host())
            running.append(server)
            compute.register_dispatcher(number, address)
        if rank == 0:
            _warn(config)
        address = compute.wait_for_dispatcher_registration(number, config.timeout)
        running.append(servers.worker(config.host(), address, timeout))
        compute.register_worker_for_dispatcher(number, rank)
        compute.wait_for_shutdown()
    finally:
        for server in reversed(running):
            servers.stop(server)


def _address_of_this_host() -> str:
    from workbench.runtime.control.addresses import addresses

    return addresses()[0]


def _warn(config: TfDataServiceConfig) -> None:
    print(servers.WARNING.format(who=servers.who_reaches(config.host())), file=sys.stderr, flush=True)
