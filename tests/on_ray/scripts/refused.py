"""A driver that asks for what it cannot have. It says each error, one line of JSON each."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import ray

from workbench.ray import ElasticRayExecutor, RayExecutor, ray_logger


class Broken:
    """It cannot be made."""

    def __init__(self) -> None:
        raise ValueError("broken")


class Nobody:
    """A discovery that fails."""

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """It raises."""
        raise RuntimeError("who is there?")


def log() -> None:
    """What the callback does not expect."""
    ray_logger.log({"accuracy": 0.1})


def tell(name: str, call: Callable[[], Any]) -> None:
    """What the call raises."""
    try:
        call()
        text = "nothing"
    except Exception as error:  # noqa: BLE001 - whichever it is, the test reads it
        kinds = " ".join(kind.__name__ for kind in type(error).__mro__ if kind.__name__ != "object")
        text = f"{kinds}: {error}" if name != "callback" else f"{type(error).__name__}: {error}"
    print(json.dumps({name: text}), flush=True)


def elastic() -> None:
    """With a discovery that fails."""
    settings = ElasticRayExecutor.create_settings(min_num_proc=2, elastic_timeout=3)
    settings.discovery = Nobody()
    ElasticRayExecutor(settings, override_discovery=False).start()


def main() -> None:
    """Ask for it all."""
    ray.init(address="auto", log_to_driver=False)
    settings = RayExecutor.create_settings(timeout_s=60, placement_group_timeout_s=2)
    tell("too many", RayExecutor(settings, num_workers=9).start)
    tell("too many hosts", RayExecutor(settings, num_hosts=3).start)
    tell("no gpu", RayExecutor(settings, num_workers=1, use_gpu=True).start)
    nics = RayExecutor.create_settings(timeout_s=60, nics=["eth7"])
    tell("no interface", RayExecutor(nics, num_workers=1).start)
    executor = RayExecutor(RayExecutor.create_settings(timeout_s=60), num_workers=1)
    tell("broken class", lambda: executor.start(Broken))
    tell("no discovery", elastic)
    executor.start()
    tell("callback", lambda: executor.run(log, callbacks=[lambda info: info["loss"]]))
    executor.shutdown()
    until = time.monotonic() + 20.0
    while (free := ray.available_resources().get("CPU", 0.0)) < 4.0 and time.monotonic() < until:
        time.sleep(0.1)
    print(json.dumps({"left": free}), flush=True)


if __name__ == "__main__":
    main()
