"""Starts the two jobs of a data service, and ends with the sum of their exit codes."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

RUN = [sys.executable, "-m", "workbench.cli.main", "run", "--as-horovod", "-np", "2", sys.executable]
TRAIN = str(Path(__file__).with_name("data_service_train.py"))

file, *options = sys.argv[1:]
compute = subprocess.Popen([*RUN, "-m", "horovod.tensorflow.data.compute_worker", file, *options])
train = subprocess.Popen([*RUN, TRAIN, file])
try:
    until = time.monotonic() + 200
    while None in (compute.poll(), train.poll()) and not (compute.poll() or train.poll()):
        if time.monotonic() > until:
            sys.exit("the two jobs do not come to their end")
        time.sleep(0.1)
    sys.exit((compute.poll() or 0) + (train.poll() or 0))
finally:
    for each in (compute, train):
        each.terminate()
        each.wait(20)
