"""A driver: an elastic job on Ray's nodes, which says each step that it makes, until a file tells it to end.

Arguments: how the job is made (``ElasticRayExecutor``, or ``RayExecutor`` with ``min_workers``), and the file.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray

from workbench.ray import ElasticRayExecutor, RayExecutor


def train(stop: str) -> dict[str, Any]:
    """Sum up the numbers of the steps, until the file is there."""
    import workbench as hvd
    from workbench import elastic
    from workbench.job.objects import broadcast_object
    from workbench.ray import ray_logger

    hvd.init()
    state = elastic.ObjectState(broadcast_object, hvd.rank, step=0, sum=np.zeros(1000), over=False)

    @elastic.run
    def steps(state: Any) -> None:
        while not state.over:
            state.sum = state.sum + hvd.allreduce(np.full(1000, state.step, np.float64), name="mean")
            state.step += 1
            state.over = bool(hvd.allreduce(np.array([float(Path(stop).exists())]), name="over")[0] > 0)
            if hvd.rank() == 0:
                ray_logger.log({"step": state.step, "size": hvd.size()})
            state.commit()
            time.sleep(0.02)

    steps(state)
    right = bool((state.sum == sum(range(state.step))).all())
    return {"rank": hvd.rank(), "size": hvd.size(), "step": state.step, "right": right}


def main(way: str, stop: str) -> None:
    """Run it, and say what comes."""
    ray.init(address="auto", log_to_driver=False)
    say = lambda found: print(json.dumps(found), flush=True)  # noqa: E731 - pickled by nobody
    began = time.monotonic()
    executor: Any
    if way == "ElasticRayExecutor":
        settings = ElasticRayExecutor.create_settings(min_num_proc=2, max_num_proc=4, cooldown_range=(1, 2))
        executor = ElasticRayExecutor(settings, env_vars={"WORKBENCH_PEER_TIMEOUT_S": "4"})
        executor.start()
        say({"start_s": time.monotonic() - began})
        say({"results": executor.run(lambda: train(stop), callbacks=[say])})
    else:
        executor = RayExecutor(RayExecutor.create_settings(), min_workers=2, max_workers=4)
        executor.start(extra_env_vars={"WORKBENCH_PEER_TIMEOUT_S": "4"})
        say({"start_s": time.monotonic() - began})
        for _ in range(2):
            say({"results": executor.run(train, (stop,), callbacks=[say])})
        executor.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
