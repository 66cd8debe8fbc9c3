"""The training side of a data service: what its ranks get, said in one line each."""

from __future__ import annotations

import subprocess
import sys

import horovod.tensorflow as hvd
import tensorflow as tf
from horovod.tensorflow.data.compute_service import TfDataServiceConfig, tf_data_service

config = TfDataServiceConfig.read(sys.argv[1], wait_for_file_creation=True)
hvd.init()
numbers = tf.data.Dataset.range(40).map(lambda x: x * x).batch(5)


def told(dataset: tf.data.Dataset) -> list[int]:
    """All numbers of a dataset."""
    return sorted(int(each) for batch in dataset for each in batch)


def shared(address: str) -> tf.data.Dataset:
    """The dataset as Horovod's training side has it."""
    distribute = tf.data.experimental.service.distribute
    return numbers.apply(distribute(processing_mode="distributed_epoch", service=address, job_name="job"))


hvd.barrier()
with tf_data_service(config, hvd.rank()) as address:
    own = told(shared(address))
    ports = [line.split()[3] for line in subprocess.check_output(["ss", "-Hltn"], text=True).splitlines()]
    (here,) = [each for each in ports if each.endswith(f":{address.rpartition(':')[2]}")]
    hvd.barrier()  # who has its share does not end the dispatcher of others
whole = []
if config.dispatcher_side == "compute":
    whole = told(numbers.send_to_data_service(config, hvd.rank(), hvd.size()))
    hvd.barrier()
print(f"told {(own, whole, here)}")
if hvd.rank() == 0:
    config.compute_client(verbose=2).shutdown()
hvd.shutdown()
